"""From a seed to a case. Cases are small, so that one takes a second or two, and valid: what the documentation refuses
is drawn rarely."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.cases import (
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    TIME,
    Aggregate,
    Case,
    Column,
    CountWindow,
    Filter,
    Join,
    Level,
    Policy,
    Row,
    Run,
    Shed,
    Source,
    Strategy,
    TimeWindow,
    is_number,
)
from tests.fuzz.oracle import joined_types, level_types, passing
from tests.fuzz.refusals import may_refuse

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
)
TIMES = ("timestamp", "timestamp", "timestamp_ntz", "bigint", "int")
SHARES = {"batch": 30, "stream": 12, "start": 32, "join": 16, "shed": 10}
"""of 100 cases; kills are drawn only where they are asked for"""

# Seconds since 1970: an ordinary day, and the ends and beginnings of summer time in the zones above.
MOMENTS = (1_700_000_000, 1_698_540_600, 1_679_792_400, 1_699_164_000, 1_678_604_400, 1_696_087_800, 1_704_067_200)
PAST = (-1_000_000_000, -3, 0)
"""before and around 1970"""

KEY_TYPES = ("int", "bigint", "string", "string", "double", "date", "decimal(6,2)", "boolean", "timestamp")
VALUE_TYPES = ("bigint", "bigint", "int", "double", "double", "decimal(10,2)", "string", "date", "timestamp")
NUMERIC = ("sum", "avg", "variance", "stddev", "quantile")
ORDERED = ("min", "max", "first", "last", "count_distinct", "approx_distinct", "top_k", "collect", "count")
USERS = ("user", "user_merge", "user_state")
EXACT_SKETCH = 150
"""A KLL sketch of fewer values has them all."""
POLICIES = ("sh", "fld", "pk", "cm", "am", "cam", "lm", "heavy", "auto")


def draw(seed: int, number: int, kind: str | None = None, zone: str | None = None) -> Case:
    """Case `number` of a seed."""
    rng = random.Random(f"{seed}:{number}")
    drawn = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return Drawer(rng, kind or drawn, zone).case()


@dataclass
class Drawer:
    rng: random.Random
    kind: str
    zone: str | None

    def case(self) -> Case:
        rng = self.rng
        self.mode = {"batch": "batch", "stream": "stream"}.get(self.kind, "start")
        if self.kind == "join":
            self.mode = rng.choice(["batch", "stream", "start", "start"])
        self.time = rng.choice(TIMES)
        self.unit = rng.choice([MICROSECOND, MILLISECOND, SECOND, SECOND, SECOND, MINUTE, HOUR])
        if self.time == "int":
            self.unit = max(self.unit, SECOND)
        self.span = self.unit * rng.randint(2, 12)
        self.base = self._base()
        self.counting = self.sketches = False
        case = Case(
            self.mode,
            (),
            (),
            zone=self.zone or rng.choice(ZONES),
            ansi=rng.random() < 0.75,
            settings=self._settings(),
        )
        case = self._join(case) if self.kind == "join" else self._windows(case)
        case = self._timing(case)
        if self.kind == "shed":
            shed = Shed(
                rng.choice([0.2, 0.5, 0.9]),
                rng.randint(1, 6),
                rng.choice(["auto", "operators", "results", *(() if self.counting else ("source", "source"))]),
                rng.randint(0, 99),
            )
            case = replace(case, shed=shed)
        if self.kind == "kill":
            case = replace(case, runs=(Run(case.epochs, workers=2, snapshot_every=rng.randint(1, 4)),))
            case = replace(case, kills=rng.randint(1, 2))
        return case

    # --- sources ----------------------------------------------------------------------------------------------------

    def _base(self) -> int:
        rng = self.rng
        moments = [*MOMENTS, MOMENTS[0]]
        if self.mode != "stream":  # where Spark's watermark begins in 1970
            # A bigint near 1970 looks like seconds or milliseconds that were taken for microseconds.
            moments += [moment for moment in PAST if self.time != "bigint" or moment < -SECOND]
        if self.mode == "batch" and self.time == "int" and rng.random() < 0.1:
            return (2**31 - 1) * SECOND - self.span * 3 // SECOND * SECOND
        return rng.choice(moments) * SECOND

    def _settings(self) -> tuple[tuple[str, str], ...]:
        rng = self.rng
        found = []
        if rng.random() < 0.3:
            found.append(("spark.sql.shuffle.partitions", str(rng.randint(1, 5))))
        if rng.random() < 0.2:
            found.append(("spark.sql.execution.arrow.maxRecordsPerBatch", str(rng.choice([1, 3, 10]))))
        if rng.random() < 0.2:
            found.append(("spark.sql.adaptive.enabled", "false"))
        return tuple(found)

    def _columns(self) -> tuple[Column, ...]:
        rng = self.rng
        kinds = ("int", "string") if self.kind == "shed" and self.counting else KEY_TYPES
        keys = [Column("k", rng.choice(kinds), rng.random() < 0.2)]
        if rng.random() < 0.4:
            keys.append(Column("g", rng.choice(kinds)))
        values = [Column("v", rng.choice(VALUE_TYPES), rng.random() < 0.25)]
        if rng.random() < 0.6:
            values.append(Column("w", rng.choice(VALUE_TYPES)))
        return (*keys, *values)

    def _source(self, columns: tuple[Column, ...], epochs: int, late: float, most: int) -> Source:
        rng = self.rng
        time = self.time
        grain = rng.choice([self.unit, max(1, self.unit // 4), 1])
        if time == "int":
            grain = max(grain, SECOND)
        big = rng.random() < 0.04
        pools = {column.name: self._pool(column, big and column.name == "v") for column in columns}
        found = []
        for number in range(epochs):
            rows: list[Row] = []
            for _ in range(rng.randint(0, most)):
                t = self.base + number * self.span + rng.randrange(self.span)
                if number and rng.random() < late:
                    t -= rng.randint(1, 4) * self.span
                t = t // grain * grain // (SECOND if time == "int" else 1)
                at = None if rng.random() < 0.04 else t
                rows.append((at, *(rng.choice(pools[column.name]) for column in columns)))
            if rows and rng.random() < 0.3:
                rows += [rng.choice(rows) for _ in range(rng.randint(1, 3))]
            found.append(tuple(rows))
        return Source(time, columns, tuple(found))

    def _pool(self, column: Column, big: bool) -> list[Any]:
        """The values that a column has: a few keys, some more of others."""
        rng, kind = self.rng, column.type
        size = rng.randint(1, 6) if column.name in ("k", "g") else rng.randint(2, 12)
        odd = [] if column.required or rng.random() < 0.4 else [None]
        if kind.startswith("decimal"):
            return [*(f"{rng.randint(-999, 999) / 100:.2f}" for _ in range(size)), *odd]
        match kind:
            case "string":
                return [*(rng.choice(["a", "b", "c", "", "ä", "Z z", "日本", "a.b`"]) for _ in range(size)), *odd]
            case "double":
                strange = [float("nan"), 0.0, -0.0] if rng.random() < 0.3 else []
                strange += [float("inf"), float("-inf")] if rng.random() < 0.1 else []
                return [*(rng.randint(-40, 40) / 4 for _ in range(size)), *strange, *odd]
            case "boolean":
                return [True, False, *odd]
            case "date":
                return [*(rng.randint(-400, 20_000) for _ in range(size)), *odd]
            case "timestamp":
                return [*(rng.choice(MOMENTS) * SECOND + rng.randint(0, 9) for _ in range(size)), *odd]
        if big and kind == "bigint":
            return [2**62, 2**62 + 1, 2**63 - 1, 1, *odd]
        return [*(rng.randint(-5, 9) for _ in range(size)), *odd]

    # --- queries ----------------------------------------------------------------------------------------------------

    def _windows(self, case: Case) -> Case:
        rng = self.rng
        self.counting = self.mode != "stream" and rng.random() < 0.12
        columns = self._columns()
        two = self.mode != "batch" and self.kind != "shed" and rng.random() < 0.1
        epochs = rng.randint(5, 8) if self.kind == "shed" else rng.randint(1, 6)
        late = 0.0 if self.mode == "stream" else rng.choice([0.0, 0.05, 0.2])
        most = rng.choice([8, 30, 60]) if self.kind == "shed" else rng.choice([3, 12, 40])
        sources = tuple(self._source(columns, epochs, late, most) for _ in range(2 if two else 1))
        types = dict(sources[0].types)
        case = replace(case, sources=sources)
        self.sketches = case.rows < EXACT_SKETCH
        level = self._level(types, nested=False)
        case = replace(case, levels=(level,))
        if not self.counting and rng.random() < 0.3:
            nested = replace(case, levels=(level, self._level(level_types(level, types), nested=True)))
            case = nested if may_refuse(nested) is None or rng.random() < 0.1 else case
        return self._how(case)

    def _level(self, types: dict[str, str], *, nested: bool) -> Level:
        rng = self.rng
        names = [name for name in types if name in ("k", "g")]
        keys = tuple(rng.sample(names, rng.randint(0 if rng.random() < 0.4 else min(1, len(names)), len(names))))
        where = None
        if rng.random() < 0.25:
            numeric = [name for name, kind in types.items() if is_number(kind) and name not in keys]
            column = rng.choice(numeric) if numeric and rng.random() < 0.7 else rng.choice(list(types))
            where = Filter(column, rng.randint(-3, 3) if column in numeric else None)
            where = None if types[column] == "" or column == TIME else where
        aggregates = self._aggregates(types, "b" if nested else "a")
        if self.counting:
            rows = rng.randint(1, 6)
            count = CountWindow(rows, rng.randint(1, rows), rng.random() < 0.7)
            return Level(aggregates, (), count, keys, where)
        window = self._window()
        others = [self._window() for _ in range(rng.randint(1, 2))] if rng.random() < 0.15 else []
        windows = dict.fromkeys([window, *(replace(other, origin=window.origin) for other in others)])
        return Level(aggregates, tuple(windows), None, keys, where)

    def _window(self) -> TimeWindow:
        rng, unit = self.rng, self.unit
        size = rng.randint(1, 8)
        slide = size if rng.random() < 0.4 else rng.randint(1, size)
        origin = 0 if rng.random() < 0.7 else unit * rng.randint(-5, 20)
        if rng.random() < 0.1 and (self.time != "int" or unit // 3 % SECOND == 0):
            origin += unit // 3
        return TimeWindow(size * unit, slide * unit, origin)

    def _aggregates(self, types: dict[str, str], prefix: str) -> tuple[Aggregate, ...]:
        rng = self.rng
        usable = [name for name, kind in types.items() if kind]
        if rng.random() < 0.9 and len(usable) > 1:
            usable = [name for name in usable if name != TIME]
        found = []
        for number in range(rng.randint(1, 4)):
            column = rng.choice(usable) if usable else None
            functions = list(ORDERED)
            if column is not None and is_number(types[column]):
                functions += (NUMERIC if self.sketches else NUMERIC[:-1]) * 2
            if column is not None and types[column] in ("int", "bigint", "string") and rng.random() < 0.4:
                functions += USERS * 2
            function = rng.choice(functions) if column is not None else "count"
            if function == "count" and rng.random() < 0.6:
                column = None
            found.append(Aggregate(f"{prefix}{number}", function, column, self._parameter(function)))
        return tuple(found)

    def _parameter(self, function: str) -> bool | int | float | tuple[float, ...] | None:
        rng = self.rng
        match function:
            case "variance" | "stddev":
                return rng.random() < 0.3
            case "quantile":
                ranks: list[float | tuple[float, ...]] = [0.5, 0.0, 1.0, 0.9, (0.25, 0.75)]
                return rng.choice(ranks)
            case "top_k":
                return rng.randint(1, 4)
            case "approx_distinct":
                return rng.choice([8, 12])
        return None

    def _how(self, case: Case) -> Case:
        """Policy, strategy and order."""
        rng, first = self.rng, case.levels[0]
        merged = not any(each.function == "user" for level in case.levels for each in level.aggregates)
        whole = any(each.function == "user" for each in first.aggregates) and rng.random() < 0.9
        if first.keys and not first.count and not whole and self.mode != "stream" and rng.random() < 0.35:
            name = rng.choice(POLICIES)
            takes = name in ("pk", "cm", "am", "cam", "lm")
            policy = Policy(
                name,
                rng.choice([None, 2, 3]) if takes else None,
                rng.choice([None, "exact", "hll"]) if name in ("cm", "am", "cam", "lm") else None,
                rng.choice([None, 1, 2, 5]) if name != "auto" else None,
                rng.choice([None, 1, 2]) if name != "auto" else None,
            )
            return replace(case, policy=policy)
        if self.mode != "start" and rng.random() < 0.5:
            kind = rng.choice(["window", "batch", *(["pane"] if merged else [])])
            batch = 1 if kind == "window" else rng.randint(1, 5)
            ring = kind == "pane" and self.mode == "batch" and not case.levels[-1].keys
            nodes = rng.randint(1, 4) if ring and rng.random() < 0.6 else None
            return replace(case, strategy=Strategy(kind, batch, nodes))
        if self.mode == "start" and self.kind == "start" and not first.count and rng.random() < 0.1:
            return replace(case, in_order=True)
        return case

    def _join(self, case: Case) -> Case:
        rng = self.rng
        key = Column("k", rng.choice([kind for kind in KEY_TYPES if kind != "timestamp"]))
        others = [Column("v", rng.choice(VALUE_TYPES)), Column(rng.choice(["v", "w"]), rng.choice(VALUE_TYPES))]
        late = 0.0 if self.mode == "stream" else rng.choice([0.0, 0.1])
        epochs, most = rng.randint(1, 5), rng.choice([3, 10, 25])
        sources = []
        for value in others:
            sources.append(self._source((key, value), epochs, late, most))
            if self.unit >= SECOND and rng.random() < 0.2:
                self.time = rng.choice(TIMES[:4])  # streams of different types of time
        how = rng.choice(["inner", "inner", "left", "right", "full"])
        within = tuple(rng.choice([0, self.unit * rng.randint(1, 6)]) for _ in range(2))
        same = all(column.name == "v" and column.type in ("int", "bigint") for column in others)
        where = "v" if same and rng.random() < 0.5 else None
        case = replace(case, sources=tuple(sources), join=Join(("k",), (within[0], within[1]), how, where))
        if self.mode != "stream" and rng.random() < 0.3:
            self.time = sources[0].time
            types = {name: kind for name, kind in joined_types(case).items() if not name.startswith(TIME)}
            level = self._level(types, nested=False)
            unit = SECOND if self.time == "int" else 1
            if all(w.size % unit == w.slide % unit == w.origin % unit == 0 for w in level.windows):
                case = replace(case, levels=(level,))
        return case

    # --- epochs -----------------------------------------------------------------------------------------------------

    def _timing(self, case: Case) -> Case:
        """The watermark's delay, what comes at the end, and restarts."""
        rng = self.rng
        if self.mode == "batch":
            return case
        delay = rng.choice([0, 0, self.unit, self.span, 3 * self.span])
        if self.mode == "stream":
            delay = max(delay, self._disorder(case.sources))
        case = replace(case, watermark=-(-delay // MILLISECOND) * MILLISECOND if self.mode == "stream" else delay)
        if self.mode == "stream" or self.kind == "shed":
            case = self._flushed(case)
        ends = sorted(rng.sample(range(1, case.epochs), min(case.epochs - 1, rng.choice([0, 0, 1, 2]))))
        runs = [
            Run(until, rng.randint(1, 4), rng.choice([1, 2, 10]), rng.random() < 0.5) for until in (*ends, case.epochs)
        ]
        return replace(case, runs=tuple(runs))

    def _disorder(self, sources: Sequence[Source]) -> int:
        """How far a row lies behind one of an epoch before, at most."""
        worst = latest = 0
        for number in range(len(sources[0].epochs)):
            times = [t for source in sources for t in _times(source.epochs[number], source)]
            worst = max([worst, *(latest - t for t in times)])
            latest = max([latest, *times])
        return worst

    def _flushed(self, case: Case) -> Case:
        """Two more epochs, each of one row far behind all others."""
        lengths = [window.size for level in case.levels for window in level.windows]
        lengths += case.join.within if case.join is not None else ()
        times = [t for source in case.sources for epoch in source.epochs for t in _times(epoch, source)]
        # Spark's watermark goes by milliseconds, ours by microseconds; dropped windows are listed one by one.
        step = 12 * max([*lengths, self.unit]) + (SECOND if self.mode == "stream" else 0)
        far = max([*times, self.base]) + case.watermark + step
        sources = []
        for source in case.sources:
            # In its own plans Spark filters before it looks at times: only rows that pass move the watermark.
            where = Filter("k") if case.join is not None else case.levels[0].where
            every = [row for epoch in source.epochs for row in epoch]
            # If none passes, nothing is expected of an aggregate; a join has a key that is not null.
            last = next(filter(passing(where, source), every), None)
            if last is None:
                last = (0, *(self._pool(column, False)[0] for column in source.columns))
            extra = tuple((-(-t // source.unit), *last[1:]) for t in (far, far + step))
            sources.append(replace(source, epochs=(*source.epochs, *((row,) for row in extra))))
        return replace(case, sources=tuple(sources), flush=2)


def _times(epoch: Sequence[Row], source: Source) -> list[int]:
    """In microseconds."""
    return [row[0] * source.unit for row in epoch if isinstance(row[0], int)]
