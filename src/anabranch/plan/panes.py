"""The pane-level query and what both plans, batch and streaming, do with its result.

    rows ──▶ panes ──▶ batches of panes ──▶ runs of windows ──▶ windows
         group by   copies at the edges   kernel, in Python    repeated and
         in Spark   only, in Spark        (batch_windows)      lowered in Spark

Only pane states enter Python, and only runs leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StructField, StructType

from anabranch.aggregates.folds import Fold
from anabranch.names import BATCH, FIRST, LAST, PANE, PANES, ROWS, SPEC, TOTAL, key_name, state_name
from anabranch.operators.batch_windows import SlidingOperator
from anabranch.operators.pane_runs import WindowSettings
from anabranch.query.windowed import Query
from anabranch.spark.arrow import map_in_arrow
from anabranch.spark.columns import quoted
from anabranch.spark.worker_python import check_local_python
from anabranch.windows import Batches, Window
from anabranch.windows.ids import window_start

WINDOW = "window"
WINDOW_SPEC = "window_spec"


def state_names(query: Query) -> list[str]:
    return [state_name(i) for i in range(len(query.states))]


def window_settings(
    query: Query, folds: Sequence[Fold], keys: Sequence[StructField], panes: StructType
) -> tuple[WindowSettings, StructType]:
    """What a worker needs to make windows from panes, and the columns of its runs. `panes` has the states."""
    runs = runs_schema(keys, panes, query)
    specs = query.panes
    names = tuple(field.name for field in keys)
    return WindowSettings(specs.in_panes(), specs.size, specs.origin, tuple(folds), names, tuple(runs.names)), runs


def lifts(query: Query) -> list[Column]:
    """The aggregate Columns of the pane-level query: the number of rows, and every state."""
    states = zip(query.states, state_names(query), strict=True)
    return [F.count(F.lit(1)).alias(ROWS), *(state.lift.alias(name) for state, name in states)]


def lowered(query: Query, states: Sequence[Column]) -> list[Column]:
    """The values of the aggregates from their states."""
    remaining, columns = list(states), []
    for name, bound in query.bound.items():
        mine, remaining = remaining[: len(bound.states)], remaining[len(bound.states) :]
        columns.append(bound.lower(mine).alias(name))
    return columns


def keys_of(query: Query) -> list[Column]:
    return [quoted(key) for key in query.keys]


def evaluate(collected: DataFrame, query: Query, batches: Batches) -> DataFrame:
    """The windows of the query, from batches (keys, BATCH, PANES)."""
    # `mapInArrow` looks up columns by name without quotes, so keys are renamed: a name may contain a dot.
    plain = [key_name(i) for i in range(len(query.keys))]
    renamed = collected.toDF(*plain, BATCH, PANES)
    panes = renamed.schema[PANES].dataType
    assert isinstance(panes, ArrayType) and isinstance(panes.elementType, StructType)
    schema = runs_schema(renamed.schema.fields[: len(plain)], panes.elementType, query)
    folds = tuple(state.fold for state in query.states)
    operator = SlidingOperator(query.panes.in_panes(), batches, folds, tuple(schema.names))
    check_local_python(collected.sparkSession)
    runs = map_in_arrow(renamed, operator, schema)
    return windows_of_runs(runs.toDF(*query.keys, *schema.names[len(plain) :]), query)


def windows_of_runs(runs: DataFrame, query: Query) -> DataFrame:
    """Repeat each run once per window, and compute the aggregates from the states."""
    exploded, results = run_columns(query)
    return only_complete(runs.select(*exploded), query).select(*results)


def run_columns(query: Query, *, also: Sequence[str] = ()) -> tuple[list[Column], list[Column]]:
    """The two selections that make windows from runs; with `also`, these columns and rows without a run are kept."""
    # The outer form keeps rows without a run.
    explode = F.explode_outer if also else F.explode
    kept, states = [F.col(name) for name in also], [F.col(name) for name in state_names(query)]
    window_id = explode(F.sequence(FIRST, LAST)).alias(FIRST)
    return (
        [*keys_of(query), F.col(SPEC), window_id, F.col(ROWS), *states, *kept],
        [*result_columns(query), *lowered(query, states), *kept],
    )


def only_complete(windows: DataFrame, query: Query) -> DataFrame:
    """Remove count windows that are not full: as in a stream, they have no result.

    `windows` has the columns SPEC, FIRST (the window id) and ROWS.
    """
    if not query.counts_rows:
        return windows
    size = by_spec(query, lambda w: F.lit(w.size))
    if query.rows_per_key or not query.keys:
        return windows.where(F.col(ROWS) == size)
    # Counted over all keys, a window is full when all keys together fill it.
    total = query.source.where(query.time.usable).agg(F.count(F.lit(1)).alias(TOTAL))
    end = by_spec(query, lambda w: window_start(F.col(FIRST), w)) + size
    return windows.crossJoin(F.broadcast(total)).where(end <= F.col(TOTAL)).drop(TOTAL)


def result_columns(query: Query) -> list[Column]:
    """The keys and the window, from SPEC and FIRST (the window id)."""
    start = by_spec(query, lambda w: window_start(F.col(FIRST), w))
    size = by_spec(query, lambda w: F.lit(w.size))
    if query.counts_rows:
        window = F.struct(start.alias("start"), (start + size).alias("end"))
    else:
        window = query.time.window(start, size)
    label = [] if query.single else [by_spec(query, lambda w: F.lit(w.label)).alias(WINDOW_SPEC)]
    return [*keys_of(query), window.alias(WINDOW), *label]


def by_spec(query: Query, value: Callable[[Window], Column]) -> Column:
    """The value for the window specification in SPEC."""
    values = [value(w) for w in query.panes.windows]
    chosen = values[-1]
    for i in range(len(values) - 2, -1, -1):
        chosen = F.when(F.col(SPEC) == i, values[i]).otherwise(chosen)
    return chosen


def pane_struct(query: Query, pane: Column) -> Column:
    """One pane in the form of the operator: id, rows, states."""
    return F.struct(pane.alias(PANE), ROWS, *state_names(query))


def runs_schema(keys: Sequence[StructField], panes: StructType, query: Query) -> StructType:
    """The columns of runs: the keys, the windows, the number of rows, and the folded states."""
    states: list[StructField] = []
    for state, name in zip(query.states, state_names(query), strict=True):
        kind: DataType = state.result or panes[name].dataType
        states.append(StructField(name, kind))
    fixed = [StructField(SPEC, IntegerType()), *(StructField(n, LongType()) for n in (FIRST, LAST, ROWS))]
    return StructType([*(StructField(f.name, f.dataType) for f in keys), *fixed, *states])
