"""The batch size: which measurements count, and what they lead to."""

from __future__ import annotations

import pytest

from anabranch.control.batch_size import BatchSize, largest_batch, measured_costs
from anabranch.observe.progress import OperatorProgress, WorkerMeasure
from anabranch.windows import Window
from tests.unit.control.measures import epoch

WINDOW = Window(10, 1)


def aggregate(seconds: float, *, rows: int = 1_000) -> OperatorProgress:
    worker = WorkerMeasure(0, rows, seconds)
    return OperatorProgress("aggregate", rows=rows, emitted=10, workers=(worker,), decisions={"batch": 1})


def test_without_measures_the_batch_stays() -> None:
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    unknown = [epoch(0), epoch(1, OperatorProgress("another", rows=5)), epoch(2, aggregate(1.0, rows=0))]
    for history in ([], unknown):
        assert controller.decide(history, {"batch": 7}) == {"batch": 7}
        assert controller.decide(history, {}) == {"batch": 1}


def panes(rows: int, states: int, busy: float, batch: int = 1) -> OperatorProgress:
    """Spark made panes of the rows, and two workers got those."""
    workers = tuple(WorkerMeasure(i, states // 2, busy / 2) for i in range(2))
    return OperatorProgress("aggregate", rows=rows, emitted=100, workers=workers, decisions={"batch": batch})


@pytest.mark.parametrize("in_force", [1, 5])
def test_a_worker_that_is_idle_most_of_the_time_needs_no_batches(in_force: int) -> None:
    """100,000 rows/s become 1,000 panes/s, and the workers are busy for 1 % of the time: B = 1 is enough."""
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    history = [epoch(i, panes(100_000, 1_000, 0.02, in_force), rows=100_000) for i in range(5)]
    assert controller.decide(history, {"batch": in_force})["batch"] == 1


def test_a_worker_that_is_too_busy_with_panes_gets_batches() -> None:
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    history = [epoch(i, panes(100_000, 1_000, 4.0), rows=100_000) for i in range(5)]
    found = controller.decide(history, {"batch": 1})
    assert found["batch"] > 1
    assert "100 rows or panes/s on 2 workers" in found["why:batch"]  # ten copies of each, for B = 1


def test_no_window_waits_for_its_batch_longer_than_the_bound_allows() -> None:
    assert largest_batch(4.0, 60.0) == 8  # the first of eight waits for seven slides: 28 s
    assert largest_batch(0.001, 60.0) == 1_000
    assert largest_batch(3_600.0, 5.0) == 1


def test_a_replayed_epoch_says_nothing_of_costs() -> None:
    slow = epoch(1, aggregate(50.0), replayed=True)
    assert measured_costs([slow], "aggregate", WINDOW) is None
    with_it, without = ([epoch(0, aggregate(0.5)), *more] for more in ([slow], []))
    assert measured_costs(with_it, "aggregate", WINDOW) == measured_costs(without, "aggregate", WINDOW)
