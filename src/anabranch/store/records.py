"""The records of the ledger: the decision for an epoch, and its outcome. Typed here, JSON in the files.

    EpochDecision            written before an epoch runs, read if it runs again
      ├ OperatorDecision     routing and settings of each operator
      ├ TimeLimits           the latest time that a row of each source may have
      └ DropPlan             which windows are dropped, where a query sheds load
          └ PointDrops       at one drop point
    EpochOutcome             written after it was published
      └ OperatorOutcome      the state of each operator; a restart continues from there
          └ KeyCounts        the last counts of a key policy, on which its next decision is based

Every record has a version. A record without one was written before records had versions; it is read as well. A record
of a later release is refused: it may contain things that this release does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from anabranch.errors import CheckpointError
from anabranch.observe.progress import PartitionMeasure
from anabranch.shedding.windrop import DropState, Tally

VERSION = 1
"""Version of the records below. It is raised when a reader of the previous version could misread one."""
_VERSION = "version"
PUBLISHING_IS_MARKED = "publishing_is_marked"
"""Key in a decision: the release that made it records when an epoch goes to the sinks."""


class UnreadableRecord(ValueError):
    """A record with a missing or wrong entry."""


def check_version(known: Mapping[str, Any], what: str) -> None:
    """Refuse a record of a later release."""
    version = known.get(_VERSION, 0)
    if version > VERSION:
        raise CheckpointError(
            f"{what} has version {version}, but this release reads up to version {VERSION}: the record may contain "
            "things that this release does not know",
            hint="run the query with the release that wrote it, or a later one",
        )


@dataclass(frozen=True)
class OperatorDecision:
    """What was decided for one operator in an epoch."""

    routing: Sequence[int]
    """the worker of each partition-group"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what its controllers decided, by name: plain JSON values"""

    def to_json(self) -> dict[str, Any]:
        return {"routing": list(self.routing), "decisions": dict(self.settings)}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> OperatorDecision:
        return cls(tuple(known["routing"]), dict(known["decisions"]))


@dataclass(frozen=True)
class TimeLimits:
    """For each source, the latest time that a row may have in one epoch; None: no limit."""

    latest: tuple[int | None, ...]
    auto: bool = False
    """whether a source that has its own clock gets no limit"""

    def without(self, sources: Collection[int]) -> TimeLimits:
        """Without the limits of these sources."""
        return replace(self, latest=tuple(None if i in sources else t for i, t in enumerate(self.latest)))

    def to_json(self) -> dict[str, Any]:
        return {"latest": list(self.latest), "auto": self.auto}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> TimeLimits:
        return cls(tuple(known["latest"]), known["auto"])


@dataclass(frozen=True)
class PointDrops:
    """What one drop point drops in an epoch."""

    p: float
    """the share of units that it drops"""
    bound: int | None
    """how many units in a row may be missing; None: no bound, the queries below are shut"""
    cause: str
    units: Sequence[Any]
    """what units and buckets mean at this point: a decision holds only where they mean the same"""
    state: DropState | None = None
    """which units are dropped; None for count windows, whose operator decides that"""

    def to_json(self) -> dict[str, Any]:
        entry = {"p": self.p, "bound": self.bound, "cause": self.cause, "units": list(self.units)}
        if self.state is None:
            return entry
        return {
            **entry,
            "unit": self.state.unit,
            "tallies": [[tally.run, tally.debt] for tally in self.state.tallies],
            "dropped": [[list(each) for each in ranges] for ranges in self.state.dropped],
        }

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> PointDrops:
        state = None
        if "unit" in known:
            tallies = tuple(Tally(run, debt) for run, debt in known["tallies"])
            dropped = tuple(tuple((first, last) for first, last in ranges) for ranges in known["dropped"])
            state = DropState(known["unit"], tallies, dropped, known["p"])
        return cls(known["p"], known["bound"], known.get("cause", ""), list(known["units"]), state)


@dataclass(frozen=True)
class DropPlan:
    """Which windows an epoch drops, and what the next plan needs to know about this one."""

    decisions: Mapping[str, Any] = field(default_factory=dict)
    """the controller's decisions, as plain JSON values"""
    latest: int | None = None
    """the latest time of a row when the plan was made"""
    advance: int = 0
    """how far an epoch advances event time"""
    points: Mapping[str, PointDrops] = field(default_factory=dict)
    late: int | None = None
    """how many epochs in a row were too late, for a query that must not shed; None for others"""

    def to_json(self) -> dict[str, Any]:
        late = {} if self.late is None else {"late": self.late}
        points = {name: each.to_json() for name, each in self.points.items()}
        decided = {"decisions": dict(self.decisions), "latest": self.latest, "advance": self.advance}
        return {**decided, "points": points, **late}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> DropPlan:
        return cls(
            known.get("decisions", {}),
            known.get("latest"),
            known.get("advance", 0),
            {name: PointDrops.from_json(each) for name, each in known.get("points", {}).items()},
            known.get("late"),
        )


@dataclass(frozen=True)
class EpochDecision:
    """Everything that was decided for an epoch and can change a result."""

    operators: Mapping[str, OperatorDecision] = field(default_factory=dict)
    token: str = ""
    """unique: live state with this token was saved by an epoch that followed this decision"""
    idle: tuple[int, ...] = ()
    """sources that do not hold the watermark back"""
    limits: TimeLimits | None = None
    """None in records of old releases, which had no limits"""
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """the sinks that may have results of the epoch, and where they are"""
    allowances: Mapping[str, float | None] = field(default_factory=dict)
    """seconds that a worker of each operator has"""
    drops: DropPlan | None = None
    """None if nothing may be dropped"""
    marks_publishing: bool = True
    """whether the release that made the decision records when an epoch goes to the sinks"""

    def to_json(self) -> dict[str, Any]:
        return {
            _VERSION: VERSION,
            "operators": {name: each.to_json() for name, each in self.operators.items()},
            "token": self.token,
            "idle": list(self.idle),
            **({} if self.limits is None else {"limits": self.limits.to_json()}),
            "sinks": {name: dict(place) for name, place in self.sinks.items()},
            "allowances": dict(self.allowances),
            **({PUBLISHING_IS_MARKED: True} if self.marks_publishing else {}),
            **({} if self.drops is None else {"shedding": self.drops.to_json()}),
        }

    @classmethod
    def read(cls, known: Mapping[str, Any]) -> EpochDecision:
        """The decision. Raises `UnreadableRecord` with the reason if it cannot be read."""
        try:
            return cls.from_json(known)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableRecord(f"it cannot be read ({type(error).__name__}: {error})") from error

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> EpochDecision:
        check_version(known, "a decision in the ledger")
        limits, drops = known.get("limits"), known.get("shedding")
        return cls(
            {name: OperatorDecision.from_json(each) for name, each in known.get("operators", {}).items()},
            known.get("token", ""),
            tuple(known.get("idle", ())),
            None if limits is None else TimeLimits.from_json(limits),
            known.get("sinks", {}),
            known.get("allowances", {}),
            None if drops is None else DropPlan.from_json(drops),
            bool(known.get(PUBLISHING_IS_MARKED)),
        )


@dataclass(frozen=True)
class KeyCounts:
    """The counts of placed keys in an epoch. The next decision is based on them."""

    epoch: int
    partitions: tuple[PartitionMeasure, ...]
    heaviest: tuple[tuple[int, int], ...]
    """(hash, tuples) of the keys with the most tuples"""

    def to_json(self) -> dict[str, Any]:
        partitions = [asdict(each) for each in self.partitions]
        return {"epoch": self.epoch, "partitions": partitions, "heaviest": [list(each) for each in self.heaviest]}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> KeyCounts:
        partitions = tuple(PartitionMeasure(**each) for each in known["partitions"])
        return cls(known["epoch"], partitions, tuple((key, tuples) for key, tuples in known["heaviest"]))


@dataclass(frozen=True)
class OperatorOutcome:
    """The state of an operator after an epoch."""

    watermark: int | None
    active: frozenset[int] = frozenset()
    """groups that have had rows"""
    snapshots: Mapping[int, int] = field(default_factory=dict)
    """the epoch of each group's last snapshot"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    block_groups: frozenset[int] = frozenset()
    """groups with rows in the log of this epoch"""
    key_counts: KeyCounts | None = None
    """None if no policy places keys"""
    since: int | None = None
    """the first epoch whose blocks are needed; None for an operator that has snapshots"""
    latest: int | None = None
    """the latest time of this epoch's rows; for an operator whose log is its state"""
    waiting: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """groups whose blocks wait for their turn: the epoch in which each last ran, and its rows since then"""
    recent_watermarks: Mapping[int, int | None] = field(default_factory=dict)
    """the watermark after each of the last epochs, kept while blocks wait"""

    def to_json(self) -> dict[str, Any]:
        waits: dict[str, Any] = {}
        if self.waiting:
            waits["waiting"] = {str(group): list(each) for group, each in sorted(self.waiting.items())}
            waits["passed"] = {str(epoch): mark for epoch, mark in self.recent_watermarks.items()}
        return {
            **({} if self.since is None else {"since": self.since, "latest": self.latest}),
            **waits,
            "watermark": self.watermark,
            "active": sorted(self.active),
            "snapshots": {str(group): at for group, at in sorted(self.snapshots.items())},
            "decisions": dict(self.settings),
            **({} if self.key_counts is None else {"placed": self.key_counts.to_json()}),
            "block_groups": sorted(self.block_groups),
        }

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> OperatorOutcome:
        placed = known.get("placed")
        return cls(
            known["watermark"],
            frozenset(known["active"]),
            {int(group): epoch for group, epoch in known["snapshots"].items()},
            known["decisions"],
            frozenset(known.get("block_groups", ())),
            None if placed is None else KeyCounts.from_json(placed),
            known.get("since"),
            known.get("latest"),
            {int(group): (each[0], each[1]) for group, each in known.get("waiting", {}).items()},
            {int(epoch): mark for epoch, mark in known.get("passed", {}).items()},
        )


@dataclass(frozen=True)
class EpochOutcome:
    """The outcome of an epoch that was published."""

    latest: tuple[int | None, ...] = ()
    """the latest time of each source so far"""
    operators: Mapping[str, OperatorOutcome] = field(default_factory=dict)
    own_clock: frozenset[int] = frozenset()
    """sources whose data has its own clock"""
    shed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """for each drop point, the number of windows and of dropped windows since the query first shed there"""

    def to_json(self) -> dict[str, Any]:
        return {
            _VERSION: VERSION,
            "latest": list(self.latest),
            "operators": {name: each.to_json() for name, each in self.operators.items()},
            **({"own_clock": sorted(self.own_clock)} if self.own_clock else {}),
            **({"shed": {name: list(each) for name, each in self.shed.items()}} if self.shed else {}),
        }

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> EpochOutcome:
        check_version(known, "an outcome in the ledger")
        return cls(
            tuple(known.get("latest", ())),
            {name: OperatorOutcome.from_json(each) for name, each in known.get("operators", {}).items()},
            frozenset(known.get("own_clock", ())),
            {name: (each[0], each[1]) for name, each in known.get("shed", {}).items()},
        )
