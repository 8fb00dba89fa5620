"""What an epoch measured: plain values that controllers, listeners, the simulator and a user read alike.

    EpochProgress                  one epoch of one query
      └ OperatorProgress           one operator of the network in it
          ├ SplitterMeasure        one window splitter (paper 5), where the operator has some
          ├ PartitionMeasure       one window of a key partitioner (paper 3), where a policy places the keys
          └ WorkerMeasure          one worker
      └ DropProgress               one place where windows are dropped (paper 4)

**Units.** Seconds are floats and wall clock, except *busy* seconds, which are summed over the tasks of one worker and
can exceed the epoch's. The watermark is event time in integer microseconds, as all event times are. Rows, bytes,
groups and windows are counts of this epoch alone, except `state_bytes`, `watermark` and `backlog`, which are as they
stood at its end.

**Invariants.** A row that an operator read is processed, or counted as late, bad, ahead or shed; none is lost between
these counts. `omitted + routed + broadcast` of a splitter is its `rows`. Times that are parts of another (the five
named ones of a worker's `seconds`) never sum to more than it, but may to less.

`as_json` writes the derived figures too, because whoever reads a file of progress has no Python at hand; `from_json`
computes them anew and skips keys that it does not know, so a file of a later release can be read. `print` shows a few
lines for people (`progress_text`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from anabranch.observe.progress_text import describe, headline

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerMeasure:
    """One worker of an operator, over one epoch."""

    worker: int
    rows: int
    """rows it was given, copies included"""
    seconds: float
    """busy seconds"""
    groups: int = 0
    """partition-groups that it holds"""
    buffered: int = 0
    """rows handed over and not yet processed: 0 at the end of a finished epoch, else the peak when its work began"""
    state_bytes: int = 0
    rebuilt: int = 0
    """groups whose state had to be restored from the epoch store"""
    merge_seconds: float = 0.0
    """to bring the splitters' outputs into time order"""
    query_seconds: float = 0.0
    """in the operator itself, emitting included"""
    open_seconds: float = 0.0
    """to find the live state of its groups, or to rebuild it"""
    read_seconds: float = 0.0
    """to unpack the blocks"""
    store_seconds: float = 0.0
    """to log blocks, write snapshots and mark the live state"""
    write_seconds: float = 0.0
    """to write the outputs"""
    occupancy: float | None = 0.0
    """share of what it was handed that it had not joined when its part of the distribution epoch was over (paper 2);
    None where it was not its turn"""
    group_seconds: tuple[tuple[int, float], ...] = ()
    """(partition-group, busy seconds), where an operator can tell its groups apart; not in JSON"""
    rebuilt_why: Mapping[str, int] = field(default_factory=dict)
    """why groups had to be restored: reason, and how many groups"""


@dataclass(frozen=True)
class SplitterMeasure:
    """One window splitter, over one epoch."""

    splitter: int
    rows: int
    windows: int
    """physical windows, which are blocks of rows and not windows of the query"""
    bytes_in: int = 0
    bytes_out: int = 0
    """with all copies of what is broadcast"""
    routed: int = 0
    """rows for one substream"""
    broadcast: int = 0
    """rows for all substreams, each counted once"""
    omitted: int = 0
    """rows for no substream"""
    read_seconds: float = 0.0
    split_seconds: float = 0.0
    """in the routing and broadcast functions, and parting the rows"""
    emit_seconds: float = 0.0
    """to pack and hand on the blocks"""

    @property
    def seconds(self) -> float:
        """Busy seconds: all three parts."""
        return self.read_seconds + self.split_seconds + self.emit_seconds


@dataclass(frozen=True)
class PartitionMeasure:
    """What a key partitioner did with the tuples of one window in this epoch (paper 3; `split.imbalance`).

    Several splitters of a user's operator share nothing, and nobody sees all keys: then `keys` is what the splitter saw
    that saw most, and what cannot be known from that is None.
    """

    window: int | None
    """its start: event time in microseconds; None where an epoch is the window"""
    policy: str
    workers: int
    tuples: int
    keys: int
    """different keys"""
    tuple_imbalance: float
    """equation (1)"""
    cardinality_imbalance: float | None = None
    """equation (6)"""
    hybrid_imbalance: float | None = None
    """equation (10)"""
    aggregation_cost: int | None = None
    """equation (4)"""
    least_cost: int | None = None
    """proposition 1: every key on one worker"""
    most_cost: int | None = None
    """proposition 1: every key on all workers"""

    def describe(self) -> str:
        """One line for people."""
        line = (
            f"{self.policy}: {self.tuples:,} tuples of {self.keys:,} keys on {self.workers} workers, imbalance "
            f"{self.tuple_imbalance:,.1f} tuples"
        )
        if self.aggregation_cost is None:
            return line
        return (
            f"{line}, {self.cardinality_imbalance:,.1f} keys, {self.hybrid_imbalance:.2f} hybrid; "
            f"{self.aggregation_cost:,} partial results (at least {self.least_cost:,}, at most {self.most_cost:,})"
        )


@dataclass(frozen=True)
class OperatorProgress:
    """One operator of the network, over one epoch."""

    name: str
    rows: int = 0
    """rows that it read"""
    emitted: int = 0
    """rows that it delivered"""
    late: int = 0
    bad: int = 0
    ahead: int = 0
    """rows too far ahead of the clock (`runtime.ahead`); not among the bad ones"""
    shed: int = 0
    watermark: int | None = None
    """event time in microseconds; None before the first"""
    state_bytes: int = 0
    seconds: float = 0.0
    workers: tuple[WorkerMeasure, ...] = ()
    splitters: tuple[SplitterMeasure, ...] = ()
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """settings in force in this epoch, as its ledger has them: plain JSON values"""
    partitions: tuple[PartitionMeasure, ...] = ()
    """of the latest windows, where a policy places the keys"""
    heaviest: tuple[tuple[int, int], ...] = ()
    """(hash, tuples) of the keys with the most tuples, for a table that splitters share; not in JSON"""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """what the operator counted itself"""
    publish_seconds: float = 0.0
    """that its sinks took, after all operators"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", tuple(self.workers))
        object.__setattr__(self, "splitters", tuple(self.splitters))
        object.__setattr__(self, "partitions", tuple(self.partitions))
        object.__setattr__(self, "decisions", {str(key): _plain(value) for key, value in self.decisions.items()})

    @property
    def imbalance(self) -> float:
        """How far the fullest worker is above the mean, over the mean; 0 with no rows."""
        rows = [worker.rows for worker in self.workers]
        total = sum(rows)
        return max(rows) * len(rows) / total - 1.0 if total else 0.0

    @property
    def efficiency(self) -> float | None:
        """Paper 5, equation (7): the splitters' share of all the time that splitting took; None without splitters.

        The workers' part is what they spend with no query installed: to read and to merge. The window router is no
        process of ours, Spark's scheduler hands out the blocks, and so it has no part in the sum.
        """
        splitting = sum(splitter.seconds for splitter in self.splitters)
        overhead = sum(worker.read_seconds + worker.merge_seconds for worker in self.workers)
        return splitting / (splitting + overhead) if splitting > 0 else None


@dataclass(frozen=True)
class DropProgress:
    """What one drop point (`plan.drops`) did in an epoch. Windows are counted once per bucket of keys."""

    point: str
    p: float
    """share of units that the coins say drop"""
    bound: int | None
    """B: units in a row that may be missing; None: the queries below are shut"""
    cause: str
    rows: int = 0
    """rows that came to this point; of count windows, those that got their position in this epoch"""
    shed: int = 0
    """of them, those that were dropped at once"""
    windows: int = 0
    """windows whose time was over in this epoch; count windows whose first row got its position"""
    dropped: int = 0
    """of them, those that were not delivered"""
    delivered_share: float = 1.0
    """of all windows since the query first shed"""

    @property
    def kept(self) -> int:
        """Rows that passed."""
        return self.rows - self.shed

    def describe(self) -> str:
        """One line for people."""
        how = "shut" if self.bound is None else f"p = {self.p:.2f}, B = {self.bound}"
        return (
            f"{self.point}: {how}; {self.shed:,} of {self.rows:,} rows shed, {self.dropped:,} of {self.windows:,} "
            f"windows dropped, {self.delivered_share:.1%} delivered so far ({self.cause})"
        )


@dataclass(frozen=True, repr=False)
class EpochProgress:
    """One epoch of one query. `print` shows a few lines; `json` is the whole record."""

    query: str
    run: str
    """identifies one start of the query; a restart is another run"""
    epoch: int
    started: float
    """seconds since 1970 UTC"""
    seconds: float
    """how long the epoch took, from reading to publishing"""
    trigger_seconds: float | None = None
    """the trigger's interval; None where one epoch follows the other at once"""
    rows: int = 0
    """rows from the sources"""
    backlog: int | None = None
    """rows that wait at the sources; None where a source cannot tell"""
    event_latency: float | None = None
    """seconds from the newest event time delivered to the wall clock at publishing; None for data not from now"""
    replayed: bool = False
    """a second run of an epoch that a crash cut short"""
    restored: int = 0
    """partition-groups restored from the epoch store"""
    operators: tuple[OperatorProgress, ...] = ()
    drops: tuple[DropProgress, ...] = ()
    """where windows are dropped, or were until now"""
    latency: float | None = None
    """seconds from the arrival of the oldest row that this epoch could read at once (`arrivals`) to publishing; None in
    the first epoch"""
    arrived: float | None = None
    """for the load monitor: rows that came to the operators, or would have, had they not been shed before; None: `rows`
    """
    spared: float = 0.0
    """for the load monitor: of these, how many were spared all work by shedding, as far as it can be told"""
    name: str | None = None
    """the query's, as the user gave it"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "drops", tuple(self.drops))

    def __str__(self) -> str:
        return describe(self)

    def __repr__(self) -> str:
        return f"<EpochProgress {headline(self)}>"

    @property
    def interval(self) -> float:
        """Seconds from this epoch's start to the next one's: the trigger's, or the epoch's own where it took longer."""
        return max(self.trigger_seconds or 0.0, self.seconds)

    @property
    def input_rate(self) -> float:
        """Rows per second that came in, over `interval`."""
        return _per(self.rows, self.interval)

    @property
    def processed_rate(self) -> float:
        """Rows per second that the epoch could process."""
        return _per(self.rows, self.seconds)

    @property
    def late(self) -> int:
        return sum(operator.late for operator in self.operators)

    @property
    def bad(self) -> int:
        return sum(operator.bad for operator in self.operators)

    @property
    def ahead(self) -> int:
        return sum(operator.ahead for operator in self.operators)

    @property
    def shed(self) -> int:
        """Rows dropped before anything was done to them. Where several points drop, each counts what came to it."""
        return sum(drop.shed for drop in self.drops)

    @property
    def state_bytes(self) -> int:
        return sum(operator.state_bytes for operator in self.operators)

    def operator(self, name: str) -> OperatorProgress | None:
        """The operator of that name; None where the epoch has none, as before a change of the network."""
        return next((operator for operator in self.operators if operator.name == name), None)

    def loads(self, name: str) -> dict[int, float]:
        """Per worker of an operator its load: busy seconds over `interval`. Empty for an unknown operator."""
        operator = self.operator(name)
        workers = operator.workers if operator else ()
        return {worker.worker: _per(worker.seconds, self.interval) for worker in workers}

    @property
    def json(self) -> str:
        """The whole record as JSON text in one line, as of Spark's `StreamingQueryProgress`."""
        return json.dumps(self.as_json(), allow_nan=False, separators=(",", ":"))

    @property
    def prettyJson(self) -> str:
        """The same, indented."""
        return json.dumps(self.as_json(), allow_nan=False, indent=2)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types, derived figures included."""
        operators = [
            _fields(operator)
            | {
                "imbalance": operator.imbalance,
                "efficiency": operator.efficiency,
                "workers": [
                    _fields(worker) | {"load": _plain(_per(worker.seconds, self.interval))}
                    for worker in operator.workers
                ],
                "splitters": [_fields(splitter) for splitter in operator.splitters],
                "partitions": [_fields(placed) for placed in operator.partitions],
            }
            for operator in self.operators
        ]
        return _fields(self) | {
            "input_rate": _plain(self.input_rate),
            "processed_rate": _plain(self.processed_rate),
            "late": self.late,
            "bad": self.bad,
            "ahead": self.ahead,
            "shed": self.shed,
            "state_bytes": self.state_bytes,
            "operators": operators,
            "drops": [_fields(drop) for drop in self.drops],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> EpochProgress:
        """What `as_json` wrote; unknown keys are skipped."""
        operators = tuple(
            _from(
                OperatorProgress,
                operator,
                workers=tuple(_from(WorkerMeasure, worker) for worker in operator.get("workers", ())),
                splitters=tuple(_from(SplitterMeasure, splitter) for splitter in operator.get("splitters", ())),
                partitions=tuple(_from(PartitionMeasure, placed) for placed in operator.get("partitions", ())),
            )
            for operator in record.get("operators", ())
        )
        drops = tuple(_from(DropProgress, drop) for drop in record.get("drops", ()))
        return _from(cls, record, operators=operators, drops=drops)


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _plain(value: Any) -> Any:
    """The value in types that JSON has: a controller may well return numpy's numbers, tuples or an infinity."""
    match value:
        case bool() | None | str() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case Iterable():
            return [_plain(item) for item in value]
        case _:
            item = getattr(value, "item", None)
            return _plain(item()) if callable(item) else str(value)


def _fields(record: Any) -> dict[str, Any]:
    """The fields as plain values, but for the tuples: those hold records, and the caller writes them."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: _plain(value) for name, value in values.items() if not isinstance(value, tuple)}


def _from(cls: type[T], record: Mapping[str, Any], **nested: Any) -> T:
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in record.items() if key in known} | nested)
