"""What a strategy costs: prices for the planner, and the cost model of the batch size.

**Prices** are per input row, in row touches: 1 is one row through one of Spark's hash aggregations. Only ratios matter.
The unit costs were measured with `python -m benchmarks windows` and can be replaced (`UnitCosts`) for another machine
or another aggregate.

| strategy | price per row |
|---|---|
| window | overlap * update + delivered * emit |
| batch  | replication(B) * move + overlap * update + delivered * emit |
| pane   | update + panes * replication * gather + delivered * emit |

`panes` is the number of (key, pane) pairs per row, at most 1; where nothing is known about the data, 1 is assumed, the
worst case for panes. `delivered` is the number of (key, window) results per row.

**The batch size** trades copies against latency: `batch_cost`, `batch_rate`, `choose_batch`. `batch_cost` is exact:
each of the B windows of a batch sees w rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.keys.partitioner import HeavyKeys, table_of
from anabranch.keys.selection import WindowKeys
from anabranch.query.strategy import Strategy
from anabranch.windows import Panes, Window
from anabranch.windows.ids import replication

HEADROOM = 0.1
"""share of a worker's time kept free for costs that the model of the batch size does not cover"""
LARGEST_BATCH = 1_000
"""windows in a batch, at most"""


@dataclass(frozen=True)
class UnitCosts:
    """Prices of the individual steps, in row touches."""

    update: float = 1.0
    """one row, or one copy of it, into an aggregation"""
    move: float = 12.0
    """one row through an exchange, without combining before"""
    gather: float = 6.0
    """one pane state through the exchange and the kernel"""
    emit: float = 1.5
    """one result"""
    python: float = 20.0
    """one row through a user-defined aggregate in Python"""


@dataclass(frozen=True)
class Statistics:
    """What is known about the data: rows per existing (key, pane). 1 is the worst case, and the default."""

    rows_per_pane: float = 1.0
    source: str = "assumed: nothing is known of the data"
    keys: WindowKeys | None = None
    """keys and tuples per worker of some windows, for the choice of a policy"""
    heaviest: tuple[tuple[int, int], ...] = ()
    """(hash, rows) of the keys with the most rows"""

    def heavy(self, workers: int) -> HeavyKeys:
        """The table of heavy keys for a number of workers."""
        return table_of(self.heaviest, workers)


UNKNOWN = Statistics()


@dataclass(frozen=True)
class Price:
    """A strategy's price, or why it cannot run."""

    strategy: Strategy
    per_row: float | None
    replication: float
    reason: str = ""

    @property
    def possible(self) -> bool:
        return self.per_row is not None


def price(
    strategy: Strategy,
    panes: Panes,
    statistics: Statistics,
    *,
    pane_replication: float,
    native: bool = True,
    python: bool = False,
    costs: UnitCosts | None = None,
) -> Price:
    """The price of a strategy over all windows of the query.

    `native`: Spark itself has all aggregates. If not, every strategy gathers pane states for the kernel; the strategies
    differ in how often a state is copied and, with `python`, how often a user's function sees a row.
    """
    unit = costs or UnitCosts()
    overlap = sum(w.overlap for w in panes.windows)
    per_pane = 1.0 / max(statistics.rows_per_pane, 1.0)
    # A window is delivered once, not once per pane.
    delivered = sum(w.overlap * per_pane / panes.per_window(w) for w in panes.windows)
    copies = {
        "pane": 1.0,
        "batch": sum(replication(w, strategy.windows_at_once) for w in panes.windows),
        "window": overlap,
    }[strategy.kind]
    if strategy.kind == "pane" or not native:
        work = unit.update + per_pane * pane_replication * unit.gather
        if python:
            work += unit.python * (1.0 + per_pane if strategy.kind == "pane" else overlap)
    else:
        moved = copies * unit.move if strategy.kind == "batch" else 0.0
        work = moved + overlap * unit.update
    return Price(strategy, work + delivered * unit.emit, copies)


def batch_cost(batch: int, window: Window, update: float, open_close: float, other: float) -> float:
    """Cost per row that an aggregate sees, exactly: B*w updates and B open/close per w + (B-1)s rows."""
    rows = window.size + (batch - 1) * window.slide
    return batch * window.size / rows * update + batch / rows * open_close + other


def batch_rate(batch: int, window: Window, rate: float, workers: int) -> float:
    """Rows per second that reach one of the workers, including copies."""
    return rate / workers * replication(window, batch)


def choose_batch(
    window: Window,
    *,
    rate: float,
    workers: int,
    update: float,
    open_close: float,
    other: float,
    max_latency: float,
    period: float,
    headroom: float = HEADROOM,
    largest: int = LARGEST_BATCH,
) -> int:
    """The smallest B that keeps the latency bound; if none does, the one that comes closest.

    Costs are in seconds and measured by the caller; `period` is the time between two choices, in seconds.
    """

    def excess(batch: int) -> float:
        capacity = (1.0 - headroom) / batch_cost(batch, window, update, open_close, other)
        return batch_rate(batch, window, rate, workers) - capacity

    for batch in range(1, largest + 1):
        if excess(batch) * period < max_latency:
            return batch
    return min(range(1, largest + 1), key=excess)
