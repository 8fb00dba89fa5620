"""What a worker gets from the driver to run an operator in an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from anabranch.io.parquet import Target
from anabranch.operators.protocol import OperatorFactory
from anabranch.runtime.tasks.set_back import SetBack
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import Ledger
from anabranch.store.live.own_folder import OwnFolder


@dataclass(frozen=True)
class Edge:
    """One input of an operator: the port it feeds, and what is known about its watermark.

    From a source: the latest time of earlier epochs and the delay; the splitters' reports of this epoch add to it. From
    another operator: the watermark that this operator reached in this epoch.
    """

    port: int
    time: str | None
    latest: int | None = None
    delay: int = 0
    watermark: int | None = None
    derived: bool = False
    idle: bool = False

    def watermark_after(self, max_t: int | None) -> int | None:
        """The watermark after an epoch whose latest row has this time; None: no row came."""
        if self.derived:
            return self.watermark
        known = [t for t in (self.latest, max_t) if t is not None]
        return max(known) - self.delay if known else None


@dataclass(frozen=True)
class EpochTask:
    """All that a worker needs to run an operator in an epoch."""

    node: str
    epoch: int
    run: str
    """the driver's run: within a run the operator is the same, so an instance can be reused"""
    factory: OperatorFactory
    edges: tuple[Edge, ...]
    routing: tuple[int, ...]
    active: frozenset[int]
    """groups that had rows in an earlier epoch: they get the watermark even when no row comes"""
    watermark: int | None
    """the operator's watermark when the epoch starts"""
    settings: Mapping[str, Any]
    """what was decided for the operator in this epoch"""
    store: EpochStore
    ledger: Ledger
    live: OwnFolder
    """the query's folder for live state on this host"""
    token: str
    """the token of the epoch's decision"""
    tokens: Mapping[int, str]
    """the tokens of the epochs in which groups last ran"""
    snapshot_every: int
    outputs: Mapping[str, Target] | None
    """where the outputs are written; None: the task yields them, and Spark processes them further"""
    yields: pa.Schema | None = None
    """the schema of yielded outputs"""
    since: int | None = None
    """the first epoch of the log that is needed, where the log is the state; None: there are snapshots"""
    slots: int = 1
    """n_g: a worker runs in one of this many epochs"""
    behind: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """groups whose blocks wait for their turn: the epoch in which each last ran, and its rows since then"""
    allowance: float | None = None
    """seconds that a worker has for its part of a distribution epoch; rows not joined by then count as waiting"""
    memory_limit: int | None = None
    """bytes of live state that a worker may hold"""
    set_back: tuple[SetBack, ...] = ()
    """where a repair has set the watermark back"""

    def turn(self, worker: int) -> bool:
        """Whether the worker runs its groups in this epoch."""
        return worker % self.slots == self.epoch % self.slots
