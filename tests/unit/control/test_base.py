"""What all controllers share: who may decide what, and how many rows come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.control.base import RECENT_EPOCHS, Controller, arrival_rate, controllers_for, decide_all, excess_backlog
from anabranch.control.batch_size import BatchSize
from anabranch.control.key_placement import KeyPlacement
from anabranch.control.rebalance import Rebalance
from anabranch.control.split_tuning import SplitTuning
from anabranch.errors import ControllerError
from anabranch.observe.progress import EpochProgress
from anabranch.windows import Window
from tests.unit.control.measures import epoch

WINDOW = Window(10, 1)


@dataclass(frozen=True)
class Sets:
    """Always decides the same."""

    name: str
    values: Mapping[str, Any]
    operator: str = "op"

    @property
    def settings(self) -> Collection[str]:
        return [key for key in self.values if not key.startswith("why:")]

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(self.values)


def test_settings_without_an_owner_stay_and_old_reasons_go() -> None:
    current = {"batch": 1, "fixed": "as asked", "why:batch": "of the last change"}
    found = decide_all(
        [Sets("a", {"batch": 2}), Sets("b", {"splitters": 3, "why:splitters": "more rows"})], [], current
    )
    assert found == {"batch": 2, "fixed": "as asked", "splitters": 3, "why:splitters": "more rows"}
    assert current["why:batch"] == "of the last change"  # not changed in place


def test_two_controllers_of_one_setting_are_refused_in_either_order() -> None:
    both = [Sets("a", {"batch": 2}), Sets("b", {"batch": 2})]
    for order in (both, both[::-1]):
        with pytest.raises(ControllerError, match="both own the setting 'batch'"):
            decide_all(order, [], {})


@pytest.mark.parametrize("key", ["splitters", "why:splitters"])
def test_a_controller_decides_only_the_settings_that_it_owns(key: str) -> None:
    class Strays(Sets):
        def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"batch": 2, key: 3}

    with pytest.raises(ControllerError, match=f"'a' decided '{key}', a setting that it does not own") as error:
        decide_all([Strays("a", {"batch": 2})], [], {})
    assert "which are batch" in error.value.hint


def test_all_decide_on_the_same_settings() -> None:
    class Copies(Sets):
        def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"copy": current.get("batch")}

    copies = Copies("copies", {"copy": None})
    assert decide_all([Sets("a", {"batch": 2}), copies], [], {"batch": 1}) == {"batch": 2, "copy": 1}


def test_a_users_controller_replaces_the_built_in_ones_that_own_its_settings() -> None:
    tuning, batches = SplitTuning("op", 4), BatchSize("op", WINDOW, 2, max_latency=1.0)
    mine, elsewhere = Sets("mine", {"splitters": 3}), Sets("other", {"batch": 2}, operator="another")
    assert controllers_for("op", [tuning, batches], [mine, elsewhere]) == [batches, mine]
    assert controllers_for("op", [tuning, batches], []) == [tuning, batches]


def test_any_class_with_the_four_members_is_a_controller() -> None:
    built_in: list[Controller] = [
        BatchSize("op", WINDOW, 2, max_latency=1.0),
        KeyPlacement("op", 2),
        Rebalance("op", 4, 2),
        SplitTuning("op", 4),
    ]
    assert all(isinstance(each, Controller) for each in [*built_in, Sets("mine", {})])
    assert not isinstance(object(), Controller)
    owned = [setting for each in built_in for setting in each.settings]
    assert len(owned) == len(set(owned))
    for each in built_in:
        assert set(each.decide([], {})) <= {*each.settings, *(f"why:{setting}" for setting in each.settings)}


# --- how many rows come ---------------------------------------------------------------------------------------------


def test_arrivals_without_any_epoch_and_with_one() -> None:
    assert arrival_rate([]) == 0
    assert arrival_rate([epoch(0, rows=500)]) == 500


def test_without_a_backlog_rows_came_since_the_epoch_before_began() -> None:
    # An epoch follows the other at once: 0 .. 4 s busy, then 2,000 rows that came in those 4 s.
    history = [epoch(0, started=0.0, seconds=4.0), epoch(1, started=4.0, seconds=1.0, rows=2_000)]
    assert arrival_rate(history) == 500


def test_with_a_backlog_its_growth_counts() -> None:
    history = [epoch(0, backlog=100), epoch(1, backlog=700)]
    assert arrival_rate(history) == 1_600
    drained = [epoch(0, backlog=5_000), epoch(1, backlog=0)]
    assert arrival_rate(drained) == 0  # nothing came: all that was read had waited


def test_a_clock_that_stands_still_does_no_harm() -> None:
    assert arrival_rate([epoch(0, started=1.0), epoch(1, started=1.0, seconds=2.0)]) == 500
    assert arrival_rate([epoch(0, started=1.0, seconds=0.0), epoch(1, started=1.0, seconds=0.0)]) == 0


rows = st.integers(0, 10_000)


@given(st.lists(st.tuples(rows, st.floats(0.1, 10.0)), min_size=2, max_size=3 * RECENT_EPOCHS))
def test_arrivals_are_the_last_or_the_mean_whichever_is_higher(epochs: list[tuple[int, float]]) -> None:
    history, clock = [], 0.0
    for number, (count, seconds) in enumerate(epochs):
        history.append(epoch(number, started=clock, seconds=seconds, rows=count))
        clock += seconds
    # Oracle: each epoch read what came while the one before it ran.
    came = [(count, epochs[i][1]) for i, (count, _) in enumerate(epochs[1:])][-RECENT_EPOCHS:]
    mean = sum(count for count, _ in came) / sum(seconds for _, seconds in came)
    assert arrival_rate(history) == pytest.approx(max(mean, came[-1][0] / came[-1][1]))


def test_backlog_in_excess_of_one_interval() -> None:
    assert excess_backlog(epoch(0, backlog=1_500), 1_000) == 500
    assert excess_backlog(epoch(0, backlog=500), 1_000) == 0
    assert excess_backlog(epoch(0), 1_000) == 0
