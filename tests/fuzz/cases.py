"""A case: rows, a query over them, and how it is run. Plain values, which JSON can hold.

Values of rows are as JSON has them: a time is an integer (microseconds; seconds for a time column of type int), a date
is days since 1970, a decimal is its text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

Value = bool | int | float | str | None
Row = tuple[Value, ...]

MICROSECOND, MILLISECOND, SECOND = 1, 1_000, 1_000_000
MINUTE, HOUR = 60 * SECOND, 3_600 * SECOND

TIME = "at"
"""The name of the time column, which is the first of each source."""

KINDS = ("batch", "stream", "start", "join", "shed", "kill")


@dataclass(frozen=True)
class Column:
    """A column of a source besides its time."""

    name: str
    type: str
    required: bool = False
    """whether Spark knows that it is never null"""


@dataclass(frozen=True)
class Source:
    """Rows of one source, in the epochs in which they come."""

    time: str
    """Spark's type of the time column"""
    columns: tuple[Column, ...]
    epochs: tuple[tuple[Row, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (TIME, *(column.name for column in self.columns))

    @property
    def types(self) -> dict[str, str]:
        return {TIME: self.time, **{column.name: column.type for column in self.columns}}

    @property
    def unit(self) -> int:
        """Microseconds of one unit of the time column."""
        return SECOND if self.time == "int" else 1


@dataclass(frozen=True)
class Filter:
    """Rows for which a column is greater than a value; without a value, those where it is not null."""

    column: str
    above: int | None = None

    @property
    def sql(self) -> str:
        return f"{self.column} is not null" if self.above is None else f"{self.column} > {self.above}"


@dataclass(frozen=True)
class TimeWindow:
    """In microseconds."""

    size: int
    slide: int
    origin: int = 0


@dataclass(frozen=True)
class CountWindow:
    rows: int
    slide: int
    per_key: bool = True


@dataclass(frozen=True)
class Aggregate:
    """A column of the result. `parameter`: k of top_k, q of quantile, population of variance, lg_k of approx."""

    name: str
    function: str
    column: str | None = None
    parameter: bool | int | float | tuple[float, ...] | None = None


@dataclass(frozen=True)
class Level:
    """One windowed aggregate. `where` says which rows come to it."""

    aggregates: tuple[Aggregate, ...]
    windows: tuple[TimeWindow, ...] = ()
    count: CountWindow | None = None
    keys: tuple[str, ...] = ()
    where: Filter | None = None


@dataclass(frozen=True)
class Policy:
    """What `by` gets besides the keys."""

    partition: str
    choices: int | None = None
    cardinality: str | None = None
    workers: int | None = None
    splitters: int | None = None


@dataclass(frozen=True)
class Strategy:
    """What `using` gets."""

    kind: str
    batch: int = 1
    nodes: int | None = None


@dataclass(frozen=True)
class Join:
    """Two sources joined by key and time. `where` is a column of numbers that is greater on the left."""

    keys: tuple[str, ...]
    within: tuple[int, int]
    how: str = "inner"
    where: str | None = None


@dataclass(frozen=True)
class Run:
    """One life of the query: it ends when it has read the epochs before `until`."""

    until: int
    workers: int = 2
    snapshot_every: int = 10
    keeps_live: bool = True
    """whether the live state of the run before is still there"""


@dataclass(frozen=True)
class Shed:
    drop_share: float
    max_gap: int
    drop_at: str = "auto"
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """A query and its rows."""

    mode: str
    """batch (`to_df()` of a bounded DataFrame), stream (`to_df()` of a stream) or start (`start()`)"""
    sources: tuple[Source, ...]
    levels: tuple[Level, ...]
    """windowed aggregates, each over the results of the one before; of a join there may be none"""
    zone: str = "UTC"
    ansi: bool = True
    settings: tuple[tuple[str, str], ...] = ()
    """of the session, besides"""
    watermark: int = 0
    join: Join | None = None
    """without one, two sources are a union"""
    policy: Policy | None = None
    """of the first level"""
    strategy: Strategy | None = None
    """of the last level"""
    in_order: bool = False
    """whether `disorder=0` is asked for"""
    runs: tuple[Run, ...] = ()
    shed: Shed | None = None
    flush: int = 0
    """so many epochs at the end only move the watermark: what they open need not be delivered"""
    kills: int = 0

    @property
    def kind(self) -> str:
        if self.shed is not None:
            return "shed"
        if self.kills:
            return "kill"
        return "join" if self.join is not None else self.mode

    @property
    def epochs(self) -> int:
        return len(self.sources[0].epochs)

    @property
    def rows(self) -> int:
        return sum(len(epoch) for source in self.sources for epoch in source.epochs)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        found: Case = _typed(cls, json.loads(text))
        return found


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON as that type: lists become tuples, and dicts the classes above."""
    if get_origin(kind) is UnionType:
        if value is None:
            return None
        options = [each for each in get_args(kind) if each is not NoneType]
        nested = [each for each in options if get_origin(each) is tuple or hasattr(each, "__dataclass_fields__")]
        return _typed(nested[0], value) if nested and isinstance(value, (list, dict)) else value
    if get_origin(kind) is tuple:
        of = get_args(kind)
        kinds = [of[0]] * len(value) if of[-1] is Ellipsis else of
        return tuple(_typed(each, item) for each, item in zip(kinds, value, strict=True))
    if hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind)
        return kind(**{field.name: _typed(hints[field.name], value[field.name]) for field in fields(kind)})
    return value


# --- types ----------------------------------------------------------------------------------------------------------

NUMBERS = ("int", "bigint", "double", "decimal")


def is_number(kind: str) -> bool:
    return kind.startswith(NUMBERS)


def digits_of(kind: str) -> tuple[int, int]:
    """Precision and scale of ``decimal(10,2)``."""
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def result_type(aggregate: Aggregate, types: dict[str, str]) -> str:
    """Spark's type of an aggregate, as far as a further aggregate can take it; else ""."""
    given = types.get(aggregate.column or "", "")
    match aggregate.function:
        case "count" | "count_distinct":
            return "bigint"
        case "sum" if given.startswith("decimal"):
            precision, scale = digits_of(given)
            return f"decimal({min(38, precision + 10)},{scale})"
        case "sum":
            return "double" if given == "double" else "bigint"
        case "avg" if given.startswith("decimal"):
            precision, scale = digits_of(given)
            return f"decimal({min(38, precision + 4)},{min(38, scale + 4)})"
        case "avg":
            return "double"
        case "min" | "max" | "first" | "last":
            return given
    return ""  # an array, or a number that may differ in its last bits


def duration(micros: int) -> str:
    """As a user would write it, in one unit."""
    units = (("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", MILLISECOND), ("us", 1))
    name, size = next((name, size) for name, size in units if micros % size == 0)
    return f"{micros // size} {name}" if micros else "0 s"


def features(case: Case) -> list[str]:
    """What a case tries, for the table of what was drawn."""
    found = [f"kind: {case.kind}", f"mode: {case.mode}", f"zone: {case.zone}", f"ansi: {'on' if case.ansi else 'off'}"]
    found += [f"time: {source.time}" for source in case.sources]
    for number, level in enumerate(case.levels):
        found += [f"aggregate: {each.function}" for each in level.aggregates]
        types = case.sources[0].types
        found += [f"key: {types[key]}" for key in level.keys if key in types and not number]
        found += ["filter"] if level.where else []
        found += ["several windows"] if len(level.windows) > 1 else []
        found += ["count windows"] if level.count else []
        found += ["sliding"] if any(w.size > w.slide for w in level.windows) else []
        found += ["slide not dividing"] if any(w.size % w.slide for w in level.windows) else []
        found += ["origin"] if any(w.origin for w in level.windows) else []
    found += ["nested"] if len(case.levels) > 1 else []
    found += ["union"] if len(case.sources) > 1 and case.join is None else []
    found += [f"join: {case.join.how}"] if case.join else []
    found += ["windows over a join"] if case.join and case.levels else []
    found += [f"policy: {case.policy.partition}"] if case.policy else []
    found += [f"strategy: {case.strategy.kind}"] if case.strategy else []
    found += ["in order"] if case.in_order else []
    found += ["restart"] * (len(case.runs) - 1)
    found += [f"drop at: {case.shed.drop_at}"] if case.shed else []
    found += ["kill"] * case.kills
    return found
