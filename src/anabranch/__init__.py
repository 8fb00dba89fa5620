"""Anabranch: parallel windows over data streams, on Spark through PySpark.

Sliding windows that cost no more than tumbling ones. Start with `stream`:

    import anabranch as ab

    ab.stream(df, time="at").window(size="30 min", slide="1 s").by("cell").agg(n=ab.count()).to_df()
"""

import logging

from anabranch._version import __version__
from anabranch.aggregates import (
    Aggregate,
    avg,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    quantile,
    stddev,
    sum,
    top_k,
    user_aggregate,
    variance,
)
from anabranch.api.joined import Joined
from anabranch.api.partition import partition_by, partition_report
from anabranch.api.processing import Processed, Split
from anabranch.api.stream import Stream, block_stream, sliding, stream
from anabranch.api.windowed import Aggregation, Windowed
from anabranch.errors import AnabranchError
from anabranch.io.replay import replay
from anabranch.io.sinks import CallSink, DeltaSink, FileSink, MemorySink, NoopSink, Sink
from anabranch.observe.listeners import JsonLines, Listener
from anabranch.observe.progress import EpochProgress
from anabranch.observe.prometheus import Prometheus
from anabranch.operators.protocol import Operator
from anabranch.operators.state import State
from anabranch.query.join import JoinTuning
from anabranch.query.settings import QoS
from anabranch.runtime.handle import EpochQuery
from anabranch.runtime.start import drop_plan, start
from anabranch.windows import Window

__all__ = [
    "Aggregate",
    "Aggregation",
    "AnabranchError",
    "CallSink",
    "DeltaSink",
    "EpochProgress",
    "EpochQuery",
    "FileSink",
    "JoinTuning",
    "Joined",
    "JsonLines",
    "Listener",
    "MemorySink",
    "NoopSink",
    "Operator",
    "Processed",
    "Prometheus",
    "QoS",
    "Sink",
    "Split",
    "State",
    "Stream",
    "Window",
    "Windowed",
    "__version__",
    "avg",
    "block_stream",
    "collect",
    "count",
    "count_distinct",
    "drop_plan",
    "first",
    "last",
    "max",
    "min",
    "partition_by",
    "partition_report",
    "quantile",
    "replay",
    "sliding",
    "start",
    "stddev",
    "stream",
    "sum",
    "top_k",
    "user_aggregate",
    "variance",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # whoever wants the log installs a handler
