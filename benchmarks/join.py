"""`python -m benchmarks join`: windowed joins against Spark's, and what each mechanism of the join gains.

| part | contestants | figures |
|---|---|---|
| `few` matches: uniform keys in 0..10^7, windows of 10 minutes | Anabranch, Spark | `sustained_rate`, `rate_vs_spark` |
| `paper`: skewed keys (b-model 0.7), windows of 10 minutes | the same | `sustained_rate_paper`, `pairs_vs_spark` |
| `tuning`: CPU time of the operator per tuple at that rate | fine tuning on, off | `fine_tuning_gain` |
| `recovery`: a worker slowed by half | with and without rebalancing | `recovery_epochs` |
| `ticks`: trades and quotes, 100 ms to 1 s, batch and stream | Anabranch, Spark's equi-join and a filter | `batch_vs_spark` |

`memory_ratio` is live state over the Arrow size of the tuples in both windows, at the highest rate with few matches.
`join_runs` defines *sustained*, `join_recovery` a slow worker. Rates are searched by bisection in a list, so a figure
is the highest rate of the list that is sustained. The results are compared first, on a small input.
"""  # noqa: E501 (a table)

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import anabranch as ab
from anabranch.io.sinks.noop import NoopSink
from anabranch.windows import describe
from benchmarks import join_ticks
from benchmarks.join_recovery import BOUND, Recovery, recover
from benchmarks.join_runs import STORES, Trial, Workload, bounded, joined, joined_rows, ours, recorded, sparks
from benchmarks.join_tuning import cpu_per_tuple
from benchmarks.report import Measured, best_of, drain, print_json, progress, show, show_ratios
from benchmarks.session import bench_session
from benchmarks.windows import ResultsDifferError
from benchmarks.workloads import shared_data

GOALS = {
    "sustained_rate": 50_000.0,
    "rate_vs_spark": 5.0,
    "sustained_rate_paper": 15_000.0,
    "pairs_vs_spark": 4.0,
    "fine_tuning_gain": 3.0,
    "batch_vs_spark": 10.0,
}
LIMITS = {"recovery_epochs": 2.0, "memory_ratio": 2.0}

_MILLI = 1_000


@dataclass(frozen=True)
class Scale:
    """Rates to try, how long the windows are, and how many epochs are counted."""

    window: int
    epochs: int
    rows: float
    """The rate at which Anabranch reads rows from files, as Spark does."""
    few: tuple[float, ...]
    few_spark: tuple[float, ...]
    paper: tuple[float, ...]
    paper_spark: tuple[float, ...]
    slow_rate: float
    slow_window: int
    slow_epochs: int
    ticks_seconds: int
    slice_seconds: int
    repeats: int


FULL = Scale(
    window=600,
    epochs=8,
    rows=10_000,
    few=(25_000, 50_000, 75_000),
    few_spark=(500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000),
    paper=(10_000, 15_000, 20_000, 25_000, 30_000),
    paper_spark=(500, 750, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000),
    slow_rate=20_000,
    slow_window=120,
    slow_epochs=20,
    ticks_seconds=3_600,
    slice_seconds=240,
    repeats=2,
)
QUICK = Scale(
    window=30,
    epochs=3,
    rows=1_000,
    few=(2_000,),
    few_spark=(1_000,),
    paper=(2_000,),
    paper_spark=(1_000,),
    slow_rate=2_000,
    slow_window=30,
    slow_epochs=6,
    ticks_seconds=120,
    slice_seconds=30,
    repeats=1,
)


def run(*, quick: bool, as_json: bool, console: Console, parts: Sequence[str] = ()) -> dict[str, float]:
    """Run the benchmark, or some of its parts. Prints tables, and with `as_json` one JSON object as the last line."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    # Spark keeps the state of its joins in the driver's memory, so it must have enough.
    spark = bench_session("join", shuffle_partitions=2, config={"spark.driver.memory": "8g"})
    bench = _Bench(spark, QUICK if quick else FULL, folder, console)
    try:
        bench.run(parts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, bench.figures, {} if quick else GOALS, {} if quick else LIMITS)
    if as_json:
        finite = {name: value for name, value in bench.figures.items() if math.isfinite(value)}
        more = {**dict.fromkeys(bench.figures.keys() - finite.keys()), **bench.more}
        print_json(finite, bench.tables, quick=quick, trials=[t.to_json() for t in bench.trials], **more)
    return bench.figures


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console
    figures: dict[str, float] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    tables: dict[str, list[Measured]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, wanted: Sequence[str]) -> None:
        parts: dict[str, Callable[[Progress], None]] = {
            "few": self.few,
            "paper": self.paper,
            "tuning": self.tuning,
            "recovery": self.recovery,
            "ticks": self.ticks,
        }
        with progress(self.console) as bar:
            task = bar.add_task("joins", total=len(wanted or parts))
            for name, part in parts.items():
                if not wanted or name in wanted:
                    bar.update(task, description=name)
                    part(bar)
                    bar.advance(task)
        self._show_trials()

    # --- how many tuples a second -----------------------------------------------------------------------------------

    def few(self, bar: Progress) -> None:
        workload = Workload("few matches", None, self.scale.window)
        best, peer = self._both(workload, self.scale.few, self.scale.few_spark, bar)
        with recorded(self.folder, workload, self.scale.rows, self.scale.epochs) as recording:
            self._note(ours(self.spark, recording, self.folder / "rows", rows=True), bar)
        self.figures["sustained_rate"] = best.rate
        self.figures["rate_vs_spark"] = best.rate / peer.rate if peer.rate else math.inf
        if best.window_bytes:
            self.figures["memory_ratio"] = best.state_bytes / best.window_bytes

    def paper(self, bar: Progress) -> None:
        workload = Workload("the paper's", 0.7, self.scale.window)
        best, peer = self._both(workload, self.scale.paper, self.scale.paper_spark, bar)
        self.figures["sustained_rate_paper"] = best.rate
        self.figures["pairs_vs_spark"] = (
            workload.pairs(best.rate) / workload.pairs(peer.rate) if peer.rate else math.inf
        )

    def _both(
        self, workload: Workload, rates: Sequence[float], peers: Sequence[float], bar: Progress
    ) -> tuple[Trial, Trial]:
        def try_ours(rate: float) -> Trial:
            with recorded(self.folder, workload, rate, self.scale.epochs) as recording:
                return ours(self.spark, recording, self.folder / "ours")

        def try_spark(rate: float, store: str) -> Trial:
            with recorded(self.folder, workload, rate, self.scale.epochs) as recording:
                return sparks(self.spark, recording, self.folder / "spark", store)

        self._check_answers(workload)
        best = self._highest(f"{workload.name}: ours", rates, try_ours, bar)
        # Its best state store, by a trial at a rate that both should sustain.
        stores = [try_spark(peers[0], store) for store in STORES]
        for trial in stores:
            self._note(trial, bar)
        store = min(zip(stores, STORES, strict=True), key=lambda pair: pair[0].mean)[1]
        peer = self._highest(f"{workload.name}: Spark", peers, lambda rate: try_spark(rate, store), bar)
        if peer.rate == max(peers):
            self.more[f"{workload.name}: Spark"] = "sustains all rates that were tried: the ratio may be too high"
        return best, peer

    def _check_answers(self, workload: Workload) -> None:
        """Raise an error unless the pairs of half a minute are those of Spark's join of bounded DataFrames."""
        short = replace(workload, window=10)
        with recorded(self.folder, short, 500, 2) as recording:
            tables = {}
            for rows in (False, True):
                sink, folder = ab.MemorySink(), self.folder / "answers"
                join = (
                    joined_rows(self.spark, recording) if rows else joined(self.spark, recording, rows_per_epoch=1_000)
                )
                join.start(
                    sink, checkpoint=folder / "c", live=folder / "live", trigger="available-now", workers=2
                ).awaitTermination()
                shutil.rmtree(folder)
                pairs = pa.concat_tables(sink.epochs.values()).select(["key", "t", "t_right", "p2", "p2_right"])
                tables[rows] = pairs.sort_by([(name, "ascending") for name in pairs.schema.names])
            wanted = bounded(self.spark, recording).toArrow().cast(tables[False].schema)
            wanted = wanted.sort_by([(name, "ascending") for name in wanted.schema.names])
        for rows, pairs in tables.items():
            if not pairs.equals(wanted):
                raise ResultsDifferError(
                    f"{workload.name}: {pairs.num_rows:,} pairs from {'rows' if rows else 'blocks'} differ from the "
                    f"{wanted.num_rows:,} pairs of Spark",
                    hint="this is a bug: please report it",
                )

    def _highest(self, what: str, rates: Sequence[float], attempt: Callable[[float], Trial], bar: Progress) -> Trial:
        """The trial at the highest sustained rate, by bisection; a trial at rate 0 if none is sustained."""
        task = bar.add_task(what, total=math.ceil(math.log2(len(rates) + 1)))
        low, high = 0, len(rates)
        best = Trial("none", what, 0.0, (0.0,), 0.0)
        while low < high:
            middle = (low + high) // 2
            trial = attempt(rates[middle])
            self._note(trial, bar)
            bar.advance(task)
            if trial.sustained:
                best, low = trial, middle + 1
            else:
                high = middle
        bar.remove_task(task)
        return best

    def _note(self, trial: Trial, bar: Progress) -> None:
        """Keep a trial and print it at once, because the next one may take minutes."""
        self.trials.append(trial)
        kept = "sustained" if trial.sustained else "not sustained"
        rate = f"{trial.rate:,.0f} tuples/s/stream, {trial.mean:.2f} s an epoch, {kept}"
        bar.console.print(f"{trial.workload}, {trial.contestant}: {rate}", highlight=False)

    def _show_trials(self) -> None:
        if not self.trials:
            return
        table = Table(title="Rates with full windows", title_justify="left")
        for column in ("workload", "contestant"):
            table.add_column(column)
        for column in ("tuples/s/stream", "pairs/s", "epoch of 2 s", "latency", "memory", "sustained"):
            table.add_column(column, justify="right")
        for t in sorted(self.trials, key=lambda t: (t.workload, t.contestant, t.rate)):
            memory = f"{t.state_bytes / t.window_bytes:.2f}" if t.state_bytes else ""
            kept = "yes" if t.sustained else "no"
            figures = (f"{t.rate:,.0f}", f"{t.pairs:,.0f}", f"{t.mean:.2f} s", f"{t.latency:.2f} s", memory, kept)
            table.add_row(t.workload, t.contestant, *figures)
        self.console.print(table)

    # --- fine tuning ------------------------------------------------------------------------------------------------

    def tuning(self, bar: Progress) -> None:
        rate = self.figures.get("sustained_rate_paper") or max(self.scale.paper)
        seconds = {
            (probe, tuned): cpu_per_tuple(rate, self.scale.window, probe=probe, fine_tuning=tuned)
            for probe in ("nested", "hashed")
            for tuned in (True, False)
        }
        self.figures["fine_tuning_gain"] = seconds["nested", False] / seconds["nested", True]
        self.more["fine_tuning_gain_hashed"] = round(seconds["hashed", False] / seconds["hashed", True], 3)
        table = Table(title=f"Fine tuning at {rate:,.0f} tuples/s/stream", title_justify="left")
        for column in ("probe", "fine tuning", "CPU per tuple"):
            table.add_column(column)
        for (probe, tuned), each in seconds.items():
            table.add_row(probe, "on" if tuned else "off", f"{each * 1e6:.2f} us")
        self.console.print(table)
        self.more["cpu_per_tuple_us"] = {
            f"{p}, {'on' if t else 'off'}": round(s * 1e6, 3) for (p, t), s in seconds.items()
        }

    # --- a slow worker ----------------------------------------------------------------------------------------------

    def recovery(self, bar: Progress) -> None:
        scale, workload = self.scale, Workload("a slow worker", None, self.scale.slow_window)
        with recorded(self.folder, workload, scale.slow_rate, 120) as recording:
            first = recover(
                self.spark, recording, self.folder / "slow", rebalance=True, pace=None, epochs=scale.slow_epochs
            )
            second = recover(
                self.spark, recording, self.folder / "slow", rebalance=False, pace=first.pace, epochs=scale.slow_epochs
            )
        # If the join recovers without rebalancing, the worker was not slow enough to show anything.
        alone = math.isfinite(second.epochs)
        self.figures["recovery_epochs"] = math.nan if alone else first.epochs
        self.more["recovers_without_rebalancing"] = alone
        self.more["latencies"] = {
            "rebalanced": [round(x, 2) for x in first.latencies],
            "not": [round(x, 2) for x in second.latencies],
        }
        self.more["moved_in_epochs"] = list(first.moved)
        self._show_recovery(first, second)

    def _show_recovery(self, *found: Recovery) -> None:
        title = f"A worker at half its speed; latency in epochs (t_d), at most {BOUND:g}"
        table = Table(title=title, title_justify="left")
        for column in (
            "rebalancing",
            "reorganisation epochs",
            "groups moved in epochs",
            "latency after it became slow",
        ):
            table.add_column(column)
        for each in found:
            after = " ".join(f"{x:.1f}" for x in each.latencies[each.slow_from :])
            needed = f"{each.epochs:g}" if math.isfinite(each.epochs) else "never"
            table.add_row("on" if each.rebalanced else "off", needed, " ".join(map(str, each.moved)), after)
        self.console.print(table)

    # --- trades and quotes ------------------------------------------------------------------------------------------

    def ticks(self, bar: Progress) -> None:
        scale = self.scale
        data = join_ticks.ticks(shared_data(), seconds=scale.ticks_seconds)
        paths = data.write(self.folder / "ticks")
        part = data.between(0, scale.slice_seconds)
        slices = part.write(self.folder / "slice")
        measured = []
        for milliseconds in (100, 300, 1_000):
            window = milliseconds * _MILLI
            setting = f"{milliseconds} ms"
            for whole, files in ((data, paths), (part, slices)):
                self._check(f"ours, {setting}", join_ticks.ours(self.spark, files, window).count(), whole, window)
            seconds = best_of(scale.repeats, lambda w=window: drain(join_ticks.ours(self.spark, paths, w)))  # type: ignore[misc]
            measured.append(Measured("ours", setting, data.rows, seconds, join_ticks.count_pairs(data, window)))
            name = f"Spark, {scale.slice_seconds} s of it"
            seconds = best_of(1, lambda w=window: drain(join_ticks.sparks(self.spark, slices, w)))  # type: ignore[misc]
            measured.append(Measured(name, setting, part.rows, seconds, join_ticks.count_pairs(part, window)))
        for milliseconds in (100, 1_000):
            measured.append(self._streamed(data, paths, milliseconds * _MILLI))
        show(self.console, f"Trades and quotes, {'real' if data.real else 'generated'}", measured)
        self.tables["trades and quotes"] = measured
        self.figures["batch_vs_spark"] = measured[0].rate / measured[1].rate
        self.more["ticks"] = "real" if data.real else "generated"

    def _streamed(self, data: join_ticks.Ticks, paths: tuple[Path, Path], window: int) -> Measured:
        streams = []
        for path, rename in zip(paths, ({"size": "volume"}, {"ts": "quoted"}), strict=True):
            rows = data.trades.num_rows if rename.get("size") else data.quotes.num_rows
            source = ab.replay(self.spark, path, time="ts", rows_per_epoch=-(-rows // 10)).withColumnsRenamed(rename)
            streams.append(ab.stream(source, time=rename.get("ts", "ts"), watermark="10 minutes"))
        joined = streams[0].join(streams[1], on="symbol", within=(describe(window), describe(window)))
        folder, sink = self.folder / "streamed", NoopSink()
        began = time.perf_counter()
        query = joined.start(
            sink, checkpoint=folder / "checkpoint", live=folder / "live", trigger="available-now", workers=2
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
        pairs = sum(epoch.operators[0].emitted for epoch in query.recentProgress)
        shutil.rmtree(folder)
        self._check(f"ours as a stream, {window // _MILLI} ms", pairs, data, window)
        return Measured("ours, a stream of rows", f"{window // _MILLI} ms, stream", data.rows, seconds, pairs)

    def _check(self, name: str, pairs: int, data: join_ticks.Ticks, window: int) -> None:
        wanted = join_ticks.count_pairs(data, window)
        if pairs != wanted:
            raise ResultsDifferError(
                f"{name}: {pairs:,} pairs, but binary search counts {wanted:,}", hint="this is a bug: please report it"
            )
