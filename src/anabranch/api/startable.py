"""What the epoch runtime can run: anything with outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyarrow.fs import FileSystem

from anabranch.calls import called_as
from anabranch.control.base import Controller
from anabranch.io.sinks.base import Sink
from anabranch.observe.listeners import Listener
from anabranch.query.deliveries import Delivery, deliver
from anabranch.query.nodes import Node
from anabranch.query.settings import QoS
from anabranch.query.triggers import Trigger
from anabranch.runtime.driver.ahead import AUTO
from anabranch.runtime.handle import EpochQuery
from anabranch.runtime.start import SNAPSHOT_EVERY, start
from anabranch.windows import Duration


class Startable(ABC):
    """A query that the epoch runtime can run."""

    @abstractmethod
    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        """The outputs, as (operator, name of the output)."""

    @called_as('.to(ab.FileSink("results/"))')
    def to(self, sink: Sink | Mapping[str, Sink], *, max_gap: int | None = None, weight: float = 1.0) -> Delivery:
        """Choose where the results go; for `anabranch.start`, which takes several.

        Under overload up to `max_gap` windows of these results in a row may be missing; by default the QoS of the query
        decides. Where several outputs compete, those with a higher `weight` lose less.
        """
        return deliver(self._emissions(), sink, max_gap, weight)

    @called_as('.start(ab.FileSink("results/"), checkpoint="checkpoint/")')
    def start(
        self,
        sink: Sink | Mapping[str, Sink],
        *,
        checkpoint: str | Path,
        trigger: Trigger | None = None,
        qos: QoS | None = None,
        workers: int | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        idle: Duration | None = None,
        listeners: Sequence[Listener] = (),
        controllers: Sequence[Controller] = (),
        name: str | None = None,
        store: str | Path | tuple[FileSystem, str] | None = None,
        live: str | Path | None = None,
        memory_limit: int | str | None = None,
        report: Sink | None = None,
        max_ahead: Duration | None = AUTO,
    ) -> EpochQuery:
        """Run it in the epoch runtime, and return the handle of the running query.

        `sink` takes the results (`anabranch.FileSink`, ...); for an operator with several outputs give a dictionary of
        sinks. The settings are those of `anabranch.start`, which describes them.
        """
        return start(
            self.to(sink),
            checkpoint=checkpoint,
            trigger=trigger,
            qos=qos,
            workers=workers,
            snapshot_every=snapshot_every,
            idle=idle,
            listeners=listeners,
            controllers=controllers,
            name=name,
            store=store,
            live=live,
            memory_limit=memory_limit,
            report=report,
            max_ahead=max_ahead,
        )
