"""Splitting a stream without a bottleneck (paper 5): splitters, their cost model, and how they are tuned."""
