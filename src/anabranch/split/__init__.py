"""Splitting a stream without a bottleneck: splitters, their cost model, and how they are tuned."""
