"""The controllers in a simulated cluster: they arrive where the models say, stay there, and bound their changes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from anabranch.control.batch_size import BatchSize
from anabranch.control.simulate import Cluster, Simulation, SplitWork, WindowWork, constant, simulate, step
from anabranch.control.split_tuning import SplitTuning
from anabranch.errors import InvalidArgumentError
from anabranch.split.cost import SplitCosts, splitters_needed
from anabranch.windows import Window

WINDOW = Window(100, 1)
WORKERS = 4
BOUND = 2.0  # seconds
AGGREGATE = WindowWork(WINDOW, pane_seconds=0.1, workers=WORKERS, update=1e-7, open_close=1e-5, other=2e-6)
CONTROLLER = BatchSize("aggregate", WINDOW, WORKERS, max_latency=BOUND)


def aggregate(before: float, after: float, *, noise: float = 0.0, epochs: int = 80, fixed: bool = False) -> Simulation:
    controllers = [] if fixed else [CONTROLLER]
    cluster, arrivals = Cluster.uniform(WORKERS, noise=noise), step(before, after, at=20.0)
    return simulate(AGGREGATE, controllers, arrivals, cluster, epochs=epochs, max_rows=100_000, seed=7)


def latencies(simulation: Simulation, last: int) -> list[float]:
    return [epoch.event_latency or 0.0 for epoch in simulation.history[-last:]]


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_batch_size_keeps_the_latency_bound_after_a_step(noise: float) -> None:
    adapted, left_alone = (aggregate(5_000, 60_000, noise=noise, fixed=fixed) for fixed in (False, True))
    assert max(latencies(left_alone, 20)) > 10 * BOUND
    assert adapted.values("batch")[10] == 1  # the bound asks for no more before the step
    assert adapted.values("batch")[-1] > 1
    assert max(latencies(adapted, 20)) < BOUND


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_batch_size_does_not_oscillate(noise: float) -> None:
    found = aggregate(40_000, 40_000, noise=noise, epochs=100)
    values = found.values("batch")[40:]
    assert sum(a != b for a, b in pairwise(values)) <= 5


def test_batch_size_goes_down_again() -> None:
    found = aggregate(60_000, 1_000)
    assert max(found.values("batch")) > 1
    assert found.values("batch")[-1] == 1


def test_beyond_all_capacity_it_stays_put() -> None:
    found = aggregate(5_000, 3_000_000, epochs=40)
    assert found.values("batch")[-1] > 1
    assert found.changes("batch") <= 12


SPLIT_COSTS = SplitCosts(cs=4e-6, ce=4e-6, cr=1e-7, cm=1e-9, O=1e-7)


@pytest.mark.parametrize("q", [8, 64, 512])
def test_splitters_reach_equation_6(q: int) -> None:
    rate = 200_000.0
    work = SplitWork(SPLIT_COSTS, q)
    tuning, cluster = SplitTuning("split", q), Cluster.uniform(600)
    found = simulate(work, [tuning], constant(rate), cluster, epochs=30, max_rows=400_000, seed=3)
    needed = splitters_needed(rate, 1 / SPLIT_COSTS.splitter(1), q)
    assert needed > 1
    # The rate is measured, not known: Poisson noise may ask for a splitter more, and hysteresis keeps it.
    assert needed <= found.values("splitters")[-1] <= needed + max(1, round(0.05 * needed))
    assert found.changes("splitters") <= 8


def test_window_bytes_settle_where_the_model_says() -> None:
    # A physical window costs as much as 100 rows: the gain of a doubling falls below 0.15 % only at large sizes.
    work = SplitWork(SPLIT_COSTS, 8, per_window=8e-4)
    tuning = SplitTuning("split", 8, smallest_window=4096, largest_window=1 << 20)
    found = simulate(work, [tuning], constant(200_000.0), Cluster.uniform(64), epochs=60, max_rows=400_000, seed=3)
    sizes = found.values("window_bytes")
    assert sizes[0] == 4096
    assert sizes[-1] >= 1 << 17
    assert found.settings["window_search"]["settled"]
    assert found.changes("window_bytes") <= 10


def test_same_seed_same_run() -> None:
    runs = [aggregate(5_000, 60_000, noise=0.1, epochs=30) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_slow_worker_takes_longer() -> None:
    found = simulate(AGGREGATE, [], constant(5_000), Cluster((1.0, 1.0, 1.0, 0.25)), epochs=3)
    busy = [worker.seconds for worker in found.history[-1].operators[0].workers]
    assert busy[3] == pytest.approx(4 * busy[0], rel=0.01)


def test_rows_are_neither_lost_nor_made() -> None:
    limited, free = (
        simulate(AGGREGATE, [], constant(5_000), Cluster.uniform(4), epochs=20, max_rows=most) for most in (3_000, None)
    )
    assert all(epoch.rows <= 3_000 for epoch in limited.history)
    # Same arrivals whatever is taken: read and waiting together come to the same, but for when the last epoch ended.
    totals = [sum(e.rows for e in run.history) + (run.history[-1].backlog or 0) for run in (limited, free)]
    assert totals[0] == pytest.approx(totals[1], rel=0.05)


def test_a_cluster_needs_slots() -> None:
    with pytest.raises(InvalidArgumentError):
        Cluster(())
