"""`anabranch repair`: inspect a checkpoint, and fix what a restart refuses or cannot know.

    checkpoint/                what it records                        what may be wrong with it
      ledger/{N}.plan, .done   decisions and outcomes                 the last entries are lost or torn
      spark/offsets/{N}        which rows epoch N reads
      spark/commits/{N}        that epoch N is over                   it is, but the ledger does not have it

Files in the way are moved to `repaired/`, not deleted, and each repair is a new entry in the ledger. The query itself
is not needed: its operators apply the repair when it starts again (`runtime.tasks.set_back`).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyarrow import fs

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io.folder import Folder
from anabranch.io.sinks import FileSink
from anabranch.store.checkpoint_lock import CheckpointLock
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import Ledger, identity_of
from anabranch.store.records import EpochDecision
from anabranch.store.voiding import void_decision
from anabranch.text import moment

REPAIRED = "repaired"
"""the folder for files that were moved out of the way"""
JUMP = 86_400 * 1_000_000 * 365
"""microseconds: a watermark that moves further in one epoch is taken to have run away"""
_KEEPS_NOTHING = ("MemorySink", "NoopSink")


@dataclass(frozen=True)
class Condition:
    """How far the ledger and Spark's own logs have got."""

    done: int | None
    """the last epoch that is published according to the ledger"""
    torn: tuple[str, ...]
    """later entries of the ledger that cannot be read"""
    planned: tuple[int, ...]
    """later epochs that have been decided"""
    read: int | None
    """the last epoch whose rows Spark has fixed"""
    committed: int | None
    """the last epoch that is over according to Spark"""
    watermarks: dict[str, int | None]
    """watermarks of the operators after the last epoch"""
    jumped: int | None
    """the epoch in which a watermark moved by more than a year, if there is one"""

    @property
    def consistent(self) -> bool:
        """Whether a restart can continue: Spark is where the ledger is, or has read one epoch more."""
        done = -1 if self.done is None else self.done
        read, committed = (-1 if each is None else each for each in (self.read, self.committed))
        return not self.torn and read <= done + 1 and committed <= done

    def describe(self) -> list[str]:
        """Lines of text."""
        marks = [f"  {name}: {'none yet' if t is None else moment(t)}" for name, t in self.watermarks.items()]
        lines = [
            f"last complete epoch   {_epoch_text(self.done)}",
            f"Spark has read up to  {_epoch_text(self.read)}, and has completed {_epoch_text(self.committed)}",
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
            lines.append(f"Epoch {self.planned[0]} was started and not finished: it runs again at the next start.")
        return lines


def _epoch_text(epoch: int | None) -> str:
    return "none" if epoch is None else f"epoch {epoch}"


def parse_time(text: str) -> int:
    """A time in ISO format, in microseconds since 1970; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text!r} is not a time", hint='write, for example, "2026-11-18T09:30" or "2026-11-18 09:30:00+01:00"'
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
        """How far the ledger and Spark's own logs have got."""
        done, torn = None, []
        epochs = self.ledger.epochs("done")
        for epoch in reversed(epochs):
            try:
                self.ledger.outcome(epoch)
            except StateError:
                torn.append(f"{epoch:012d}.done")
            else:
                done = epoch
                break
        decided = tuple(epoch for epoch in self.ledger.epochs("plan") if done is None or epoch > done)
        for epoch in decided:
            with contextlib.suppress(StateError):  # a torn decision
                self.ledger.decision_json(epoch)  # refused if it is of a later release
        outcome = None if done is None else self.ledger.outcome(done)
        marks = {} if outcome is None else {name: each.watermark for name, each in outcome.operators.items()}
        return Condition(
            done,
            tuple(torn),
            decided,
            max(self._batches("offsets"), default=None),
            max(self._batches("commits"), default=None),
            marks,
            None if done is None else self._jumped([epoch for epoch in epochs if epoch <= done]),
        )

    def set_watermark(self, t: int, *, dry_run: bool = False) -> list[str]:
        """Set back a watermark that ran away; returns what was done and what it means."""
        with self._locked(dry_run):
            return self._set_watermark(t, dry_run)

    def _set_watermark(self, t: int, dry_run: bool) -> list[str]:
        condition = self.condition()
        done = self._complete(condition)
        if condition.planned:
            raise CheckpointError(
                f"epoch {condition.planned[0]} was started and not finished: with another watermark its results would "
                "differ from those that may already be published",
                hint="start the query once more, stop it after that epoch, and then repair it",
            )
        reached = [mark for mark in condition.watermarks.values() if mark is not None]
        if not reached or t >= max(reached):
            now = moment(max(reached)) if reached else "not known yet"
            raise InvalidArgumentError(
                f"the watermark is {now}, and {moment(t)} is not before that: there is nothing to set back",
                hint="give an earlier time; a watermark advances by itself",
            )
        if not dry_run:
            self.ledger.write_set_back(done, t)
        since = condition.jumped
        early = f"from epoch {since} on" if since is not None else "since the watermark ran away"
        return [
            f"The watermark {'would be' if dry_run else 'is'} {moment(t)} again, from epoch {done + 1} on.",
            f"Windows that start at {moment(t)} or later are delivered. They are exact if none of their rows arrived",
            "before this repair. Windows over windows or over a join begin later, by the length of the inner windows",
            "or of `within`.",
            "Windows that start earlier are no longer delivered: their rows are gone from the state.",
            f"Results delivered {early} may be of windows that were closed too early: compute these again",
            "from the source.",
            "Rows that were late since then are in the folder `side` of the checkpoint, with the reason.",
            "Joins: rows that have expired find no partner; an outer join delivers them unmatched.",
            "Your own operators are notified by on_set_back(t, starts).",
        ]

    def void_decision(self, *, sinks_cleared: bool = False, dry_run: bool = False) -> list[str]:
        """Void the decisions for an epoch that is not published, so that it is decided again."""
        with self._locked(dry_run):
            voided = void_decision(self.own, checked_sinks=sinks_cleared, dry_run=dry_run)
        return [voided.describe() if not dry_run else f"The decisions for epoch {voided.epoch} can be voided."]

    def to_last_complete(self, *, sinks_cleared: bool = False, dry_run: bool = False) -> list[str]:
        """Go back to the end of the last epoch that is complete in the ledger; returns what was done."""
        with self._locked(dry_run):
            return self._to_last_complete(sinks_cleared, dry_run)

    def _to_last_complete(self, sinks_cleared: bool, dry_run: bool) -> list[str]:
        condition = self.condition()
        if condition.consistent:
            raise InvalidArgumentError(
                f"the ledger is complete up to {_epoch_text(condition.done)}, and Spark's logs agree with it",
                hint="start the query again; there is nothing to repair",
            )
        done = self._complete(condition)
        again = done + 1
        if again not in self._batches("offsets"):
            raise StateError(
                f"Spark no longer knows which rows epoch {again} had: it could not run again",
                hint="restore the checkpoint folder from a backup, or start with a new one",
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
            f"The query {verb} again after epoch {done}: epoch {again} runs once more, with the same rows.",
            f"Sinks that recognise an epoch get the results of epoch {again} once; a CallSink may get them twice.",
        ]
        if again not in condition.planned:
            lines += [
                f"The decisions for epoch {again} are lost as well, and are made again. This changes results only",
                "where decisions do: with QoS(max_gap=...), QoS(max_latency=...) or idle=...",
            ]
        if last > again:
            which = f"Epoch {last}" if last == again + 1 else f"Epochs {again + 1} to {last}"
            lines.append(f"{which} will have the rows that the source has by then, under the same number.")
        names = [f"{folder.path.split('/')[-1]}/{name}" for folder, name in moved]
        lines.append(f"{'To be moved' if dry_run else 'Moved'} to {REPAIRED}/: {', '.join(names)}")
        return lines

    @contextlib.contextmanager
    def _locked(self, dry_run: bool) -> Iterator[None]:
        """Lock the checkpoint, as a running query does, from the first read to the last change."""
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
                "the ledger has no complete epoch: there is nothing to continue from",
                hint="restore the checkpoint folder from a backup, or start with a new one",
            )
        return condition.done

    def _batches(self, log: str) -> list[int]:
        """The epochs in one of Spark's logs."""
        return sorted(int(name) for name in self.spark.sub(log).files() if name.isdigit())

    def _jumped(self, epochs: Sequence[int]) -> int | None:
        """The last epoch in which a watermark moved by more than `JUMP`; the first one is compared with now."""
        before: dict[str, int] = {}
        found, now = None, round(time.time() * 1e6)
        for epoch in epochs:
            outcome = self.ledger.outcome(epoch)
            assert outcome is not None
            for name, each in outcome.operators.items():
                mark = each.watermark
                if mark is not None and mark - before.get(name, now) > JUMP:
                    found = epoch
                if mark is not None:
                    before[name] = mark
        return found

    def _check_restorable(self, done: int) -> None:
        """Refuse to go back if the state of that time can no longer be rebuilt."""
        outcome = self.ledger.outcome(done)
        assert outcome is not None
        missing = []
        for name, known in outcome.operators.items():
            store = EpochStore(self.own.sub("state"), self.query, name)
            for group in sorted(known.active):
                reached, _ = known.waiting.get(group, (done, 0))
                at = None if known.since is not None else store.snapshot_before(group, reached)
                first = known.since if known.since is not None else 0 if at is None else at + 1
                missing += [
                    f"{name}, epoch {e}" for e in range(first, done + 1) if not self._logged(store, name, e, group)
                ]
        if missing:
            raise StateError(
                f"the state after epoch {done} cannot be rebuilt, because input is missing: "
                f"{'; '.join(sorted(set(missing))[:3])}",
                hint="restore the checkpoint folder from a backup, or start with a new one",
            )

    def _logged(self, store: EpochStore, name: str, epoch: int, group: int) -> bool:
        """Whether a group's input of an epoch is still there, if it had any."""
        decision, outcome = self.ledger.decision(epoch), self.ledger.outcome(epoch)
        if decision is None or outcome is None:
            return False
        if group not in outcome.operators[name].block_groups:
            return True
        return store.has_blocks(epoch, decision.operators[name].routing[group])

    def _unpublished(self, done: int, again: int) -> bool:
        """Whether the ledger says that no sink got anything after epoch `again`."""
        published = self.ledger.publishing()
        return self._decided(done, again).marks_publishing and published is not None and published <= again

    def _decided(self, done: int, again: int) -> EpochDecision:
        """The decision for the last epoch that stays."""
        known = self.ledger.decision_to_repair(again) or self.ledger.decision_to_repair(done)
        return known or EpochDecision(marks_publishing=False)

    def _check_sinks(self, done: int, again: int, last: int) -> None:
        """Refuse if sinks have epochs after `again`: they would skip the different rows of these epochs."""
        places = self._decided(done, again).sinks
        published: list[str] = []
        unknown = [] if places else ["the sinks of this query"]
        for output, place in places.items():
            if place.sink == "FileSink" and place.path is not None:
                sink = FileSink(place.path, flat=place.flat)
                published += [f"{place.path}: epoch {epoch}" for epoch in sink.epochs() if epoch > again]
            elif place.sink not in _KEEPS_NOTHING:
                unknown.append(f"{place.sink} of {output}")
        if published:
            raise CheckpointError(
                f"the results of epochs {again + 1} to {last} are published. The repair runs these epochs again with "
                "different rows, and the sink would skip them as already published. Found: "
                f"{', '.join(published[:5])}",
                hint="remove these results, then run the repair again",
            )
        if unknown:
            raise CheckpointError(
                f"{', '.join(unknown)} may have results of epochs {again + 1} to {last}. The repair runs these epochs "
                "again with different rows, and a sink may skip them as already published",
                hint="remove the results of these epochs there, then run the repair again with --sinks-cleared",
            )

    def _move(self, files: Sequence[tuple[Folder, str]]) -> None:
        target = self.own.sub(REPAIRED, re.sub(r"\D", "-", time.strftime("%Y-%m-%d-%H-%M-%S")))
        target.create()
        for folder, name in files:
            into = target.sub(folder.path.split("/")[-1])
            into.create()
            # On a local disk Hadoop keeps a checksum next to each file, under a hidden name.
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
