"""What the epoch runtime can run: anything with outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.calls import called_as
from anabranch.query.nodes import Node

if TYPE_CHECKING:
    from anabranch.io.sinks import Sink
    from anabranch.query.deliveries import Delivery
    from anabranch.runtime.handle import EpochQuery


class Startable(ABC):
    """What the epoch runtime can run."""

    @abstractmethod
    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        """The outputs, as (operator, name of the output)."""

    @called_as('.to(ab.FileSink("results/"))')
    def to(self, sink: Sink | Mapping[str, Sink], *, max_gap: int | None = None, weight: float = 1.0) -> Delivery:
        """Say where the results go; for `anabranch.start`, which takes several.

        Under overload up to `max_gap` windows of these results in a row may be missing, as the QoS of the query says
        unless given here. Where several outputs compete, those of a higher `weight` lose less.
        """
        from anabranch.query.deliveries import deliver

        return deliver(self._emissions(), sink, max_gap, weight)

    @called_as('.start(ab.FileSink("results/"), checkpoint="checkpoint/")')
    def start(self, sink: Sink | Mapping[str, Sink], *, checkpoint: str | Path, **settings: Any) -> EpochQuery:
        """Run it in the epoch runtime, and return the handle of the running query.

        `sink` takes the results (`anabranch.FileSink`, ...); an operator with several outputs takes a dictionary of
        them. The settings are those of `anabranch.start`: trigger, qos, listeners, workers, ...
        """
        from anabranch.runtime.start import start

        return start(self.to(sink), checkpoint=checkpoint, **settings)
