"""When epochs begin: the values of `trigger`, and what Spark gets."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from anabranch.errors import InvalidArgumentError, InvalidWindowError
from anabranch.windows import describe, micros

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Trigger = str | timedelta
"""an interval, or `AVAILABLE_NOW`"""

AVAILABLE_NOW = "available-now"

_HINT = (
    'write trigger="1 second" (or a timedelta), or trigger="available-now" (process what is there, then end), or '
    "leave it out: then epochs follow each other immediately"
)


def trigger_of(given: object) -> str | None:
    """The trigger in its normal form: an interval that `micros` reads, `AVAILABLE_NOW`, or None.

    Spark's own names are accepted too: "availableNow", and an interval of zero for none.
    """
    if given is None:
        return None
    if isinstance(given, timedelta):
        interval, text = micros(given), describe(micros(given))
    elif isinstance(given, str):
        if re.sub(r"[-_ ]", "", given).lower() == "availablenow":
            return AVAILABLE_NOW
        interval, text = _interval(given), given
    else:
        unit = " has no unit" if isinstance(given, int | float) and not isinstance(given, bool) else " is not a trigger"
        raise InvalidArgumentError(f"trigger={given!r}{unit}", hint=_HINT)
    if interval == 0:
        return None
    if interval < 1_000:
        raise InvalidArgumentError(f"trigger={given!r}: Spark's shortest interval is a millisecond", hint=_HINT)
    return text


def with_trigger(writer: DataStreamWriter, trigger: str | None) -> DataStreamWriter:
    """Set Spark's trigger from one that `trigger_of` returned."""
    if trigger is None:
        return writer
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{micros(trigger) // 1_000} milliseconds")


def trigger_seconds(trigger: str | None) -> float | None:
    """The interval in seconds; None if there is none."""
    return None if trigger is None or trigger == AVAILABLE_NOW else micros(trigger) / 1e6


def _interval(text: str) -> int:
    try:
        return micros(text, "trigger")
    except InvalidWindowError as error:
        what = 'Spark has replaced it with "available-now"' if text.lower() == "once" else "it is not an interval"
        raise InvalidArgumentError(f"trigger={text!r}: {what}", hint=_HINT) from error
