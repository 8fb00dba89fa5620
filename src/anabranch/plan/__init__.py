"""Cost models, strategy choice, the rewrite into Spark operators, explain."""
