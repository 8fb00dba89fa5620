"""Spark plans: cost models, the choice of a strategy, the rewrite into Spark's operators, explain."""
