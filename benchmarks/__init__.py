"""Benchmarks that run Anabranch and plain Spark side by side, on the same data in the same run, and report ratios.

    python -m benchmarks --help              # from the top of the repository
    python -m benchmarks windows --json

Each module named like a command is that command. `README.md` has the measured figures.
"""
