"""The load monitor and the controller of shedding, against a plant that does what the model says, and trembles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from anabranch.control.shed import LEAST_HEADROOM, Load, ShedController, WorkShares
from anabranch.observe.progress import DropProgress, EpochProgress, OperatorProgress
from anabranch.shedding.points import Box, DropPoint, Terms, cuts, drop_points
from anabranch.windows import Window

S = 1_000_000
FIXED, PER_ROW, PER_SHED = 0.5, 10e-6, 0.5e-6
BOUND = 10.0


def one_query(max_gap: int = 10) -> tuple[Box, ...]:
    return (Box("window-1", (Window(S, S),), ("source 0",), Terms(max_gap)),)


def two_queries(max_gap: int = 9) -> tuple[Box, ...]:
    return (
        Box("window-1", (Window(S, S),), ("source 0",), Terms(max_gap)),
        Box("window-2", (Window(S, S),), ("source 0",), Terms(max_gap)),
    )


class Plant:
    """Epochs that take as long as their rows need; each reads what came while the one before ran."""

    def __init__(
        self,
        controller: ShedController,
        costs: dict[str, float] | None = None,
        noise: float = 0.0,
        trigger: float | None = None,
    ) -> None:
        self.controller = controller
        self.costs = costs or {"window-1": PER_ROW}
        self.rng = random.Random(5)
        self.noise = noise
        self.trigger = trigger
        self.history: list[EpochProgress] = []
        self.decisions: dict[str, Any] = {}
        self.clock = 0.0
        self.waited = 1.0

    def points(self) -> dict[str, DropPoint]:
        return {point.name: point for cut in self.controller.cuts for point in cut}

    def epoch(self, rate: float) -> EpochProgress:
        self.decisions = dict(self.controller.decide(self.history[-50:], self.decisions))
        rows = rate * self.waited
        kept, emitted = {name: rows for name in self.costs}, {name: 100.0 for name in self.costs}
        points, at_source, shut = self.points(), 0.0, self.decisions["shut"]
        for name in self.decisions["cut"]:
            p = self.decisions["p"].get(name, 0.0)
            at_source = p if points[name].kind == "source" else at_source
            for box in points[name].domain:
                # Where windows overlap, some rows of dropped ones are needed for others; of a shut query none is.
                spared = 1.0 if name in shut else points[name].span.spared(points[name].bound)
                kept[box], emitted[box] = rows * (1 - p * spared), 100.0 * (1 - p)
        shed = rows * len(self.costs) - sum(kept.values())
        tremble = 1 + self.rng.uniform(-self.noise, self.noise)
        seconds = {name: tremble * (FIXED + self.costs[name] * kept[name]) for name in self.costs}
        total = sum(seconds.values()) + PER_SHED * shed
        spare = self.decisions.get("spare", {})
        spared = rows * at_source or rows * sum(self.decisions["p"].get(name, 0) * spare.get(name, 0) for name in spare)
        progress = EpochProgress(
            "q",
            "r",
            len(self.history),
            self.clock,
            total,
            self.trigger,
            rows=round(rows),
            operators=tuple(
                OperatorProgress(name, rows=round(kept[name]), emitted=round(emitted[name]), seconds=seconds[name])
                for name in self.costs
            ),
            drops=tuple(
                DropProgress(name, self.decisions["p"].get(name, 0.0), None if name in shut else 1, "")
                for name in self.decisions["cut"]
            ),
            latency=self.waited + total,
            arrived=rows,
            spared=spared,
        )
        self.history.append(progress)
        self.waited = max(self.trigger or 0.0, total)
        self.clock += self.waited
        return progress

    def run(self, rate: float, epochs: int) -> list[EpochProgress]:
        return [self.epoch(rate) for _ in range(epochs)]


def controller(boxes: Sequence[Box], **settings: Any) -> ShedController:
    found = cuts(drop_points(boxes))
    return ShedController(tuple(boxes), found, **{"max_latency": BOUND, **settings})


def capacity(bound: float = BOUND) -> float:
    """Rows per second at which latency is just the bound: epochs of half of it, one after the other."""
    return (bound / 2 - FIXED) / PER_ROW / (bound / 2)


def test_nothing_is_dropped_below_capacity() -> None:
    plant = Plant(controller(one_query()), noise=0.1)
    plant.run(0.7 * capacity(), 40)
    assert plant.decisions["p"] == {}


@pytest.mark.parametrize("over", [1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("trigger", [None, 2.0])
def test_just_enough_is_dropped(over: float, noise: float, trigger: float | None) -> None:
    plant = Plant(controller(one_query(), trigger=trigger), noise=noise, trigger=trigger)
    plant.run(0.5 * capacity(), 6)
    plant.run(over * capacity(), 6)
    settled = plant.run(over * capacity(), 30)
    assert max(epoch.latency or 0 for epoch in settled) <= BOUND
    delivered = 1 - sum(epoch.spared for epoch in settled) / sum(epoch.rows for epoch in settled)
    ideal = 1 / over
    assert delivered >= 0.8 * ideal
    assert delivered <= 1.02 * ideal


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("over", [1.5, 3.0])
def test_more_is_left_where_epochs_are_irregular(noise: float, over: float) -> None:
    plant = Plant(controller(one_query()), noise=noise)
    plant.run(0.5 * capacity(), 6)
    plant.run(over * capacity(), 20)
    settled = plant.run(over * capacity(), 400)
    assert sum((epoch.latency or 0.0) > BOUND for epoch in settled) <= 0.03 * len(settled)
    assert plant.decisions["headroom"] == LEAST_HEADROOM or noise >= 0.1
    delivered = 1 - sum(epoch.spared for epoch in settled) / sum(epoch.rows for epoch in settled)
    assert delivered >= 0.8 / over


def test_when_the_burst_ends_it_stops() -> None:
    plant = Plant(controller(one_query()), noise=0.05)
    plant.run(0.5 * capacity(), 6)
    plant.run(2 * capacity(), 15)
    assert plant.decisions["p"]["source 0"] > 0.4
    plant.run(0.5 * capacity(), 12)
    assert not any(plant.decisions["p"].values())


def test_a_rate_that_trembles_does_not_switch_it_on_and_off() -> None:
    plant = Plant(controller(one_query()), noise=0.05)
    plant.run(0.5 * capacity(), 6)
    shares = []
    for i in range(60):
        plant.epoch((1.5 + 0.03 * (-1) ** i) * capacity())
        shares.append(plant.decisions["p"].get("source 0", 0.0))
    changes = sum(abs(a - b) > 0.05 for a, b in pairwise(shares[15:]))
    assert changes <= 8


def test_the_gap_bound_limits_the_share_and_then_queries_are_shut() -> None:
    plant = Plant(controller(one_query(max_gap=1)))
    plant.run(0.5 * capacity(), 6)
    plant.run(1.5 * capacity(), 12)
    assert plant.decisions["shut"] == [] and 0 < plant.decisions["p"]["source 0"] <= 0.5
    plant.run(6 * capacity(), 12)
    assert plant.decisions["shut"] == ["source 0"]
    assert "no drop within the gap bounds" in plant.decisions["cause"]
    plant.run(0.3 * capacity(), 30)
    assert plant.decisions["shut"] == [] and not any(plant.decisions["p"].values())


def test_of_two_queries_the_costliest_is_shut() -> None:
    shed = controller(two_queries(max_gap=1))
    plant = Plant(shed, {"window-1": 2e-6, "window-2": 20e-6})
    plant.run(20_000, 6)
    plant.run(400_000, 14)
    assert plant.decisions["shut"][0] == "before window-2"


def over_another() -> tuple[Box, ...]:
    """window-1, and window-2 over its results; both are delivered."""
    return (
        Box("window-1", (Window(2 * S, 2 * S),), ("source 0",), Terms(10)),
        Box("window-2", (Window(8 * S, 4 * S),), ("window-1",), Terms(4)),
    )


def work(first: float, second: float) -> WorkShares:
    return WorkShares({"window-1": first, "window-2": second}, {"window-1": 0.0, "window-2": 0.0})


def test_the_costliest_query_is_shut_and_not_the_source_of_both() -> None:
    shed = controller(over_another())
    assert {point.name for cut in shed.cuts for point in cut} == {"source 0", "before window-2"}
    assert shed.shut_one(work(0.12, 0.88), []) == ["before window-2"]
    # If that is not enough, the other one follows.
    assert shed.shut_one(work(0.12, 0.88), ["before window-2"]) == ["source 0"]
    assert shed.shut_one(work(0.12, 0.88), ["source 0"]) == ["source 0"]


def test_a_query_is_not_shut_where_that_would_spare_less_than_drops_do() -> None:
    """80 % of all rows can be dropped at the source; to shut window-2 alone would spare 30 % of the work."""
    assert controller(over_another()).shut_one(work(0.7, 0.3), []) == ["source 0"]


def test_of_queries_side_by_side_one_after_the_other_is_shut() -> None:
    shed, shares = controller(two_queries(max_gap=1)), work(0.3, 0.7)
    assert shed.shut_one(shares, []) == ["before window-2"]
    assert set(shed.shut_one(shares, ["before window-2"])) == {"before window-1", "before window-2"}


@pytest.mark.parametrize("over", [4.0, 4.6])
def test_under_overload_the_cheap_query_goes_on(over: float) -> None:
    """12 % and 88 % of the work. Where both were shut for a while, the cheap one opens again."""
    plant = Plant(controller(over_another()), {"window-1": 1.2e-6, "window-2": 8.8e-6})
    plant.run(0.3 * capacity(), 6)
    plant.run(over * capacity(), 20)
    for epoch in plant.run(over * capacity(), 15):
        assert plant.decisions["shut"] == ["before window-2"]
        assert epoch.latency is not None and epoch.latency < BOUND
    plant.run(0.3 * capacity(), 30)
    assert plant.decisions["shut"] == [] and not any(plant.decisions["p"].values())


def test_what_is_shut_opens_as_far_as_the_load_allows() -> None:
    shed, shares = controller(over_another()), work(0.12, 0.88)
    assert shed._opened(0.5, shares, ["source 0"]) == []
    assert shed._opened(0.85, shares, ["source 0"]) == ["before window-2"]
    assert shed._opened(0.95, shares, ["source 0"]) is None


@pytest.mark.parametrize(("weight", "loses"), [(10.0, "before window-2"), (0.1, "before window-1")])
def test_weights_say_who_loses(weight: float, loses: str) -> None:
    plant = Plant(
        controller(two_queries(), weights={"window-1": weight, "window-2": 1.0}),
        {"window-1": PER_ROW / 2, "window-2": PER_ROW / 2},
    )
    plant.run(0.5 * capacity(), 6)
    plant.run(1.2 * capacity(), 12)
    lost = {name: p for name, p in plant.decisions["p"].items() if p > 0}
    assert set(lost) == {loses}


def test_as_much_as_possible_is_delivered_over_all_queries() -> None:
    """Brute force over shares of two points: none that spares enough delivers clearly more."""
    shed = controller(two_queries(), weights={"window-1": 1.0, "window-2": 2.0})
    shares = WorkShares({"window-1": 0.7, "window-2": 0.3}, {"window-1": 0.0, "window-2": 0.0})
    for needed in (0.1, 0.4, 0.6, 0.8):
        cut, _ = shed._choose(needed, shares, [], [])
        _, spared, delivered = shed._filled(cut, needed, shares, [])
        assert spared >= needed - 0.02
        apart = next(each for each in shed.cuts if len(each) == 2)
        worth = {"before window-1": 1.0, "before window-2": 2.0}
        best = 0.0
        for a in range(91):
            for b in range(91):
                given = {"before window-1": a / 100, "before window-2": b / 100}
                if sum(given[point.name] * shares.spared(point, shed.boxes) for point in apart) >= needed:
                    best = max(best, 1 - sum(given[name] * worth[name] for name in worth) / 3)
        assert delivered >= best - 0.02


def test_what_sinks_take_is_spared_with_the_results() -> None:
    """Half of the work is a sink's: results that are dropped spare it, though their aggregate has done its own."""
    points = {point.name: point for point in drop_points(one_query())}
    history = []
    for i in range(10):
        rows, emitted = 10_000 + 1_000 * (i % 4), 100 + 20 * (i % 3)
        seconds = {"seconds": 0.3 + rows * 1e-5, "publish_seconds": 0.1 + emitted * 1e-3}
        operator = OperatorProgress("window-1", rows=rows, emitted=emitted, **seconds)
        history.append(EpochProgress("q", "r", i, float(i), sum(seconds.values()), rows=rows, operators=(operator,)))
    shares = WorkShares.of(history, one_query(), points)
    assert shares.spared(points["results of window-1"], one_query()) == pytest.approx(0.5, abs=0.05)
    assert shares.spared(points["source 0"], one_query()) == pytest.approx(1.0)


def test_overload_is_reported_to_those_who_must_not_shed() -> None:
    plant = Plant(controller(one_query(0)))
    plant.run(0.5 * capacity(), 6)
    assert plant.controller.overloaded(plant.history) is None
    plant.run(3 * capacity(), 5)
    reason = plant.controller.overloaded(plant.history)
    assert reason is not None and "the bound is 10 s" in reason


def test_a_fixed_share_needs_no_history() -> None:
    decided = controller(one_query(4), max_latency=None, share=0.95).decide([], {})
    assert decided["p"] == {"source 0": 0.8}, "4 of 5 is the most that gaps of 4 allow"


@pytest.mark.parametrize("rate", [30_000.0, 80_000.0])
def test_costs_are_found_from_epochs(rate: float) -> None:
    history = []
    for i, factor in enumerate([0.2, 0.3, 0.5, 1.0, 0.8, 0.4, 0.9, 0.6]):
        rows = rate * factor
        spared = rows * 0.3 * (i % 3)
        seconds = FIXED + PER_ROW * (rows - spared) + PER_SHED * spared
        history.append(EpochProgress("q", "r", i, float(i), seconds, rows=round(rows), arrived=rows, spared=spared))
    load = Load.of(history, None)
    for _ in range(20):  # as from epoch to epoch: what was found before counts less and less
        assert load is not None
        load = Load.of(history, None, load.costs)
    assert load is not None
    assert load.fixed == pytest.approx(FIXED, rel=0.1)
    assert load.per_row == pytest.approx(PER_ROW, rel=0.05)
    assert load.per_shed == pytest.approx(PER_SHED, rel=0.2)
    assert load.capacity(BOUND) == pytest.approx(capacity(), rel=0.05)
    assert Load.of(history[:1], None) is None


def test_a_query_that_starts_under_overload_does_not_drown() -> None:
    plant = Plant(controller(one_query()))
    plant.waited = 12.0  # while Spark compiled
    first = plant.run(2 * capacity(), 14)
    assert [epoch.latency > BOUND for epoch in first if epoch.latency][:1] == [True]
    assert max(epoch.latency or 0 for epoch in first[6:]) <= BOUND


def test_a_slow_start_alone_drops_nothing() -> None:
    plant = Plant(controller(one_query()))
    plant.waited = 6.0
    plant.run(0.4 * capacity(), 10)
    assert not any(plant.decisions["p"].values())


@pytest.mark.parametrize(("bound", "trigger", "fixed"), [(10.0, 8.0, 0.5), (10.0, 7.5, 1.0), (2.2, None, 0.95)])
def test_it_stops_even_where_epochs_are_mostly_fixed_cost(
    bound: float, trigger: float | None, fixed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FIXED", fixed)
    plant = Plant(controller(one_query(2), max_latency=bound, trigger=trigger), trigger=trigger)
    plant.run(1_000, 5)
    plant.run(400_000, 10)
    assert any(plant.decisions["p"].values())
    plant.run(1_000, 25)
    assert not any(plant.decisions["p"].values()) and plant.decisions["shut"] == []


def test_a_bound_that_no_drop_can_keep_does_not_drop_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FIXED", 7.0)
    plant = Plant(controller(one_query()))
    plant.run(20_000, 4)
    plant.run(100_000, 30)
    assert plant.decisions["shut"] == []
    assert 0 < plant.decisions["p"]["source 0"] < 0.91
    assert "which cannot be kept" in plant.decisions["cause"]
    assert plant.history[-1].seconds < 10


def test_where_dropping_costs_too_much_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PER_SHED", 0.9 * PER_ROW)
    plant = Plant(controller(one_query()))
    plant.run(0.5 * capacity(), 6)
    plant.run(2 * capacity(), 12)
    assert "even dropping all rows takes longer" in plant.decisions["cause"]
    plant.run(0.1 * capacity(), 60)
    assert plant.decisions["cause"] == ""
