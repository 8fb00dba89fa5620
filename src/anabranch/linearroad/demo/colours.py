"""The colour scale of speeds, shared by the terminal, the page and the picture.

It is matplotlib's perceptually uniform *inferno*, reversed and without its black end: a free road is dark, a jam glows.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

TOP = 120.0
"""km/h at the dark end of the scale."""
ANCHORS = (
    "#fcffa4", "#f6d746", "#fca50a", "#f37819", "#dd513a", "#bc3754", "#932667", "#6a176e", "#420a68", "#1f0c48",
)  # fmt: skip
"""From 0 km/h to `TOP`, in equal steps."""

MISSING = "#39404d"
"""The colour where no car reported."""
BACKGROUND, INK, FAINT, LINE = "#0f1117", "#e8e6e3", "#9aa0ab", "#2b303b"
INCIDENT = "#5ad1ff"
"""The colour of incidents: a hue that the scale does not contain."""

HALVES = 254
"""The largest byte of a speed, in half km/h. The byte above it stands for a missing speed."""


def rgb(colour: str) -> tuple[int, int, int]:
    """A colour #rrggbb as three numbers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def palette() -> npt.NDArray[np.uint8]:
    """The colour of each byte that `to_bytes` returns, as 256 rows of red, green, blue."""
    speeds = np.arange(256) / 2
    anchors = np.array([rgb(a) for a in ANCHORS], dtype=float)
    at = np.linspace(0.0, TOP, len(ANCHORS))
    colours = np.stack([np.interp(speeds, at, anchors[:, channel]) for channel in range(3)], axis=1)
    colours[HALVES + 1] = rgb(MISSING)
    return colours.round().astype(np.uint8)


def to_bytes(speeds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Speeds in half km/h, one byte each."""
    halves = np.clip(np.rint(np.nan_to_num(speeds, nan=0.0) * 2), 0, HALVES)
    result: npt.NDArray[np.uint8] = np.where(np.isnan(speeds), HALVES + 1, halves).astype(np.uint8)
    return result


def png(cells: npt.NDArray[np.uint8]) -> bytes:
    """A PNG with one byte per pixel, in the colours of the scale."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = cells.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    lines = np.hstack([np.zeros((height, 1), np.uint8), cells]).tobytes()  # each line begins with its filter: none
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"PLTE", palette().tobytes()),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        )
    )
