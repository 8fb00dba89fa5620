"""The colours of bars and lines that do not stand for a speed."""

OURS, THEIRS = "#fca50a", "#7d8899"
LENGTH_COLOURS = ("#fca50a", "#e5516f", "#8fa8ff")
"""One for each window length."""
