"""Anabranch: parallel windows over data streams, on Spark through PySpark.

Sliding windows that cost no more than tumbling ones. Start with `stream`:

    import anabranch as ab

    ab.stream(df, time="at").window(size="30 min", slide="1 s").by("cell").agg(n=ab.count()).to_df()
"""

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
from anabranch.errors import AnabranchError
from anabranch.network.stream import Aggregation, Stream, Windowed, sliding, stream
from anabranch.windows import Window

__all__ = [
    "Aggregate",
    "Aggregation",
    "AnabranchError",
    "Stream",
    "Window",
    "Windowed",
    "__version__",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "quantile",
    "sliding",
    "stddev",
    "stream",
    "sum",
    "top_k",
    "user_aggregate",
    "variance",
]
