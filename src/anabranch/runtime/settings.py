"""What a user may say about a running query."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import InvalidArgumentError
from anabranch.windows import Duration, micros

AVAILABLE_NOW = "available-now"


@dataclass(frozen=True)
class QoS:
    """Quality of service: bounds that the controllers keep.

    `max_latency`: how long a result may take; `disorder`: how far apart two results may leave out of order (0: strictly
    in the order of windows, None: as they come).
    """

    max_latency: Duration | None = None
    disorder: int | None = None

    def __post_init__(self) -> None:
        if self.disorder is not None and (not isinstance(self.disorder, int) or self.disorder < 0):
            raise InvalidArgumentError(
                f"a disorder of k = {self.disorder!r}", hint="k is 0 or more, or None for any order"
            )
        if self.max_latency is not None and micros(self.max_latency, "max_latency") <= 0:
            raise InvalidArgumentError(f"max_latency={self.max_latency!r}", hint="give a duration above zero")

    @property
    def latency_seconds(self) -> float | None:
        return None if self.max_latency is None else micros(self.max_latency, "max_latency") / 1e6


@dataclass(frozen=True)
class Settings:
    """How a query runs; see `anabranch.start`."""

    qos: QoS
    trigger: str | None
    workers: int
    snapshot_every: int
    idle: float | None
    live: str

    @property
    def trigger_seconds(self) -> float | None:
        if self.trigger is None or self.trigger == AVAILABLE_NOW:
            return None
        return micros(self.trigger, "trigger") / 1e6
