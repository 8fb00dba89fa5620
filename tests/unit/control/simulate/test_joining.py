"""A simulated join: what it costs by its definition, and that `Rebalance` finds its way there (paper 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anabranch.control.rebalance import Rebalance
from anabranch.control.simulate import (
    Arrivals,
    Cluster,
    JoinCosts,
    JoinWork,
    Simulation,
    constant,
    master_buffer_peak,
    simulate,
)
from anabranch.errors import InvalidArgumentError

COSTS = JoinCosts(insert=2e-6, scan=2e-8, pair=1e-6, message=1e-3, byte=1e-8)
T_D = 2.0


def run(
    arrivals: Arrivals,
    speeds: tuple[float, ...],
    *,
    epochs: int = 120,
    work: JoinWork | None = None,
    noise: float = 0.0,
    **options: Any,
) -> Simulation:
    """A join with a window of a minute; controlled, if there are `options`."""
    work = work or JoinWork(COSTS, window=60.0, theta=1e5, t_d=T_D)
    controllers = [Rebalance(work.name, work.groups, len(speeds), **options)] if options else []
    cluster = Cluster(speeds, noise, overhead=0.0)
    return simulate(work, controllers, arrivals, cluster, epochs=epochs, trigger_seconds=work.t_d, seed=1)


def delay(simulation: Simulation, last: int = 20) -> float:
    """Seconds, mean of the last epochs."""
    return float(np.mean([epoch.operators[0].metrics["delay_us"] / 1e6 for epoch in simulation.history[-last:]]))


def pending(simulation: Simulation) -> int:
    return simulation.history[-1].operators[0].metrics["pending"]


# --- costs by definition ---------------------------------------------------------------------------------------------


def one(work: JoinWork, rows: int = 6_000, *, workers: int = 4, epochs: int = 1, **settings: Any) -> Any:
    """The progress of the last of so many epochs."""
    rng, cluster = np.random.default_rng(1), Cluster.uniform(workers, overhead=0.0)
    return [work.epoch(rows, T_D, settings, cluster, rng) for _ in range(epochs)][-1]


def test_all_is_joined_in_time_on_an_idle_cluster() -> None:
    found = one(JoinWork(COSTS))
    assert sum(worker.rows for worker in found.workers) == found.rows == 6_000
    assert [worker.occupancy for worker in found.workers] == [0.0] * 4
    assert found.metrics["pending"] == 0
    # A tuple waits half an epoch at the master, and little more.
    assert T_D / 2 < found.metrics["delay_us"] / 1e6 < T_D / 2 + 0.2


def test_time_is_communication_work_and_idleness() -> None:
    for rows in (6_000, 600_000):
        found = one(JoinWork(COSTS), rows, epochs=5)
        busy = sum(worker.seconds for worker in found.workers)
        parts = busy + (found.metrics["communication_us"] + found.metrics["idle_us"]) / 1e6
        assert parts == pytest.approx(4 * T_D, rel=1e-4)
        for worker in found.workers:
            assert sum(spent for _, spent in worker.group_seconds) == pytest.approx(worker.seconds)


def test_windows_fill_up_and_then_stay() -> None:
    work = JoinWork(COSTS, window=20.0)
    sizes = [one(work).state_bytes for _ in range(15)]
    assert sizes[:10] == [64 * 6_000 * (n + 1) for n in range(10)]
    assert sizes[10:] == [sizes[9]] * 5


def test_a_nested_loop_scans_the_other_stream_s_part() -> None:
    costs = JoinCosts(insert=0.0, scan=1e-9, pair=0.0)
    work = JoinWork(costs, weights=[1.0], groups=1, fine_tuning=False)
    found = one(work, 1_000, workers=1, epochs=3)
    assert found.workers[0].seconds == pytest.approx(1_000 * (3_000 / 2) * 1e-9)


def test_fine_tuning_bounds_what_is_scanned() -> None:
    costs = JoinCosts(insert=0.0, scan=1e-9, pair=0.0)
    # 64 kB in both windows, parts of 20 kB at most: four of 16 kB.
    plain, tuned = (
        one(JoinWork(costs, groups=1, theta=10_000, fine_tuning=tuning), 1_000, workers=1).workers[0].seconds
        for tuning in (False, True)
    )
    assert plain == pytest.approx(4 * tuned)


def test_hashed_probes_cost_the_same_whatever_the_window() -> None:
    work = JoinWork(JoinCosts(pair=0.0), probe="hashed")
    busy = [sum(worker.seconds for worker in one(work).workers) for _ in range(5)]
    assert busy == pytest.approx([busy[0]] * 5)


def test_later_workers_wait_for_those_before_them() -> None:
    found = one(JoinWork(COSTS))
    least, most = (found.metrics[f"communication_{which}_us"] for which in ("least", "most"))
    assert most == pytest.approx(4 * least, rel=0.1)


def test_sub_groups_shorten_the_wait() -> None:
    waits = [one(JoinWork(COSTS, subgroups=n)).metrics["communication_us"] for n in (1, 2, 4)]
    # 1 + 2 + 3 + 4 transfers, then twice 1 + 2, then each its own.
    assert waits == pytest.approx([waits[2] * 10 / 4, waits[2] * 6 / 4, waits[2]], rel=0.1)


def test_pending_tuples_and_state_go_with_their_group() -> None:
    work = JoinWork(COSTS, groups=2, weights=[1.0, 0.0], fine_tuning=False)
    before = one(work, 100_000, workers=2, epochs=3, routing=[0, 1])
    assert before.workers[0].buffered > 0
    after = one(work, 0, workers=2, routing=[1, 1])
    assert after.workers[0].buffered == 0
    assert 0 < after.workers[1].buffered < before.workers[0].buffered
    assert after.metrics["moved_bytes"] == pytest.approx(64 * (300_000 + before.workers[0].buffered), rel=1e-6)
    assert after.metrics["communication_most_us"] > 1e5  # the state went over the network


def test_same_seed_same_run() -> None:
    runs = [run(constant(9_000), (1.0, 0.5), epochs=30, noise=0.1, moves=1) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("wrong", [{"weights": [1.0]}, {"groups": 0}, {"subgroups": 0}, {"t_d": 0.0}, {"window": 1.0}])
def test_impossible_joins_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        JoinWork(**wrong)


# --- under its controller --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_slow_worker_is_relieved_and_left_alone_it_drowns(noise: float) -> None:
    slow = (1.0, 1.0, 1.0, 0.3)
    alone = run(constant(50_000), slow, noise=noise, epochs=300)
    helped = run(constant(50_000), slow, noise=noise, epochs=300, decluster=False)
    assert delay(alone) > 10
    assert pending(alone) > 100_000
    assert delay(helped) < T_D
    assert pending(helped) < 1_000
    groups = [worker.groups for worker in helped.history[-1].operators[0].workers]
    assert groups[3] < 12 < min(groups[:3])
    assert helped.changes("routing") <= 15
    assert helped.values("routing")[-60] == helped.values("routing")[-1]  # it has come to rest


def test_more_groups_at_once_recover_sooner() -> None:
    def drained(moves: int) -> int:
        found = run(constant(60_000), (1.0, 1.0, 1.0, 0.2), epochs=300, decluster=False, moves=moves)
        late = [n for n, epoch in enumerate(found.history) if epoch.operators[0].metrics["pending"] > 1_000]
        return max(late)

    assert drained(4) < drained(1) < 299


def test_the_degree_follows_a_rising_and_falling_rate() -> None:
    def arrivals(t: float) -> float:
        return 80_000.0 if 400 <= t < 1_200 else 6_000.0

    found = run(arrivals, (1.0,) * 8, epochs=900, moves=4)
    degree = found.values("workers")
    assert degree[0] == 8
    assert degree[199] == 1  # hardly anything to do
    assert 3 <= degree[599] <= 6  # 400 s later it is as busy as it should be
    assert degree[-1] == 1
    assert delay(Simulation(found.history[:600], {})) < T_D
    assert found.changes("workers") <= 30


def test_a_steady_load_comes_to_rest() -> None:
    found = run(constant(20_000), (1.0,) * 4, epochs=400, noise=0.1, moves=1)
    assert len({tuple(routing) for routing in found.values("routing")[200:]}) == 1


# --- the master's buffer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_g", [1, 2, 3, 4, 10, 100])
def test_the_peak_of_the_master_s_buffer_is_the_paper_s(n_g: int) -> None:
    assert master_buffer_peak(1_500, 2.0, n_g) == pytest.approx(1_500 * 2.0 / 2 * (1 + 1 / n_g))
