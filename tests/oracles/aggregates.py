"""Every aggregate over the rows of one window, in plain Python, and whole queries evaluated window by window.

A row is a dict; `None` is null. Spark's order of values: null first, NaN last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from anabranch.windows import Axis, Window
from tests.oracles.windows import windows_of

Row = Mapping[str, Any]
Rows = Sequence[Row]
Oracle = Callable[[Rows], Any]
"""An aggregate: from the rows of a window to its value."""


def order(value: Any) -> tuple[Any, ...]:
    """A sort key for Spark's order of values. Text is ordered by its bytes."""
    if value is None:
        return (0,)
    if value != value:
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def canonical(value: Any) -> Any:
    """Equal values of Spark as equal objects: NaN equals NaN, and -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def values(rows: Rows, column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def count(column: str | None = None) -> Oracle:
    return lambda rows: len(rows) if column is None else len(values(rows, column))


def sum_(column: str) -> Oracle:
    return lambda rows: sum(values(rows, column)) if values(rows, column) else None


def avg(column: str) -> Oracle:
    def mean(rows: Rows) -> float | None:
        numbers = [float(v) for v in values(rows, column)]
        return sum(numbers) / len(numbers) if numbers else None

    return mean


def min_(column: str) -> Oracle:
    return lambda rows: min(values(rows, column), key=order, default=None)


def max_(column: str) -> Oracle:
    return lambda rows: max(values(rows, column), key=order, default=None)


def variance(column: str, *, population: bool = False) -> Oracle:
    def spread(rows: Rows) -> float | None:
        numbers = [float(v) for v in values(rows, column)]
        degrees = len(numbers) - (0 if population else 1)
        if degrees < 1:
            return None
        mean = sum(numbers) / len(numbers)
        return sum((v - mean) ** 2 for v in numbers) / degrees

    return spread


def stddev(column: str, *, population: bool = False) -> Oracle:
    def root(rows: Rows) -> float | None:
        spread = variance(column, population=population)(rows)
        return None if spread is None else math.sqrt(spread)

    return root


def first(column: str, time: str) -> Oracle:
    """Of the earliest row; of several, the least value. A null is a value like another."""
    return lambda rows: min(rows, key=lambda row: (row[time], order(row[column])))[column]


def last(column: str, time: str) -> Oracle:
    return lambda rows: max(rows, key=lambda row: (row[time], order(row[column])))[column]


def count_distinct(column: str) -> Oracle:
    return lambda rows: len({canonical(v) for v in values(rows, column)})


def top_k(column: str, k: int) -> Oracle:
    def top(rows: Rows) -> list[tuple[Any, int]]:
        known = {canonical(v): v for v in values(rows, column)}
        counts = Counter(canonical(v) for v in values(rows, column))
        ranked = sorted(counts, key=lambda c: (-counts[c], order(known[c])))
        return [(known[c], counts[c]) for c in ranked[:k]]

    return top


def collect(column: str, time: str) -> Oracle:
    def listed(rows: Rows) -> list[Any]:
        known = [row for row in rows if row[column] is not None]
        return [row[column] for row in sorted(known, key=lambda row: (row[time], order(row[column])))]

    return listed


def quantile(column: str, q: float) -> Oracle:
    """The least value whose rank reaches q: what a KLL sketch answers while it still holds every value."""

    def ranked(rows: Rows) -> float | None:
        numbers = sorted(float(v) for v in values(rows, column))
        return numbers[max(0, math.ceil(q * len(numbers)) - 1)] if numbers else None

    return ranked


def user(
    columns: Sequence[str],
    time: str,
    init: Callable[[], Any],
    incr: Callable[..., Any],
    final: Callable[[Any], Any],
) -> Oracle:
    """A user-defined aggregate sees the rows in the order of time, and of its values."""

    def run(rows: Rows) -> Any:
        state = init()
        for row in sorted(rows, key=lambda row: (row[time], *(order(row[c]) for c in columns))):
            state = incr(state, *(row[c] for c in columns))
        return final(state)

    return run


Result = dict[tuple[Any, ...], dict[str, Any]]
"""(key..., start, end) of every window that has rows -> name of the aggregate -> value."""


def evaluate(
    rows: Rows,
    windows: Sequence[Window],
    aggregates: Mapping[str, Oracle],
    *,
    time: str,
    keys: Sequence[str] = (),
    per_key: bool = True,
) -> Result:
    """The whole query: look at every window of every key, one by one. Rows without a time are in no window.

    Count windows count the rows in the order of time and then of all columns, for each key or (`per_key=False`) over
    all; those that are not full have no answer.
    """
    timed = [row for row in rows if row[time] is not None]
    result: Result = {}
    for window in windows:
        if window.axis is Axis.TIME:
            result |= _evaluate([(row[time], row) for row in timed], window, aggregates, keys)
            continue
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in sorted(timed, key=lambda row: (row[time], *(order(v) for v in row.values()))):
            groups.setdefault(tuple(row[k] for k in keys) if per_key else (), []).append(row)
        for group in groups.values():
            found = _evaluate(list(enumerate(group)), window, aggregates, keys)
            result |= {w: v for w, v in found.items() if w[-2] >= 0 and w[-1] <= len(group)}
    return result


def _evaluate(
    rows_at: Sequence[tuple[int, Row]], window: Window, aggregates: Mapping[str, Oracle], keys: Sequence[str]
) -> Result:
    members: dict[tuple[Any, ...], list[Row]] = {}
    for at, row in rows_at:
        for j in windows_of(at, window):
            start = window.origin + j * window.slide
            members.setdefault((*(row[k] for k in keys), start, start + window.size), []).append(row)
    return {w: {name: value(rows) for name, value in aggregates.items()} for w, rows in members.items()}


def same(found: Any, expected: Any, digits: int | None = None) -> bool:
    """Equal, and of the same type; NaN equals NaN. Floats to so many digits, where rounding may differ."""
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        close = 0.0 if digits is None else 10.0**-digits
        return math.isclose(found, expected, rel_tol=close, abs_tol=close)
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(found) == len(expected) and all(same(f, e, digits) for f, e in zip(found, expected, strict=True))
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return found.keys() == expected.keys() and all(same(found[k], expected[k], digits) for k in expected)
    # In Python True == 1 == 1.0 == Decimal(1): a wrong type must not pass for an equal value.
    kinds = (bool, int, float, Decimal)
    return bool(found == expected) and all(isinstance(found, k) == isinstance(expected, k) for k in kinds)
