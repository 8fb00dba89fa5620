"""`python -m benchmarks shedding`: window drops when a query gets more rows than it can process (docs/shedding.md).

| part | contestants | figures |
|---|---|---|
| `load`: 1.25 to 3 times the capacity | a delay per row; none | `delivered_of_ideal_2x`, `latency_of_bound_2x` |
| `nested` aggregates | drops at the source, before the last aggregate, after it | |
| `overhead`: a native aggregate over files | without a window drop; p = 0; p = 0.01 | `overhead_p0` |

`shedding_runs` defines the capacity, and when epochs are settled. The *ideal* is the share capacity / load: what a
query delivers if dropping costs nothing and it leaves no headroom below the latency bound. The delivered share is
counted in two ways: results over windows times keys, and by the drop points' own counts (in the JSON).
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from anabranch.query.settings import DropAt
from benchmarks.report import Measured, print_json, progress, show, show_ratios
from benchmarks.session import bench_session
from benchmarks.shedding_loads import nested, tumbling
from benchmarks.shedding_overhead import Filtered, Recorded, compared
from benchmarks.shedding_runs import Costs, Load, Runner, Trial

GOALS = {"overhead_p0": 0.97, "delivered_of_ideal_2x": 0.8}
LIMITS = {"latency_of_bound_2x": 1.0}

DRIFT = 0.15
"""How much the machine's speed may change between the first and the last run."""

PLACES: dict[DropAt, str] = {
    "source": "at the source",
    "operators": "before the last aggregate",
    "results": "after the aggregates",
}


@dataclass(frozen=True)
class Scale:
    """How long the runs are, and which runs there are."""

    bound: float
    """The latency bound, in seconds."""
    epochs: int
    """Epochs per rate when the capacity is measured."""
    seconds: float
    """Length of a run that sheds."""
    loads: tuple[float, ...]
    """Loads as multiples of the capacity."""
    native: tuple[float, ...]
    """The same for the query without a delay."""
    unshed_seconds: float
    """Length of the run that must not shed; 0 for no such run."""
    check_speed: bool
    places: tuple[DropAt, ...]
    nested_load: float
    rounds: int
    recorded: Recorded


FULL = Scale(
    bound=8.0,
    epochs=5,
    seconds=150.0,
    loads=(1.25, 1.5, 2.0, 3.0),
    native=(2.0,),
    unshed_seconds=60.0,
    check_speed=True,
    places=("source", "operators", "results"),
    nested_load=1.5,
    rounds=15,
    recorded=Recorded(keys=200, epochs=7, rows=4_000_000),
)
QUICK = Scale(
    bound=6.0,
    epochs=1,
    seconds=24.0,
    loads=(2.0,),
    native=(),
    unshed_seconds=0.0,
    check_speed=False,
    places=("source", "results"),
    nested_load=1.5,
    rounds=2,
    recorded=Recorded(keys=200, epochs=3, rows=200_000),
)


def run(*, quick: bool, as_json: bool, console: Console, parts: Sequence[str] = ()) -> dict[str, float]:
    """Run the benchmark, or some of its parts. Prints tables, and with `as_json` one JSON object as the last line."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    spark = bench_session("shedding", shuffle_partitions=2)
    bench = _Bench(spark, QUICK if quick else FULL, folder, console)
    try:
        bench.run(parts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, bench.figures, {} if quick else GOALS, {} if quick else LIMITS)
    if as_json:
        # JSON has no NaN: a figure that could not be measured is null.
        finite = {name: value for name, value in bench.figures.items() if math.isfinite(value)}
        print_json(
            finite, bench.tables, quick=quick, **dict.fromkeys(bench.figures.keys() - finite.keys()), **bench.more
        )
    return bench.figures


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console
    figures: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[Measured]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Costs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner = Runner(self.spark, self.folder, self.scale.bound)

    def run(self, wanted: Sequence[str]) -> None:
        parts: dict[str, Callable[[Progress], None]] = {
            "load": self.load,
            "nested": self.nested,
            "overhead": self.overhead,
        }
        with progress(self.console) as bar:
            task = bar.add_task("shedding", total=len(wanted or parts))
            for name, part in parts.items():
                if not wanted or name in wanted:
                    bar.update(task, description=name)
                    part(bar)
                    bar.advance(task)

    # --- a live stream ----------------------------------------------------------------------------------------------

    def load(self, bar: Progress) -> None:
        scale, slow = self.scale, tumbling()
        capacity = self._capacity(slow, bar)
        self.more["capacity"] = round(capacity)
        if scale.unshed_seconds:
            self._unshed(slow, 2 * capacity, bar)
        trials = [self._shed(slow, times, capacity, "auto", bar) for times in scale.loads]
        twice = next(trial for trial, times in zip(trials, scale.loads, strict=True) if times == 2.0)
        self.figures["delivered_of_ideal_2x"] = twice.of_ideal
        self.figures["latency_of_bound_2x"] = twice.of_bound(0.95)
        if scale.check_speed:
            self._check_speed(slow, bar)
        if scale.native:
            fast = tumbling(0.0)
            capacity = self._capacity(fast, bar)
            self.more["capacity_without_delay"] = round(capacity)
            trials += [self._shed(fast, times, capacity, "auto", bar) for times in scale.native]
        self._show("load", f"Overload; latency bound {scale.bound:g} s", trials)

    def _capacity(self, load: Load, bar: Progress) -> float:
        bar.console.print(f"{load.name}: measuring the capacity", highlight=False)
        costs = self.costs[load.name] = self.runner.costs(load, epochs=self.scale.epochs)
        capacity = costs.capacity(self.scale.bound)
        seconds = f"{costs.fixed:.2f} s + {1e6 * costs.per_row:.1f} us a row"
        bar.console.print(f"{load.name}: an epoch takes {seconds}; capacity {capacity:,.0f} rows/s", highlight=False)
        return capacity

    def _check_speed(self, load: Load, bar: Progress) -> None:
        """Check that the capacity, which was measured minutes before, still holds; warn if it does not."""
        drift = self.runner.drift(load, self.costs[load.name], epochs=self.scale.epochs)
        self.more["drift"] = round(drift, 3)
        if abs(drift - 1) > DRIFT:
            change = f"an epoch takes {drift:.2f} times as long as when the capacity was measured"
            bar.console.print(f"[bold red]{change}: shares of the ideal mean nothing[/]", highlight=False)

    def _unshed(self, load: Load, rate: float, bar: Progress) -> None:
        """Run the same load without dropping anything."""
        ran = self.runner.live(load, rate, seconds=self.scale.unshed_seconds, until=4 * self.scale.bound)
        latencies = [round(epoch.latency, 2) for epoch in ran.epochs if epoch.latency is not None]
        self.more["unshed_latencies_2x"] = latencies
        shown = " ".join(f"{each:.1f}" for each in latencies)
        bar.console.print(f"{load.name}, {rate:,.0f} rows/s, nothing dropped: latency {shown} s", highlight=False)

    def _shed(self, load: Load, times: float, capacity: float, drop_at: DropAt, bar: Progress) -> Trial:
        ran = self.runner.shed(load, times * capacity, seconds=self.scale.seconds, drop_at=drop_at)
        place = PLACES.get(drop_at, "")
        setting = f"{times:g} x"
        trial = Trial.of(ran, place or load.name, setting, capacity=capacity, bound=self.scale.bound)
        held = f"latency {100 * trial.of_bound(0.95):.0f} % of the bound{'' if trial.held else ' (not held)'}"
        result = f"{held}, {100 * trial.share:.0f} % delivered, ideal {100 * trial.ideal:.0f} %"
        bar.console.print(f"{load.name}, {setting}{place and f', drops {place}'}: {result}", highlight=False)
        return trial

    # --- nested aggregates ------------------------------------------------------------------------------------------

    def nested(self, bar: Progress) -> None:
        scale, load = self.scale, nested()
        capacity = self._capacity(load, bar)
        self.more["capacity_nested"] = round(capacity)
        trials = [self._shed(load, scale.nested_load, capacity, place, bar) for place in scale.places]
        self._show(
            "nested", f"Nested aggregates at {scale.nested_load:g} times the capacity, by place of drops", trials
        )
        if all(math.isfinite(trial.in_time) for trial in trials):
            # A place that cannot keep the bound may deliver more, but too late.
            self.more["nested_in_order"] = all(a.in_time >= b.in_time for a, b in pairwise(trials))

    def _show(self, part: str, title: str, trials: Sequence[Trial]) -> None:
        # Narrow enough for 80 columns; the JSON has the rest.
        title = f"{title}; share of windows delivered"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("")
        for column in ("rows/s", "latency, s:\n50 % 95 % max", "share", "in\ntime", "ideal", "of\nideal"):
            table.add_column(column, justify="right", no_wrap=True)
        for t in trials:
            latency = " ".join(f"{t.bound * t.of_bound(share):.1f}" for share in (0.5, 0.95, 1.0))
            shares = (f"{t.share:.3f}", f"{t.in_time:.3f}", f"{t.ideal:.3f}", f"{t.of_ideal:.2f}")
            held = latency if t.held else f"[bold red]{latency}[/]"
            table.add_row(f"{t.setting}, {t.name}", f"{t.rate_in:,.0f}", held, *shares)
        self.console.print(table)
        self.tables[part] = list(trials)

    # --- when nothing is dropped ------------------------------------------------------------------------------------

    def overhead(self, bar: Progress) -> None:
        files = self.scale.recorded.write(self.folder / "rows")
        found = compared(self.spark, files, self.folder, Filtered(), self.scale.rounds)
        self.figures["overhead_p0"] = found.ratio("p = 0")
        self.more["overhead_p001"] = round(found.ratio("p = 0.01"), 3)
        self.tables["overhead"] = found.table()
        show(self.console, "Overhead of a window drop", found.table())
