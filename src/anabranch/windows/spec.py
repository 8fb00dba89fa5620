"""What a window is.

A window specification is a plain value: `size`, `slide` and `origin` on one axis of integers. The axis is either time
(microseconds since 1970-01-01 UTC, as Spark aligns its own windows) or the position of a row in the order of time
(0, 1, 2, ...). Window j is the half-open interval ``[origin + j*slide, origin + j*slide + size)``:

    slide 2, size 3      0   1   2   3   4   5   6
    window 0             [-----------)
    window 1                     [-----------)
    window 2                             [-----------)

Any ``size >= slide > 0`` is valid, even if the slide does not divide the size, and so are negative times. Size < slide
is refused: rows between two windows would be lost silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from anabranch.errors import InvalidWindowError
from anabranch.windows.durations import Duration, describe, micros

LONGEST = 2**58
"""The longest window: above 9,000 years or 10^17 rows its edges might not fit 64 bits."""


class Axis(Enum):
    """What a window is measured along."""

    TIME = "time"
    ROWS = "rows"


@dataclass(frozen=True)
class Window:
    """A sliding (or, with slide = size, tumbling) window over one axis."""

    size: int
    slide: int
    origin: int = 0
    axis: Axis = Axis.TIME

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("slide", self.slide), ("origin", self.origin)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidWindowError(
                    f"window {name} {value!r} is not a whole number",
                    hint="count rows, or microseconds, in whole numbers",
                )
            if value <= 0 and name != "origin":
                raise InvalidWindowError(
                    f"window {name} {self._text(value)} is not positive, so no window could contain a row",
                    hint=f"give a {name} above zero",
                )
        if self.size < self.slide:
            raise InvalidWindowError(
                f"window size {self._text(self.size)} is below its slide {self._text(self.slide)}: "
                "rows between two windows would be lost",
                hint="make the size at least the slide; to cover only part of the time, filter the rows first",
            )

    @classmethod
    def of_time(cls, size: Duration, slide: Duration | None = None, origin: Duration = "0 s") -> Window:
        """A time window; without a slide it tumbles."""
        length = micros(size, "window size")
        step = length if slide is None else micros(slide, "window slide")
        return cls(length, step, micros(origin, "window origin"))._refuse_endless()

    @classmethod
    def of_rows(cls, rows: int, slide_rows: int | None = None) -> Window:
        """A window of that many rows in the order of time; without a slide it tumbles."""
        return cls(rows, rows if slide_rows is None else slide_rows, 0, Axis.ROWS)._refuse_endless()

    @property
    def overlap(self) -> float:
        """The average number of windows that contain a row: the copies that `window()` makes of it."""
        return self.size / self.slide

    @property
    def tumbling(self) -> bool:
        return self.size == self.slide

    @property
    def label(self) -> str:
        """A readable name: ``5 min / 10 s``."""
        return f"{self._text(self.size)} / {self._text(self.slide)}"

    def _refuse_endless(self) -> Window:
        if max(self.size, abs(self.origin)) > LONGEST:
            raise InvalidWindowError(
                f"window {self.label} from {self._text(self.origin)} is too long: its edges do not fit 64 bits",
                hint="keep the window, and the distance from 1970 to its origin, below 9,000 years",
            )
        return self

    def _text(self, value: int) -> str:
        return describe(value) if self.axis is Axis.TIME else f"{value} rows"
