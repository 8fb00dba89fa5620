"""Benchmarks: peers and Anabranch in one run, on the same data; ratios, never bare times."""
