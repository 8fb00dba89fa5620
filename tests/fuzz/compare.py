"""What came out of a case against what the oracle says. Imports nothing of the package."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.fuzz.cases import Aggregate, Case
from tests.fuzz.oracle import Expected, identity, label

Came = Sequence[tuple[int, dict[str, Any]]]
"""(epoch, row) in the order in which they came."""

BUCKETS = 64
Listed = dict[tuple[int | None, str], list[range]]
"""By bucket (None: all keys) and window specification: the starts of the windows that the report has."""


def plain(value: Any) -> Any:
    """A value of Arrow as the oracle has it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return value


def differences(case: Case, expected: Expected, came: dict[str, Any]) -> list[str]:
    """What is wrong, in words; nothing if all is right. Each line begins with what kind of difference it is."""
    rows = [(epoch, plain(row)) for epoch, row in came["rows"]]
    found = list(_windows(case, expected, rows) if case.levels else _pairs(case, expected, rows))
    if case.in_order:
        found += _disorder(rows)
    if expected.bad is not None and came["bad"] != expected.bad:
        found.append(f"bad: {came['bad']} rows counted, not {expected.bad}")
    if expected.late is not None and not _late(case, came["late"], expected.late):
        found.append(f"late: {came['late']} rows counted, not {expected.late}")
    if case.shed is not None:
        found += shedding(case, expected, rows, [plain(row) for _, row in came["report"]])
    return found


def _late(case: Case, reported: int, wanted: int) -> bool:
    """Whether a count of late rows is right. A late row of windows that are dropped counts as shed."""
    return reported == wanted if case.shed is None else reported <= wanted


def _windows(case: Case, expected: Expected, rows: Came) -> Iterable[str]:
    may = {identity(case, row): row for row in expected.may}
    times_of: Counter[str] = Counter()
    for epoch, row in rows:
        name = identity(case, row)
        times_of[name] += 1
        wanted = may.get(name)
        if wanted is None:
            yield f"extra: {row}"
            continue
        wrong = [c for c in wanted if c not in row or not same(row[c], wanted[c], _aggregate(case, c))]
        if wrong:
            got = {column: row.get(column, "no such column") for column in wrong}
            yield f"value: {name} has {got}, not { {column: wanted[column] for column in wrong} }"
        if row.keys() != wanted.keys():
            yield f"columns: {list(row)}, not {list(wanted)}"
        if expected.epochs is not None and not wrong and expected.epochs[name] != epoch:
            yield f"epoch: {name} came in epoch {epoch}, not {expected.epochs[name]}"
    for name, times in times_of.items():
        if times > 1:
            yield f"twice: {name} came {times} times"
    if case.shed is None:
        for row in expected.must:
            if identity(case, row) not in times_of:
                yield f"missing: {row}"


def _pairs(case: Case, expected: Expected, rows: Came) -> Iterable[str]:
    came = Counter(identity(case, row) for _, row in rows)
    must = Counter(identity(case, row) for row in expected.must)
    may = Counter(identity(case, row) for row in expected.may)
    for name, times in (must - came).items():
        yield f"missing: {name}, {times} times"
    for name, times in (came - (may | must)).items():
        yield f"extra: {name}, {times} times"


def _aggregate(case: Case, name: str) -> Aggregate | None:
    return next((each for each in case.levels[-1].aggregates if each.name == name), None)


def same(found: Any, expected: Any, aggregate: Aggregate | None = None) -> bool:
    """Equal, and of the same type; NaN equals NaN. Floats to ten digits, sketches within their bounds."""
    if aggregate is not None and aggregate.function == "approx_distinct" and isinstance(found, int):
        return bool(abs(found - expected) <= max(1, 0.1 * expected))
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        return found == expected or math.isclose(found, expected, rel_tol=1e-10, abs_tol=1e-10)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    # In Python True == 1 == 1.0 == Decimal(1): a wrong type must not pass for an equal value.
    kinds = (bool, int, float, Decimal)
    return bool(found == expected) and all(isinstance(found, k) == isinstance(expected, k) for k in kinds)


def _disorder(rows: Came) -> list[str]:
    """`disorder=0` promises the windows of an epoch in their order."""
    by_epoch: dict[tuple[int, Any], list[int]] = defaultdict(list)
    for epoch, row in rows:
        by_epoch[epoch, row.get("window_spec")].append(row["window"]["start"])
    return [f"order: the windows of epoch {epoch} came as {s}" for (epoch, _), s in by_epoch.items() if s != sorted(s)]


# --- shedding -------------------------------------------------------------------------------------------------------


def shedding(case: Case, expected: Expected, rows: Came, report: Sequence[dict[str, Any]]) -> list[str]:
    """Every window was delivered or is in the report, none is both, and no gap is longer than `max_gap`."""
    assert case.shed is not None
    level = case.levels[-1]
    if level.count is not None:
        return _shed_counts(case, expected, rows, report)
    found = []
    unit = case.sources[0].unit
    slides = {label(window): window.slide // unit for window in level.windows}
    only = next(iter(slides))
    listed: Listed = defaultdict(list)
    for each in report:
        spec = each["window_spec"] or only
        bucket = each["bucket"] if each["buckets"] > 1 else None
        # The report has timestamps, whatever the type of the time column.
        starts = range(each["first_start"] // unit, each["last_start"] // unit + 1, slides[spec])
        if len(starts) != each["windows"]:
            found.append(f"report: {each['windows']} windows from {each['first_start']} to {each['last_start']}")
        listed[bucket, spec].append(starts)
    for (bucket, spec), ranges in listed.items():
        everywhere = listed[None, spec] if bucket is not None and (None, spec) in listed else []
        twice, run = _overlap_and_run([*ranges, *everywhere])
        if twice:
            found.append(f"report: a window of {spec}, bucket {bucket}, is listed twice")
        if run > case.shed.max_gap:
            found.append(f"gap: {run} windows in a row of {spec}, bucket {bucket}, max_gap is {case.shed.max_gap}")
    delivered = {identity(case, row) for _, row in rows}
    by_key: dict[str, list[tuple[str, int, bool]]] = defaultdict(list)
    for row in [*expected.must, *(row for row in expected.may if identity(case, row) in delivered)]:
        key = repr([row[name] for name in level.keys])
        came = identity(case, row) in delivered
        by_key[key].append((row.get("window_spec", only), row["window"]["start"], came))
    for key, windows in by_key.items():
        if not any(_fits(bucket, windows, listed) for bucket in (None, *range(BUCKETS))):
            missing = [(spec, start) for spec, start, came in windows if not came]
            found.append(f"report: of key {key} these are missing, which no bucket explains: {missing[:5]}")
    return found


def _fits(bucket: int | None, windows: list[tuple[str, int, bool]], listed: Listed) -> bool:
    """Whether a key of that bucket got what the report leaves it. How keys are hashed is the package's own matter."""
    return all(
        came != any(start in each for at in {None, bucket} for each in listed.get((at, spec), ()))
        for spec, start, came in windows
    )


def _overlap_and_run(ranges: Iterable[range]) -> tuple[bool, int]:
    """Whether two ranges share a window, and the most windows in a row. There may be millions: none is looked at."""
    twice, longest, run = False, 0, 0
    end: int | None = None
    for each in sorted(ranges, key=lambda each: each.start):
        if not each:
            continue
        twice = twice or (end is not None and each.start <= end)
        run = run + len(each) if end is not None and each.start == end + each.step else len(each)
        longest, end = max(longest, run), each[-1]
    return twice, longest


def _shed_counts(case: Case, expected: Expected, rows: Came, report: Sequence[dict[str, Any]]) -> list[str]:
    """Count windows are listed key by key, by the rows at which they begin."""
    assert case.shed is not None
    level = case.levels[-1]
    assert level.count is not None
    names = level.keys if level.count.per_key else ()
    listed: dict[str, list[range]] = defaultdict(list)
    for each in report:
        values = json.loads(each["key"]) if each["key"] is not None else {}
        key = _text_key([values.get(name) for name in names])
        listed[key].append(range(each["first_row"], each["last_row"] + 1, level.count.slide))
    found = []
    for key, ranges in listed.items():
        twice, run = _overlap_and_run(ranges)
        if twice:
            found.append(f"report: windows of key {key} are listed twice")
        if run > case.shed.max_gap:
            found.append(f"gap: {run} windows in a row of key {key}, max_gap is {case.shed.max_gap}")
    delivered = {identity(case, row) for _, row in rows}
    for row in expected.must:
        key, start = _text_key([row[name] for name in names]), row["window"]["start"]
        if (identity(case, row) in delivered) == any(start in each for each in listed.get(key, ())):
            how = "delivered and in the report" if identity(case, row) in delivered else "missing, not in the report"
            found.append(f"report: window {start} of key {key} is {how}")
    return found


def _text_key(values: Iterable[Any]) -> str:
    return repr([str(value) for value in values])
