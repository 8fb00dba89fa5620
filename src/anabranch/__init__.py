"""Anabranch: parallel windows over data streams, on Spark through PySpark.

Sliding windows, joins and operators of your own, over tables and streams. Start with `stream`:

    import anabranch as ab

    ab.stream(df, time="at").window(size="30 min", slide="1 s").by("cell").agg(n=ab.count()).to_df()

This module has what a query is written with. The other public modules:

| module | has |
|---|---|
| `anabranch.types` | the classes of results and arguments, for annotations |
| `anabranch.errors` | every error that the library raises |
| `anabranch.sinks` | all sinks, and the base class for your own |
| `anabranch.testing` | what a test of a query or an operator needs |
| `anabranch.recordings` | writing and reading the files that `replay` replays |
| `anabranch.controllers` | controllers of your own, and the simulator to try them in |
| `anabranch.merge` | merging ordered streams, without Spark |
| `anabranch.local` | a local Spark session for scripts, tests and notebooks |
| `anabranch.compiled` | the decorator for numba kernels that workers run |
| `anabranch.text` | numbers and times as the library prints them |
"""

import logging

from anabranch._version import __version__
from anabranch.aggregates import (
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
from anabranch.api.partition import partition_by, partition_report
from anabranch.api.stream import block_stream, sliding, stream
from anabranch.errors import AnabranchError
from anabranch.io.replay import replay
from anabranch.observe.listeners import JsonLines
from anabranch.observe.prometheus import Prometheus
from anabranch.operators.protocol import Operator
from anabranch.query.join import JoinTuning
from anabranch.query.settings import QoS
from anabranch.runtime.start import drop_plan, start
from anabranch.sinks import CallSink, DeltaSink, FileSink, MemorySink

__all__ = [
    "AnabranchError",
    "CallSink",
    "DeltaSink",
    "FileSink",
    "JoinTuning",
    "JsonLines",
    "MemorySink",
    "Operator",
    "Prometheus",
    "QoS",
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
