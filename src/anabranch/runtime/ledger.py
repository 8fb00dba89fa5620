"""The ledger: what was decided for each epoch, written before it runs, and what came of it, written after.

`{epoch}.plan` holds decisions that can change a result; a replay after a crash reads them and decides the same, so a
plan never changes. `{epoch}.done` says that the epoch was published. Both are JSON: tuples come back as lists, and
keys as text.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.runtime.files import FORMAT, Folder

_IDENTITY = "query.json"


class Ledger:
    """Plans and outcomes of a query's epochs; one writer, the driver. Makes its folder when it is opened."""

    def __init__(self, folder: Folder, query: str) -> None:
        self._folder = folder
        self._query = query
        self._forgotten: int | None = None  # all epochs below are gone; None: not looked yet
        folder.create()

    def plan(self, epoch: int) -> dict[str, Any] | None:
        """The decisions for an epoch."""
        return self._read(epoch, "plan")

    def write_plan(self, epoch: int, decisions: Mapping[str, Any]) -> None:
        """Write the decisions for an epoch; again the same is fine, others are refused."""
        text = _json(decisions)
        there = self.plan(epoch)
        if there is None:
            self._folder.write(_name(epoch, "plan"), "plan", text, query=self._query)
        elif _json(there) != text:
            raise StateError(
                f"epoch {epoch} has a plan already, with other decisions: results that rely on it may be out",
                hint="read plan(epoch) and follow it when an epoch runs again",
            )

    def done(self, epoch: int) -> dict[str, Any] | None:
        """The outcome of an epoch that was published."""
        return self._read(epoch, "done")

    def write_done(self, epoch: int, outcome: Mapping[str, Any]) -> None:
        """Write that an epoch was published."""
        self._folder.write(_name(epoch, "done"), "done", _json(outcome), query=self._query)

    def last_done(self) -> tuple[int, dict[str, Any]] | None:
        """The last epoch that was published."""
        epochs = self._epochs("done")
        return (epochs[-1], self._load(epochs[-1], "done")) if epochs else None

    def history(self, first: int, last: int) -> list[tuple[int, dict[str, Any]]]:
        """The outcomes that are there of the epochs first..last, ascending."""
        return [(epoch, self._load(epoch, "done")) for epoch in self._epochs("done") if first <= epoch <= last]

    def forget(self, before: int) -> None:
        """Remove plans and outcomes of the epochs below `before`."""
        if self._forgotten is None:
            old = [epoch for kind in ("plan", "done") for epoch in self._epochs(kind) if epoch < before]
        else:
            old = list(range(self._forgotten, before))
        for epoch in old:
            self._folder.delete(_name(epoch, "plan"))
            self._folder.delete(_name(epoch, "done"))
        self._forgotten = max(before, self._forgotten or before)

    def _read(self, epoch: int, kind: str) -> dict[str, Any] | None:
        return self._load(epoch, kind) if self._folder.exists(_name(epoch, kind)) else None

    def _load(self, epoch: int, kind: str) -> dict[str, Any]:
        _, payload = self._folder.read(_name(epoch, kind), kind, self._query)
        loaded: dict[str, Any] = json.loads(payload.to_pybytes())
        return loaded

    def _epochs(self, kind: str) -> list[int]:
        return [int(name.split(".")[0]) for name in self._folder.files() if name.endswith(f".{kind}")]


def open_checkpoint(folder: Folder, query: str, description: Sequence[str]) -> str:
    """Make the folder this query's own at first use; later, refuse it to any other query.

    Returns the id of the checkpoint, made at its first use and the same ever after: two checkpoints of one query have
    different ones.
    """
    if not folder.exists(_IDENTITY):
        if folder.files() or folder.folders():
            raise CheckpointError(
                f"{folder} is not empty and has no {_IDENTITY}: it is no checkpoint, or a damaged one, and files of "
                "others could be overwritten",
                hint="give an empty folder, or one that does not exist yet",
            )
        folder.create()
        content = {"format": FORMAT, "id": uuid.uuid4().hex, "query": query, "description": list(description)}
        folder.write(_IDENTITY, "checkpoint", json.dumps(content, indent=1).encode(), query=query)
    _, payload = folder.read(_IDENTITY, "checkpoint")  # also the first time: what counts is what the folder has
    known = json.loads(payload.to_pybytes())
    if known["query"] != query:
        lines = difflib.unified_diff(known["description"], list(description), "checkpoint", "this query", n=0)
        shown = "\n".join(f"    {line.rstrip()}" for line in list(lines)[:12]) or "    (the descriptions are the same)"
        raise CheckpointError(
            f"{folder} is the checkpoint of another query: its state and offsets would give wrong answers\n{shown}",
            hint="give another folder, or run the query that this one belongs to",
        )
    return str(known["id"])


def _name(epoch: int, kind: str) -> str:
    return f"{epoch:012d}.{kind}"


def _json(content: Mapping[str, Any]) -> bytes:
    try:
        plain = json.loads(json.dumps(dict(content)))  # keys become text before they are sorted, as in what is read
        return json.dumps(plain, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the ledger cannot hold this: {error}", hint="use plain JSON values") from error
