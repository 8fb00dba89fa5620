"""The result of a demo run: everything that the page and the picture show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from anabranch.linearroad.check.validate import Report
from anabranch.linearroad.demo.drive import Driven, Response
from anabranch.linearroad.demo.road_map import Epoch, RoadMap
from anabranch.linearroad.generate import Trace
from anabranch.linearroad.schema import ANSWERS


@dataclass(frozen=True)
class DemoResult:
    """One run: the trace, the map of the roads, the validator's report, and the paths of the page and the picture."""

    trace: Trace = field(repr=False)
    driven: Driven = field(repr=False)
    report: Report = field(repr=False)
    pace: float | None
    master: str
    """Where Spark ran."""
    page: Path = Path()
    picture: Path | None = None
    """None without matplotlib."""

    @property
    def right(self) -> bool:
        """Whether the validator found no difference."""
        return self.report.differences == 0

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.right:
            return f"All {self.answers:,} answers are right"
        differences = self.report.differences
        return f"{differences:,} difference{'' if differences == 1 else 's'} in {self.answers:,} answers"

    @property
    def road_map(self) -> RoadMap:
        return self.driven.road_map

    @property
    def epochs(self) -> list[Epoch]:
        return self.driven.epochs

    @property
    def answers(self) -> int:
        """Number of answers of all kinds."""
        return sum(self.road_map.count(kind) for kind in ANSWERS)

    @property
    def response(self) -> Response:
        """The response times of all answers."""
        return self.driven.response(self.epochs) or Response(0.0, 0.0)

    @property
    def response_name(self) -> str:
        """What the response time measures: without a pace, no tuple is ever due."""
        return "time from read to publication" if self.driven.clock is None else "response time"

    @property
    def peak_rate(self) -> float:
        """The most tuples per wall second in an epoch."""
        return max((rate for rate in rates(self.epochs)), default=0.0)


def rates(epochs: list[Epoch], kind: str | None = None) -> list[float]:
    """Tuples, or answers of a kind, per wall second of each epoch, counted from the end of the previous one.

    So an epoch that waited for its tuples does not look faster.
    """
    found = []
    for i, epoch in enumerate(epochs):
        begin = epochs[i - 1].published if i else epoch.started
        amount = epoch.tuples if kind is None else epoch.answers[kind]
        found.append(amount / max(1e-3, epoch.published - begin))
    return found
