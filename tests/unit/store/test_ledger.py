"""The ledger: decisions that never change, outcomes, and whose checkpoint a folder is."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io import folder as folder_module
from anabranch.io.folder import FILE_FORMAT, Folder
from anabranch.store.ledger import Ledger, open_checkpoint
from anabranch.store.records import VERSION, EpochDecision, EpochOutcome, OperatorDecision


@pytest.fixture
def ledger(folder: Folder) -> Ledger:
    return Ledger(folder, "q")


def decided(batch: int) -> EpochDecision:
    return EpochDecision({"window-1": OperatorDecision((0,), {"batch": batch})})


def came(t: int) -> EpochOutcome:
    return EpochOutcome((t,))


def test_an_empty_ledger(ledger: Ledger) -> None:
    assert ledger.decision(0) is None and ledger.outcome(0) is None and ledger.last_outcome() is None
    assert ledger.outcomes(0, 100) == []
    ledger.forget(10)


def test_decisions_and_outcomes(ledger: Ledger, folder: Folder) -> None:
    for epoch in range(4):
        ledger.write_decision(epoch, decided(epoch))
    for epoch in (0, 2, 1):
        ledger.write_outcome(epoch, came(epoch))
    assert folder.files()[:2] == ["000000000000.done", "000000000000.plan"]
    for each in (ledger, Ledger(folder, "q"), cloudpickle.loads(cloudpickle.dumps(ledger))):
        assert each.decision(3) == decided(3) and each.outcome(3) is None
        assert each.outcome(2) == came(2)
        assert each.last_outcome() == (2, came(2))
        assert each.outcomes(1, 3) == [(1, came(1)), (2, came(2))]


def test_a_decision_never_changes(ledger: Ledger) -> None:
    def routed(batch: int, routing: Sequence[int]) -> EpochDecision:
        return EpochDecision({"window-1": OperatorDecision(routing, {"batch": batch})}, token="t")

    ledger.write_decision(1, routed(4, (0, 1)))
    ledger.write_decision(1, routed(4, [0, 1]))
    with pytest.raises(StateError, match="epoch 1 already has a different decision"):
        ledger.write_decision(1, routed(5, (0, 1)))
    assert ledger.decision(1) == routed(4, (0, 1))


def test_an_outcome_may_be_written_again(ledger: Ledger) -> None:
    ledger.write_outcome(1, came(5))
    ledger.write_outcome(1, came(7))
    assert ledger.outcome(1) == came(7)


def test_forget(ledger: Ledger, folder: Folder) -> None:
    for epoch in range(8):
        ledger.write_decision(epoch, EpochDecision())
        ledger.write_outcome(epoch, EpochOutcome())
    for before, left in ((3, 5), (3, 5), (1, 5), (5, 3)):
        ledger.forget(before)
        assert len(folder.files()) == 2 * left
    Ledger(folder, "q").forget(7)
    assert ledger.outcomes(0, 100) == [(7, EpochOutcome())]


def test_nothing_to_forget_costs_no_look_at_the_folder(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write_outcome(5, EpochOutcome())
    ledger.forget(5)
    monkeypatch.setattr(Folder, "files", None)
    monkeypatch.setattr(Folder, "delete", None)
    ledger.forget(5)
    ledger.forget(4)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), PLAIN, max_size=4))
def test_the_same_decision_is_the_same(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> None:
    ledger = Ledger(Folder.at(tmp_path_factory.mktemp("ledger")), "q")
    decision = EpochDecision({"window-1": OperatorDecision((0,), settings)})
    ledger.write_decision(0, decision)
    ledger.write_decision(0, decision)
    read = ledger.decision(0)
    assert read is not None and read.operators["window-1"].settings.keys() == settings.keys()
    ledger.write_decision(0, read)


def test_what_json_cannot_hold(ledger: Ledger) -> None:
    with pytest.raises(InvalidArgumentError, match="the ledger cannot store this"):
        ledger.write_decision(0, EpochDecision({"x": OperatorDecision((), {"x": object()})}))
    assert ledger.decision(0) is None
    ledger.write_decision(0, EpochDecision(allowances={"x": math.inf}))
    assert ledger.decision(0) == EpochDecision(allowances={"x": math.inf})


def test_a_record_of_a_later_release_is_refused_with_both_versions(folder: Folder) -> None:
    ledger = Ledger(folder, "q")
    later = json.dumps({"version": VERSION + 1, "latest": [], "operators": {}}).encode()
    folder.write("000000000000.done", "done", later, query="q")
    folder.write("000000000000.plan", "plan", later, query="q")
    for read in (ledger.outcome, ledger.decision):
        with pytest.raises(
            CheckpointError, match=f"version {VERSION + 1}, but this release reads up to version {VERSION}"
        ):
            read(0)


def test_a_decision_that_cannot_be_read_can_still_be_voided(folder: Folder) -> None:
    ledger = Ledger(folder, "q")
    folder.write("000000000000.plan", "plan", json.dumps({"operators": 5}).encode(), query="q")
    with pytest.raises(CheckpointError, match="cannot be carried out: it cannot be read") as refused:
        ledger.decision(0)
    assert "--void-decision" in refused.value.hint
    ledger.void_decision(0, "a test")
    assert ledger.decision(0) is None


def test_another_query(ledger: Ledger, folder: Folder) -> None:
    ledger.write_decision(0, EpochDecision())
    with pytest.raises(CheckpointError, match="another query"):
        Ledger(folder, "other").decision(0)


def test_a_torn_outcome_is_told(tmp_path: Path) -> None:
    ledger = Ledger(Folder.at(tmp_path), "q")
    ledger.write_outcome(0, came(1))
    ledger.write_outcome(1, came(2))
    path = tmp_path / "000000000001.done"
    path.write_bytes(path.read_bytes()[:-3])
    for act in (ledger.last_outcome, lambda: ledger.outcome(1), lambda: ledger.outcomes(0, 1)):
        with pytest.raises(StateError, match=re.escape(str(path))):
            act()
    assert ledger.outcome(0) == came(1)


def test_a_ledger_that_vanished(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path / "ledger")
    ledger = Ledger(folder, "q")
    folder.remove()
    with pytest.raises(StateError, match="cannot be written"):
        ledger.write_decision(0, EpochDecision())
    assert not (tmp_path / "ledger").exists()


# ---- whose checkpoint

LINES = ["source cars", "window size=10 s slide=1 s", "sum(speed)"]


def test_a_checkpoint_has_one_id(folder: Folder) -> None:
    first = open_checkpoint(folder, "q", LINES)
    assert len(first) == 32 and set(first) <= set(string.hexdigits)
    assert open_checkpoint(folder, "q", LINES) == first
    assert open_checkpoint(folder, "q", ["told in other words"]) == first
    assert folder.files() == ["query.json"]
    assert open_checkpoint(folder.sub("other"), "q", LINES) != first


def test_a_checkpoint_of_another_query(folder: Folder) -> None:
    open_checkpoint(folder, "q", LINES)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder, "r", [LINES[0], "window size=20 s slide=1 s", LINES[2]])
    text = str(caught.value)
    assert "-window size=10 s slide=1 s" in text and "+window size=20 s slide=1 s" in text
    assert "source cars" not in text  # lines that are the same
    assert "wrong answers" in text and "another folder" in text
    with pytest.raises(CheckpointError, match="the descriptions are the same"):
        open_checkpoint(folder, "r", LINES)


def test_a_folder_of_something_else(folder: Folder) -> None:
    folder.create()
    folder.write("thesis.tex", "thing", b"")
    with pytest.raises(CheckpointError, match="not empty"):
        open_checkpoint(folder, "q", LINES)
    assert folder.files() == ["thesis.tex"]


def test_a_folder_of_other_folders(folder: Folder) -> None:
    folder.sub("x").create()
    folder.sub("x").write("y", "thing", b"")
    with pytest.raises(CheckpointError, match="not empty"):
        open_checkpoint(folder, "q", LINES)


def test_a_crash_at_the_first_use_does_not_spoil_the_folder(tmp_path: Path) -> None:
    (tmp_path / ".query.json.0123.tmp").write_bytes(b"half")
    open_checkpoint(Folder.at(tmp_path), "q", LINES)


def test_a_checkpoint_of_a_newer_release(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "FILE_FORMAT", FILE_FORMAT + 1)
    folder.create()
    folder.write("query.json", "checkpoint", b"whatever comes then")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"format {FILE_FORMAT + 1}"):
        open_checkpoint(folder, "q", LINES)
