"""Decisions that do not count any more: which may be voided, what stays, and what goes."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from anabranch.errors import CheckpointError, StateError
from anabranch.io.folder import Folder
from anabranch.operators.state import MemoryState
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import Ledger, open_checkpoint
from anabranch.store.records import VERSION, EpochDecision, EpochOutcome
from anabranch.store.voiding import void_decision

DECISION = EpochDecision(allowances={"batch": 7})


def decided(batch: int) -> EpochDecision:
    return EpochDecision(allowances={"batch": batch})


def ledger_of(folder: Folder, done: int = 2, decision: EpochDecision | None = DECISION) -> Ledger:
    """A checkpoint with so many published epochs, and a decision for the next."""
    query = open_checkpoint(folder, "q", ["a query"])
    ledger = Ledger(folder.sub("ledger"), query)
    for epoch in range(done):
        ledger.write_decision(epoch, decided(epoch))
        ledger.write_publishing(epoch)
        ledger.write_outcome(epoch, EpochOutcome())
    if decision is not None:
        ledger.write_decision(done, decision)
    return ledger


def written_by_a_later_release(folder: Folder, epoch: int) -> None:
    query = open_checkpoint(folder, "q", ["a query"])
    content = json.dumps({"version": VERSION + 1, "publishing_is_marked": True}).encode()
    folder.sub("ledger").write(f"{epoch:012d}.plan", "plan", content, query=query)


@pytest.mark.parametrize("done", [0, 2])
def test_a_voided_decision_stays_in_the_ledger_and_the_epoch_is_decided_anew(folder: Folder, done: int) -> None:
    ledger_of(folder, done)
    voided = void_decision(folder, reason="no such drop point")
    assert voided.epoch == done and voided.decision == DECISION.to_json()
    assert f"the decisions for epoch {done} are void" in voided.describe() and '"batch": 7' in voided.describe()
    again = Ledger(folder.sub("ledger"), open_checkpoint(folder, "q", ["a query"]))
    assert again.decision(done) is None
    again.write_decision(done, decided(8))
    assert again.decision(done) == decided(8)
    files = folder.sub("ledger").files()
    assert {f"{done:012d}.plan", f"{done:012d}.void", f"{done:012d}.plan-1"} <= set(files)
    with pytest.raises(StateError, match="already has a different decision"):
        again.write_decision(done, decided(9))


def test_a_decision_can_be_voided_twice_and_all_of_it_is_forgotten_at_last(folder: Folder) -> None:
    ledger = ledger_of(folder)
    for number in range(2):
        void_decision(folder)
        ledger = Ledger(folder.sub("ledger"), open_checkpoint(folder, "q", ["a query"]))
        ledger.write_decision(2, decided(number))
    assert ledger.decision(2) == decided(1)
    ledger.write_outcome(2, EpochOutcome())
    ledger.write_decision(3, EpochDecision())
    ledger.forget(3)
    assert folder.sub("ledger").files() == ["000000000003.plan", "publishing"]


def test_without_a_decision_there_is_nothing_to_void(folder: Folder) -> None:
    ledger_of(folder, decision=None)
    with pytest.raises(CheckpointError, match="no decision to void: epoch 2 has not been decided yet"):
        void_decision(folder)


def test_a_decision_of_a_later_release_is_not_voided(folder: Folder) -> None:
    ledger_of(folder, done=0, decision=None)
    written_by_a_later_release(folder, 0)
    with pytest.raises(CheckpointError, match=f"version {VERSION + 1}, .* up to version {VERSION}"):
        void_decision(folder, checked_sinks=True)
    assert folder.sub("ledger").files() == ["000000000000.plan"]


def test_a_decision_that_cannot_be_read_is_voided_and_shown(folder: Folder) -> None:
    ledger_of(folder, decision=None)
    query = open_checkpoint(folder, "q", ["a query"])
    content = {"operators": 5, "publishing_is_marked": True}
    folder.sub("ledger").write("000000000002.plan", "plan", json.dumps(content).encode(), query=query)
    assert void_decision(folder).decision == content


def test_a_folder_that_is_not_a_checkpoint_is_refused(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        void_decision(folder)


def test_what_may_be_at_the_sinks_stays_decided(folder: Folder) -> None:
    ledger = ledger_of(folder)
    ledger.write_publishing(2)
    with pytest.raises(CheckpointError, match="the results of epoch 2 may be at the sinks"):
        void_decision(folder, checked_sinks=True)
    assert ledger.decision(2) == DECISION
    ledger.write_outcome(2, EpochOutcome())
    with pytest.raises(CheckpointError, match="epoch 3 has not been decided yet"):
        void_decision(folder)


def test_a_decision_of_an_older_release_needs_somebody_who_has_looked_at_the_sinks(folder: Folder) -> None:
    older = replace(DECISION, marks_publishing=False)
    ledger_of(folder, decision=older)
    with pytest.raises(CheckpointError, match="does not say whether epoch 2 is at the sinks") as refused:
        void_decision(folder)
    assert "epoch=2" in refused.value.hint
    assert void_decision(folder, checked_sinks=True).decision == older.to_json()


def test_what_the_attempts_left_goes_and_what_is_published_stays(folder: Folder) -> None:
    """Else a later restore could find a snapshot of rows that the new decision does not keep."""
    ledger_of(folder)
    query = open_checkpoint(folder, "q", ["a query"])
    store = EpochStore(folder.sub("state"), query, "window-1")
    store.create()
    state = MemoryState()
    state.array("n", "i8", 1)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    for epoch in (1, 2):
        store.write_blocks(epoch, 0, {3: [(0, rows)]})
        store.write_snapshot(epoch, 3, state)
        for kind in ("drops", "window-1-0"):
            side = folder.sub("side", kind, f"epoch={epoch}")
            side.create()
            side.write("part", "rows", b"")
    void_decision(folder)
    assert store.snapshot_before(3, 9) == 1
    assert folder.sub("state", "window-1", "blocks").files() == ["000000000001-0000"]
    assert folder.sub("side", "drops").folders() == ["epoch=1"]
    assert folder.sub("side", "window-1-0").folders() == ["epoch=1"]
