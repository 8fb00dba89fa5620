"""What the ledger holds: the decisions for an epoch, and what came of it. Typed here, JSON in the files.

    EpochDecision            written before an epoch runs, read when it runs again
      ├ OperatorDecision     routing and settings of each operator
      ├ TimeLimits           the latest time that a row of each source may have
      └ DropPlan             which windows are dropped, where a query sheds load
          └ PointDrops       at one drop point
    EpochOutcome             written after it was published
      └ OperatorOutcome      where each operator stands; a restart goes on from there
          └ PlacedKeys       the last counts of a key policy, which its next decision goes by

Every record has a version. A record without one was written before records had versions, and is read as well. One of a
later release is refused: it may say things that this release does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from anabranch.errors import CheckpointError
from anabranch.observe.progress import PartitionMeasure
from anabranch.shedding.windrop import DropState, Tally

VERSION = 1
"""of the records below; raised when a reader of the version before could misread one"""
_VERSION = "version"
MARKED = "publishing_is_marked"
"""in a decision: the release that made it writes down when an epoch goes to the sinks"""


class UnreadableRecord(ValueError):
    """A record that lacks something, or has something else in its place."""


def check_version(known: Mapping[str, Any], what: str) -> None:
    """Refuse a record of a later release."""
    version = known.get(_VERSION, 0)
    if version > VERSION:
        raise CheckpointError(
            f"{what} has version {version}, and this release reads up to version {VERSION}: it may say what this "
            "release does not know",
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
    """For each source the latest time that a row may have in one epoch; None: any."""

    latest: tuple[int | None, ...]
    auto: bool = False
    """whether they are off for a source that has a clock of its own"""

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
    """the share that its coins drop"""
    bound: int | None
    """units in a row that may be missing; None: the queries below are shut"""
    cause: str
    units: Sequence[Any]
    """what units and buckets mean at this point: a decision is of no use where they mean something else"""
    state: DropState | None = None
    """which units are dropped; None for count windows, whose operator decides by itself"""

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
    """Which windows an epoch drops, and what the next plan must know of this one."""

    decisions: Mapping[str, Any] = field(default_factory=dict)
    """of the controller: plain JSON values"""
    latest: int | None = None
    """the latest time of a row when it was made"""
    advance: int = 0
    """how much event time an epoch has brought"""
    points: Mapping[str, PointDrops] = field(default_factory=dict)
    late: int | None = None
    """epochs in a row that were too late, of a query that must not shed; None for others"""

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
    """All that was decided for an epoch and can change a result."""

    operators: Mapping[str, OperatorDecision] = field(default_factory=dict)
    token: str = ""
    """made once: a live state that has it was left by an epoch which followed this decision"""
    idle: tuple[int, ...] = ()
    """sources that do not hold the watermark back"""
    limits: TimeLimits | None = None
    """None in records of releases that had no limits"""
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """which sinks may have results of the epoch, and where"""
    allowances: Mapping[str, float | None] = field(default_factory=dict)
    """seconds that a worker of each operator has"""
    drops: DropPlan | None = None
    """None where nothing may be dropped"""
    marks_publishing: bool = True
    """whether the release that decided it writes down that an epoch goes to the sinks"""

    def to_json(self) -> dict[str, Any]:
        return {
            _VERSION: VERSION,
            "operators": {name: each.to_json() for name, each in self.operators.items()},
            "token": self.token,
            "idle": list(self.idle),
            **({} if self.limits is None else {"limits": self.limits.to_json()}),
            "sinks": {name: dict(place) for name, place in self.sinks.items()},
            "allowances": dict(self.allowances),
            **({MARKED: True} if self.marks_publishing else {}),
            **({} if self.drops is None else {"shedding": self.drops.to_json()}),
        }

    @classmethod
    def read(cls, known: Mapping[str, Any]) -> EpochDecision:
        """The decision; `UnreadableRecord` with the reason if it is not one."""
        try:
            return cls.from_json(known)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableRecord(f"it cannot be read ({type(error).__name__}: {error})") from error

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> EpochDecision:
        check_version(known, "a decision of the ledger")
        limits, drops = known.get("limits"), known.get("shedding")
        return cls(
            {name: OperatorDecision.from_json(each) for name, each in known.get("operators", {}).items()},
            known.get("token", ""),
            tuple(known.get("idle", ())),
            None if limits is None else TimeLimits.from_json(limits),
            known.get("sinks", {}),
            known.get("allowances", {}),
            None if drops is None else DropPlan.from_json(drops),
            bool(known.get(MARKED)),
        )


@dataclass(frozen=True)
class PlacedKeys:
    """What was counted of placed keys in an epoch: the next decision goes by it."""

    epoch: int
    partitions: tuple[PartitionMeasure, ...]
    heaviest: tuple[tuple[int, int], ...]
    """(hash, tuples) of the keys with the most tuples"""

    def to_json(self) -> dict[str, Any]:
        partitions = [asdict(each) for each in self.partitions]
        return {"epoch": self.epoch, "partitions": partitions, "heaviest": [list(each) for each in self.heaviest]}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> PlacedKeys:
        partitions = tuple(PartitionMeasure(**each) for each in known["partitions"])
        return cls(known["epoch"], partitions, tuple((key, tuples) for key, tuples in known["heaviest"]))


@dataclass(frozen=True)
class OperatorOutcome:
    """Where an operator stands after an epoch."""

    watermark: int | None
    active: frozenset[int] = frozenset()
    """groups that have had rows"""
    snapshots: Mapping[int, int] = field(default_factory=dict)
    """the epoch of each group's last snapshot"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    block_groups: frozenset[int] = frozenset()
    """groups that the log of this epoch has rows of"""
    placed: PlacedKeys | None = None
    """None where no policy places keys"""
    since: int | None = None
    """the first epoch whose blocks are needed; None for an operator that has snapshots"""
    latest: int | None = None
    """the latest time of this epoch's rows, of an operator whose log is its state"""
    waiting: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """groups whose blocks wait for their turn: the epoch each was last run in, and the rows since"""
    passed: Mapping[int, int | None] = field(default_factory=dict)
    """the watermarks of the last epochs, as long as blocks wait"""

    def to_json(self) -> dict[str, Any]:
        waits: dict[str, Any] = {}
        if self.waiting:
            waits["waiting"] = {str(group): list(each) for group, each in sorted(self.waiting.items())}
            waits["passed"] = {str(epoch): mark for epoch, mark in self.passed.items()}
        return {
            **({} if self.since is None else {"since": self.since, "latest": self.latest}),
            **waits,
            "watermark": self.watermark,
            "active": sorted(self.active),
            "snapshots": {str(group): at for group, at in sorted(self.snapshots.items())},
            "decisions": dict(self.settings),
            **({} if self.placed is None else {"placed": self.placed.to_json()}),
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
            None if placed is None else PlacedKeys.from_json(placed),
            known.get("since"),
            known.get("latest"),
            {int(group): (each[0], each[1]) for group, each in known.get("waiting", {}).items()},
            {int(epoch): mark for epoch, mark in known.get("passed", {}).items()},
        )


@dataclass(frozen=True)
class EpochOutcome:
    """What came of an epoch that was published."""

    latest: tuple[int | None, ...] = ()
    """the latest time of each source so far"""
    operators: Mapping[str, OperatorOutcome] = field(default_factory=dict)
    own_clock: frozenset[int] = frozenset()
    """sources whose times are not by the clock of this machine"""
    shed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """windows and dropped windows of each drop point, since the query first shed there"""

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
        check_version(known, "an outcome of the ledger")
        return cls(
            tuple(known.get("latest", ())),
            {name: OperatorOutcome.from_json(each) for name, each in known.get("operators", {}).items()},
            frozenset(known.get("own_clock", ())),
            {name: (each[0], each[1]) for name, each in known.get("shed", {}).items()},
        )
