"""Choosing a strategy: `auto` takes the cheapest that can run; one that the user asked for is checked."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from anabranch.errors import InvalidArgumentError, StrategyError, StreamingError
from anabranch.names import PANE
from anabranch.plan import batch as batch_plan
from anabranch.plan import streaming
from anabranch.plan.placement import needs_key_sample, sampled_keys
from anabranch.plan.prices import Price, Statistics, price
from anabranch.query.strategy import Strategy
from anabranch.query.windowed import Query
from anabranch.spark.columns import floordiv, quoted
from anabranch.windows import describe
from anabranch.windows.ids import pane_of

CANDIDATE_BATCHES = (2, 10, 50)
"""batch sizes that are priced in addition to the planner's default"""

ENOUGH_REPLICATION = 1.25
"""copies of a row at which a larger batch is no longer worth its delay"""


@dataclass(frozen=True)
class Choice:
    """The chosen strategy, and the prices of all."""

    taken: Strategy
    prices: tuple[Price, ...]
    statistics: Statistics
    asked: bool

    @property
    def price(self) -> Price:
        return next(p for p in self.prices if p.strategy == self.taken)


def choose(query: Query, asked: Strategy | None, max_delay: int | None, statistics: Statistics) -> Choice:
    """Price every strategy and take the cheapest, or the one that was asked for."""
    candidates = _candidates(query, max_delay)
    if asked is not None:
        candidates = [asked, *(c for c in candidates if c != asked)]
    prices = tuple(_priced(query, c, max_delay, statistics) for c in candidates)
    possible = [p for p in prices if p.possible]
    if asked is None and possible:
        taken = min(possible, key=lambda p: p.per_row or 0.0).strategy
        return Choice(taken, prices, statistics, asked=False)
    if not prices[0].possible:
        how = f"as {asked.label!r}" if asked else "by any strategy"
        raise StrategyError(f"the query cannot run {how}: {prices[0].reason}", hint=_way_out(query, max_delay))
    return Choice(prices[0].strategy, prices, statistics, asked=True)


def measure(query: Query, share: float) -> Statistics:
    """Count rows per (key, pane) in a share of the panes. Panes are sampled whole, so that the ratio is right."""
    if not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
        raise InvalidArgumentError(
            f"sample={share!r} is not a share of the panes", hint="give a number above 0 and up to 1, for example 0.01"
        )
    if query.streaming:
        raise StreamingError(
            "a stream cannot be sampled before it runs", hint="leave sample out, or use .assume(rows_per_pane=...)"
        )
    if query.counts_rows:
        return Statistics(float(query.panes.size), "panes of a fixed number of rows")
    parts = max(1, round(1 / share))
    pane = pane_of(query.time.micros(), query.panes.size, query.panes.origin, floordiv).alias(PANE)
    keys = [quoted(k) for k in query.keys]
    timed = query.source.where(query.time.usable).select(*keys, pane)
    sampled = timed.where(F.pmod(F.xxhash64(PANE), F.lit(parts)) == 0)
    counts = sampled.groupBy(*keys, PANE).count().agg(F.avg("count"), F.sum("count")).first()
    if counts is None or counts[0] is None:
        return Statistics(source=f"a sample of {share:.2%} of the panes had no rows")
    window_keys, heaviest = sampled_keys(query, parts) if needs_key_sample(query) else (None, ())
    source = f"a sample of {share:.2%} of the panes, {counts[1]:,} rows"
    return Statistics(float(counts[0]), source, window_keys, heaviest)


def default_batch(query: Query, max_delay: int | None) -> int:
    """B for batch partitioning and for streams.

    On a stream, as large as the delay allows (by default a tenth of the longest window); on a bounded DataFrame, as
    large as needed to bring the copies of a row down to `ENOUGH_REPLICATION`.
    """
    longest = max(query.panes.windows, key=lambda w: w.size)
    if not query.streaming:
        return max(1, round((longest.overlap - 1) / (ENOUGH_REPLICATION - 1)))
    delay = longest.size // 10 if max_delay is None else max_delay
    most = 1 + delay // max(w.slide for w in query.panes.windows)
    return next((b for b in range(most, 1, -1) if delay_of(query, Strategy("pane", b)) <= delay), 1)


def _candidates(query: Query, max_delay: int | None) -> list[Strategy]:
    batch = default_batch(query, max_delay)
    if query.streaming:
        return [Strategy("pane", batch), Strategy("batch", batch), Strategy("window")]
    sizes = sorted({batch, *CANDIDATE_BATCHES})
    return [Strategy("pane"), *(Strategy("batch", b) for b in sizes), Strategy("window")]


def _priced(query: Query, strategy: Strategy, max_delay: int | None, statistics: Statistics) -> Price:
    if strategy.kind == "pane" and not query.mergeable:
        names = ", ".join(name for name, a in query.aggregates.items() if not a.mergeable)
        return Price(strategy, None, 1.0, f"{names} has no merge, so panes cannot become windows")
    if query.streaming:
        delay = delay_of(query, strategy)
        if max_delay is not None and delay > max_delay:
            return Price(strategy, None, 1.0, f"a complete window would wait for up to {describe(delay)}")
        layout = streaming.layout(query, strategy)
    else:
        layout = batch_plan.layout(query, strategy)
    # On a stream, batches are batches of panes, even where Spark could aggregate rows.
    native = streaming.direct(query, strategy) if query.streaming else query.native
    copied = layout.replication
    return price(strategy, query.panes, statistics, pane_replication=copied, native=native, python=query.python)


def _way_out(query: Query, max_delay: int | None) -> str:
    if query.streaming and max_delay is not None:
        return "allow a longer max_delay, or write one query per window length"
    return 'use "auto", "batch" or "window", or give the aggregate a merge function'


def delay_of(query: Query, strategy: Strategy) -> int:
    """How long a complete window may wait for the others of its batch on a stream: with one window, B-1 slides."""
    if streaming.direct(query, strategy):
        return 0
    batches = streaming.layout(query, strategy)
    return max(batches.longest_wait(w) for w in query.panes.in_panes()) * query.panes.size
