"""What the driver knows between two epochs. It is kept in the ledger, so a restarted driver knows the same."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.query.graph import Network
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.tasks.set_back import SetBack, complete_from
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import Ledger
from anabranch.store.records import KeyCounts, OperatorOutcome


@dataclass(frozen=True)
class Context:
    """Everything that does not change while a query runs."""

    network: Network
    settings: Settings
    checkpoint: Checkpoint
    session: SparkSession
    ledger: Ledger
    stores: Mapping[str, EpochStore]
    run: str


@dataclass
class OperatorState:
    """What the driver knows about an operator between epochs. It is kept in the ledger."""

    watermark: int | None = None
    active: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """the settings decided last"""
    key_counts: KeyCounts | None = None
    since: int | None = None
    """the first epoch whose blocks are needed; for an operator whose log is its state"""
    latest: dict[int, int | None] = field(default_factory=dict)
    """the latest time of each epoch's rows, from epoch `since` on"""
    newest: int | None = None
    """the latest time of the last epoch's rows"""
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    """groups whose blocks wait for their turn: the epoch in which each last ran, and its rows since then"""
    recent_watermarks: dict[int, int | None] = field(default_factory=dict)
    """the watermark after each of the last epochs, kept while blocks wait"""

    def wait(self, epoch: int, ran: Iterable[int], waiting: Mapping[int, int], watermark: int | None) -> None:
        """After an epoch: the groups in `ran` ran; `waiting` has the new rows of groups that wait for their turn."""
        for group in ran:
            self.waiting.pop(group, None)
        for group, rows in waiting.items():
            reached, before = self.waiting.get(group, (epoch - 1, 0))
            self.waiting[group] = (reached, before + rows)
        oldest = min((reached for reached, _ in self.waiting.values()), default=epoch)
        recent = {**self.recent_watermarks, epoch: watermark}
        self.recent_watermarks = {at: mark for at, mark in recent.items() if at >= oldest}

    @property
    def delivered(self) -> int | None:
        """The watermark up to which everything was delivered.

        Groups that wait for their turn may still emit older results: from their new rows, or rows without a partner.
        """
        oldest = min((reached for reached, _ in self.waiting.values()), default=max(self.recent_watermarks, default=-1))
        return self.recent_watermarks.get(oldest)

    def forget_log(self, epoch: int, latest: int | None, horizon: int | None) -> None:
        """After an epoch with rows up to `latest`: forget epochs that have only rows before the horizon."""
        self.latest[epoch] = self.newest = latest
        last = min((reached for reached, _ in self.waiting.values()), default=epoch)
        since = self.since or 0
        while since <= last:
            reaches = self.latest.get(since)
            if reaches is not None and (horizon is None or reaches >= horizon):
                break
            self.latest.pop(since, None)
            since += 1
        self.since = since

    def set_back(self, after: int, t: int, *, now: bool) -> None:
        """Apply a repair that set the watermark back to t after an epoch: until then no row counts as later than t.

        `now`: that was the last epoch, and nothing has run since then.
        """
        self.latest = {epoch: _least(at, t) if epoch <= after else at for epoch, at in self.latest.items()}
        if now:
            self.watermark = _least(self.watermark, t)
            self.recent_watermarks = {epoch: _least(mark, t) for epoch, mark in self.recent_watermarks.items()}

    def record(self, block_groups: Collection[int]) -> OperatorOutcome:
        """The record for the ledger. `block_groups`: groups with rows in the log of this epoch."""
        return OperatorOutcome(
            self.watermark,
            frozenset(self.active),
            dict(self.snapshots),
            self.settings,
            frozenset(block_groups),
            self.key_counts,
            self.since,
            self.newest,
            dict(self.waiting),
            dict(self.recent_watermarks),
        )

    @classmethod
    def of(cls, known: OperatorOutcome) -> OperatorState:
        """Read it from the ledger's record."""
        return cls(
            known.watermark,
            set(known.active),
            dict(known.snapshots),
            known.settings,
            known.key_counts,
            known.since,
            newest=known.latest,
            waiting=dict(known.waiting),
            recent_watermarks=dict(known.recent_watermarks),
        )

    def last_key_counts(self, name: str) -> EpochProgress | None:
        """The last counts of placed keys, as an epoch's progress; None if no policy places keys."""
        if self.key_counts is None:
            return None
        operator = OperatorProgress(name, partitions=self.key_counts.partitions, heaviest=self.key_counts.heaviest)
        return EpochProgress("", "", self.key_counts.epoch, started=0.0, seconds=0.0, operators=(operator,))

    def remember_key_counts(self, epoch: int, measured: OperatorProgress) -> None:
        if measured.partitions:
            self.key_counts = KeyCounts(epoch, measured.partitions, measured.heaviest)


def _least(t: int | None, bound: int) -> int | None:
    return None if t is None else min(t, bound)


@dataclass
class DriverState:
    """The state of the query: the last epoch that is done, the latest time of each source, each operator's state."""

    last: int | None
    latest: list[int | None]
    operators: dict[str, OperatorState]
    own_clock: set[int]
    """sources whose data has its own clock (`runtime.driver.ahead`)"""
    last_row_at: list[float]
    """when each source last had a row, by this process's clock; not saved, so a restart starts counting again"""
    repaired: dict[int, int] = field(default_factory=dict)
    """epochs after which a repair has set the watermark back, and to which time"""
    tokens: dict[int, str] = field(default_factory=dict)
    """the tokens of the epochs in which some group last ran"""

    @classmethod
    def of(cls, network: Network, ledger: Ledger) -> DriverState:
        """Read it from the ledger; empty for a new checkpoint."""
        sources = len(network.sources)
        last_row_at = [time.monotonic()] * sources
        found = ledger.last_outcome()
        if found is None:
            operators = {step.name: OperatorState() for step in network.steps}
            return cls(None, [None] * sources, operators, set(), last_row_at)
        last, outcome = found
        operators = {name: OperatorState.of(known) for name, known in outcome.operators.items()}
        for name, operator in operators.items():
            operator.recent_watermarks.setdefault(last, operator.watermark)
            for epoch, earlier in ledger.outcomes(operator.since, last) if operator.since is not None else ():
                operator.latest[epoch] = earlier.operators[name].latest
        repaired = {epoch: t for epoch, t in ledger.set_back().items() if epoch <= last}
        for operator in operators.values():
            for epoch, t in repaired.items():
                operator.set_back(epoch, t, now=epoch == last)
        latest = list(outcome.latest)
        if last in repaired:
            latest = [_least(t, repaired[last] + s.delay) for t, s in zip(latest, network.sources, strict=True)]
        # The watermark may have run ahead because rows from the future looked like a source with its own clock.
        own_clock = set() if last in repaired else set(outcome.own_clock)
        state = cls(last, latest, operators, own_clock, last_row_at, repaired)
        decisions = {epoch: ledger.decision(epoch) for epoch in state._reached()}
        state.tokens = {epoch: d.token for epoch, d in decisions.items() if d is not None and d.token}
        return state

    def set_back(self, network: Network, name: str) -> tuple[SetBack, ...]:
        """The repairs that an operator must apply."""
        return tuple(SetBack(epoch, t, complete_from(network, t)[name]) for epoch, t in sorted(self.repaired.items()))

    def forget_tokens(self) -> None:
        """Forget all tokens except those of epochs in which some group last ran."""
        self.tokens = {epoch: self.tokens[epoch] for epoch in self._reached() if self.tokens.get(epoch)}

    def _reached(self) -> set[int]:
        waiting = {reached for state in self.operators.values() for reached, _ in state.waiting.values()}
        return waiting if self.last is None else waiting | {self.last}

    def idle(self, after: float | None) -> list[int]:
        """Sources that have had no rows for so long that they no longer hold the watermark back."""
        if after is None:
            return []
        now = time.monotonic()
        return [i for i, at in enumerate(self.last_row_at) if now - at > after]
