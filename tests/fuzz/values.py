"""Every aggregate over the rows of one window, in plain Python. Imports nothing of the package.

A value is what JSON has, or a Decimal. Spark's order: null first, NaN last, text by its bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from tests.fuzz.cases import Aggregate, digits_of

Timed = tuple[int, dict[str, Any]]
"""A row, and its time in microseconds."""

WIDE = Context(prec=200)
"""Decimals of Spark have 38 digits, Python's default context 28."""


def order(value: Any) -> tuple[Any, ...]:
    """A sort key for Spark's order of values."""
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


def answer(aggregate: Aggregate, rows: Sequence[Timed], types: dict[str, str]) -> Any:
    """The value of an aggregate over the rows of a window."""
    column, parameter = aggregate.column, aggregate.parameter
    if column is None:
        return len(rows)
    known = [row[column] for _, row in rows if row[column] is not None]
    in_order = sorted(((t, row[column]) for t, row in rows), key=lambda each: (each[0], order(each[1])))
    match aggregate.function:
        case "count":
            return len(known)
        case "sum":
            return _sum(known) if known else None
        case "avg":
            return _mean(known, types[column]) if known else None
        case "min":
            return min(known, key=order, default=None)
        case "max":
            return max(known, key=order, default=None)
        case "variance":
            return _variance(known, bool(parameter))
        case "stddev":
            spread = _variance(known, bool(parameter))
            return None if spread is None else math.sqrt(spread)
        case "first":
            return in_order[0][1]
        case "last":
            return in_order[-1][1]
        case "count_distinct" | "approx_distinct":
            return len({canonical(value) for value in known})
        case "quantile":
            assert isinstance(parameter, (float, tuple))
            numbers = sorted(float(value) for value in known if value == value)  # a sketch leaves NaN out
            if not numbers:
                return None
            several = [_quantile(numbers, q) for q in (parameter if isinstance(parameter, tuple) else (parameter,))]
            return several if isinstance(parameter, tuple) else several[0]
        case "top_k":
            assert isinstance(parameter, int)
            return _top(known, parameter)
        case "collect":
            return [value for _, value in in_order if value is not None]
        case "user" | "user_merge":
            return ",".join(str(value) for _, value in in_order)
        case "user_state":
            return sum(len(str(value)) for _, value in in_order)
    raise AssertionError(aggregate.function)


def _sum(known: Sequence[Any]) -> Any:
    if isinstance(known[0], Decimal):
        total = Decimal(0)
        for value in known:
            total = WIDE.add(total, value)
        return total
    return sum(known)


def _mean(known: Sequence[Any], kind: str) -> Any:
    if not isinstance(known[0], Decimal):
        return sum(float(value) for value in known) / len(known)
    _, scale = digits_of(kind)
    places = min(38, scale + 4)
    exact = WIDE.divide(_sum(known), Decimal(len(known)))
    return exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP, context=WIDE)


def _variance(known: Sequence[Any], population: bool) -> float | None:
    numbers = [float(value) for value in known]
    degrees = len(numbers) - (0 if population else 1)
    if degrees < 1:
        return None
    mean = sum(numbers) / len(numbers)
    return sum((value - mean) ** 2 for value in numbers) / degrees


def _quantile(numbers: Sequence[float], q: float) -> float:
    """The least value whose rank reaches q: what a KLL sketch answers while it still holds every value."""
    return numbers[max(0, math.ceil(q * len(numbers)) - 1)]


def _top(known: Sequence[Any], k: int) -> list[dict[str, Any]]:
    one_of = {canonical(value): value for value in known}
    counts = Counter(canonical(value) for value in known)
    ranked = sorted(counts, key=lambda each: (-counts[each], order(one_of[each])))
    return [{"value": one_of[each], "count": counts[each]} for each in ranked[:k]]
