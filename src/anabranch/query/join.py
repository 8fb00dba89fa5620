"""A windowed join of streams: its definition, and how the epoch runtime runs it. `api.joined` has the user's side.

    trades.join(quotes, on="symbol", within=("0 s", "100 ms")).to_df()

Every stream has a window W, and a row is in its stream's window until W after its time, both ends included. Two rows
with equal keys make a pair, exactly once, if the earlier of them is in its window at the time of the later one:

    left   a ────────── W1 ─────────┤               b.t <= a.t + W1
    right         b ─── W2 ───┤                     a.t <= b.t + W2

So (a, b) is a pair if ``a.t - W2 <= b.t <= a.t + W1``. With more streams, every two rows of a result are a pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError
from anabranch.operators.join.settings import PRESERVED
from anabranch.spark.columns import TimeColumn

JoinPredicate = Callable[[pa.RecordBatch], Any]
"""selects results: takes result rows, and returns one bool per row, as a numpy or Arrow array"""


@made_as("ab.JoinTuning(slots=4)")
@dataclass(frozen=True)
class JoinTuning:
    """How the epoch runtime runs a join. None of this changes a result."""

    theta: int = 384
    """a partition-group is split above 2 theta blocks, and merged with its buddy below theta"""
    block: int = 64
    """tuples in a block"""
    fine_tuning: bool = True
    """whether groups are split and merged"""
    probe: str = "hashed"
    """how a tuple finds its partners: "hashed", or "nested" loops over the blocks"""
    slots: int = 1
    """n_g: sub-groups of workers; each runs in one of this many epochs of the trigger"""
    rebalance: bool = True
    """whether groups move from overloaded workers to others"""
    reorganise_every: int = 10
    """epochs after which groups may move"""
    supplier: float = 0.1
    """a worker gives groups away if it had a larger share of its rows left when its time was over"""
    consumer: float = 0.01
    """a worker takes groups if it had a smaller share left"""
    moves: int = 15
    """groups that a worker gives away at most in one reorganisation; 1 is slow with many groups"""
    decluster: bool = True
    """whether the number of workers in use follows the load"""
    beta: float = 0.5
    """a worker is added if there are more than beta suppliers for each consumer"""

    def __post_init__(self) -> None:
        for name in ("theta", "block", "slots", "reorganise_every", "moves"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgumentError(
                    f"JoinTuning({name}={value!r}): {name} must be a whole number above zero",
                    hint=f"leave it out for the default, {getattr(JoinTuning, name)}",
                )
        for name in ("fine_tuning", "rebalance", "decluster"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(
                    f"JoinTuning({name}={getattr(self, name)!r}): {name} must be True or False",
                    hint=f"leave it out for the default, {getattr(JoinTuning, name)}",
                )
        if self.probe not in ("hashed", "nested"):
            raise InvalidArgumentError(
                f"JoinTuning(probe={self.probe!r}): there is no such probe", hint='use "hashed" or "nested"'
            )
        if not 0 <= self.consumer < self.supplier < 1:
            raise InvalidArgumentError(
                f"JoinTuning(supplier={self.supplier!r}, consumer={self.consumer!r}): a worker could be both, and "
                "groups would move back and forth",
                hint="choose 0 <= consumer < supplier < 1",
            )
        if not 0 < self.beta < 1:
            raise InvalidArgumentError(
                f"JoinTuning(beta={self.beta!r}): beta must be between 0 and 1",
                hint=f"leave it out for the default, {JoinTuning.beta}",
            )


@dataclass(frozen=True, eq=False)
class Join:
    """A join, checked, with all types known."""

    sources: tuple[DataFrame, ...]
    times: tuple[TimeColumn, ...]
    """time columns of the sources"""
    on: tuple[str, ...]
    within: tuple[int, ...]
    """W of each stream, in microseconds"""
    how: str
    """inner, left, right or full"""
    where: Column | str | JoinPredicate | None
    columns: tuple[tuple[tuple[str, str], ...], ...]
    """for each stream, (source column, result column) for all columns except the keys"""
    schema: StructType
    """columns of the result"""

    @property
    def streaming(self) -> bool:
        return any(source.isStreaming for source in self.sources)

    @property
    def preserved(self) -> tuple[int, ...]:
        """The streams whose rows are results even without a partner."""
        return PRESERVED[self.how]

    @property
    def delay(self) -> int:
        """How far behind the watermark a result may be: an unmatched row waits for its whole W."""
        return max((self.within[port] for port in self.preserved), default=0)

    @property
    def condition(self) -> Column | None:
        """`where`, if Spark evaluates it."""
        if isinstance(self.where, Column):
            return self.where
        return F.expr(self.where) if isinstance(self.where, str) else None

    @property
    def predicate(self) -> JoinPredicate | None:
        """`where`, if it is a function."""
        return None if self.where is None or isinstance(self.where, (Column, str)) else self.where

    @property
    def where_label(self) -> str | None:
        """`where` as text."""
        if self.predicate is None:
            return None if self.where is None else str(self.where)
        named = self.predicate if hasattr(self.predicate, "__qualname__") else type(self.predicate)
        return f"{named.__module__}.{named.__qualname__}"

    @property
    def result_times(self) -> tuple[TimeColumn, ...]:
        """The times of the streams, by their names in the result."""
        return tuple(
            TimeColumn(dict(columns)[time.name], time.kind)
            for time, columns in zip(self.times, self.columns, strict=True)
        )

    def with_time(self, rows: DataFrame, name: str) -> DataFrame:
        """Results with their time: the later of the pair's times; for an unmatched row, its own."""
        later = F.greatest(*(time.micros() for time in self.result_times))  # skips nulls
        return rows.withColumn(name, self.times[0].from_micros(later))
