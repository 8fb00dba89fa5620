"""The ledger: the decision for each epoch, written before it runs, and its outcome, written after.

| file | content |
|---|---|
| `{epoch}.plan` | the `EpochDecision`. A replay after a crash follows it, so it never changes |
| `{epoch}.done` | the `EpochOutcome`: the epoch was published |
| `publishing` | the last epoch whose results went to the sinks, or were about to |
| `{epoch}.repair` | what `anabranch repair` changed after the epoch |
| `{epoch}.void` | the decision is void (`store.voiding`); the next one is `{epoch}.plan-1`, and so on |

All files are JSON; `store.records` has the types.
"""

from __future__ import annotations

import difflib
import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io.folder import FILE_FORMAT, TORN_HINT, Folder
from anabranch.store.records import (
    EpochDecision,
    EpochOutcome,
    Publishing,
    Record,
    Repair,
    UnreadableRecord,
    Void,
    check_version,
)

R = TypeVar("R", bound=Record)

_IDENTITY = "query.json"
_PUBLISHING = "publishing"


class Ledger:
    """Decisions and outcomes of a query's epochs. Only the driver writes it. Opening it creates the folder."""

    def __init__(self, folder: Folder, query: str) -> None:
        self._folder = folder
        self._query = query
        self._forgotten: int | None = None  # all epochs below are removed; None: not known yet
        self._voids: Counter[int] | None = None  # voided decisions of each epoch; None: not counted yet
        folder.create()

    def decision(self, epoch: int) -> EpochDecision | None:
        """The decision for an epoch; None if there is none, or it is void."""
        known = self.decision_json(epoch)
        if known is None:
            return None
        try:
            return EpochDecision.read(known)
        except UnreadableRecord as error:
            raise unusable(epoch, str(error)) from error

    def decision_to_repair(self, epoch: int) -> EpochDecision | None:
        """The same; of a decision that cannot be read, only what a repair needs."""
        known = self.decision_json(epoch)
        if known is None:
            return None
        try:
            return EpochDecision.read(known)
        except UnreadableRecord:
            return EpochDecision.partly(known)

    def decision_json(self, epoch: int) -> Any:
        """The same as raw JSON, which may not be readable as a decision. One of a later release is refused."""
        name = _name(epoch, _attempt("plan", self._voided()[epoch]))
        if not self._folder.exists(name):
            return None
        known = self._load(name, "plan")
        check_version(known, EpochDecision.what)
        return known

    def write_decision(self, epoch: int, decision: EpochDecision) -> None:
        """Write the decision for an epoch. Writing the same again is fine; a different one is refused."""
        text = _json(decision.to_json())
        recorded = self.decision_json(epoch)
        if recorded is None:
            self._folder.write(_name(epoch, _attempt("plan", self._voided()[epoch])), "plan", text, query=self._query)
        elif _json(recorded) != text:
            raise StateError(
                f"epoch {epoch} already has a different decision, and results that rely on it may be published",
                hint="when an epoch runs again, read decision(epoch) and follow it",
            )

    def void_decision(self, epoch: int, reason: str) -> None:
        """Write that the decision for an epoch is void, so that another can be written."""
        number = self._voided()[epoch]
        if self.decision_json(epoch) is None or self.outcome(epoch) is not None:
            raise StateError(
                f"epoch {epoch} has no decision that can be voided: it is published, or was never decided",
                hint="void only the decision of an epoch that was not published",
            )
        self._write(_name(epoch, _attempt("void", number)), "void", Void(reason))
        self._voids = None

    def write_publishing(self, epoch: int) -> None:
        """Write that the results of an epoch are about to go to the sinks: from now on its decision is final."""
        self._write(_PUBLISHING, "publishing", Publishing(epoch))

    def publishing(self) -> int | None:
        """The last epoch whose results went to the sinks, completely or in part; None before the first."""
        if not self._folder.exists(_PUBLISHING):
            return None
        return self._read(_PUBLISHING, "publishing", Publishing).epoch

    def outcome(self, epoch: int) -> EpochOutcome | None:
        """The outcome of an epoch; None if it was not published."""
        return self._outcome(epoch) if self._folder.exists(_name(epoch, "done")) else None

    def write_outcome(self, epoch: int, outcome: EpochOutcome) -> None:
        """Write that an epoch was published."""
        self._write(_name(epoch, "done"), "done", outcome)

    def last_outcome(self) -> tuple[int, EpochOutcome] | None:
        """The last epoch that was published, and its outcome."""
        epochs = self.epochs("done")
        return (epochs[-1], self._outcome(epochs[-1])) if epochs else None

    def set_back(self) -> dict[int, int]:
        """For each epoch after which a repair set the watermark back, the time it was set to."""
        return {
            epoch: self._read(_name(epoch, "repair"), "repair", Repair).watermark for epoch in self.epochs("repair")
        }

    def write_set_back(self, epoch: int, watermark: int) -> None:
        """Write that the watermark was set back after this epoch."""
        self._write(_name(epoch, "repair"), "repair", Repair(watermark))

    def outcomes(self, first: int, last: int) -> list[tuple[int, EpochOutcome]]:
        """The outcomes of the epochs first..last that exist, in ascending order."""
        wanted = [epoch for epoch in self.epochs("done") if first <= epoch <= last]
        return [(epoch, self._outcome(epoch)) for epoch in wanted]

    def forget(self, before: int) -> None:
        """Remove decisions and outcomes of the epochs below `before`."""
        if self._forgotten is None:
            old = [epoch for kind in ("plan", "done") for epoch in self.epochs(kind) if epoch < before]
        else:
            old = list(range(self._forgotten, before))
        for epoch in old:
            kinds = [_attempt(kind, i) for i in range(self._voided()[epoch]) for kind in ("plan", "void")]
            # Repairs stay: a group whose first rows come much later must apply them, too.
            for kind in (*kinds, _attempt("plan", self._voided()[epoch]), "done"):
                self._folder.delete(_name(epoch, kind))
        self._forgotten = max(before, self._forgotten or before)

    def _outcome(self, epoch: int) -> EpochOutcome:
        return self._read(_name(epoch, "done"), "done", EpochOutcome)

    def _write(self, name: str, kind: str, record: Record) -> None:
        self._folder.write(name, kind, _json(record.to_json()), query=self._query)

    def _read(self, name: str, kind: str, record: type[R]) -> R:
        try:
            return record.read(self._load(name, kind))
        except UnreadableRecord as error:
            raise self._unreadable(name, str(error)) from error

    def _load(self, name: str, kind: str) -> Any:
        _, payload = self._folder.read(name, kind, self._query)
        try:
            return json.loads(payload.to_pybytes())
        except ValueError as error:
            raise self._unreadable(name, f"it is not JSON: {error}") from error

    def _unreadable(self, name: str, why: str) -> StateError:
        return StateError(f"{self._folder}/{name} is not a valid entry of the ledger: {why}", hint=TORN_HINT)

    def _voided(self) -> Counter[int]:
        """How many decisions of each epoch are void. Counted once, since decisions are voided while no query runs."""
        if self._voids is None:
            names = [name.split(".") for name in self._folder.files()]
            self._voids = Counter(int(name) for name, *kind in names if kind and kind[0].split("-")[0] == "void")
        return self._voids

    def epochs(self, kind: str) -> list[int]:
        """The epochs that have an entry of a kind ("plan", "done" or "repair"), in ascending order."""
        matches = (re.fullmatch(rf"(\d+)\.{kind}(-\d+)?", name) for name in self._folder.files())
        return sorted({int(match[1]) for match in matches if match})


def unusable(epoch: int, fault: str) -> CheckpointError:
    """The error for a decision from the ledger that cannot be carried out. The epoch was not completed."""
    return CheckpointError(
        f"the ledger has a decision for epoch {epoch} that cannot be carried out: {fault}",
        hint="start the query as it was when the decision was made, with the same release; or void the decision with "
        "`anabranch repair CHECKPOINT --void-decision`: then a new one is made",
    )


def open_checkpoint(folder: Folder, query: str, description: Sequence[str]) -> str:
    """Claim the folder for this query at first use; later, refuse any other query.

    Returns the id of the checkpoint, which is made at first use and never changes. Two checkpoints of one query have
    different ids.
    """
    if not folder.exists(_IDENTITY):
        if folder.files() or folder.folders():
            raise CheckpointError(
                f"{folder} is not empty and has no {_IDENTITY}: it is not a checkpoint, or a damaged one, and its "
                "files could be overwritten",
                hint="give an empty folder, or one that does not exist yet",
            )
        folder.create()
        content = {"format": FILE_FORMAT, "id": uuid.uuid4().hex, "query": query, "description": list(description)}
        folder.write(_IDENTITY, "checkpoint", json.dumps(content, indent=1).encode(), query=query)
    _, payload = folder.read(_IDENTITY, "checkpoint")  # also the first time: the file in the folder is what counts
    known = json.loads(payload.to_pybytes())
    if known["query"] != query:
        lines = difflib.unified_diff(known["description"], list(description), "checkpoint", "this query", n=0)
        shown = "\n".join(f"    {line.rstrip()}" for line in list(lines)[:12]) or "    (the descriptions are the same)"
        raise CheckpointError(
            f"{folder} is the checkpoint of another query: its state and offsets would give wrong answers\n{shown}",
            hint="give another folder, or run the query that this checkpoint belongs to",
        )
    return str(known["id"])


def identity_of(folder: Folder) -> str:
    """The id of a checkpoint that exists; see `open_checkpoint`."""
    if not folder.exists(_IDENTITY):
        raise CheckpointError(
            f"{folder} has no {_IDENTITY}, so it is not a checkpoint",
            hint="give the folder that start() got: store=... if there was one, else checkpoint=...",
        )
    _, payload = folder.read(_IDENTITY, "checkpoint")
    return str(json.loads(payload.to_pybytes())["id"])


def _attempt(kind: str, number: int) -> str:
    return f"{kind}-{number}" if number else kind


def _name(epoch: int, kind: str) -> str:
    return f"{epoch:012d}.{kind}"


def _json(content: Mapping[str, Any]) -> bytes:
    try:
        plain = json.loads(json.dumps(dict(content)))  # keys must be text before they are sorted, as when read back
        return json.dumps(plain, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the ledger cannot store this: {error}", hint="use plain JSON values") from error
