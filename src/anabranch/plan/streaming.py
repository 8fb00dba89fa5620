"""Plans for streaming DataFrames, in append mode: a chain of Spark's own stateful aggregations.

    rows ──▶ panes (state store) ──▶ batches of panes (state store) ──▶ kernel ──▶ windows

A pane leaves the first aggregation when the watermark has passed it; a batch leaves the second when the watermark has
passed its last window. So B windows are delivered together, up to (B-1) slides after the first of them was complete.
`max_delay` bounds that delay, and with it the copies of a pane, (w + (B-1)s) / (Bs). Several windows share batches of
windows that end together.

A row is late when the watermark of the previous micro-batch had passed its pane (or its window, where Spark's
`window()` does everything). Spark drops late rows, and counts them after grouping: `numRowsDroppedByWatermark` is the
number of late panes of keys. Spark's watermark starts at 1970-01-01, so earlier rows of a stream are late.

Where further aggregates follow (nested windows), Spark requires its own window columns throughout, and no Python in
between: then Spark merges panes, with one copy per window.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from anabranch.errors import StreamingError
from anabranch.keys.policy import AUTO_PARTITION
from anabranch.names import BATCH, OWN_WINDOW, PANE, PANES
from anabranch.plan.batch import observe, tumbling
from anabranch.plan.panes import WINDOW, evaluate, keys_of, lifts, lowered, pane_struct, state_names
from anabranch.query.strategy import Strategy
from anabranch.query.windowed import Query
from anabranch.spark.columns import floordiv, quoted
from anabranch.windows import Batches, Window
from anabranch.windows.ids import last_window


def build(query: Query, strategy: Strategy, observation: Observation | None) -> DataFrame:
    """The streaming DataFrame of the query's windows."""
    _check(query)
    source = observe(query, query.source, observation).where(query.time.usable)
    if direct(query, strategy):
        return _direct(query, source)
    batches = layout(query, strategy)
    return evaluate(_collected(_panes(query, source), query, batches), query, batches)


def build_inner(query: Query, observation: Observation | None, asked: Strategy | None = None) -> DataFrame:
    """The windows with Spark's own window column in OWN_WINDOW, for an aggregate that follows.

    `asked` is the strategy that the user asked for, if any.
    """
    _check(query)
    if not query.single:
        raise StreamingError(
            "several windows at once cannot feed a further aggregate on a stream: Spark needs a single window column",
            hint="write one query per window length, or run it with start()",
        )
    window = query.panes.windows[0]
    source = observe(query, query.source, observation).where(query.time.usable)
    merges = [state.merge for state in query.states]
    by_rows = tumbling(query) or any(merge is None for merge in merges)
    if asked is not None and asked.kind != ("window" if by_rows else "pane") and not tumbling(query):
        raise StreamingError(
            f"the strategy {asked.kind!r} is not possible for windows that feed a further aggregate on a stream: Spark "
            f"always {'aggregates their rows' if by_rows else 'merges their panes'}",
            hint="leave using(...) out, or use it on the last aggregate",
        )
    if by_rows:
        return _direct_columns(query, source, window)
    panes = _panes(query, source)
    states = [
        merge(F.col(name)).alias(name)
        for merge, name in zip(merges, state_names(query), strict=True)
        if merge is not None
    ]
    merged = panes.groupBy(*keys_of(query), _spark_window(F.window_time(PANE), window).alias(OWN_WINDOW)).agg(*states)
    return merged.select(*keys_of(query), OWN_WINDOW, *lowered(query, [F.col(n) for n in state_names(query)]))


def direct(query: Query, strategy: Strategy) -> bool:
    """Whether Spark's own `window()` does everything: then each window is delivered as soon as it is complete.

    This does not work for several windows, which would be a union of one stream with itself. If that stream has a
    stateful operator, as nested windows have, Spark 4.3 passes the watermark to the first branch only, and the others
    deliver nothing.
    """
    return query.native and query.single and (tumbling(query) or strategy.kind == "window")


def layout(query: Query, strategy: Strategy) -> Batches:
    """The windows that are delivered together: those that end within B slides of the window with the longest slide."""
    windows = query.panes.in_panes()
    return Batches.over(windows, strategy.windows_at_once * max(w.slide for w in windows))


def user_window(query: Query, spark_window: Column) -> Column:
    """Spark's struct of timestamps as a window in the type of the user's time column."""
    start = F.unix_micros(spark_window["start"])
    return query.time.window(start, query.panes.windows[0].size)


def _check(query: Query) -> None:
    if query.counts_rows:
        raise StreamingError(
            "count windows over a stream need positions that a fixed Spark plan cannot keep",
            hint="use time windows here, or a batch DataFrame",
        )
    if query.partition != AUTO_PARTITION:
        raise StreamingError(
            "a streaming to_df() does not support partition=, workers= or splitters= of by(...): a fixed plan cannot "
            "place keys by what it measures",
            hint="leave them out, or run the query with start(sink, checkpoint=...)",
        )


def _panes(query: Query, source: DataFrame) -> DataFrame:
    size, origin = query.panes.size, query.panes.origin
    pane = _spark_window(query.time.event, Window(size, size, origin)).alias(PANE)
    return source.groupBy(*keys_of(query), pane).agg(*lifts(query))


def _collected(panes: DataFrame, query: Query, batches: Batches) -> DataFrame:
    size, origin = query.panes.size, query.panes.origin
    outer = Window(batches.size * size, batches.slide * size, origin + batches.origin * size)
    batch = _spark_window(F.window_time(PANE), outer).alias(BATCH)
    pane_id = floordiv(F.unix_micros(F.col(PANE)["start"]) - origin, size)
    gathered = panes.groupBy(*keys_of(query), batch).agg(F.collect_list(pane_struct(query, pane_id)).alias(PANES))
    start = F.unix_micros(F.col(BATCH)["start"])
    return gathered.select(*keys_of(query), last_window(start, outer, floordiv).alias(BATCH), PANES)


def _direct(query: Query, source: DataFrame) -> DataFrame:
    """The windows by Spark's own `window()`."""
    windows = _direct_columns(query, source, query.panes.windows[0])
    user = user_window(query, F.col(OWN_WINDOW)).alias(WINDOW)
    return windows.select(*keys_of(query), user, *map(quoted, query.aggregates))


def _direct_columns(query: Query, source: DataFrame, window: Window) -> DataFrame:
    direct = [bound.direct.alias(name) for name, bound in query.bound.items() if bound.direct is not None]
    if len(direct) < len(query.bound):
        raise StreamingError(
            "a user-defined aggregate or top_k cannot feed a further aggregate on a stream: Spark allows no Python "
            "between two of its stateful aggregations",
            hint="make it the last aggregate, run it with start(), or run the query over a batch DataFrame",
        )
    by = [*keys_of(query), _spark_window(query.time.event, window).alias(OWN_WINDOW)]
    return source.groupBy(*by).agg(*direct).select(*keys_of(query), OWN_WINDOW, *map(quoted, query.aggregates))


def _spark_window(time: Column, window: Window) -> Column:
    """Spark's `window()` with our origin; it requires a start within one slide."""
    start = window.origin % window.slide
    size, slide = f"{window.size} microseconds", f"{window.slide} microseconds"
    return F.window(time, size, slide, f"{start} microseconds")
