"""Durations, in integer microseconds.

Everything in Anabranch counts time in whole microseconds: Spark's own resolution, and exact. Months and years are
refused, because they have no fixed length.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from anabranch.errors import InvalidWindowError

Duration = str | timedelta
"""A duration as a user writes it: ``"5 min"``, ``"1 h 30 min"`` or a timedelta.

Plain numbers other than 0 are refused: 60 could be seconds, milliseconds or microseconds.
"""

MICROS = 1_000_000
"""Microseconds per second."""

_UNITS = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), MICROS),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)")
_EXAMPLES = 'write for example "30 minutes", "1 h 30 min", "250 ms", or a timedelta'


def micros(duration: Duration, what: str = "duration") -> int:
    """The duration in microseconds; ``what`` names it in errors."""
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        if duration == 0:  # in any unit
            return 0
        raise InvalidWindowError(
            f"{what} {duration!r} has no unit: it could be seconds, milliseconds or microseconds",
            hint=f'write "{duration} seconds" or "{duration} ms", or give a timedelta',
        )
    if not isinstance(duration, (str, timedelta)):
        raise InvalidWindowError(f"{what} {duration!r} is not a duration", hint=_EXAMPLES)
    if isinstance(duration, timedelta):
        return (duration.days * 86_400 + duration.seconds) * MICROS + duration.microseconds
    return _parse(duration, what)


def _parse(text: str, what: str) -> int:
    body = re.sub(r"^interval\s+", "", text.strip().lower())
    parts = _PART.findall(body)
    rest = _PART.sub("", body).strip(" ,")
    unknown = [unit for _, unit in parts if unit not in _UNITS]
    if not parts or rest or unknown:
        reason = f" (unknown unit {unknown[0]!r})" if unknown else ""
        raise InvalidWindowError(f"{what} {text!r} is not a duration{reason}", hint=_EXAMPLES)
    total = sum(Decimal(number) * _UNITS[unit] for number, unit in parts)
    if total != int(total):
        raise InvalidWindowError(
            f"{what} {text!r} is not a whole number of microseconds, the resolution of Spark's timestamps",
            hint="round it to microseconds",
        )
    return int(total)


def describe(duration: int) -> str:
    """The shortest exact text: 90_000_000 is ``1 min 30 s``."""
    if duration == 0:
        return "0 s"
    sign, rest, parts = ("-" if duration < 0 else ""), abs(duration), []
    for name, unit in (("d", _UNITS["d"]), ("h", _UNITS["h"]), ("min", _UNITS["min"]), ("s", _UNITS["s"]),
                       ("ms", _UNITS["ms"]), ("us", 1)):  # fmt: skip
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{sign}{count} {name}")
    return " ".join(parts)
