"""Aggregates as lift / combine / lower.

An aggregate says how the rows of a pane become a state (*lift*, a Spark aggregate Column), how the states of panes
become the state of a window (*combine*, a fold that may also *invert*), and how that becomes a value (*lower*, a
Column). A new aggregate is one such object; nothing else in Anabranch knows its name.

`Aggregate` is what a user writes, before the types of the columns are known. `bind` turns it into `Bound` once they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql.types import DataType

from anabranch.aggregates.folds import Fold
from anabranch.aggregates.partial_state import Evaluate, StateFold

ColumnLike = str | Column


@dataclass(frozen=True)
class State:
    """One column of an aggregate's pane state.

    `merge` is the combine step as a Spark aggregate, for states that Spark can merge itself (sums, extremes). `result`
    is the type after the fold, if it differs from the type of the state.
    """

    lift: Column
    fold: Fold
    merge: Callable[[Column], Column] | None = None
    result: DataType | None = None
    in_python: PythonState | None = None


@dataclass(frozen=True)
class PythonState:
    """How workers evaluate an aggregate in Python, each over the rows that it received.

    `evaluate` turns rows into a state of the type `type`, which travels; `fold` combines such states.
    """

    evaluate: Evaluate
    fold: StateFold
    type: DataType


@dataclass(frozen=True)
class Bound:
    """An aggregate over columns of known type.

    `direct` is the plain Spark aggregate with the same result, for strategies that see all rows of a window; `None` if
    Spark has none.
    """

    states: tuple[State, ...]
    lower: Callable[[Sequence[Column]], Column]
    direct: Column | None


@dataclass(frozen=True)
class Inputs:
    """What an aggregate is bound to: its columns, their types, and the row's time (a timestamp or long)."""

    columns: tuple[Column, ...]
    types: tuple[DataType, ...]
    time: Column


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as a user writes it. Create one with `count()`, `sum("x")`, ... or `user_aggregate(...)`."""

    name: str
    inputs: tuple[ColumnLike, ...]
    bind: Callable[[Inputs], Bound] = field(repr=False)
    mergeable: bool = True
    invertible: bool = False
    python: bool = False

    def describe(self) -> str:
        """Text for explain: ``avg(fare)``."""
        return f"{self.name}({', '.join(map(str, self.inputs))})"
