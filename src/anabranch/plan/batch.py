"""Plans for bounded DataFrames: each strategy as a rewrite into Spark's own operators."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from anabranch.names import AXIS, BATCH, FIRST, NODE, PANE, PANES, ROWS, SPEC
from anabranch.plan import partitioned
from anabranch.plan.panes import evaluate, keys_of, lifts, only_complete, pane_struct, result_columns
from anabranch.plan.placement import placement
from anabranch.plan.positions import with_positions
from anabranch.plan.prices import UNKNOWN, Statistics
from anabranch.query.strategy import Strategy
from anabranch.query.windowed import Query
from anabranch.spark.columns import floordiv, quoted
from anabranch.windows import Batches, Ring, Window, ring_node
from anabranch.windows.ids import batch_window, first_window, last_window, pane_of

BATCH_PANES = (256, 65_536)
"""least and most panes of a batch: enough to be worth the overhead of a group, few enough for its memory"""

NODES = 16
"""default size of the ring, unless the session has fewer shuffle partitions"""


def build(
    query: Query,
    strategy: Strategy,
    observation: Observation | None,
    statistics: Statistics = UNKNOWN,
    asked: Strategy | None = None,
) -> DataFrame:
    """The DataFrame of the query's windows. `asked` is the strategy that the user asked for, if any."""
    source = _on_axis(query, observation)
    by_policy = placement(query, statistics, asked)
    if by_policy is not None:
        return partitioned.build(query, source, AXIS, by_policy)
    if query.native and (tumbling(query) or strategy.kind != "pane"):
        return _by_rows(query, source, strategy)
    return _by_panes(query, source, strategy)


def tumbling(query: Query) -> bool:
    """Whether windows do not overlap: then a pane is a window, and all strategies are the same group-by."""
    return all(w.tumbling for w in query.panes.windows) and query.single


def _on_axis(query: Query, observation: Observation | None) -> DataFrame:
    """The rows with their position on the axis. Rows without a time are counted and left out."""
    known = observe(query, query.source, observation).where(query.time.usable)
    if query.counts_rows:
        return with_positions(query, known, AXIS)
    return known.withColumn(AXIS, query.time.micros())


def observe(query: Query, source: DataFrame, observation: Observation | None) -> DataFrame:
    """Count all rows and those without a usable time, as observed metrics."""
    null_time = F.count_if(~query.time.usable).alias("null_time")
    return source.observe(observation or query.metrics, F.count(F.lit(1)).alias("rows"), null_time)


def _by_panes(query: Query, source: DataFrame, strategy: Strategy) -> DataFrame:
    pane = pane_of(F.col(AXIS), query.panes.size, query.panes.origin, floordiv)
    panes = source.groupBy(*keys_of(query), pane.alias(PANE)).agg(*lifts(query))
    batches = layout(query, strategy)
    return evaluate(_collected(panes, query, strategy, batches), query, batches)


def _collected(panes: DataFrame, query: Query, strategy: Strategy, batches: Batches) -> DataFrame:
    """Panes gathered into batches: (keys, BATCH, PANES)."""
    window = batches.as_window()
    first = first_window(F.col(PANE), window, floordiv)
    if query.counts_rows:
        first = F.greatest(first, F.lit(0))  # Count windows start with the first row; there are none before it.
    batch = F.explode(F.sequence(first, last_window(F.col(PANE), window, floordiv))).alias(BATCH)
    copies = panes.select(*keys_of(query), batch, pane_struct(query, F.col(PANE)).alias(PANES))
    gathered = F.collect_list(PANES).alias(PANES)
    if query.keys:
        return copies.groupBy(*keys_of(query), BATCH).agg(gathered)
    # Without a key, batches go around the ring: node i gets its own panes and those it shares with one neighbour.
    nodes = ring_nodes(query, strategy)
    node = ring_node(F.col(BATCH), nodes, floordiv).cast("int")
    ringed = copies.withColumn(NODE, node).repartitionById(nodes, NODE)
    return ringed.groupBy(NODE, BATCH).agg(gathered).select(BATCH, PANES)


def layout(query: Query, strategy: Strategy) -> Batches:
    """The batches: how many windows are evaluated together."""
    windows = query.panes.in_panes()
    longest = max(windows, key=lambda w: w.size)
    if strategy.kind != "pane" or strategy.batch is not None:
        return Batches.over(windows, strategy.windows_at_once * longest.slide)
    least, most = BATCH_PANES
    if query.keys:
        # Keys give work to all workers. So batches are long, and few panes are copied to two workers.
        wanted = max(longest.size, min(4 * longest.size, most), least)
    else:
        wanted = max(Ring(longest.size, longest.slide, 1).panes_from_split, least)
    return Batches.over(windows, -(-wanted // longest.slide) * longest.slide)


def ring_nodes(query: Query, strategy: Strategy) -> int:
    if strategy.nodes is not None:
        return strategy.nodes
    partitions = query.source.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return min(int(partitions or NODES), NODES)


def _by_rows(query: Query, source: DataFrame, strategy: Strategy) -> DataFrame:
    """Window and batch partitioning: rows are copied, and each window aggregates its own."""
    parts = [_windows_of(query, source, i, window, strategy) for i, window in enumerate(query.panes.windows)]
    windows = parts[0]
    for part in parts[1:]:
        windows = windows.unionAll(part)
    return windows.select(*result_columns(query), *(quoted(name) for name in query.aggregates))


def _windows_of(query: Query, source: DataFrame, spec: int, window: Window, strategy: Strategy) -> DataFrame:
    """The windows of one specification: (keys, SPEC, FIRST, ROWS, aggregates)."""
    group = [*keys_of(query), F.col(FIRST)]
    if window.tumbling:
        copies = source.withColumn(FIRST, last_window(F.col(AXIS), window, floordiv))
    elif strategy.kind == "batch":
        copies = _batch_copies(query, source, window, strategy.windows_at_once)
        # Grouping by the batch as well keeps the windows of a batch where the batch is: no second exchange.
        group.append(F.col(BATCH))
    else:
        copies = source.withColumn(FIRST, _ids(query, window))
    direct = [bound.direct.alias(name) for name, bound in query.bound.items() if bound.direct is not None]
    windows = copies.groupBy(*group).agg(F.count(F.lit(1)).alias(ROWS), *direct).withColumn(SPEC, F.lit(spec))
    columns = [*keys_of(query), F.col(SPEC), F.col(FIRST), F.col(ROWS), *(quoted(name) for name in query.aggregates)]
    return only_complete(windows, query).select(*columns)


def _batch_copies(query: Query, source: DataFrame, window: Window, batch: int) -> DataFrame:
    """The split of batch partitioning: a row is sent to each of its batches once, and copied to its windows there."""
    split = source.withColumn(BATCH, _ids(query, batch_window(window, batch)))
    exchanged = split.repartition(*keys_of(query), BATCH)
    first = F.greatest(_first(query, window), F.col(BATCH) * batch)
    last = F.least(last_window(F.col(AXIS), window, floordiv), F.col(BATCH) * batch + (batch - 1))
    return exchanged.withColumn(FIRST, F.explode(F.sequence(first, last)))


def _ids(query: Query, window: Window) -> Column:
    """A copy of the row for each of its windows."""
    return F.explode(F.sequence(_first(query, window), last_window(F.col(AXIS), window, floordiv)))


def _first(query: Query, window: Window) -> Column:
    first = first_window(F.col(AXIS), window, floordiv)
    # Count windows start with the first row; there are none before it.
    return F.greatest(first, F.lit(0)) if query.counts_rows else first
