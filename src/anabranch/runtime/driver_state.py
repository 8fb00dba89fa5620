"""What the driver knows between two epochs. The ledger keeps it, so the driver of a restart knows the same."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.query.graph import Network
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.set_back import SetBack, complete_from
from anabranch.runtime.settings import Settings
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import Ledger
from anabranch.store.records import OperatorOutcome, PlacedKeys


@dataclass(frozen=True)
class Context:
    """What does not change while a query runs."""

    network: Network
    settings: Settings
    checkpoint: Checkpoint
    session: SparkSession
    ledger: Ledger
    stores: Mapping[str, EpochStore]
    executions: Mapping[str, Execution]
    run: str


@dataclass
class OperatorState:
    """What the driver knows of an operator between epochs; the ledger keeps it."""

    watermark: int | None = None
    active: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what was decided last"""
    placed: PlacedKeys | None = None
    since: int | None = None
    """the first epoch whose blocks are needed, of an operator whose log is its state"""
    latest: dict[int, int | None] = field(default_factory=dict)
    """from then on the latest time of each epoch's rows"""
    newest: int | None = None
    """that of the last epoch"""
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    """groups whose blocks wait for their turn: the epoch that each was last run in, and the rows since"""
    passed: dict[int, int | None] = field(default_factory=dict)
    """the watermarks of the last epochs, as long as blocks wait"""

    def wait(self, epoch: int, ran: Iterable[int], waiting: Mapping[int, int], watermark: int | None) -> None:
        """After an epoch: these groups were run; of those, so many rows more wait for their turn."""
        for group in ran:
            self.waiting.pop(group, None)
        for group, rows in waiting.items():
            reached, before = self.waiting.get(group, (epoch - 1, 0))
            self.waiting[group] = (reached, before + rows)
        oldest = min((reached for reached, _ in self.waiting.values()), default=epoch)
        self.passed = {at: mark for at, mark in {**self.passed, epoch: watermark}.items() if at >= oldest}

    @property
    def delivered(self) -> int | None:
        """The watermark up to which everything was delivered.

        Results of groups that wait for their turn may be that old: of their new rows, or of rows without a partner.
        """
        oldest = min((reached for reached, _ in self.waiting.values()), default=max(self.passed, default=-1))
        return self.passed.get(oldest)

    def forget_log(self, epoch: int, latest: int | None, horizon: int | None) -> None:
        """After an epoch with rows up to `latest`: epochs that have only rows before the horizon are needed no more."""
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
        """The watermark had run away, and was set back after an epoch: no row until then counts as later than t.

        `now`: that was the last epoch, and nothing has run since.
        """
        self.latest = {epoch: _least(at, t) if epoch <= after else at for epoch, at in self.latest.items()}
        if now:
            self.watermark = _least(self.watermark, t)
            self.passed = {epoch: _least(mark, t) for epoch, mark in self.passed.items()}

    def record(self, block_groups: Collection[int]) -> OperatorOutcome:
        """What the ledger keeps. `block_groups`: groups that the log of this epoch has rows of."""
        return OperatorOutcome(
            self.watermark,
            frozenset(self.active),
            dict(self.snapshots),
            self.settings,
            frozenset(block_groups),
            self.placed,
            self.since,
            self.newest,
            dict(self.waiting),
            dict(self.passed),
        )

    @classmethod
    def of(cls, known: OperatorOutcome) -> OperatorState:
        """As the ledger has it."""
        return cls(
            known.watermark,
            set(known.active),
            dict(known.snapshots),
            known.settings,
            known.placed,
            known.since,
            newest=known.latest,
            waiting=dict(known.waiting),
            passed=dict(known.passed),
        )

    def remembered(self, name: str) -> EpochProgress | None:
        """The last counts of placed keys, as they were measured; None where no policy places keys."""
        if self.placed is None:
            return None
        operator = OperatorProgress(name, partitions=self.placed.partitions, heaviest=self.placed.heaviest)
        return EpochProgress("", "", self.placed.epoch, started=0.0, seconds=0.0, operators=(operator,))

    def remember(self, epoch: int, measured: OperatorProgress) -> None:
        if measured.partitions:
            self.placed = PlacedKeys(epoch, measured.partitions, measured.heaviest)


def _least(t: int | None, bound: int) -> int | None:
    return None if t is None else min(t, bound)


@dataclass
class DriverState:
    """Where the query stands: the last epoch that is done, the latest time of each source, each operator's state."""

    last: int | None
    latest: list[int | None]
    operators: dict[str, OperatorState]
    own_clock: set[int]
    """sources whose times are not by this machine's clock (`runtime.ahead`)"""
    heard: list[float]
    """when each source last had a row, by this process's clock: not kept, a restart begins to count anew"""
    repaired: dict[int, int] = field(default_factory=dict)
    """after which epochs a repair has set the watermark back, and to which time"""
    tokens: dict[int, str] = field(default_factory=dict)
    """the tokens of the epochs that some group was last run in"""

    @classmethod
    def of(cls, network: Network, ledger: Ledger) -> DriverState:
        """As the ledger has it; at the very start, nothing."""
        sources = len(network.sources)
        heard = [time.monotonic()] * sources
        found = ledger.last_outcome()
        if found is None:
            operators = {step.name: OperatorState() for step in network.steps}
            return cls(None, [None] * sources, operators, set(), heard)
        last, outcome = found
        operators = {name: OperatorState.of(known) for name, known in outcome.operators.items()}
        for name, operator in operators.items():
            operator.passed.setdefault(last, operator.watermark)
            for epoch, earlier in ledger.outcomes(operator.since, last) if operator.since is not None else ():
                operator.latest[epoch] = earlier.operators[name].latest
        repaired = {epoch: t for epoch, t in ledger.set_back().items() if epoch <= last}
        for operator in operators.values():
            for epoch, t in repaired.items():
                operator.set_back(epoch, t, now=epoch == last)
        latest = list(outcome.latest)
        if last in repaired:
            latest = [_least(t, repaired[last] + s.delay) for t, s in zip(latest, network.sources, strict=True)]
        # A watermark that ran away may have done so because rows of the future were taken for a clock of their own.
        own_clock = set() if last in repaired else set(outcome.own_clock)
        state = cls(last, latest, operators, own_clock, heard, repaired)
        decisions = {epoch: ledger.decision(epoch) for epoch in state._reached()}
        state.tokens = {epoch: each.token for epoch, each in decisions.items() if each is not None and each.token}
        return state

    def set_back(self, network: Network, name: str) -> tuple[SetBack, ...]:
        """What an operator must hear of repairs."""
        return tuple(SetBack(epoch, t, complete_from(network, t)[name]) for epoch, t in sorted(self.repaired.items()))

    def forget_tokens(self) -> None:
        """Keep those of epochs that some group was last run in."""
        self.tokens = {epoch: self.tokens[epoch] for epoch in self._reached() if self.tokens.get(epoch)}

    def _reached(self) -> set[int]:
        waiting = {reached for state in self.operators.values() for reached, _ in state.waiting.values()}
        return waiting if self.last is None else waiting | {self.last}

    def idle(self, after: float | None) -> list[int]:
        """Sources that have been silent for too long to hold the watermark back."""
        if after is None:
            return []
        now = time.monotonic()
        return [i for i, heard in enumerate(self.heard) if now - heard > after]
