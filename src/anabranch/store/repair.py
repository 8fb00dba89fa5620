"""`anabranch repair`: look at a checkpoint, and set right what a restart refuses or cannot know.

    checkpoint/                what it says                           what may be wrong with it
      ledger/{N}.plan, .done   what was decided, what came out        the last entries are lost or torn
      spark/offsets/{N}        which rows epoch N reads
      spark/commits/{N}        that epoch N is over                   it is, but the ledger does not know

What is in the way is moved to `repaired/`, not deleted, and what is decided is a new entry of the ledger.
The query itself is not needed: what a repair means for its operators they find out when it starts again
(`runtime.setting_back`).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow import fs

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io.folder import Folder
from anabranch.io.sinks import FileSink
from anabranch.store.checkpoint_lock import CheckpointLock
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import MARKED, Ledger, identity_of
from anabranch.store.voiding import void_decision
from anabranch.text import moment

REPAIRED = "repaired"
"""The folder for what was moved out of the way."""
JUMP = 86_400 * 1_000_000 * 365
"""Microseconds by which a watermark must move in one epoch to look as if it had run away."""
_KEEPS_NOTHING = ("MemorySink", "NoopSink")


@dataclass(frozen=True)
class Condition:
    """How far the ledger and Spark's own logs are."""

    done: int | None
    """the last epoch that the ledger has as published"""
    torn: tuple[str, ...]
    """entries of the ledger after it that cannot be read"""
    planned: tuple[int, ...]
    """epochs after it that have a plan"""
    read: int | None
    """the last epoch whose rows Spark has fixed"""
    committed: int | None
    """the last epoch that Spark has as over"""
    watermarks: dict[str, int | None]
    """of the operators, after the last epoch"""
    jumped: int | None
    """the epoch in which a watermark moved by years, if there is one"""

    @property
    def consistent(self) -> bool:
        """Whether a restart can go on: Spark is where the ledger is, or one epoch ahead with what it reads."""
        done = -1 if self.done is None else self.done
        read, committed = (-1 if each is None else each for each in (self.read, self.committed))
        return not self.torn and read <= done + 1 and committed <= done

    def describe(self) -> list[str]:
        """Lines for people."""
        marks = [f"  {name}: {'none yet' if t is None else moment(t)}" for name, t in self.watermarks.items()]
        lines = [
            f"last complete epoch   {_told(self.done)}",
            f"Spark has read up to  {_told(self.read)}, and has as over {_told(self.committed)}",
            "watermarks            after the last complete epoch:" if marks else "watermarks            none yet",
            *marks,
        ]
        if self.jumped is not None:
            lines.append(f"The watermark moved by more than a year in epoch {self.jumped}: did it run away?")
            lines.append("  hint: set it back with --watermark TIME")
        if not self.consistent:
            lines.append("The ledger has lost entries: a restart would be refused.")
            lines.append("  hint: go back to the last complete epoch with --to-last-complete")
        elif self.planned:
            lines.append(f"Epoch {self.planned[0]} was begun and not finished: it runs again at the next start.")
        return lines


def _told(epoch: int | None) -> str:
    return "none" if epoch is None else f"epoch {epoch}"


def parse_time(text: str) -> int:
    """A time as people write it, in microseconds since 1970; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text!r} is not a time", hint='write for example "2026-11-18T09:30" or "2026-11-18 09:30:00+01:00"'
        ) from error
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class CheckpointRepair:
    """The repairs of one checkpoint; `store`: where its ledger and state are, if not in the checkpoint folder."""

    def __init__(self, checkpoint: str, store: str | None = None) -> None:
        self.own = Folder.at(store if store is not None else checkpoint)
        self.spark = Folder.at(checkpoint).sub("spark")
        self.query = identity_of(self.own)
        self.ledger = Ledger(self.own.sub("ledger"), self.query)

    def condition(self) -> Condition:
        """How far the ledger and Spark's own logs are."""
        done, torn = None, []
        epochs = self.ledger.epochs("done")
        for epoch in reversed(epochs):
            try:
                self.ledger.done(epoch)
            except StateError:
                torn.append(f"{epoch:012d}.done")
            else:
                done = epoch
                break
        planned = tuple(epoch for epoch in self.ledger.epochs("plan") if done is None or epoch > done)
        outcome = None if done is None else self.ledger.done(done)
        marks = {name: each["watermark"] for name, each in (outcome or {"operators": {}})["operators"].items()}
        return Condition(
            done,
            tuple(torn),
            planned,
            max(self._batches("offsets"), default=None),
            max(self._batches("commits"), default=None),
            marks,
            None if done is None else self._jumped([epoch for epoch in epochs if epoch <= done]),
        )

    def set_watermark(self, t: int, *, dry_run: bool = False) -> list[str]:
        """Set back a watermark that ran away; what was done and what it means, for people."""
        with self._locked(dry_run):
            return self._set_watermark(t, dry_run)

    def _set_watermark(self, t: int, dry_run: bool) -> list[str]:
        condition = self.condition()
        done = self._complete(condition)
        if condition.planned:
            raise CheckpointError(
                f"epoch {condition.planned[0]} was begun and not finished: with another watermark its results would "
                "not be those that may be out already",
                hint="start the query once more, stop it after that epoch, and repair it then",
            )
        reached = [mark for mark in condition.watermarks.values() if mark is not None]
        if not reached or t >= max(reached):
            now = moment(max(reached)) if reached else "not known yet"
            raise InvalidArgumentError(
                f"the watermark is {now}, and {moment(t)} is not before it: there is nothing to set back",
                hint="give a time before it; a watermark moves on by itself",
            )
        if not dry_run:
            self.ledger.write_set_back(done, t)
        since = condition.jumped
        early = f"from epoch {since} on" if since is not None else "since the watermark ran away"
        return [
            f"The watermark {'would be' if dry_run else 'is'} {moment(t)} again, from epoch {done + 1} on.",
            f"Windows that start at {moment(t)} or later are delivered, exact if none of their rows came before this",
            "repair; windows over windows or over a join begin later, by the length of the inner windows or of within.",
            "Windows that start earlier are not delivered any more: their rows are gone from the state.",
            f"Results delivered {early} may be of windows that were closed too early: compute these anew from",
            "the source.",
            "Rows that came late since then are in the folder `side` of the checkpoint, with their reason.",
            "Joins: rows that had expired find no partner; an outer join delivers theirs alone.",
            "Your own operators hear of it by on_set_back(t, starts).",
        ]

    def void_decision(self, *, sinks_cleared: bool = False, dry_run: bool = False) -> list[str]:
        """Void the decisions of an epoch that is not published, so that it is decided anew."""
        with self._locked(dry_run):
            voided = void_decision(self.own, checked_sinks=sinks_cleared, dry_run=dry_run)
        return [voided.describe() if not dry_run else f"The decisions for epoch {voided.epoch} can be made void."]

    def to_last_complete(self, *, sinks_cleared: bool = False, dry_run: bool = False) -> list[str]:
        """Go back to the end of the last epoch that the ledger has whole; what was done and what it means."""
        with self._locked(dry_run):
            return self._to_last_complete(sinks_cleared, dry_run)

    def _to_last_complete(self, sinks_cleared: bool, dry_run: bool) -> list[str]:
        condition = self.condition()
        if condition.consistent:
            raise InvalidArgumentError(
                f"the ledger is whole up to {_told(condition.done)}, and Spark is where it should be",
                hint="start the query again; nothing must be repaired",
            )
        done = self._complete(condition)
        again = done + 1
        if again not in self._batches("offsets"):
            raise StateError(
                f"Spark no longer knows which rows epoch {again} had: it could not run again",
                hint="restore the checkpoint folder from a copy, or start with a new one",
            )
        self._check_restorable(done)
        last = max(
            each for each in (condition.read, condition.committed, *condition.planned, again) if each is not None
        )
        if last > again and not sinks_cleared and not self._unpublished(done, again):
            self._check_sinks(done, again, last)
        moved = [(self.own.sub("ledger"), name) for name in condition.torn]
        moved += [(self.own.sub("ledger"), f"{epoch:012d}.plan") for epoch in condition.planned if epoch > again]
        moved += [(self.spark.sub("commits"), str(n)) for n in self._batches("commits") if n > done]
        moved += [(self.spark.sub("offsets"), str(n)) for n in self._batches("offsets") if n > again]
        if not dry_run:
            self._move(moved)
        verb = "would begin" if dry_run else "begins"
        lines = [
            f"The query {verb} again after epoch {done}: epoch {again} runs once more, with the rows it had.",
            f"Sinks that recognise an epoch have the results of epoch {again} once; a CallSink may see them twice.",
        ]
        if again not in condition.planned:
            lines += [
                f"What was decided for epoch {again} is lost as well, and is decided anew. That changes results only",
                "where a decision does: with QoS(max_gap=...), QoS(max_latency=...) or idle=...",
            ]
        if last > again:
            which = f"Epoch {last}" if last == again + 1 else f"Epochs {again + 1} to {last}"
            lines.append(f"{which} will have whatever rows the source has by then, under the same number.")
        names = [f"{folder.path.split('/')[-1]}/{name}" for folder, name in moved]
        lines.append(f"{'To be moved' if dry_run else 'Moved'} to {REPAIRED}/: {', '.join(names)}")
        return lines

    @contextlib.contextmanager
    def _locked(self, dry_run: bool) -> Iterator[None]:
        """Hold the checkpoint as a running query does: none may run from the first look at it to the last change."""
        if dry_run:
            yield
            return
        with CheckpointLock("anabranch repair", self.own) as lock:
            try:
                yield
            finally:
                lock.release()

    def _complete(self, condition: Condition) -> int:
        if condition.done is None:
            raise StateError(
                "the ledger has no complete epoch: there is nothing to go on from",
                hint="restore the checkpoint folder from a copy, or start with a new one",
            )
        return condition.done

    def _batches(self, log: str) -> list[int]:
        """The epochs in one of Spark's logs."""
        return sorted(int(name) for name in self.spark.sub(log).files() if name.isdigit())

    def _jumped(self, epochs: Sequence[int]) -> int | None:
        """The last epoch in which a watermark moved by a year or more, or that began with one years ahead of now."""
        before: dict[str, int] = {}
        found, now = None, round(time.time() * 1e6)
        for epoch in epochs:
            outcome = self.ledger.done(epoch)
            assert outcome is not None
            for name, each in outcome["operators"].items():
                mark = each["watermark"]
                if mark is not None and mark - before.get(name, now) > JUMP:
                    found = epoch
                if mark is not None:
                    before[name] = mark
        return found

    def _check_restorable(self, done: int) -> None:
        """Refuse to go back where the state of then cannot be rebuilt any more."""
        outcome = self.ledger.done(done)
        assert outcome is not None
        missing = []
        for name, known in outcome["operators"].items():
            store = EpochStore(self.own.sub("state"), self.query, name)
            behind = {int(group): each[0] for group, each in known.get("waiting", {}).items()}
            for group in known["active"]:
                reached = behind.get(group, done)
                at = None if "since" in known else store.snapshot_before(group, reached)
                first = known["since"] if "since" in known else 0 if at is None else at + 1
                missing += [
                    f"{name}, epoch {e}" for e in range(first, done + 1) if not self._logged(store, name, e, group)
                ]
        if missing:
            raise StateError(
                f"the state after epoch {done} cannot be rebuilt: gone is {', '.join(sorted(set(missing))[:3])}",
                hint="restore the checkpoint folder from a copy, or start with a new one",
            )

    def _logged(self, store: EpochStore, name: str, epoch: int, group: int) -> bool:
        """Whether what a group got in an epoch is still there, if it got anything."""
        plan, outcome = self.ledger.plan(epoch), self.ledger.done(epoch)
        if plan is None or outcome is None:
            return False
        if group not in outcome["operators"][name]["block_groups"]:
            return True
        return store.has_blocks(epoch, plan["operators"][name]["routing"][group])

    def _unpublished(self, done: int, again: int) -> bool:
        """Whether the ledger says that no sink was given anything after epoch `again`."""
        plan = self.ledger.plan(again) or self.ledger.plan(done) or {}
        published = self.ledger.publishing()
        return bool(plan.get(MARKED)) and published is not None and published <= again

    def _check_sinks(self, done: int, again: int, last: int) -> None:
        """Epochs after `again` will have other rows under the same number: a sink that has them would lose these."""
        plan = self.ledger.plan(again) or self.ledger.plan(done)
        places: dict[str, dict[str, Any]] = (plan or {}).get("sinks", {})
        there, unknown = [], [] if places else ["the sinks of this query"]
        for output, place in places.items():
            if place["sink"] == "FileSink":
                sink = FileSink(place["path"], flat=place["flat"])
                there += [f"{place['path']}: epoch {epoch}" for epoch in sink.epochs() if epoch > again]
            elif place["sink"] not in _KEEPS_NOTHING:
                unknown.append(f"{place['sink']} of {output}")
        if there:
            raise CheckpointError(
                f"the results of epochs {again + 1} to {last} are out, and these numbers will have other rows: the "
                f"sink would take them for published, and lose them. There: {', '.join(there[:5])}",
                hint="remove these results, then repair again",
            )
        if unknown:
            raise CheckpointError(
                f"{', '.join(unknown)} may have results of epochs {again + 1} to {last}, and these numbers will have "
                "other rows",
                hint="remove the results of these epochs there, then repair again with --sinks-cleared",
            )

    def _move(self, files: Sequence[tuple[Folder, str]]) -> None:
        target = self.own.sub(REPAIRED, re.sub(r"\D", "-", time.strftime("%Y-%m-%d-%H-%M-%S")))
        target.create()
        for folder, name in files:
            into = target.sub(folder.path.split("/")[-1])
            into.create()
            # On a local disk Hadoop keeps a checksum beside each file, under a hidden name.
            for each in (name, f".{name}.crc"):
                if folder.filesystem.get_file_info(f"{folder.path}/{each}").type == fs.FileType.File:
                    _move(folder, into, each)


def _move(source: Folder, target: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        source.filesystem.move(f"{source.path}/{name}", f"{target.path}/{name}")
        return
    # Checkpoint and store may be on different file systems.
    fs.copy_files(
        f"{source.path}/{name}", f"{target.path}/{name}",
        source_filesystem=source.filesystem, destination_filesystem=target.filesystem,
    )  # fmt: skip
    source.filesystem.delete_file(f"{source.path}/{name}")
