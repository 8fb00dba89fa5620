"""The colours of speeds: one scale for the terminal, the page and the picture.

Matplotlib's perceptually uniform *inferno*, reversed and without its black end: a free road is dark, a jam glows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anabranch.demo.traffic import FREE_SPEED

ANCHORS = (
    "#fcffa4", "#f6d746", "#fca50a", "#f37819", "#dd513a", "#bc3754", "#932667", "#6a176e", "#420a68", "#1f0c48",
)  # fmt: skip
"""From 0 km/h to FREE_SPEED, in equal steps."""

MISSING = "#39404d"
"""Where no car reported."""
BACKGROUND, INK, FAINT, LINE = "#0f1117", "#e8e6e3", "#9aa0ab", "#2b303b"
MARK = "#5ad1ff"
"""Of incidents: a hue that the scale does not have."""
OURS, THEIRS = "#fca50a", "#7d8899"
LENGTH_COLOURS = ("#fca50a", "#e5516f", "#8fa8ff")
"""Of the three window lengths, where they are lines."""

HALVES = 254
"""Speeds are kept in half km/h from 0 to this; the byte above stands for a missing one."""


def rgb(colour: str) -> tuple[int, int, int]:
    """#rrggbb as numbers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def palette() -> npt.NDArray[np.uint8]:
    """The colour of each byte that `to_bytes` gives, as 256 rows of red, green, blue."""
    speeds = np.arange(256) / 2
    anchors = np.array([rgb(a) for a in ANCHORS], dtype=float)
    at = np.linspace(0.0, FREE_SPEED, len(ANCHORS))
    colours = np.stack([np.interp(speeds, at, anchors[:, channel]) for channel in range(3)], axis=1)
    colours[HALVES + 1] = rgb(MISSING)
    return colours.round().astype(np.uint8)


def to_bytes(speeds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Speeds in half km/h, one byte each."""
    halves = np.clip(np.rint(np.nan_to_num(speeds, nan=0.0) * 2), 0, HALVES)
    result: npt.NDArray[np.uint8] = np.where(np.isnan(speeds), HALVES + 1, halves).astype(np.uint8)
    return result
