"""Repairs of a ledger: what they read from decisions, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.errors import CheckpointError
from anabranch.io.folder import Folder
from anabranch.io.sinks import FileSink
from anabranch.store.ledger import Ledger, open_checkpoint
from anabranch.store.records import VERSION, EpochDecision, EpochOutcome
from anabranch.store.repair import CheckpointRepair


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Of a checkpoint with two published epochs; Spark has completed two more."""
    folder = Folder.at(tmp_path / "c")
    ledger = Ledger(folder.sub("ledger"), open_checkpoint(folder, "q", ["a query"]))
    for epoch in range(2):
        ledger.write_decision(epoch, decision(tmp_path))
        ledger.write_outcome(epoch, EpochOutcome())
    for log in ("offsets", "commits"):
        (tmp_path / "c" / "spark" / log).mkdir(parents=True)
        for epoch in range(4):
            (tmp_path / "c" / "spark" / log / str(epoch)).touch()
    return ledger


def decision(tmp_path: Path) -> EpochDecision:
    return EpochDecision(sinks={"window-1.results": FileSink(tmp_path / "out").place})


def raw(tmp_path: Path, epoch: int, content: dict[str, Any]) -> None:
    folder = Folder.at(tmp_path / "c")
    query = open_checkpoint(folder, "q", ["a query"])
    folder.sub("ledger").write(f"{epoch:012d}.plan", "plan", json.dumps(content).encode(), query=query)


@pytest.mark.parametrize(
    "act",
    [
        CheckpointRepair.condition,
        lambda repair: repair.to_last_complete(sinks_cleared=True),
        lambda repair: repair.set_watermark(0),
        lambda repair: repair.void_decision(sinks_cleared=True),
    ],
)
def test_a_ledger_of_a_later_release_is_not_repaired(
    ledger: Ledger, tmp_path: Path, act: Callable[[CheckpointRepair], object]
) -> None:
    raw(tmp_path, 2, {"version": VERSION + 1})
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "repaired")
    with pytest.raises(CheckpointError, match=f"version {VERSION + 1}, .* up to version {VERSION}"):
        act(CheckpointRepair(str(tmp_path / "c")))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("readable", [True, False])
def test_results_are_looked_for_where_the_decision_says(ledger: Ledger, tmp_path: Path, readable: bool) -> None:
    (tmp_path / "out" / "epoch=3").mkdir(parents=True)
    raw(tmp_path, 2, {**decision(tmp_path).to_json(), **({} if readable else {"operators": 5})})
    repair = CheckpointRepair(str(tmp_path / "c"))
    with pytest.raises(CheckpointError, match=r"the results of epochs 3 to 3 are published.*out: epoch 3"):
        repair.to_last_complete()
    (tmp_path / "out" / "epoch=3").rmdir()
    assert "epoch 2 runs once more" in repair.to_last_complete()[0]


def test_what_the_ledger_says_is_not_published_needs_no_sink(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "out" / "epoch=3").mkdir(parents=True)
    raw(tmp_path, 2, {"operators": 5, "publishing_is_marked": True})
    ledger.write_publishing(1)
    assert "epoch 2 runs once more" in CheckpointRepair(str(tmp_path / "c")).to_last_complete()[0]
