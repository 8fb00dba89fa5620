"""Live queries that get more rows than they can process, and what `python -m benchmarks shedding` measures of them.

A `Load` is a query over Spark's `rate` source, whose epochs have the rows (timestamp, value) of the time since the last
epoch. Keys come in turn (`value % keys`), and there are more keys at a higher rate. So a window of a key always has the
same number of rows, and a query has as many results per row at any rate.

**Work** is a `delay`: a step that keeps the CPU busy for some microseconds per row.

**Capacity** is the rate that a query can process without shedding. Each epoch reads the rows that came during the epoch
before it. So a result has latency 2 T where each epoch takes T, and T may be half the bound. The seconds of an epoch
are measured at low rates and fitted by ``fixed + per_row * rows``. Then ``capacity * T`` rows take T.
"""

from __future__ import annotations

import math
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.api.stream import Stream
from anabranch.errors import AnabranchError
from anabranch.local.session import usable_cores
from anabranch.observe.progress import EpochProgress
from anabranch.query.deliveries import Delivery
from anabranch.query.settings import DropAt
from anabranch.sinks import Sink
from benchmarks.report import Measured, drain

MAX_GAP = 10
"""Windows in a row that may be missing."""
SETTLED_EPOCHS, SETTLED_SECONDS = 8, 40.0
"""Epochs, or seconds after the first epoch, until a run is settled: the controller has found its share by then."""
LOW = 0.3
"""The first rate to measure, as a share of the guessed capacity."""
GIVEN_UP_AFTER = 4
"""Measuring epochs at a rate is given up after this many times the time that they should take."""
SECOND = 1_000_000


def delay(micros: float) -> Callable[[str], Column]:
    """A step that keeps a core busy for `micros` microseconds per row, and returns that number.

    It measures CPU time, so two such steps on one core take twice as long, like any other work.
    """

    def busy(column: pa.Array) -> pa.Array:
        until = time.thread_time() + len(column) * micros * 1e-6
        while time.thread_time() < until:
            pass
        return pa.array(np.full(len(column), micros))

    step = F.arrow_udf(busy, "double")  # type: ignore[attr-defined]
    return lambda column: step(F.col(column))


def working_sink(micros: float) -> Sink:
    """A sink that does a `delay` for each result."""
    work = delay(micros)

    def deliver(results: DataFrame, epoch: int) -> None:
        drain(results.repartition(usable_cores()).select(work("n")))

    return ab.CallSink(deliver)


@dataclass(frozen=True)
class Output:
    """An aggregate whose results are delivered, by the name of its operator in the runtime."""

    operator: str
    slide: int
    """The slide in microseconds."""

    def windows(self, before: int, after: int) -> int:
        """Windows that became complete between two watermarks. All begin at a multiple of the slide."""
        return after // self.slide - before // self.slide


@dataclass(frozen=True)
class Load:
    """A query of the benchmark."""

    name: str
    build: Callable[[Stream], Sequence[Delivery]]
    outputs: tuple[Output, ...]
    rows_per_second: float
    """Rows per second of one key."""
    guess: float
    """A guess of the capacity in rows per second, only to begin the search."""

    def keys(self, rate: float) -> int:
        return max(1, round(rate / self.rows_per_second))

    def stream(self, spark: SparkSession, rate: float) -> Stream:
        source = spark.readStream.format("rate").option("rowsPerSecond", round(rate))
        source = source.option("numPartitions", usable_cores())
        # The key is a column of the source, so that drop points before every step have it.
        rows = source.load().withColumn("key", F.col("value") % self.keys(rate))
        return ab.stream(rows, time="timestamp", watermark="0 seconds")


@dataclass(frozen=True)
class Costs:
    """The seconds of an epoch: fixed + per_row * rows."""

    fixed: float
    per_row: float

    @classmethod
    def fit(cls, epochs: Sequence[tuple[float, float]]) -> Costs:
        """Fit (rows, seconds) of epochs. Neither cost is negative."""
        rows, seconds = (np.array(each, dtype=float) for each in zip(*epochs, strict=True))
        spread = float(((rows - rows.mean()) ** 2).sum())
        slope = float(((rows - rows.mean()) * (seconds - seconds.mean())).sum()) / spread if spread else 0.0
        fixed = float(seconds.mean() - slope * rows.mean())
        if slope <= 0 or fixed < 0:
            # The two costs cannot be separated: assign all of the time to the rows.
            return cls(0.0, float(seconds.sum() / rows.sum()) if rows.sum() else 0.0)
        return cls(fixed, slope)

    def seconds(self, rows: float) -> float:
        return self.fixed + self.per_row * rows

    def capacity(self, bound: float) -> float:
        """Rows per second at which epochs that follow one another take half the bound."""
        longest = bound / 2
        return max(0.0, longest - self.fixed) / (self.per_row * longest) if self.per_row > 0 else math.inf


@dataclass(frozen=True)
class Run:
    """A query as it ran, epoch by epoch."""

    load: Load
    rate: float
    epochs: tuple[EpochProgress, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settled(self) -> tuple[EpochProgress, ...]:
        return self.epochs[settled_from([epoch.started for epoch in self.epochs]) :]

    def latencies(self) -> list[float]:
        return [epoch.latency for epoch in self.settled if epoch.latency is not None]

    def delivered(self, bound: float = math.inf) -> tuple[int, int]:
        """Results of the settled epochs that kept a latency bound, and the most there could be: windows times keys."""
        first = len(self.epochs) - len(self.settled)
        results = windows = 0
        for output in self.load.outputs:
            marks = [_operator(epoch, output.operator).watermark for epoch in self.epochs]
            before, after = marks[first - 1] if first else None, marks[-1] if marks else None
            if before is not None and after is not None:
                windows += output.windows(before, after) * self.load.keys(self.rate)
                in_time = (epoch for epoch in self.settled if (epoch.latency or 0.0) <= bound)
                results += sum(_operator(epoch, output.operator).emitted for epoch in in_time)
        return results, windows

    def reported_share(self) -> float | None:
        """The delivered share by the counts of the drop points; None if an epoch has no drop point."""
        drops = [drop for epoch in self.settled for drop in epoch.drops]
        windows = sum(drop.windows for drop in drops)
        if not windows or not all(epoch.drops for epoch in self.settled):
            return None
        return 1.0 - sum(drop.dropped for drop in drops) / windows


def settled_from(started: Sequence[float]) -> int:
    """The number of the first settled epoch, from the start times of the epochs."""
    late = (i for i, at in enumerate(started) if at - started[0] >= SETTLED_SECONDS)
    return min(SETTLED_EPOCHS, next(late, len(started)), len(started))


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, 100 * share)) if values else math.nan


@dataclass(frozen=True)
class Trial(Measured):
    """A run as a row of the table: its input, the delivered share, and the latency."""

    rate_in: float = 0.0
    """Rows per second of the input."""
    capacity: float = 0.0
    bound: float = 0.0
    latencies: tuple[float, ...] = ()
    share: float = 1.0
    """Delivered share of the windows of all keys."""
    in_time: float = 1.0
    """Share of these windows that was delivered within the bound."""
    reported_share: float | None = None
    """Delivered share by the counts of the drop points."""
    drop_share: float = 0.0
    """p, the mean over drop points and epochs."""
    epochs: int = 0

    @classmethod
    def of(cls, run: Run, name: str, setting: str, *, capacity: float, bound: float) -> Trial:
        settled, (results, windows) = run.settled, run.delivered()
        shares = [drop.p for epoch in settled for drop in epoch.drops]
        return cls(
            name,
            setting,
            sum(epoch.rows for epoch in settled),
            sum(epoch.seconds for epoch in settled) or math.nan,
            results,
            rate_in=run.rate,
            capacity=capacity,
            bound=bound,
            latencies=tuple(run.latencies()),
            share=min(1.0, results / windows) if windows else math.nan,
            in_time=min(1.0, run.delivered(bound)[0] / windows) if windows else math.nan,
            reported_share=run.reported_share(),
            drop_share=fmean(shares) if shares else 0.0,
            epochs=len(settled),
        )

    @property
    def ideal(self) -> float:
        """The share that could be delivered if dropping cost nothing and left no headroom."""
        return min(1.0, self.capacity / self.rate_in) if self.rate_in else 1.0

    @property
    def of_ideal(self) -> float:
        return self.share / self.ideal

    def of_bound(self, share: float) -> float:
        """A percentile of latency, over the bound."""
        return percentile(self.latencies, share) / self.bound

    @property
    def held(self) -> bool:
        """Whether 95 % of the epochs kept the bound."""
        return bool(self.latencies) and self.of_bound(0.95) <= 1.0

    def to_json(self) -> dict[str, Any]:
        figures = {
            "load": self.rate_in / self.capacity if self.capacity else math.nan,
            "rate": self.rate_in,
            "capacity": self.capacity,
            "latency_median": percentile(self.latencies, 0.5),
            "latency_95": percentile(self.latencies, 0.95),
            "latency_max": percentile(self.latencies, 1.0),
            "latency_95_of_bound": self.of_bound(0.95),
            "delivered": self.share,
            "delivered_in_time": self.in_time,
            "delivered_told": self.reported_share,
            "ideal": self.ideal,
            "of_ideal": self.of_ideal,
            "p": self.drop_share,
        }
        plain = {k: None if v is None or not math.isfinite(v) else round(v, 3) for k, v in figures.items()}
        settled = {"name": self.name, "setting": self.setting, "epochs": self.epochs, "rows": self.rows}
        return {**settled, **plain, "delivered_per_second": _per(self.delivered, self.seconds)}


def _per(amount: float | None, seconds: float) -> int | None:
    return round(amount / seconds) if amount is not None and seconds > 0 else None


class Runner:
    """Runs loads in one session, each in a temporary folder."""

    def __init__(self, spark: SparkSession, folder: Path, bound: float) -> None:
        self.spark = spark
        self.folder = folder
        self.bound = bound

    def live(
        self,
        load: Load,
        rate: float,
        *,
        seconds: float,
        qos: ab.QoS | None = None,
        trigger: float | None = None,
        until: float = math.inf,
        epochs: int | None = None,
    ) -> Run:
        """Run a query for `seconds` after its first epoch, or until latency exceeds `until`, or for `epochs`."""
        where = self.folder / uuid.uuid4().hex
        deliveries = load.build(load.stream(self.spark, rate))
        query = ab.start(
            *deliveries,
            checkpoint=where / "checkpoint",
            live=where / "live",
            workers=usable_cores(),
            qos=qos,
            trigger=None if trigger is None else f"{round(trigger * 1000)} ms",
        )
        try:
            end = math.inf
            while query.isActive and time.monotonic() < end:
                time.sleep(0.1)
                last = query.lastProgress
                if last is not None:
                    end = min(end, time.monotonic() + seconds)
                    if (last.latency or 0.0) > until or (epochs is not None and len(query.recentProgress) >= epochs):
                        break
        finally:
            query.stop()
            shutil.rmtree(where, ignore_errors=True)
        error = query.exception()
        if error is not None:
            raise error
        return Run(load, rate, tuple(query.recentProgress))

    def shed(self, load: Load, rate: float, *, seconds: float, drop_at: DropAt = "auto") -> Run:
        """Run a query that may drop windows."""
        qos = ab.QoS(max_latency=f"{round(self.bound * 1000)} ms", max_gap=MAX_GAP, drop_at=drop_at)
        return self.live(load, rate, seconds=seconds, qos=qos)

    def costs(self, load: Load, *, epochs: int, drop_share: float | None = None) -> Costs:
        """Measure the seconds of an epoch at rates below the capacity, with epochs of half the bound."""

        def measured(rate: float) -> tuple[float, float]:
            return self.epoch_at(load, rate, epochs=epochs, drop_share=drop_share)

        low = LOW * load.guess
        # Two runs that show where to measure. The first does not count, because much is compiled in it.
        first, second = measured(low), measured(2 * low)
        near = min(0.85 * Costs.fit([first, second]).capacity(self.bound), 4 * load.guess)
        near = max(near, low)
        found = Costs.fit([second, measured(near), measured(0.5 * near)])
        if found.capacity(self.bound) <= 0:
            raise AnabranchError(
                f"{load.name}: an epoch without rows takes {found.fixed:.1f} s, and may take {self.bound / 2:g} s",
                hint="is the machine busy with something else?",
            )
        return found

    def drift(self, load: Load, costs: Costs, *, epochs: int) -> float:
        """Seconds of an epoch at half the capacity, over what they were: 1 if the machine's speed has not changed."""
        rows, seconds = self.epoch_at(load, 0.5 * costs.capacity(self.bound), epochs=epochs)
        return seconds / costs.seconds(rows)

    def epoch_at(self, load: Load, rate: float, *, epochs: int, drop_share: float | None = None) -> tuple[float, float]:
        """Median rows and seconds of an epoch at a rate, with one epoch every half of the bound."""
        qos = None if drop_share is None else ab.QoS(max_gap=MAX_GAP, drop_share=drop_share)
        trigger = self.bound / 2
        # The first epochs start processes and compile. With a share to drop, some more drop nothing yet.
        warm_up = 2 if qos is None else 4
        wanted = warm_up + epochs
        longest = GIVEN_UP_AFTER * wanted * trigger
        run = self.live(load, rate, seconds=longest, qos=qos, trigger=trigger, epochs=wanted)
        measured = [epoch for epoch in run.epochs[warm_up:] if epoch.rows]
        if not measured:
            raise AnabranchError(
                f"{load.name}: {wanted} epochs did not end within {longest:g} s at {rate:,.0f} rows/s",
                hint="is the machine busy with something else?",
            )
        return float(median(epoch.rows for epoch in measured)), float(median(epoch.seconds for epoch in measured))


def _operator(epoch: EpochProgress, name: str) -> Any:
    found = epoch.operator(name)
    assert found is not None, f"{name} is not one of {[operator.name for operator in epoch.operators]}"
    return found
