"""The ledger: decisions that never change, outcomes, and whose checkpoint a folder is."""

from __future__ import annotations

import math
import re
import string
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


@pytest.fixture
def ledger(folder: Folder) -> Ledger:
    return Ledger(folder, "q")


def test_an_empty_ledger(ledger: Ledger) -> None:
    assert ledger.plan(0) is None and ledger.done(0) is None and ledger.last_done() is None
    assert ledger.history(0, 100) == []
    ledger.forget(10)


def test_plans_and_outcomes(ledger: Ledger, folder: Folder) -> None:
    for epoch in range(4):
        ledger.write_plan(epoch, {"batch": epoch})
    for epoch in (0, 2, 1):
        ledger.write_done(epoch, {"rows": epoch})
    assert folder.files()[:2] == ["000000000000.done", "000000000000.plan"]
    for each in (ledger, Ledger(folder, "q"), cloudpickle.loads(cloudpickle.dumps(ledger))):
        assert each.plan(3) == {"batch": 3} and each.done(3) is None
        assert each.done(2) == {"rows": 2}
        assert each.last_done() == (2, {"rows": 2})
        assert each.history(1, 3) == [(1, {"rows": 1}), (2, {"rows": 2})]


def test_a_plan_never_changes(ledger: Ledger) -> None:
    ledger.write_plan(1, {"batch": 4, "routing": (0, 1)})
    ledger.write_plan(1, {"routing": [0, 1], "batch": 4})
    with pytest.raises(StateError, match="epoch 1 has a plan already"):
        ledger.write_plan(1, {"batch": 5, "routing": (0, 1)})
    assert ledger.plan(1) == {"batch": 4, "routing": [0, 1]}


def test_an_outcome_may_be_written_again(ledger: Ledger) -> None:
    ledger.write_done(1, {"seconds": 0.5})
    ledger.write_done(1, {"seconds": 0.7})
    assert ledger.done(1) == {"seconds": 0.7}


def test_forget(ledger: Ledger, folder: Folder) -> None:
    for epoch in range(8):
        ledger.write_plan(epoch, {})
        ledger.write_done(epoch, {})
    for before, left in ((3, 5), (3, 5), (1, 5), (5, 3)):
        ledger.forget(before)
        assert len(folder.files()) == 2 * left
    Ledger(folder, "q").forget(7)
    assert ledger.history(0, 100) == [(7, {})]


def test_nothing_to_forget_costs_no_look_at_the_folder(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write_done(5, {})
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


@given(st.dictionaries(st.text(max_size=3) | st.integers(0, 100), PLAIN, max_size=4))
def test_the_same_plan_is_the_same(tmp_path_factory: pytest.TempPathFactory, decisions: dict[Any, Any]) -> None:
    ledger = Ledger(Folder.at(tmp_path_factory.mktemp("ledger")), "q")
    ledger.write_plan(0, decisions)
    ledger.write_plan(0, decisions)
    read = ledger.plan(0)
    assert read is not None and read.keys() == {str(key) for key in decisions}
    ledger.write_plan(0, read)


def test_what_json_cannot_hold(ledger: Ledger) -> None:
    with pytest.raises(InvalidArgumentError, match="the ledger cannot hold this"):
        ledger.write_plan(0, {"x": object()})
    assert ledger.plan(0) is None
    ledger.write_done(0, {"x": math.inf})
    assert ledger.done(0) == {"x": math.inf}


def test_another_query(ledger: Ledger, folder: Folder) -> None:
    ledger.write_plan(0, {})
    with pytest.raises(CheckpointError, match="another query"):
        Ledger(folder, "other").plan(0)


def test_a_torn_outcome_is_told(tmp_path: Path) -> None:
    ledger = Ledger(Folder.at(tmp_path), "q")
    ledger.write_done(0, {"rows": 1})
    ledger.write_done(1, {"rows": 2})
    path = tmp_path / "000000000001.done"
    path.write_bytes(path.read_bytes()[:-3])
    for act in (ledger.last_done, lambda: ledger.done(1), lambda: ledger.history(0, 1)):
        with pytest.raises(StateError, match=re.escape(str(path))):
            act()
    assert ledger.done(0) == {"rows": 1}


def test_a_ledger_that_vanished(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path / "ledger")
    ledger = Ledger(folder, "q")
    folder.remove()
    with pytest.raises(StateError, match="cannot be written"):
        ledger.write_plan(0, {})
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
