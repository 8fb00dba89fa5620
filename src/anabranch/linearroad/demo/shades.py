"""Speeds and tolls as bytes of one colour scale: what is slow or dear glows.

The scale is that of `anabranch.demo.colours`, so the terminal, the page and the picture agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anabranch.demo.colours import to_bytes
from anabranch.demo.traffic import FREE_SPEED
from anabranch.linearroad.demo.told import Floats

TOP_SPEED = 60
"""Miles per hour at the dark end: a segment's average is hardly ever more."""
TOP_TOLL = 1_000_000
"""The bright end: 2 (n - 50)² for some 750 cars."""
KIND_COLOURS = {
    "toll": "#e8890c",
    "accident": "#d6336c",
    "balance": "#2b8ae6",
    "expenditure": "#2f9e44",
    "traveltime": "#8b6cf0",
}
"""Of the kinds of answers, where they are lines: on light and dark ground."""


def speed_bytes(speeds: Floats) -> NDArray[np.uint8]:
    """Miles per hour, dark when free; NaN is grey."""
    return to_bytes(np.clip(speeds, 0, TOP_SPEED) / TOP_SPEED * FREE_SPEED)


def toll_bytes(tolls: Floats) -> NDArray[np.uint8]:
    """Tolls on a logarithmic scale, dark when there is none; NaN is grey."""
    return to_bytes((1 - toll_share(tolls)) * FREE_SPEED)


def toll_share(tolls: Floats) -> Floats:
    """Where a toll is on the scale, from 0 (none) to 1 (`TOP_TOLL` and more)."""
    share: Floats = np.clip(np.log10(np.clip(tolls, 1, None)) / np.log10(TOP_TOLL), 0, 1)
    return share
