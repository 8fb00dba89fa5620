"""Aggregates: lift, combine, lower, invert; built-in and user-defined ones."""

from anabranch.aggregates.base import Aggregate, Bound, ColumnLike, Inputs, PythonState, State
from anabranch.aggregates.native import (
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
    variance,
)
from anabranch.aggregates.user import user_aggregate

__all__ = [
    "Aggregate",
    "Bound",
    "ColumnLike",
    "Inputs",
    "PythonState",
    "State",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "quantile",
    "stddev",
    "sum",
    "top_k",
    "user_aggregate",
    "variance",
]
