"""A query that a test runs epoch by epoch."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from anabranch.api.processing import Processed
from anabranch.api.startable import Startable
from anabranch.calls import made_as
from anabranch.control.base import Controller
from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks.base import Sink
from anabranch.io.sinks.memory import MemorySink
from anabranch.observe.listeners import Listener
from anabranch.observe.progress import EpochProgress
from anabranch.query.deliveries import Delivery
from anabranch.query.nodes import ONLY
from anabranch.query.settings import QoS
from anabranch.runtime.driver.ahead import AUTO
from anabranch.runtime.start import SNAPSHOT_EVERY, start
from anabranch.spark.arrow import common_schema
from anabranch.testing.results import Results
from anabranch.text import ZERO
from anabranch.windows import Duration

_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(start).parameters.items()}


@dataclass(frozen=True)
class Epoch:
    """One epoch: what it delivered, and what was measured."""

    number: int
    """0 for the first epoch of the checkpoint."""
    results: Results
    progress: Any
    """An `EpochProgress`, or Spark's own progress for a DataFrame."""
    watermark: int | None
    """The watermark in microseconds since 1970, after the rows of the epoch; None before the first row."""
    late: int
    """Rows that came too late. For a DataFrame, what Spark counts: groups of such rows."""

    def rows(self, output: str | None = None) -> list[dict[str, Any]]:
        """The rows that the epoch delivered; of an output, where there are several."""
        return self.results.rows(output)


@made_as('EpochRun(query, "run/")')
class EpochRun:
    """Runs a query over the epochs that wait at its sources, as often as you call it, on one checkpoint.

        run = EpochRun(busy_cells(trips), tmp_path / "run")
        feed.add(rows)
        [epoch] = run.run_epochs()

    Every call of `run_epochs` starts the query, runs it until nothing waits, and stops it. The next call rebuilds the
    state from the checkpoint, as a restart on another machine would.

    Args:
        query: an aggregation, a join or an operator; or several by name, `{"busy": ..., "slow": ...}`. A streaming
            DataFrame (`to_df()`) runs as Spark runs it, in append mode. Deliveries (`query.to(sink)`) have sinks of
            their own, where the test finds the rows.
        folder: for the checkpoint and the live state.

    The other arguments are those of `anabranch.start`, which describes them. A DataFrame takes none of them.
    """

    def __init__(
        self,
        query: Startable | DataFrame | Mapping[str, Startable] | Sequence[Delivery],
        folder: str | Path,
        *,
        qos: QoS | None = None,
        workers: int | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        idle: Duration | None = None,
        listeners: Sequence[Listener] = (),
        controllers: Sequence[Controller] = (),
        name: str | None = None,
        memory_limit: int | str | None = None,
        report: Sink | None = None,
        max_ahead: Duration | None = AUTO,
    ) -> None:
        settings: dict[str, Any] = {
            "qos": qos,
            "workers": workers,
            "snapshot_every": snapshot_every,
            "idle": idle,
            "listeners": listeners,
            "controllers": controllers,
            "name": name,
            "memory_limit": memory_limit,
            "report": report,
            "max_ahead": max_ahead,
        }
        self.folder = Path(folder)
        self.epochs: list[Epoch] = []
        """The epochs so far, oldest first."""
        self._query: _Query
        if isinstance(query, DataFrame):
            self._query = _SparkQuery(query, self.folder, settings)
        else:
            self._query = _StartedQuery(query, self.folder, settings)

    def run_epochs(self) -> list[Epoch]:
        """Run all epochs that wait, and return them. An error of the query is raised; nothing of its epoch counts."""
        before = len(self.epochs)
        self._query.run(self.epochs)
        return self.epochs[before:]

    def results(self) -> Results:
        """All rows so far."""
        parts = [(name, table) for epoch in self.epochs for name, table in epoch.results.tables.items()]
        return Results.of(parts, self._query.outputs)

    def rows(self, output: str | None = None) -> list[dict[str, Any]]:
        """All rows so far; of an output, where there are several."""
        return self.results().rows(output)


class _Query(ABC):
    """How a kind of query runs."""

    outputs: tuple[str, ...] = ()

    @abstractmethod
    def run(self, epochs: list[Epoch]) -> None:
        """Run what waits, and add its epochs to these; those before an error too."""


class _StartedQuery(_Query):
    """In the epoch runtime, by `anabranch.start`."""

    def __init__(
        self,
        query: Startable | Mapping[str, Startable] | Sequence[Delivery],
        folder: Path,
        settings: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._settings = dict(settings)
        self._listeners = list(self._settings.pop("listeners"))
        self._sinks: dict[str, MemorySink] = {}
        self._deliveries = self._delivered(query)
        self.outputs = tuple(self._sinks)

    def _delivered(self, query: Startable | Mapping[str, Startable] | Sequence[Delivery]) -> list[Delivery]:
        if isinstance(query, Processed) and len(query.outputs) > 1:
            self._sinks = {name: MemorySink() for name in query.outputs}
            return [query.to(self._sinks)]
        if isinstance(query, Startable):
            query = {ONLY: query}
        if not isinstance(query, Mapping | Sequence):
            raise InvalidArgumentError(
                f"{query!r} is not a query",
                hint="pass an aggregation, a join or an operator (anything with start()), or the DataFrame of to_df()",
            )
        if isinstance(query, Mapping):
            self._sinks = {name: MemorySink() for name in query}
            return [each.to(self._sinks[name]) for name, each in query.items()]
        return list(query)

    def run(self, epochs: list[Epoch]) -> None:
        heard = _Heard()
        running = start(
            *self._deliveries,
            checkpoint=self._folder / "checkpoint",
            live=self._folder / "live",
            trigger="available-now",
            listeners=[*self._listeners, heard],
            **self._settings,
        )
        try:
            running.awaitTermination()
        finally:
            running.stop()
            epochs += map(self._epoch, heard.epochs)

    def _epoch(self, progress: EpochProgress) -> Epoch:
        number = progress.epoch
        came = [(name, sink.epochs[number]) for name, sink in self._sinks.items() if number in sink.epochs]
        watermark = _least([operator.watermark for operator in progress.operators])
        return Epoch(number, Results.of(came, self.outputs), progress, watermark, progress.late)


def _least(watermarks: Sequence[int | None]) -> int | None:
    known = [each for each in watermarks if each is not None]
    return min(known) if known and len(known) == len(watermarks) else None


class _Heard:
    """A listener that keeps every epoch."""

    def __init__(self) -> None:
        self.epochs: list[EpochProgress] = []

    def on_started(self, query: str, run: str) -> None:
        pass

    def on_progress(self, progress: EpochProgress) -> None:
        self.epochs.append(progress)

    def on_terminated(self, query: str, error: str | None) -> None:
        pass


class _SparkQuery(_Query):
    """By Spark itself, micro-batch by micro-batch."""

    outputs = (ONLY,)

    def __init__(self, frame: DataFrame, folder: Path, settings: Mapping[str, Any]) -> None:
        given = [name for name, value in settings.items() if value != _DEFAULTS[name]]
        if given:
            raise InvalidArgumentError(
                f"{given[0]} is a setting of start(), which does not run a DataFrame",
                hint="leave it out, or give the query itself instead of to_df()",
            )
        self._frame = frame
        self._folder = folder

    def run(self, epochs: list[Epoch]) -> None:
        results: dict[int, Results] = {}

        def take(rows: DataFrame, epoch: int) -> None:
            table = rows.toArrow()
            results[epoch] = Results.of([(ONLY, table.cast(common_schema(table.schema)))], self.outputs)

        writer = self._frame.writeStream.outputMode("append").foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        running = writer.trigger(availableNow=True).start()
        try:
            running.awaitTermination()
        finally:
            running.stop()
            for each in running.recentProgress:
                if each.batchId in results:
                    late = sum(operator.numRowsDroppedByWatermark for operator in each.stateOperators)
                    epochs.append(Epoch(each.batchId, results[each.batchId], each, _watermark_of(each), late))


def _watermark_of(progress: Any) -> int | None:
    text = progress.eventTime.get("watermark")
    return None if text is None else (datetime.fromisoformat(text) - ZERO) // timedelta(microseconds=1)
