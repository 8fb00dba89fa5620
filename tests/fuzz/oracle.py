"""What a case must deliver, in plain Python, by what the documentation says. Imports nothing of the package.

Rows of results are dicts of plain values: times are integers, as in the sources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from tests.fuzz.cases import (
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    TIME,
    Case,
    Filter,
    Level,
    Source,
    TimeWindow,
    result_type,
)
from tests.fuzz.values import Timed, answer, canonical, order

LARGEST = 2**63 - 1


class Result(NamedTuple):
    """A row of a result: where its window ends (or its later time, of a join), its time for what follows, the row."""

    end: int
    time: int
    row: dict[str, Any]


@dataclass
class Expected:
    """What comes out of a case."""

    must: list[dict[str, Any]]
    """rows that must be delivered"""
    may: list[dict[str, Any]]
    """all rows that are right: those above, and some that need not be delivered yet"""
    epochs: dict[str, int] | None = None
    """by `identity` of a row: the epoch in which it must be delivered; None where that is not promised"""
    late: int | None = None
    bad: int | None = None
    overflow: str = "no"
    """whether a sum does not fit a bigint: "no", "may" (in some order of additions), "must" (the sum itself)"""


@dataclass
class Reached:
    """Where a running query stands after an epoch: the rows it took of each source, and its watermark."""

    rows: list[list[Timed]]
    watermark: int | None
    late: int = 0
    bad: int = 0


def expected(case: Case) -> Expected:
    """The oracle."""
    real = case.epochs - case.flush
    if case.mode == "start":
        found = _running(case, real)
    else:
        whole = _results(case, [_timed(source.epochs, source) for source in case.sources])
        some = _results(case, [_timed(source.epochs[:real], source) for source in case.sources])
        found = Expected([each.row for each in some], [each.row for each in whole])
    found.overflow = _overflow(case, found)
    return found


def identity(case: Case, row: dict[str, Any]) -> str:
    """What tells a row of the result from others: its keys and its window. Of a join, the whole row."""
    if not case.levels:
        return repr(sorted((name, canonical(value)) for name, value in row.items()))
    names = (*case.levels[-1].keys, "window", "window_spec")
    return repr([canonical(row[name]) for name in names if name in row])


# --- a running query ------------------------------------------------------------------------------------------------


def _running(case: Case, real: int) -> Expected:
    stages = _play(case)
    last = stages[-1]
    delivered = _delivered(case, last)
    if case.join is not None and case.levels:
        may = [each for each in _results(case, last.rows) if _reached(each.end, last.watermark)]
        return Expected([each.row for each in delivered], [each.row for each in may], None, last.late, last.bad)
    if case.flush:
        before = stages[real - 1].rows
        some = [each.row for each in _delivered(case, Reached(before, last.watermark))]
        return Expected(some, [each.row for each in delivered], None, last.late, last.bad)
    epochs: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for each in _delivered(case, stage):
            epochs.setdefault(identity(case, each.row), number)
    rows = [each.row for each in delivered]
    by_epoch = None if case.join is not None or case.kills else epochs
    return Expected(rows, rows, by_epoch, last.late, last.bad)


def _play(case: Case) -> list[Reached]:
    """Epoch by epoch: which rows are late, and where the watermark goes.

    The watermark of a source is the latest time seen, less the delay. Within an epoch it moves by the rows that pass
    the filter; if none does, by the rows of the source, from the next epoch on. A query has the least of its sources.
    A row is late if the watermark with which the epoch before ended is past it; for time windows, past its pane.
    """
    first = case.levels[0] if case.levels else None
    wanted = _passes(first.where if first is not None and case.join is None else None)
    by_pane = case.join is None and first is not None and first.count is None
    latest: list[int | None] = [None] * len(case.sources)
    taken: list[list[Timed]] = [[] for _ in case.sources]
    watermark: int | None = None
    late = bad = 0
    stages = []
    for epoch in range(case.epochs):
        known = [each for each in latest if each is not None]
        behind = watermark
        if by_pane and watermark is not None and len(known) == len(latest):
            behind = max(watermark, min(known) - case.watermark)
        newest: list[int | None] = []
        for i, source in enumerate(case.sources):
            every = _rows(source.epochs[epoch], source)
            rows = [row for row in every if wanted(row)]
            bad += sum(row[TIME] is None for row in rows)
            timed = _with_time(rows, source)
            newest.append(max((t for t, _ in timed), default=None))
            for t, row in timed:
                end = _pane_end(t, first.windows) if by_pane and first is not None else t + 1
                if behind is not None and end <= behind:
                    late += 1
                else:
                    taken[i].append((t, row))
            moved = newest[i] if rows else max((t for t, _ in _with_time(every, source)), default=None)
            newest[i], latest[i] = _later(latest[i], newest[i]), _later(latest[i], moved)
        if all(each is not None for each in newest):
            watermark = _later(watermark, min(each for each in newest if each is not None) - case.watermark)
        stages.append(Reached([list(rows) for rows in taken], watermark, late, bad))
    return stages


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _pane_end(t: int, windows: Sequence[TimeWindow]) -> int:
    """Panes are the longest stretches that no edge of a window cuts."""
    pane = math.gcd(*(length for window in windows for length in (window.size, window.slide)))
    return t - (t - windows[0].origin) % pane + pane


def _delivered(case: Case, reached: Reached) -> list[Result]:
    """What has been delivered by then."""
    watermark = reached.watermark
    if case.join is not None:
        within = max((case.join.within[side] for side in _preserved(case.join.how)), default=0)
        if case.levels:
            # A row without a partner is told so much later; a time in seconds is rounded down.
            behind = None if watermark is None else watermark - within - SECOND
            return [each for each in _results(case, reached.rows) if _reached(each.end, behind)]
        return _joined(case, reached.rows, watermark)
    if watermark is None:
        return []
    if case.levels[0].count is not None:
        in_time = [[(t, row) for t, row in rows if t < watermark] for rows in reached.rows]
        return _results(case, in_time)
    return _results(case, reached.rows, watermark)


def _reached(end: int, watermark: int | None) -> bool:
    return watermark is not None and end <= watermark


# --- the query over rows ------------------------------------------------------------------------------------------


def _results(case: Case, rows: Sequence[Sequence[Timed]], watermark: int | None = None) -> list[Result]:
    """The query over all these rows; with a watermark, only windows that end by then, of every level."""
    types = dict(case.sources[0].types)
    unit = case.sources[0].unit
    stream: list[Timed] = [each for source in rows for each in source]
    found: list[Result] = []
    if case.join is not None:
        found = _joined(case, rows, LARGEST)
        types = joined_types(case)
        stream = [(each.time, each.row) for each in found]
    for level in case.levels:
        wanted = _passes(level.where)
        found = _level(level, [(t, row) for t, row in stream if wanted(row)], types, unit)
        if watermark is not None:
            found = [each for each in found if each.end <= watermark]
        stream = [(each.time, each.row) for each in found]
        types = level_types(level, types)
    return found


def _level(level: Level, rows: Sequence[Timed], types: dict[str, str], unit: int) -> list[Result]:
    members: dict[tuple[Any, ...], list[Timed]] = defaultdict(list)
    keys: dict[tuple[Any, ...], dict[str, Any]] = {}
    for window, place, timed in _windows_of(level, rows):
        key = tuple(canonical(timed[1][name]) for name in level.keys)
        members[window, place, key].append(timed)
        keys[key] = {name: timed[1][name] for name in level.keys}
    found = []
    for (window, (start, end), key), inside in members.items():
        scale = 1 if level.count is not None else unit
        row: dict[str, Any] = {**keys[key], "window": {"start": start // scale, "end": end // scale}}
        if len(level.windows) > 1:
            row["window_spec"] = label(level.windows[window])
        row |= {each.name: answer(each, inside, types) for each in level.aggregates}
        found.append(Result(end, end - unit, row))
    return found


def _windows_of(level: Level, rows: Sequence[Timed]) -> Iterable[tuple[int, tuple[int, int], Timed]]:
    """Every row with each window it is in: number of the specification, start and end."""
    for number, window in enumerate(level.windows):
        for t, row in rows:
            start = t - (t - window.origin) % window.slide
            while start + window.size > t:
                yield number, (start, start + window.size), (t, row)
                start -= window.slide
    if level.count is not None:
        yield from _count_windows_of(level, rows)


def _count_windows_of(level: Level, rows: Sequence[Timed]) -> Iterable[tuple[int, tuple[int, int], Timed]]:
    """Rows in the order of time, and then of their other columns; only windows that are full."""
    assert level.count is not None
    groups: dict[tuple[Any, ...], list[Timed]] = defaultdict(list)
    ordered = sorted(rows, key=lambda each: (each[0], *(order(v) for name, v in each[1].items() if name != TIME)))
    for each in ordered:
        names = level.keys if level.count.per_key else ()
        groups[tuple(canonical(each[1][name]) for name in names)].append(each)
    for group in groups.values():
        for start in range(0, len(group) - level.count.rows + 1, level.count.slide):
            place = (start, start + level.count.rows)
            for each in group[slice(*place)]:
                yield 0, place, each


def _joined(case: Case, rows: Sequence[Sequence[Timed]], watermark: int | None) -> list[Result]:
    """Pairs by nested loops; rows without a partner once the watermark is past their window."""
    join = case.join
    assert join is not None
    left, right = rows
    found, paired = [], (set[int](), set[int]())
    for i, (t, a) in enumerate(left):
        for k, (u, b) in enumerate(right):
            near = t - join.within[1] <= u <= t + join.within[0]
            if near and _same_key(a, b, join.keys) and _where(a, b, join.where):
                paired[0].add(i)
                paired[1].add(k)
                found.append(_pair(case, a, b, max(t, u)))
    for side in _preserved(join.how):
        for i, (t, row) in enumerate(rows[side]):
            if i not in paired[side] and watermark is not None and t + join.within[side] < watermark:
                found.append(_pair(case, row if side == 0 else None, row if side == 1 else None, t))
    return found


def _preserved(how: str) -> tuple[int, ...]:
    return {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}[how]


def _same_key(a: dict[str, Any], b: dict[str, Any], keys: Sequence[str]) -> bool:
    return all(a[key] is not None and canonical(a[key]) == canonical(b[key]) for key in keys)


def _where(a: dict[str, Any], b: dict[str, Any], column: str | None) -> bool:
    return column is None or (a[column] is not None and b[column] is not None and a[column] > b[column])


def _pair(case: Case, a: dict[str, Any] | None, b: dict[str, Any] | None, time: int) -> Result:
    assert case.join is not None
    one = a if a is not None else b
    assert one is not None
    row = {key: one[key] for key in case.join.keys}
    for side, values in enumerate((a, b)):
        for name in case.sources[side].names:
            if name not in case.join.keys:
                row[name + ("_right" if name in row else "")] = None if values is None else values[name]
    unit = case.sources[0].unit
    return Result(time, time // unit * unit, row)


def joined_types(case: Case) -> dict[str, str]:
    """The columns of a join."""
    assert case.join is not None
    found = {key: case.sources[0].types[key] for key in case.join.keys}
    for source in case.sources:
        for name, kind in source.types.items():
            if name not in case.join.keys:
                found[name + ("_right" if name in found else "")] = kind
    return found


def level_types(level: Level, types: dict[str, str]) -> dict[str, str]:
    """The columns of a level's result that a further one can take."""
    keys = {key: types[key] for key in level.keys}
    return keys | {each.name: result_type(each, types) for each in level.aggregates}


def label(window: TimeWindow) -> str:
    """``5 min / 10 s``, as the column `window_spec` has it."""
    return f"{_text(window.size)} / {_text(window.slide)}"


def _text(micros: int) -> str:
    parts, rest = [], micros
    units = (("d", 24 * HOUR), ("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", MILLISECOND), ("us", 1))
    for name, unit in units:
        number, rest = divmod(rest, unit)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts)


# --- rows of a source -----------------------------------------------------------------------------------------------


def _rows(epoch: Iterable[Sequence[Any]], source: Source) -> list[dict[str, Any]]:
    kinds = source.types.values()
    return [
        {name: _decoded(value, kind) for name, value, kind in zip(source.names, row, kinds, strict=True)}
        for row in epoch
    ]


def _decoded(value: Any, kind: str) -> Any:
    return Decimal(value) if kind.startswith("decimal") and value is not None else value


def _with_time(rows: Iterable[dict[str, Any]], source: Source) -> list[Timed]:
    return [(row[TIME] * source.unit, row) for row in rows if row[TIME] is not None]


def _timed(epochs: Iterable[Iterable[Sequence[Any]]], source: Source) -> list[Timed]:
    return _with_time((row for epoch in epochs for row in _rows(epoch, source)), source)


def _passes(where: Filter | None) -> Callable[[dict[str, Any]], bool]:
    """SQL: a null passes nothing, and NaN is above every number."""
    if where is None:
        return lambda row: True
    name, above = where.column, where.above
    if above is None:
        return lambda row: row[name] is not None
    return lambda row: row[name] is not None and (row[name] > above or row[name] != row[name])


def passing(where: Filter | None, source: Source) -> Callable[[Sequence[Any]], bool]:
    """The same, of rows as a source has them."""
    passes = _passes(where)
    return lambda row: passes(_rows([row], source)[0])


# --- sums that do not fit -------------------------------------------------------------------------------------------


def _overflow(case: Case, found: Expected) -> str:
    if not case.levels:
        return "no"
    sums = [each for level in case.levels for each in level.aggregates if each.function == "sum"]
    if any(isinstance(row[each.name], int) and abs(row[each.name]) > LARGEST for each in case.levels[-1].aggregates
           if each.function == "sum" for row in found.must):  # fmt: skip
        return "must"
    values = [
        abs(value)
        for source in case.sources
        for epoch in source.epochs
        for row in _rows(epoch, source)
        for name, value in row.items()
        if isinstance(value, int) and name != TIME
    ]
    return "may" if sums and sum(values) > LARGEST // 64 else "no"
