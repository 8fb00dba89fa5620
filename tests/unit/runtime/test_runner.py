"""What controllers find of the settings that were decided before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from anabranch.control.base import Controller
from anabranch.control.key_placement import HEAVY, PLACING, KeyPlacement
from anabranch.observe.progress import EpochProgress
from anabranch.query.settings import QoS
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.driver.state import OperatorState
from anabranch.runtime.runner import EpochRunner
from anabranch.store.live.own_folder import OwnFolder

OPERATOR = "window-1"
PLACED = {"partition": "cAM-2", HEAVY: {"keys": []}, PLACING: {"epoch": 3, "seen": []}}


class InTurns:
    """Places keys by two policies in turns, and remembers how often it has decided."""

    name = "in-turns"
    operator = OPERATOR
    settings = ("partition", "turns_taken")

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        label = "FLD-1" if current.get("partition") == "cAM-2" else "cAM-2"
        return {"partition": label, "turns_taken": current.get("turns_taken", 0) + 1}


def decided(before: Mapping[str, Any], built_in: Sequence[Controller], *own: Controller) -> dict[str, Any]:
    """The settings of an operator's next epoch, after an epoch with the settings `before`."""
    runner = object.__new__(EpochRunner)
    settings = Settings(QoS(), None, 2, 10, None, OwnFolder(None), controllers=own)
    runner.context = SimpleNamespace(settings=settings)  # type: ignore[assignment]
    runner.state = SimpleNamespace(operators={OPERATOR: OperatorState(settings=before)})  # type: ignore[assignment]
    runner.history = []
    execution: Any = SimpleNamespace(
        step=SimpleNamespace(name=OPERATOR), fixed={}, controllers=lambda counts: list(built_in)
    )
    return runner._settings_of(execution)


def test_a_controller_of_the_user_finds_the_policy_that_it_decided() -> None:
    built_in = [KeyPlacement(OPERATOR, workers=2)]
    first = decided({}, built_in, InTurns())
    assert first == {"partition": "cAM-2", "turns_taken": 1}
    assert decided(first, built_in, InTurns()) == {"partition": "FLD-1", "turns_taken": 2}


def test_it_does_not_find_what_the_built_in_controller_remembered() -> None:
    assert decided(PLACED, [KeyPlacement(OPERATOR, workers=2)], InTurns()) == {"partition": "FLD-1", "turns_taken": 1}


def test_without_a_key_policy_the_settings_of_an_earlier_run_are_forgotten() -> None:
    assert decided({**PLACED, "batch": 4}, []) == {"batch": 4}


def test_the_built_in_controller_goes_on_from_what_it_remembered() -> None:
    assert decided(PLACED, [KeyPlacement(OPERATOR, workers=2)])[PLACING] == PLACED[PLACING]
