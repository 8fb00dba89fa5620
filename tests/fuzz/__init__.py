"""A fuzzer: random queries over random rows, compared with an oracle that knows only what the documentation says.

    python -m tests.fuzz --seed 0 --minutes 10

`cases` says what a case is, `draw` makes one from a seed, `oracle` answers it in plain Python, `script` writes it as a
Python script, `run` runs that script and compares, `shrink` makes a failing case small.
"""
