"""Numbers and times, formatted for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["amount", "clock", "moment", "size", "with_noun"]

NO_VALUE = "-"

ZERO = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which event times count."""


def moment(micros: int | None) -> str:
    """An event time in microseconds as text: ``2024-01-31 09:30:05.25Z``; the number if it is outside the calendar."""
    if micros is None:
        return NO_VALUE
    try:
        time = ZERO + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros:,} microseconds since 1970"
    # Not strftime: it does not pad years before 1000 on every system.
    text = time.replace(tzinfo=None).isoformat(sep=" ")
    return f"{text.rstrip('0') if time.microsecond else text}Z"


def clock(seconds: float) -> str:
    """A wall-clock time (seconds since 1970) in UTC, to the second."""
    return moment(int(seconds) * 1_000_000)


def amount(number: float) -> str:
    """A count or rate with three digits: 950, 12.3 k, 4.56 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def size(number: int) -> str:
    """Bytes, in powers of 1024."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} B"


def with_noun(number: int, what: str) -> str:
    """A count with its noun: ``1 row``, ``12,000 rows``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
