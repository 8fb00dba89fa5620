"""What an epoch measured: plain values for controllers, listeners, the simulator and users.

    EpochProgress                  one epoch of one query
      └ OperatorProgress           one operator of the network in it
          ├ SplitterMeasure        one window splitter, where the operator has some
          ├ PartitionMeasure       one window of a key partitioner, where a policy places the keys
          └ WorkerMeasure          one worker
      └ DropProgress               one place where windows are dropped

**Units.** Seconds are floats in wall-clock time; *busy* seconds are those of the task that did the work. The watermark
is event time in integer microseconds, as all event times are. Rows, bytes, groups and windows are counts of this epoch
alone, except `state_bytes`, `watermark` and `backlog`, which are the values at its end.

**Invariants.** A row that an operator read is processed, or counted as late, bad, ahead or shed; no row is missing from
these counts. `omitted + routed + broadcast` of a splitter is its `rows`. Times that are parts of another time (such as
those of a worker's `seconds`) sum to at most that time.

`as_json` writes the derived figures too, for readers of the file that do not use Python. `from_json` computes them
again. It skips unknown keys and fills in those that an older release did not write, so most changes need no new
version; a later version is refused. `print` shows a few lines (`progress_text`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress_text import describe, headline

T = TypeVar("T")

PROGRESS_VERSION = 1
"""Version of the JSON. It is raised when a reader of the previous version could misread it."""


@dataclass(frozen=True)
class WorkerMeasure:
    """One worker of an operator, over one epoch."""

    worker: int
    rows: int
    """rows given to it, including copies"""
    seconds: float
    """busy seconds"""
    groups: int = 0
    """partition-groups that it holds"""
    buffered: int = 0
    """rows handed over and not yet processed: 0 at the end of a finished epoch, otherwise the peak at its start"""
    state_bytes: int = 0
    rebuilt: int = 0
    """groups whose state had to be restored from the epoch store"""
    merge_seconds: float = 0.0
    """merging the splitters' outputs into time order"""
    query_seconds: float = 0.0
    """in the operator itself, including emitting"""
    open_seconds: float = 0.0
    """finding or rebuilding the live state of its groups"""
    read_seconds: float = 0.0
    """unpacking blocks"""
    store_seconds: float = 0.0
    """logging blocks, writing snapshots and marking the live state"""
    write_seconds: float = 0.0
    """writing the outputs"""
    occupancy: float | None = 0.0
    """share of its rows that it had not joined when its time in the epoch was over; None if it was not its turn"""
    group_seconds: tuple[tuple[int, float], ...] = ()
    """(partition-group, busy seconds), where the operator measures its groups; not in JSON"""
    rebuilt_why: Mapping[str, int] = field(default_factory=dict)
    """number of restored groups, by reason"""


@dataclass(frozen=True)
class SplitterMeasure:
    """One window splitter, over one epoch."""

    splitter: int
    rows: int
    windows: int
    """physical windows: blocks of rows, not windows of the query"""
    bytes_in: int = 0
    bytes_out: int = 0
    """including all copies of broadcast rows"""
    routed: int = 0
    """rows for one substream"""
    broadcast: int = 0
    """rows for all substreams, each counted once"""
    omitted: int = 0
    """rows for no substream"""
    read_seconds: float = 0.0
    split_seconds: float = 0.0
    """in the routing and broadcast functions, and splitting the rows"""
    emit_seconds: float = 0.0
    """packing and sending the blocks"""

    @property
    def seconds(self) -> float:
        """Busy seconds: all three parts."""
        return self.read_seconds + self.split_seconds + self.emit_seconds


@dataclass(frozen=True)
class PartitionMeasure:
    """What a key partitioner did with the tuples of one window in this epoch; `keys.metrics` defines the measures.

    Several splitters of a user's operator share nothing, and none sees all keys. Then `keys` is the count of the
    splitter that saw most, and measures that need all keys are None.
    """

    window: int | None
    """start of the window: event time in microseconds; None where an epoch is the window"""
    policy: str
    workers: int
    tuples: int
    keys: int
    """distinct keys"""
    tuple_imbalance: float
    """tuples on the fullest worker above the mean"""
    cardinality_imbalance: float | None = None
    """distinct keys on the fullest worker above the mean"""
    hybrid_imbalance: float | None = None
    """the same for a load that combines tuples and keys"""
    aggregation_cost: int | None = None
    """partial results to combine"""
    least_cost: int | None = None
    """the aggregation cost with every key on one worker"""
    most_cost: int | None = None
    """the aggregation cost with every key on all workers"""

    def describe(self) -> str:
        """One line of text."""
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
    """rows read"""
    emitted: int = 0
    """rows delivered"""
    late: int = 0
    bad: int = 0
    ahead: int = 0
    """rows too far ahead of the clock (`runtime.driver.ahead`); not counted as bad"""
    shed: int = 0
    watermark: int | None = None
    """event time in microseconds; None before the first row"""
    state_bytes: int = 0
    seconds: float = 0.0
    workers: tuple[WorkerMeasure, ...] = ()
    splitters: tuple[SplitterMeasure, ...] = ()
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """settings in force in this epoch, as recorded in the ledger: plain JSON values"""
    partitions: tuple[PartitionMeasure, ...] = ()
    """measures of the latest windows, where a policy places the keys"""
    heaviest: tuple[tuple[int, int], ...] = ()
    """(hash, tuples) of the keys with the most tuples, for the table that splitters share; not in JSON"""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """counters of the operator itself"""
    publish_seconds: float = 0.0
    """in its sinks, after all operators"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", tuple(self.workers))
        object.__setattr__(self, "splitters", tuple(self.splitters))
        object.__setattr__(self, "partitions", tuple(self.partitions))
        object.__setattr__(self, "decisions", {str(key): _plain(value) for key, value in self.decisions.items()})

    @property
    def imbalance(self) -> float:
        """Rows on the fullest worker above the mean, as a share of the mean; 0 without rows."""
        rows = [worker.rows for worker in self.workers]
        total = sum(rows)
        return max(rows) * len(rows) / total - 1.0 if total else 0.0

    @property
    def efficiency(self) -> float | None:
        """The splitters' share of all the time spent on splitting; None without splitters.

        The workers' part is what they would spend without a query: reading and merging. Distributing the blocks is not
        counted: Spark's scheduler does it.
        """
        splitting = sum(splitter.seconds for splitter in self.splitters)
        overhead = sum(worker.read_seconds + worker.merge_seconds for worker in self.workers)
        return splitting / (splitting + overhead) if splitting > 0 else None


@dataclass(frozen=True)
class DropProgress:
    """What one drop point (`shedding.points`) did in an epoch. Windows are counted once per bucket of keys."""

    point: str
    p: float
    """probability with which a unit is dropped"""
    bound: int | None
    """B: the most units in a row that may be dropped; None: the queries below are shut"""
    cause: str
    rows: int = 0
    """rows that reached this point; for count windows, those that got their position in this epoch"""
    shed: int = 0
    """rows dropped before any work"""
    windows: int = 0
    """windows that ended in this epoch; count windows whose first row got its position"""
    dropped: int = 0
    """windows that ended and were not delivered"""
    delivered_share: float = 1.0
    """share of windows delivered since the query first shed load"""

    @property
    def kept(self) -> int:
        """Rows that were not dropped."""
        return self.rows - self.shed

    def describe(self) -> str:
        """One line of text."""
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
    """the trigger's interval; None where epochs follow each other immediately"""
    rows: int = 0
    """rows from the sources"""
    backlog: int | None = None
    """rows waiting at the sources; None where a source does not know"""
    event_latency: float | None = None
    """seconds from the newest event time delivered to the wall clock at publishing; None for historical data"""
    replayed: bool = False
    """a second run of an epoch that a crash interrupted"""
    restored: int = 0
    """partition-groups restored from the epoch store"""
    operators: tuple[OperatorProgress, ...] = ()
    drops: tuple[DropProgress, ...] = ()
    """the points where windows are dropped, or were until now"""
    latency: float | None = None
    """seconds from the arrival of the epoch's oldest row (see `runtime.arrivals`) to publishing; None in the first"""
    arrived: float | None = None
    """for the load monitor: rows that reached the operators, plus those shed before; None: `rows`"""
    spared: float = 0.0
    """for the load monitor: an estimate of how many of these rows caused no work because of shedding"""
    name: str | None = None
    """the query's name, as given by the user"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "drops", tuple(self.drops))

    def __str__(self) -> str:
        return describe(self)

    def __repr__(self) -> str:
        return f"<EpochProgress {headline(self)}>"

    @property
    def interval(self) -> float:
        """Seconds from the start of this epoch to the next one's: the trigger's interval, or the duration if longer."""
        return max(self.trigger_seconds or 0.0, self.seconds)

    @property
    def input_rate(self) -> float:
        """Input rows per second, over `interval`."""
        return _per(self.rows, self.interval)

    @property
    def processed_rate(self) -> float:
        """Rows per second that the epoch processed."""
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
        """Rows dropped before any work. Where there are several drop points, each counts the rows that reached it."""
        return sum(drop.shed for drop in self.drops)

    @property
    def state_bytes(self) -> int:
        return sum(operator.state_bytes for operator in self.operators)

    def operator(self, name: str) -> OperatorProgress | None:
        """The operator with that name; None if the epoch has none, as before a change of the network."""
        return next((operator for operator in self.operators if operator.name == name), None)

    def loads(self, name: str) -> dict[int, float]:
        """The load of each worker of an operator: busy seconds over `interval`. Empty for an unknown operator."""
        operator = self.operator(name)
        workers = operator.workers if operator else ()
        return {worker.worker: _per(worker.seconds, self.interval) for worker in workers}

    @property
    def json(self) -> str:
        """The whole record as one line of JSON, like Spark's `StreamingQueryProgress.json`."""
        return json.dumps(self.as_json(), allow_nan=False, separators=(",", ":"))

    @property
    def prettyJson(self) -> str:
        """The same, indented."""
        return json.dumps(self.as_json(), allow_nan=False, indent=2)

    def as_json(self) -> dict[str, Any]:
        """The record in plain JSON types, including derived figures."""
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
                "partitions": [_fields(measure) for measure in operator.partitions],
            }
            for operator in self.operators
        ]
        return (
            {"version": PROGRESS_VERSION}
            | _fields(self)
            | {
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
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> EpochProgress:
        """Read what `as_json` wrote; unknown keys are skipped.

        Raises:
            InvalidArgumentError: it is not the progress of an epoch, or of a later version.
        """
        try:
            return cls._read(record)
        except (AttributeError, TypeError) as error:
            raise InvalidArgumentError(
                f"this is not the progress of an epoch: {error}",
                hint="give a whole line of JsonLines, as json.loads returns it",
            ) from error

    @classmethod
    def _read(cls, record: Mapping[str, Any]) -> EpochProgress:
        version = record.get("version", 0)
        if version > PROGRESS_VERSION:
            raise InvalidArgumentError(
                f"the progress has version {version}, but this release reads up to version {PROGRESS_VERSION}",
                hint="read it with the release that wrote it, or a later one",
            )
        operators = tuple(
            _from(
                OperatorProgress,
                operator,
                workers=tuple(_from(WorkerMeasure, worker) for worker in operator.get("workers", ())),
                splitters=tuple(_from(SplitterMeasure, splitter) for splitter in operator.get("splitters", ())),
                partitions=tuple(_from(PartitionMeasure, measure) for measure in operator.get("partitions", ())),
            )
            for operator in record.get("operators", ())
        )
        drops = tuple(_from(DropProgress, drop) for drop in record.get("drops", ()))
        return _from(cls, record, operators=operators, drops=drops)


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _plain(value: Any) -> Any:
    """The value in JSON types: a controller may return numpy numbers, tuples or infinities."""
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
    """The fields as plain values, except tuples: those hold records, which the caller writes."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: _plain(value) for name, value in values.items() if not isinstance(value, tuple)}


def _from(cls: type[T], record: Mapping[str, Any], **nested: Any) -> T:
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in record.items() if key in known} | nested)
