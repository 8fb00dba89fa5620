"""The vocabulary of windows: specifications, ids, panes, batches, rings. Independent of Spark."""

from anabranch.windows.durations import Duration, describe, micros
from anabranch.windows.panes import Batches, Panes, PaneWindow, Ring, ring_node
from anabranch.windows.spec import Axis, Window

__all__ = [
    "Axis",
    "Batches",
    "Duration",
    "PaneWindow",
    "Panes",
    "Ring",
    "Window",
    "describe",
    "micros",
    "ring_node",
]
