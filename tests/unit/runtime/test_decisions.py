"""Plans that cannot be carried out are found before anything runs, and say what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.control.key_placement import KeyPlacement
from anabranch.control.rebalance import Rebalance
from anabranch.control.split_tuning import SplitTuning
from anabranch.errors import CheckpointError, ControllerError
from anabranch.runtime.decisions import check_new, check_recorded, fault_of, usable
from anabranch.runtime.shedding.planner import DropPlanner
from anabranch.shedding.points import Box, Terms, drop_points
from anabranch.store.records import DropPlan, EpochDecision, UnreadableRecord
from anabranch.windows import Window

EXECUTIONS: Any = {"window-1": SimpleNamespace(groups=2), "join-2": SimpleNamespace(groups=3)}


def plan(**settings: Any) -> dict[str, Any]:
    """A plan for both operators; the settings are those of the first."""
    return {
        "operators": {
            "window-1": {"routing": [0, 1], "decisions": settings},
            "join-2": {"routing": [0, 1, 0], "decisions": {}},
        },
        "idle": [0],
        "allowances": {"join-2": 0.5, "window-1": None},
    }


def fault(found: Any, shedder: Any = None) -> str | None:
    try:
        decision = EpochDecision.read(found)
    except UnreadableRecord as error:
        return str(error)
    return fault_of(decision, EXECUTIONS, 1, lambda _: shedder)


def test_what_the_controllers_decide_can_be_carried_out() -> None:
    settings = {
        **SplitTuning("window-1", 8).decide([], {}),
        **KeyPlacement("window-1", 4).decide([], {}),
        **Rebalance("window-1", 2, 2).decide([], {}),
        "batch": 3,
        "slots": 1,
        "shed": {"p": 0.5, "bound": None, "seed": 3},
        "why:batch": "any text",
    }
    assert fault(plan(**settings)) is None
    assert usable(settings) == settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"partition": "XX-2"}, "window-1: partition = 'XX-2': 'XX-2' is not a partitioning policy"),
        ({"partition": "cAM"}, "partition = 'cAM'"),
        ({"batch": 0}, "window-1: batch = 0"),
        ({"splitters": -1}, "splitters = -1"),
        ({"window_bytes": "many"}, "window_bytes = 'many'"),
        ({"window_search": {"rates": [], "epoch": 1, "colour": 2}}, "unexpected keyword argument 'colour'"),
        ({"shed": {"p": 2.0, "bound": 1, "seed": 0}}, "shed = "),
        ({"rebalancing": {"moves": [[1]]}}, "rebalancing = "),
        ({"placing": {"epoch": 1}}, "placing = "),
        ({"heavy_keys": {"keys": [-1]}}, "heavy_keys = "),
        ({"sampling": 0.5}, "a setting 'sampling', which this release does not know"),
    ],
)
def test_settings_that_this_release_cannot_use(settings: dict[str, Any], expected: str) -> None:
    assert expected in (fault(plan(**settings)) or "")
    assert usable({**settings, "slots": 1}) == {"slots": 1}, "after a published epoch it is decided again"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"operators": {}}, "it is for the operators "),
        (
            {"operators": {**plan()["operators"], "join-9": {"routing": [], "decisions": {}}}},
            "join-9, but the query has window-1, join-2",
        ),
        (
            {"operators": {**plan()["operators"], "join-2": {"routing": [0], "decisions": {}}}},
            "routing has 1 groups",
        ),
        ({"operators": {**plan()["operators"], "join-2": {"routing": [0, -1, 0], "decisions": {}}}}, "the routing"),
        ({"operators": {**plan()["operators"], "join-2": {"decisions": {}}}}, "(KeyError: 'routing')"),
        ({"idle": [4]}, "source 4 as idle, but the query has 1"),
        ({"limits": {"latest": [], "auto": True}}, "its time limits"),
        ({"limits": {"latest": ["x"], "auto": True}}, "its time limits"),
        ({"limits": {"latest": [None], "auto": 3}}, "its time limits"),
        ({"limits": 5}, "it cannot be read (TypeError"),
        ({"idle": None}, "it cannot be read (TypeError"),
        ({"allowances": {"join-2": -1.0}}, "an allowance of -1.0 seconds"),
    ],
)
def test_plans_that_do_not_fit_the_query(change: dict[str, Any], expected: str) -> None:
    assert expected in (fault({**plan(), **change}) or "")


def shedder(boxes: list[Box]) -> DropPlanner:
    made = DropPlanner.__new__(DropPlanner)  # no network: points alone say what a plan means
    made.points = drop_points(boxes)
    made.named = {point.name: point for point in made.points}
    made.keys = {point.name: () for point in made.points}
    return made


WINDOW = Box("window-1", (Window(4, 2),), ("source 0",), Terms(3))
OPAQUE = Box("join-1", (), ("source 0",))
BELOW = Box("window-2", (Window(4, 2),), ("join-1",), Terms(3))


def entry(made: DropPlanner, name: str, **change: Any) -> dict[str, Any]:
    units = made._units_of(made.named[name])
    state = {"unit": 5, "tallies": [[0, 0]], "dropped": [[[5, 6]]]}
    return {"p": 0.5, "bound": 3, "cause": "", "units": units, **state, **change}


def drop_plan(points: dict[str, Any]) -> DropPlan:
    return DropPlan.from_json({"points": points})


def test_drop_plans() -> None:
    made = shedder([WINDOW])
    good = {"points": {"source 0": entry(made, "source 0")}}
    assert fault({**plan(), "shedding": good}, made) is None

    def fault_with(**points: Any) -> str:
        return fault({**plan(), "shedding": {"points": points}}, made) or ""

    assert "'before window-9', which is not a drop point" in fault_with(
        **{"before window-9": good["points"]["source 0"]}
    )
    for change, expected in (
        ({"units": []}, "for a query with other outputs"),
        ({"p": 1.5}, "a share p of 1.5"),
        ({"dropped": [[], []]}, "2 buckets of keys"),
        ({"tallies": None}, "it cannot be read (TypeError"),
    ):
        assert expected in fault_with(**{"source 0": entry(made, "source 0", **change)})
    assert "cannot be read" in (fault({**plan(), "shedding": 5}, made) or "")


def test_a_decision_at_a_point_that_is_refused_by_now() -> None:
    """Before an aggregate over a join it still says which windows do not leave. Above a join nothing can be said."""
    made = shedder([OPAQUE, BELOW])
    assert made.named["before window-2"].refused is not None
    assert made.fault(drop_plan({"before window-2": entry(made, "before window-2")})) is None
    wrong = {"p": 0.5, "bound": 3, "units": []}
    assert "at source 0, where this is not possible" in (made.fault(drop_plan({"source 0": wrong})) or "")


def test_what_the_errors_say() -> None:
    check_new(7, None)
    check_recorded(7, None)
    with pytest.raises(ControllerError, match=r"for epoch 7 cannot be carried out: batch = 0. Nothing was recorded"):
        check_new(7, "batch = 0")
    with pytest.raises(CheckpointError, match="a decision for epoch 7 that cannot be carried out: batch = 0") as error:
        check_recorded(7, "batch = 0")
    assert "anabranch repair CHECKPOINT --void-decision" in error.value.hint
