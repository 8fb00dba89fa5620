"""The classes that functions of `anabranch` return and take, for annotations and `isinstance`.

You construct none of these, except `Window` where a function of `anabranch.controllers` takes one. `Listener` and
`State` are interfaces: any class with the methods of `Listener` is a listener.
"""

from anabranch.aggregates import Aggregate
from anabranch.api.joined import Joined
from anabranch.api.processing import Emission, Processed, Split
from anabranch.api.stream import Stream
from anabranch.api.windowed import Aggregation, Windowed
from anabranch.observe.health import Health
from anabranch.observe.listeners import Listener
from anabranch.observe.progress import (
    DropProgress,
    EpochProgress,
    OperatorProgress,
    PartitionMeasure,
    SplitterMeasure,
    WorkerMeasure,
)
from anabranch.operators.protocol import Emitted, OperatorFactory
from anabranch.operators.state import State
from anabranch.query.deliveries import Delivery
from anabranch.query.triggers import Trigger
from anabranch.runtime.handle import EpochQuery
from anabranch.windows import Duration, Window

__all__ = [
    "Aggregate",
    "Aggregation",
    "Delivery",
    "DropProgress",
    "Duration",
    "Emission",
    "Emitted",
    "EpochProgress",
    "EpochQuery",
    "Health",
    "Joined",
    "Listener",
    "OperatorFactory",
    "OperatorProgress",
    "PartitionMeasure",
    "Processed",
    "Split",
    "SplitterMeasure",
    "State",
    "Stream",
    "Trigger",
    "Window",
    "Windowed",
    "WorkerMeasure",
]
