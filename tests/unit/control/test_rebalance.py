"""`Rebalance`: who yields which group to whom, how many workers there are, and that nothing goes in circles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.control.rebalance import HOLD, QUIET, Rebalance
from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import EpochProgress, OperatorProgress, WorkerMeasure

FULL, EMPTY, HALF = 0.9, 0.0, 0.2
"""occupancies of a supplier, a consumer and a neutral worker"""
Seconds = Mapping[int, float]
"""busy seconds per epoch of each group"""


def epoch(
    number: int,
    occupancy: Sequence[float],
    routing: Sequence[int],
    seconds: Seconds,
    *,
    replayed: bool = False,
    reports_groups: bool = True,
) -> EpochProgress:
    """An epoch of two seconds in which workers were as full as that, and groups cost that; `told` per group."""
    workers = []
    for worker, share in enumerate(occupancy):
        own = tuple((g, seconds.get(g, 0.0)) for g, owner in enumerate(routing) if owner == worker)
        busy = sum(spent for _, spent in own)
        workers.append(WorkerMeasure(worker, 100, busy, occupancy=share, group_seconds=own if reports_groups else ()))
    operator = OperatorProgress("join", rows=100, workers=tuple(workers))
    return EpochProgress("q", "r", number, 2.0 * number, 1.0, 2.0, 100, replayed=replayed, operators=(operator,))


class Run:
    """A controller over reorganisation epochs of two epochs each; settings go through JSON, as in the ledger."""

    def __init__(self, groups: int, most_workers: int, **options: Any) -> None:
        self.controller = Rebalance("join", groups, most_workers, **{"reorganise_every": 2, **options})
        self.history: list[EpochProgress] = []
        self.settings: dict[str, Any] = {}
        self.decide()

    def decide(self) -> None:
        owned = {key: value for key, value in self.settings.items() if not key.startswith("why:")}
        self.settings = json.loads(json.dumps(dict(self.controller.decide(self.history, owned))))

    @property
    def routing(self) -> list[int]:
        return list(self.settings["routing"])

    @property
    def workers(self) -> int:
        return int(self.settings["workers"])

    def turn(self, occupancy: Sequence[float], seconds: Seconds | None = None, **fields: Any) -> dict[int, int]:
        """One reorganisation epoch; the groups that it moved, and where to."""
        before = self.routing
        for _ in range(self.controller.reorganise_every):
            assert self.routing == before  # only the end of a reorganisation epoch changes it
            spent = seconds if seconds is not None else dict.fromkeys(range(len(before)), 0.1)
            self.history.append(epoch(len(self.history), occupancy, before, spent, **fields))
            self.decide()
        return {g: now for g, (old, now) in enumerate(zip(before, self.routing, strict=True)) if old != now}


def test_groups_are_dealt_in_turn_to_all_workers_at_first() -> None:
    run = Run(7, 3)
    assert (run.routing, run.workers) == ([0, 1, 2, 0, 1, 2, 0], 3)
    assert not any(key.startswith("why:") for key in run.settings)


@pytest.mark.parametrize(
    "wrong",
    [{"groups": 0}, {"most_workers": 0}, {"moves": 0}, {"reorganise_every": 0}, {"consumer": 0.5}, {"beta": 0.0}],
)
def test_what_could_never_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Rebalance(**{"operator": "join", "groups": 4, "most_workers": 2, **wrong})


# --- who yields to whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("occupancy", "pairs"),
    [
        ([FULL, EMPTY], [(0, 1)]),
        ([0.5, EMPTY], []),  # at the threshold it is neutral
        ([0.51, EMPTY], [(0, 1)]),
        ([FULL, 0.01], []),
        ([FULL, 0.009], [(0, 1)]),
        ([FULL, FULL, EMPTY], [(0, 2)]),  # one consumer, one supplier
        ([0.8, FULL, EMPTY], [(1, 2)]),  # the heaviest first
        ([FULL, 0.8, 0.005, EMPTY], [(0, 3), (1, 2)]),  # to the lightest
        ([HALF, HALF, HALF], []),
        ([FULL, FULL, FULL], []),
        ([EMPTY, EMPTY, EMPTY], []),
    ],
)
def test_suppliers_and_consumers(occupancy: list[float], pairs: list[tuple[int, int]]) -> None:
    run = Run(12, len(occupancy), decluster=False)
    before = run.routing
    # Suppliers are busy, and the others are not.
    seconds = {g: 0.3 if occupancy[w] > 0.5 else 0.01 for g, w in enumerate(before)}
    moved = run.turn(occupancy, seconds)
    assert sorted((before[g], to) for g, to in moved.items()) == sorted(pairs)
    assert ("why:routing" in run.settings) == (max(occupancy) > 0.5)


def test_the_group_that_brings_the_two_closest() -> None:
    # Worker 0 has the groups 0, 2, 4, 6 with 1.2 s together, worker 1 has 0.2 s: 0.5 s meet in the middle.
    run = Run(8, 2)
    assert run.turn([FULL, EMPTY], {0: 0.2, 2: 0.4, 4: 0.5, 6: 0.1, 1: 0.2}) == {4: 1}


def test_no_group_is_taken_that_would_only_swap_the_two() -> None:
    run = Run(4, 2, decluster=False)  # worker 0 has the groups 0 and 2
    assert run.turn([FULL, EMPTY], {0: 1.0, 2: 0.0, 1: 0.1}) == {}
    assert "worker 0 has no group that would help" in run.settings["why:routing"]


def test_equal_groups_are_taken_by_number() -> None:
    assert Run(8, 2).turn([FULL, EMPTY], dict.fromkeys((0, 2, 4, 6), 0.2)) == {0: 1}


def test_the_only_group_is_kept_and_the_reason_says_so() -> None:
    run = Run(2, 2, decluster=False)
    assert run.turn([FULL, EMPTY], {0: 1.0}) == {}
    assert run.settings["why:routing"] == "worker 0 keeps its only group"


def test_without_busy_seconds_per_group_a_worker_s_are_shared_out() -> None:
    assert Run(8, 2).turn([FULL, EMPTY], dict.fromkeys((0, 2, 4, 6), 0.2), reports_groups=False) == {0: 1}


def test_without_any_busy_seconds_groups_count_alike() -> None:
    run = Run(8, 2, decluster=False)
    run.settings["routing"] = [0] * 7 + [1]
    assert run.turn([FULL, EMPTY], {}) == {0: 1}


def test_several_at_once_as_long_as_the_supplier_stays_the_heavier() -> None:
    seconds = dict.fromkeys(range(0, 20, 2), 0.1)  # all on worker 0: 1.0 s
    assert len(Run(20, 2, moves=3).turn([FULL, EMPTY], seconds)) == 3
    assert len(Run(20, 2, moves=99).turn([FULL, EMPTY], seconds)) in (4, 5)


def test_without_rebalance_nothing_moves() -> None:
    assert Run(12, 3, rebalance=False, decluster=False).turn([FULL, EMPTY, EMPTY]) == {}


# --- which epochs count ----------------------------------------------------------------------------------------------


def test_the_mean_over_the_reorganisation_epoch_counts() -> None:
    run = Run(8, 2, reorganise_every=4, decluster=False)
    for occupancy in (1.0, 1.0, 0.0, 0.0):  # the mean is no more than the threshold
        run.history.append(epoch(len(run.history), [occupancy, EMPTY], run.routing, {0: 0.5, 2: 0.5}))
        run.decide()
    assert run.routing == [0, 1] * 4


def test_replayed_epochs_do_not_count() -> None:
    calm = [epoch(n, [HALF, EMPTY], [0, 1] * 4, {0: 0.5, 2: 0.5}) for n in range(4)]
    again = [epoch(n, [1.0, EMPTY], [0, 1] * 4, {0: 1.5, 2: 0.5}, replayed=True) for n in range(4)]
    mixed = [calm[0], again[1], calm[2], calm[3]]
    controller = Rebalance("join", 8, 2, reorganise_every=4, decluster=False)
    assert controller.decide(mixed, {}) == controller.decide(calm, {})
    assert controller.decide(again, {})["rebalancing"]["turn"] == 0  # nothing was measured


def test_nothing_happens_before_the_end_of_a_reorganisation_epoch() -> None:
    controller = Rebalance("join", 8, 2)
    history: list[EpochProgress] = []
    settings: Mapping[str, Any] = controller.decide(history, {})
    for number in range(9):
        history.append(epoch(number, [FULL, EMPTY], [0, 1] * 4, {0: 0.5, 2: 0.5}))
        settings = controller.decide(history, settings)
        assert settings["routing"] == [0, 1] * 4
    history.append(epoch(9, [FULL, EMPTY], [0, 1] * 4, {0: 0.5, 2: 0.5}))
    assert controller.decide(history, settings)["routing"] != [0, 1] * 4


def test_another_operator_s_load_is_nobody_s() -> None:
    controller = Rebalance("other", 8, 2, reorganise_every=2)
    history = [epoch(n, [FULL, EMPTY], [0, 1] * 4, {0: 1.0, 2: 1.0}) for n in range(8)]
    assert controller.decide(history, {})["routing"] == [0, 1] * 4


# --- hysteresis ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calm", range(HOLD + 2))
def test_a_group_does_not_go_back_for_a_while(calm: int) -> None:
    run = Run(4, 2, decluster=False)
    assert run.turn([FULL, EMPTY], {0: 0.5, 2: 0.9, 1: 0.2}) == {0: 1}
    for _ in range(calm):
        assert run.turn([HALF, HALF]) == {}
    # Now worker 1 is the heavy one, and group 0 would be best again.
    assert run.turn([EMPTY, FULL], {0: 0.5, 1: 0.3, 3: 0.3}) == ({0: 0} if calm >= HOLD else {1: 0})


def test_a_group_may_go_on_to_a_third_worker_but_not_at_once() -> None:
    for calm, moved in ((0, {1: 2}), (1, {0: 2})):
        run = Run(6, 3, decluster=False)
        assert run.turn([FULL, EMPTY, HALF], {0: 0.5, 3: 0.9, 1: 0.2}) == {0: 1}
        for _ in range(calm):
            run.turn([HALF, HALF, HALF])
        assert run.turn([HALF, FULL, EMPTY], {0: 0.5, 1: 0.3, 4: 0.3}) == moved


@given(
    st.lists(st.lists(st.sampled_from([EMPTY, HALF, FULL]), min_size=4, max_size=4), max_size=12),
    st.lists(st.integers(0, 5), min_size=12, max_size=12),
    st.integers(1, 3),
    st.booleans(),
)
def test_whatever_the_loads_tables_are_total_and_nothing_bounces(
    turns: list[list[float]], costs: list[int], moves: int, decluster: bool
) -> None:
    run = Run(12, 4, moves=moves, decluster=decluster)
    seconds = {g: cost / 10 for g, cost in enumerate(costs)}
    left: dict[tuple[int, int], int] = {}  # when a group left a worker
    for turn, occupancy in enumerate(turns):
        before, workers = run.routing, run.workers
        suppliers = sum(share > 0.5 for share in occupancy[:workers])
        moved = run.turn(occupancy[:workers], seconds)
        assert len(run.routing) == 12
        assert all(0 <= worker < run.workers <= 4 for worker in run.routing)
        assert abs(run.workers - workers) <= 1
        assert decluster or run.workers == 4
        if run.workers >= workers:
            assert len(moved) <= moves * suppliers
        for group, to in moved.items():
            assert turn - left.get((group, to), -99) > HOLD
            left[group, before[group]] = turn
        if moved:
            assert run.settings["why:routing"].startswith("group ")


@given(st.floats(0.02, 0.49), st.floats(0.0, 0.2), st.integers(1, 6))
def test_a_constant_balanced_load_moves_nothing_for_ever(occupancy: float, spent: float, workers: int) -> None:
    run = Run(12, workers)
    seconds = dict.fromkeys(range(12), spent)
    for _ in range((QUIET + 1) * workers):  # until the degree has settled
        run.turn([occupancy] * run.workers, seconds)
    settled = (run.routing, run.workers)
    for _ in range(6):
        assert run.turn([occupancy] * run.workers, seconds) == {}
    assert (run.routing, run.workers) == settled


# --- the degree of declustering --------------------------------------------------------------------------------------


def test_a_quiet_operator_loses_a_worker_after_a_while() -> None:
    run = Run(12, 4)
    for _ in range(QUIET - 1):
        assert run.turn([HALF] * 4) == {}
    moved = run.turn([HALF] * 4)
    assert run.workers == 3
    assert sorted(moved) == [3, 7, 11]
    assert sorted(run.routing.count(worker) for worker in range(3)) == [4, 4, 4]
    assert "4 -> 3" in run.settings["why:workers"]


def test_no_worker_goes_that_the_others_cannot_do_without() -> None:
    # 12 groups of 0.25 s in 2 s are 1.5 workers: 3 can do that at 0.5 each, 2 cannot at 0.6.
    run = Run(12, 4)
    for _ in range(6 * QUIET):
        run.turn([HALF] * run.workers, dict.fromkeys(range(12), 0.25))
    assert run.workers == 3


def test_an_idle_operator_ends_with_one_worker() -> None:
    run = Run(12, 4)
    for _ in range(4 * QUIET):
        run.turn([EMPTY] * run.workers, {})
    assert (run.workers, run.routing) == (1, [0] * 12)


def test_too_many_suppliers_get_a_worker_more_and_each_yields_to_it() -> None:
    run = Run(12, 4)
    run.settings |= {"workers": 2, "routing": [g % 2 for g in range(12)]}
    moved = run.turn([FULL, FULL], dict.fromkeys(range(12), 0.3))
    assert run.workers == 3
    assert moved == {0: 2, 1: 2}
    assert "2 -> 3" in run.settings["why:workers"]


@pytest.mark.parametrize(
    ("occupancy", "after"),
    [
        ([FULL, EMPTY, EMPTY], 3),  # 1 supplier is not more than 0.5 * 2 consumers
        ([FULL, EMPTY, HALF], 4),
        ([FULL, HALF, HALF], 4),
        ([HALF, HALF, HALF], 3),
        ([EMPTY, EMPTY, EMPTY], 3),
    ],
)
def test_beta(occupancy: list[float], after: int) -> None:
    run = Run(12, 4)
    run.settings |= {"workers": 3, "routing": [g % 3 for g in range(12)]}
    run.turn(occupancy, {g: 0.4 if g % 3 == 0 else 0.01 for g in range(12)})
    assert run.workers == after


def test_no_more_than_all_workers() -> None:
    run = Run(12, 3)
    for _ in range(4):
        run.turn([FULL] * 3, dict.fromkeys(range(12), 0.5))
    assert run.workers == 3


def test_after_an_increase_no_decrease_for_a_while_nor_at_the_same_load() -> None:
    run = Run(12, 3)
    run.settings |= {"workers": 2, "routing": [g % 2 for g in range(12)]}
    seconds = dict.fromkeys(range(12), 0.15)  # 0.9 workers' time, but the buffers are full
    run.turn([FULL, FULL], seconds)
    assert run.workers == 3
    for _ in range(3 * HOLD):
        run.turn([HALF] * 3, seconds)
        assert run.workers == 3
    run.turn([HALF] * 3, dict.fromkeys(range(12), 0.05))
    assert run.workers == 2

    run = Run(12, 3)
    run.settings |= {"workers": 2, "routing": [g % 2 for g in range(12)]}
    run.turn([FULL, FULL], seconds)
    for _ in range(HOLD):
        run.turn([EMPTY] * 3, {})
        assert run.workers == 3
    run.turn([EMPTY] * 3, {})
    assert run.workers == 2


# --- restart ---------------------------------------------------------------------------------------------------------


def decided(controller: Rebalance, **current: Any) -> Mapping[str, Any]:
    return controller.decide([], current)


def test_a_restart_goes_on_where_it_was() -> None:
    run = Run(12, 4)
    run.turn([FULL, EMPTY, EMPTY, EMPTY], {0: 0.5, 4: 0.5, 8: 0.5})
    kept = {key: value for key, value in run.settings.items() if not key.startswith("why:")}
    run.history = []
    for _ in range(3):
        run.decide()
        assert run.settings == kept


def test_a_history_that_is_too_short_decides_nothing_until_it_is_long_enough() -> None:
    controller = Rebalance("join", 8, 2, decluster=False)
    settings = decided(controller) | {"rebalancing": {"epoch": 20, "turn": 2}}
    history: list[EpochProgress] = []
    moved_at = None
    for number in range(28, 40):
        history.append(epoch(number, [FULL, EMPTY], [0, 1] * 4, {0: 0.5, 2: 0.5}))
        settings = dict(controller.decide(history, settings))
        if settings["routing"] != [0, 1] * 4:
            moved_at = number
            break
    assert moved_at == 32  # five of ten epochs


def test_fewer_workers_than_before() -> None:
    found = decided(Rebalance("join", 6, 2), routing=[0, 1, 2, 3, 2, 3], workers=4, rebalancing={"moves": [[5, 2, 0]]})
    assert found["routing"] == [0, 1, 0, 1, 0, 1]
    assert found["workers"] == 2
    assert found["rebalancing"]["moves"] == []
    assert "4 -> 2 workers" in found["why:routing"]


def test_more_workers_than_before_are_used_when_needed_or_at_once_without_declustering() -> None:
    before = {"routing": [0, 1, 0, 1, 0, 1], "workers": 2}
    assert decided(Rebalance("join", 6, 3), **before)["workers"] == 2
    found = decided(Rebalance("join", 6, 3, decluster=False), **before)
    assert found["workers"] == 3
    assert sorted(found["routing"].count(worker) for worker in range(3)) == [2, 2, 2]


def test_another_number_of_groups_is_dealt_anew() -> None:
    found = decided(Rebalance("join", 5, 2), routing=[0, 0, 0], workers=2)
    assert found["routing"] == [0, 1, 0, 1, 0]
    assert "3 -> 5 groups" in found["why:routing"]


@given(
    st.lists(st.integers(-2, 9), max_size=20), st.integers(1, 9), st.integers(1, 20), st.integers(1, 9), st.booleans()
)
def test_whatever_is_remembered_the_table_is_total(
    routing: list[int], workers: int, groups: int, most_workers: int, decluster: bool
) -> None:
    controller = Rebalance("join", groups, most_workers, decluster=decluster)
    found = decided(controller, routing=routing, workers=workers)
    assert len(found["routing"]) == groups
    assert all(0 <= worker < found["workers"] <= most_workers for worker in found["routing"])
    kept = {key: value for key, value in found.items() if not key.startswith("why:")}
    assert decided(controller, **kept) == kept  # repaired once and for all
    if len(routing) == groups and found["workers"] <= workers:
        held = [(a, b) for a, b in zip(routing, found["routing"], strict=True) if 0 <= a < found["workers"]]
        assert all(a == b for a, b in held)  # who is there keeps what it has
