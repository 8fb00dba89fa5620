"""The ledger: what was decided for each epoch, written before it runs, and what came of it, written after.

`{epoch}.plan` holds decisions that can change a result; a replay after a crash reads them and decides the same, so a
plan never changes. `{epoch}.done` says that the epoch was published; `publishing` has the epoch whose results went to
the sinks last, or were about to. `{epoch}.repair`, if there is one, says what `anabranch repair` changed after it. All
are JSON: tuples come back as lists, and keys as text.

`{epoch}.void` says that a plan does not count (`store.voiding`). The plan stays where it is; the one decided instead
is `{epoch}.plan-1`, which `{epoch}.void-1` would void, and so on.
"""

from __future__ import annotations

import difflib
import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io.folder import FORMAT, Folder

_IDENTITY = "query.json"
_PUBLISHING = "publishing"
MARKED = "publishing_is_marked"
"""In a plan: the release that decided it writes `publishing`. Without it nothing says whether sinks have the epoch."""


class Ledger:
    """Plans and outcomes of a query's epochs; one writer, the driver. Makes its folder when it is opened."""

    def __init__(self, folder: Folder, query: str) -> None:
        self._folder = folder
        self._query = query
        self._forgotten: int | None = None  # all epochs below are gone; None: not looked yet
        self._voids: Counter[int] | None = None  # voided plans of each epoch; None: not looked yet
        folder.create()

    def plan(self, epoch: int) -> dict[str, Any] | None:
        """The decisions for an epoch; None where there are none, or they are void."""
        name = _name(epoch, _attempt("plan", self._voided()[epoch]))
        return self._load(name, "plan") if self._folder.exists(name) else None

    def write_plan(self, epoch: int, decisions: Mapping[str, Any]) -> None:
        """Write the decisions for an epoch; again the same is fine, others are refused."""
        text = _json(decisions)
        there = self.plan(epoch)
        if there is None:
            self._folder.write(_name(epoch, _attempt("plan", self._voided()[epoch])), "plan", text, query=self._query)
        elif _json(there) != text:
            raise StateError(
                f"epoch {epoch} has a plan already, with other decisions: results that rely on it may be out",
                hint="read plan(epoch) and follow it when an epoch runs again",
            )

    def void_plan(self, epoch: int, reason: str) -> None:
        """Write that the plan of an epoch does not count: the next `plan` has none, and another can be written."""
        number = self._voided()[epoch]
        if self.plan(epoch) is None or self.done(epoch) is not None:
            raise StateError(
                f"epoch {epoch} has no plan that could be void: it is published, or was never decided",
                hint="only the decisions of an epoch that was not published can be made anew",
            )
        self._folder.write(_name(epoch, _attempt("void", number)), "void", _json({"reason": reason}), query=self._query)
        self._voids = None

    def write_publishing(self, epoch: int) -> None:
        """Write that the results of an epoch go to the sinks from here on: nobody may decide it anew."""
        self._folder.write(_PUBLISHING, "publishing", _json({"epoch": epoch}), query=self._query)

    def publishing(self) -> int | None:
        """The last epoch whose results went to the sinks, in whole or in part; None before the first."""
        return int(self._load(_PUBLISHING, "publishing")["epoch"]) if self._folder.exists(_PUBLISHING) else None

    def done(self, epoch: int) -> dict[str, Any] | None:
        """The outcome of an epoch that was published."""
        name = _name(epoch, "done")
        return self._load(name, "done") if self._folder.exists(name) else None

    def write_done(self, epoch: int, outcome: Mapping[str, Any]) -> None:
        """Write that an epoch was published."""
        self._folder.write(_name(epoch, "done"), "done", _json(outcome), query=self._query)

    def last_done(self) -> tuple[int, dict[str, Any]] | None:
        """The last epoch that was published."""
        epochs = self.epochs("done")
        return (epochs[-1], self._load(_name(epochs[-1], "done"), "done")) if epochs else None

    def set_back(self) -> dict[int, int]:
        """Where a repair has set the watermark back: after which epoch, to which time."""
        return {epoch: self._load(_name(epoch, "repair"), "repair")["watermark"] for epoch in self.epochs("repair")}

    def write_set_back(self, epoch: int, watermark: int) -> None:
        """Write that after this epoch the watermark was set back."""
        self._folder.write(_name(epoch, "repair"), "repair", _json({"watermark": watermark}), query=self._query)

    def history(self, first: int, last: int) -> list[tuple[int, dict[str, Any]]]:
        """The outcomes that are there of the epochs first..last, ascending."""
        wanted = [epoch for epoch in self.epochs("done") if first <= epoch <= last]
        return [(epoch, self._load(_name(epoch, "done"), "done")) for epoch in wanted]

    def forget(self, before: int) -> None:
        """Remove plans and outcomes of the epochs below `before`."""
        if self._forgotten is None:
            old = [epoch for kind in ("plan", "done") for epoch in self.epochs(kind) if epoch < before]
        else:
            old = list(range(self._forgotten, before))
        for epoch in old:
            kinds = [_attempt(kind, i) for i in range(self._voided()[epoch]) for kind in ("plan", "void")]
            # Repairs stay: a group whose first rows come much later must hear of them, too.
            for kind in (*kinds, _attempt("plan", self._voided()[epoch]), "done"):
                self._folder.delete(_name(epoch, kind))
        self._forgotten = max(before, self._forgotten or before)

    def _load(self, name: str, kind: str) -> dict[str, Any]:
        _, payload = self._folder.read(name, kind, self._query)
        loaded: dict[str, Any] = json.loads(payload.to_pybytes())
        return loaded

    def _voided(self) -> Counter[int]:
        """How many plans of each epoch are void. Looked up once: plans are made void while no query runs."""
        if self._voids is None:
            names = [name.split(".") for name in self._folder.files()]
            self._voids = Counter(int(name) for name, *kind in names if kind and kind[0].split("-")[0] == "void")
        return self._voids

    def epochs(self, kind: str) -> list[int]:
        """The epochs that have an entry of a kind: "plan", "done" or "repair"; ascending."""
        found = (re.fullmatch(rf"(\d+)\.{kind}(-\d+)?", name) for name in self._folder.files())
        return sorted({int(each[1]) for each in found if each})


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


def identity_of(folder: Folder) -> str:
    """The id of a checkpoint that exists; see `open_checkpoint`."""
    if not folder.exists(_IDENTITY):
        raise CheckpointError(
            f"{folder} has no {_IDENTITY}, so it is not a checkpoint",
            hint="give the folder that start() was called with: checkpoint=..., or store=... if there was one",
        )
    _, payload = folder.read(_IDENTITY, "checkpoint")
    return str(json.loads(payload.to_pybytes())["id"])


def _attempt(kind: str, number: int) -> str:
    return f"{kind}-{number}" if number else kind


def _name(epoch: int, kind: str) -> str:
    return f"{epoch:012d}.{kind}"


def _json(content: Mapping[str, Any]) -> bytes:
    try:
        plain = json.loads(json.dumps(dict(content)))  # keys become text before they are sorted, as in what is read
        return json.dumps(plain, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the ledger cannot hold this: {error}", hint="use plain JSON values") from error
