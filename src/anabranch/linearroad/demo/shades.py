"""Speeds and tolls as bytes of one colour scale: slow or expensive segments glow.

The scale is the one in `anabranch.linearroad.demo.colours`, so the terminal, the page and the picture agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anabranch.linearroad.demo.colours import TOP, to_bytes
from anabranch.linearroad.demo.road_map import Floats

LOW_SPEED, TOP_SPEED = 10, 55
"""Miles per hour at the bright and at the dark end: cars enter at 10, and averages are rarely above 55."""
LOW_TOLL, TOP_TOLL = 1_000, 1_000_000
"""The start of the logarithmic scale, and its bright end: 2 (n - 50)² for about 750 cars."""
ANY_TOLL = 0.15
"""The position of the lowest toll on the scale, so that it differs from no toll."""
KIND_COLOURS = {
    "toll": "#e8890c",
    "accident": "#d6336c",
    "balance": "#2b8ae6",
    "expenditure": "#2f9e44",
    "traveltime": "#8b6cf0",
}
"""The colours of the lines for each kind of answers, on light and dark backgrounds."""


def speed_bytes(speeds: Floats) -> NDArray[np.uint8]:
    """Miles per hour, dark when free; NaN is grey."""
    return to_bytes(speed_share(speeds) * TOP)


def speed_share(speeds: Floats) -> Floats:
    """The position of a speed on the scale, from 0 (`LOW_SPEED` or less) to 1 (`TOP_SPEED` or more)."""
    share: Floats = (np.clip(speeds, LOW_SPEED, TOP_SPEED) - LOW_SPEED) / (TOP_SPEED - LOW_SPEED)
    return share


def toll_bytes(tolls: Floats) -> NDArray[np.uint8]:
    """Tolls on a logarithmic scale, dark when there is none; NaN is grey."""
    return to_bytes((1 - toll_share(tolls)) * TOP)


def toll_share(tolls: Floats) -> Floats:
    """The position of a toll on the scale, from 0 (none) to 1 (`TOP_TOLL` or more)."""
    decades = np.log10(np.clip(tolls, LOW_TOLL, TOP_TOLL) / LOW_TOLL) / np.log10(TOP_TOLL / LOW_TOLL)
    share: Floats = np.where(tolls == 0, 0.0, ANY_TOLL + (1 - ANY_TOLL) * decades)
    return share


def speed_scale(steps: int) -> NDArray[np.uint8]:
    """The colours of speeds, from slow to free."""
    return to_bytes(np.linspace(0, 1, steps) * TOP)


def toll_scale(steps: int) -> NDArray[np.uint8]:
    """The colours of tolls, from none to the highest."""
    return to_bytes((1 - np.linspace(0, 1, steps)) * TOP)


def speed_marks() -> list[tuple[float, str]]:
    """Labels of the scale of speeds, and their positions."""
    speeds = np.array([LOW_SPEED, 25.0, 40.0, TOP_SPEED])
    return list(zip(speed_share(speeds).tolist(), (f"{speed:g}" for speed in speeds), strict=True))


def toll_marks() -> list[tuple[float, str]]:
    """Labels of the scale of tolls, and their positions."""
    tolls = np.array([0.0, LOW_TOLL, 1e4, 1e5, TOP_TOLL])
    return list(zip(toll_share(tolls).tolist(), ("0", "1 k", "10 k", "100 k", "1 M"), strict=True))
