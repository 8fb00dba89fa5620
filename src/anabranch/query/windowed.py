"""The query to be planned: one windowed aggregate over one DataFrame, checked, with all types known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from anabranch.aggregates import Aggregate, Bound, ColumnLike, Inputs, PythonState, State
from anabranch.errors import ColumnNotFoundError, InvalidArgumentError, column_not_found
from anabranch.keys.hashing import unhashable
from anabranch.keys.policy import AUTO_PARTITION, KeyPartition
from anabranch.names import EVENT
from anabranch.query.strategy import Strategy
from anabranch.spark.column_names import find_column, parts_of
from anabranch.spark.columns import TimeColumn, quoted
from anabranch.windows import Axis, Panes


@dataclass(frozen=True)
class Query:
    """A windowed aggregate. `rows_per_key`: count windows count the rows of each key, not those of all keys."""

    source: DataFrame
    time: TimeColumn
    panes: Panes
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    rows_per_key: bool
    metrics: str
    partition: KeyPartition = AUTO_PARTITION

    @property
    def streaming(self) -> bool:
        return self.source.isStreaming

    @property
    def counts_rows(self) -> bool:
        return self.panes.axis is Axis.ROWS

    @property
    def single(self) -> bool:
        return len(self.panes.windows) == 1

    @property
    def mergeable(self) -> bool:
        return all(a.mergeable for a in self.aggregates.values())

    @property
    def python(self) -> bool:
        return any(a.python for a in self.aggregates.values())

    @cached_property
    def bound(self) -> dict[str, Bound]:
        return {name: bind(self.source, aggregate, self.time) for name, aggregate in self.aggregates.items()}

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The states of all aggregates, in their order."""
        return tuple(state for bound in self.bound.values() for state in bound.states)

    @property
    def python_states(self) -> list[PythonState] | None:
        """How Python evaluates the query in parts; None if an aggregate is Spark's, or its state cannot be sent."""
        found = [state.in_python for state in self.states if state.in_python is not None]
        return found if len(found) == len(self.states) else None

    @property
    def unplaceable(self) -> str | None:
        """Why no policy can place the keys; None if one can."""
        if not self.keys:
            return "no key to partition by"
        for key in self.keys:
            reason = unhashable(key, self.source.schema[key].dataType)
            if reason is not None:
                return reason
        if not self.mergeable:
            return "an aggregate has no merge, so a window needs all its rows in one place"
        return None

    @property
    def evaluated_in_parts(self) -> bool:
        """Whether the epoch runtime evaluates the query in parts, in Python, with any policy that places the keys."""
        return self.unplaceable is None and self.python_states is not None

    def result_like(self, build: Callable[[Query, Strategy, None], DataFrame]) -> DataFrame:
        """A bounded DataFrame without rows, with the columns of the result."""
        empty = self.source.sparkSession.createDataFrame([], self.source.schema)
        return build(replace(self, source=empty), Strategy("pane"), None)

    @property
    def native(self) -> bool:
        """Whether Spark itself has every aggregate, so that it can aggregate the rows of a window directly."""
        return all(b.direct is not None for b in self.bound.values())


def bind(source: DataFrame, aggregate: Aggregate, time: TimeColumn) -> Bound:
    """The aggregate over this DataFrame's columns."""
    return aggregate.bind(inputs_of(source, aggregate, time))


def inputs_of(source: DataFrame, aggregate: Aggregate, time: TimeColumn) -> Inputs:
    """The inputs of an aggregate from this DataFrame."""
    columns = [resolve(source, c) for c in aggregate.inputs]
    types = [analysed(aggregate.describe(), source, partial(source.select, c)).schema[0].dataType for c in columns]
    return Inputs(tuple(columns), tuple(types), time.column)


def analysed(what: str, source: DataFrame, build: Callable[[], DataFrame]) -> DataFrame:
    """The DataFrame that `build` makes from the source. What Spark cannot resolve is an error here, with a hint."""
    try:
        result = build()
        # Spark Connect resolves a plan only on request, and a filter's schema needs no request.
        result.isStreaming  # noqa: B018
        return result
    except AnalysisException as error:
        unknown = (error.getCondition() or "").startswith("UNRESOLVED_COLUMN")
        kind = ColumnNotFoundError if unknown else InvalidArgumentError
        raise kind(
            f"{what} cannot be resolved: {str(error).splitlines()[0]}",
            hint=f"the columns are {', '.join(source.columns)}",
        ) from error


def resolve(source: DataFrame, column: ColumnLike) -> Column:
    """The Column with that name, or the Column itself; the error for an unknown name lists similar ones."""
    if isinstance(column, Column):
        return column
    if not isinstance(column, str):
        raise InvalidArgumentError(
            f"{column!r} is not a column",
            hint="give the name of a column, or a Column; give several one by one, not as a list",
        )
    session, parts = source.sparkSession, parts_of(column)
    head = find_column(session, source.columns, parts[0]) if len(parts) > 1 else None
    if head is not None and isinstance(source.schema[head].dataType, StructType | MapType | ArrayType):
        return F.col(column)
    found = find_column(session, source.columns, column)
    if found is not None:
        return quoted(found)
    raise column_not_found(column, [name for name in source.columns if name != EVENT])
