"""`python -m benchmarks partitioners`: policies that choose which worker gets which key (docs/partitioning.md).

| part | contestants | data | figures |
|---|---|---|---|
| model | 13 policies; 8, 16, 32 workers | seven workloads | `cam2_imbalance_vs_fld`, `cam5_imbalance_vs_fld`, `am_cost_vs_fld` |
| splitters | cAM-2 by 1 to 8 splitters that share nothing; a shared table of heavy keys | Google's jobs, routes | |
| cost | 13 policies, one block after the other | routes, a window | `am2_ns_per_tuple`, `lm2h_ns_per_tuple` |
| latency | FLD, PK, AM, cAM, SH, LM on Spark | windows of routes | `cam2_vs_pk2_latency`, `cam2_vs_fld_latency` |
| native | Spark left alone, cAM, PK | the same | |

The model only counts, so it does not depend on the machine. Imbalance is that of cAM over that of FLD on the names of
Google's jobs, the mean over all windows and over 8, 16 and 32 workers. Every window is checked for proposition 1: the
number of partial results is at least the keys and at most workers times keys. The cost is per tuple on one splitter
core, without hashing; a figure is the worst of 8, 16 and 32 workers. Latency is measured on a top-10 query with an
aggregate in Python, from rows in a file to the answer, without planning; the figures are ratios of means over the
windows. With Spark's own aggregates (native) the same query shows why `auto` leaves Spark alone: Spark combines before
its exchange, so little is left to place.

Before anything is timed, every answer is compared with that of Spark's own `groupBy`.
"""  # noqa: E501 (a table)

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from anabranch.keys.policy import Partitioning
from anabranch.keys.selection import Selected, select
from benchmarks import partitioner_latency as on_spark
from benchmarks import partitioner_runs as runs
from benchmarks.partitioner_runs import AM_2, CAM_2, CAM_5, FLD, LM_2, LM_2_H, PK_2, PK_5, SH, WORKERS
from benchmarks.report import progress, show_ratios
from benchmarks.session import bench_session
from benchmarks.workloads import NAMES, Workload, shared_data, workload

SKEWED = "google-jobs"
TAXIS = "debs-q1"
SPLITTERS = (1, 2, 4, 8)

GOALS = {"cam2_vs_pk2_latency": 2.0, "cam2_vs_fld_latency": 0.95, "am_cost_vs_fld": 1.0}
"""Latency must not be worse than that of FLD; 5 % is noise."""
LIMITS = {
    "cam2_imbalance_vs_fld": 0.7,
    "cam5_imbalance_vs_fld": 0.5,
    "am_cost_vs_fld": 1.0,
    "am2_ns_per_tuple": 60.0,
    "lm2h_ns_per_tuple": 150.0,
}

_EACH = "/".join(map(str, WORKERS)) + " workers"
_SPLIT_WORKERS = 16
_ON_SPARK = (FLD, PK_2, PK_5, AM_2, CAM_2, CAM_5, SH, LM_2)
_NATIVE = (None, CAM_2, PK_2)


@dataclass(frozen=True)
class Scale:
    """How much data, and how often."""

    tpch: float
    debs: float
    """Scale of the taxi trips: 1 is 20,000 trips in a window."""
    windows: int
    timed_windows: int
    repeats: int
    keys: int
    """Keys in one window, to measure memory."""
    workers: tuple[int, ...] = WORKERS
    """Numbers of workers on Spark."""


FULL = Scale(tpch=1.0, debs=25.0, windows=100, timed_windows=2, repeats=4, keys=8_100_000)
QUICK = Scale(tpch=0.01, debs=2.0, windows=3, timed_windows=1, repeats=1, keys=100_000, workers=(8,))


def run(*, quick: bool, as_json: bool, console: Console) -> dict[str, float]:
    """Run the benchmark. Prints tables, and with `as_json` one JSON object as the last line."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    spark = bench_session("partitioners")
    try:
        bench = _Bench(spark, QUICK if quick else FULL, folder, console)
        figures = bench.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, figures, {} if quick else GOALS, {} if quick else LIMITS)
    if as_json:
        # Not rounded, so that a single extra partial result among millions shows.
        exact = {"am_cost_vs_fld": figures["am_cost_vs_fld"]}
        print(json.dumps({n: round(v, 3) for n, v in figures.items()} | exact | bench.details(quick)), flush=True)
    return figures


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console
    modelled: list[runs.Modelled] = field(default_factory=list)
    split: list[runs.Modelled] = field(default_factory=list)
    costs: list[runs.Cost] = field(default_factory=list)
    selections: list[dict[str, Any]] = field(default_factory=list)
    latency: list[dict[str, Any]] = field(default_factory=list)
    real: dict[str, bool] = field(default_factory=dict)

    def run(self) -> dict[str, float]:
        with progress(self.console) as bar:
            task = bar.add_task("", total=len(NAMES) + 1 + 2 * self.scale.timed_windows * len(self.scale.workers))

            def step(name: str | None = None) -> None:
                bar.update(task, advance=0 if name else 1, description=name)

            for name in NAMES:
                step(f"model: {name}")
                loaded = self._load(name)
                self._model(loaded)
                if name == TAXIS:
                    taxis = loaded
                step()
            step("cost of partitioning")
            window = taxis.windows(1)[0]
            self.costs = runs.costs(window["route"], repeats=2 * self.scale.repeats, most_keys=self.scale.keys)
            step()
            files = on_spark.write_windows(taxis, self.scale.timed_windows, self.folder)
            step("latency: aggregate in Python")
            python = self._latency(on_spark.in_python(("route",), "paid"), files, _ON_SPARK, step)
            step("latency: Spark's aggregates")
            self._latency(on_spark.in_spark(("route",), "paid"), files, _NATIVE, step)
        self._show()
        return self._figures(python)

    def details(self, quick: bool) -> dict[str, Any]:
        """The part of the JSON object that is not a figure. If proposition 1 did not hold, `run` would have failed."""
        parts: dict[str, Iterable[dict[str, Any]]] = {
            "model": (row.to_json() for row in self.modelled),
            "splitters": (row.to_json() for row in self.split),
            "cost": (row.to_json() for row in self.costs),
            "selection": self.selections,
            "latency": self.latency,
        }
        table = [{"data": name, **row} for name, rows in parts.items() for row in rows]
        return {"quick": quick, "proposition_1": True, "real": self.real, "table": table}

    # --- parts ------------------------------------------------------------------------------------------------------

    def _load(self, name: str) -> Workload:
        scale = {"tpch": self.scale.tpch, "debs": self.scale.debs}.get(name.partition("-")[0], 1.0)
        loaded = workload(name, self.folder, scale=scale, shared=shared_data())
        self.real[name] = loaded.real
        return loaded

    def _model(self, loaded: Workload) -> None:
        windows = runs.hashes_of(loaded, self.scale.windows)
        rows = runs.model(loaded.name, windows)
        self.modelled += rows
        for v in WORKERS:
            one, several = (select(runs.window_keys(windows, v), splitters=p) for p in (1, None))
            self.selections.append(_selection([row for row in rows if row.workers == v], one, several))
        if loaded.name in (SKEWED, TAXIS):
            self.split += runs.several_splitters(loaded.name, windows, SPLITTERS, _SPLIT_WORKERS)

    def _latency(
        self,
        question: on_spark.Question,
        files: Sequence[on_spark.WindowFile],
        contestants: Sequence[Partitioning | None],
        step: Callable[[], None],
    ) -> dict[str, list[float]]:
        """Mean seconds of each contestant, by number of workers."""
        rows = sum(file.rows for file in files) / len(files)
        means: dict[str, list[float]] = {}
        for v in self.scale.workers:
            found = on_spark.latencies(
                self.spark, files, question, contestants, workers=v, repeats=self.scale.repeats, step=step
            )
            for label, seconds in found.items():
                mean = float(np.mean(seconds))
                means.setdefault(label, []).append(mean)
                row = {"query": question.name, "policy": label, "workers": v, "rows": round(rows)}
                self.latency.append(row | {"mean_seconds": round(mean, 4)})
        return means

    def _figures(self, latency: dict[str, list[float]]) -> dict[str, float]:
        def gain(over: Partitioning) -> float:
            """Latency of a policy over that of cAM-2, the mean over the numbers of workers."""
            return float(np.mean(np.divide(latency[over.label], latency[CAM_2.label])))

        def imbalance(policy: str) -> float:
            rows = [r for r in self.modelled if r.workload == SKEWED and r.policy == policy]
            return float(np.mean([row.imbalance_vs_fld for row in rows]))

        def worst(policy: str) -> float:
            return max(cost.assign for cost in self.costs if cost.policy == policy)

        whole = {policy.label for policy in runs.WHOLE}
        costs = [row.cost_vs_fld for row in self.modelled if row.policy in whole]
        return {
            "cam2_vs_pk2_latency": gain(PK_2),
            "cam2_vs_fld_latency": gain(FLD),
            "cam2_imbalance_vs_fld": imbalance(CAM_2.label),
            "cam5_imbalance_vs_fld": imbalance(CAM_5.label),
            "am_cost_vs_fld": max(costs, key=lambda cost: abs(cost - 1.0)),
            "am2_ns_per_tuple": worst(AM_2.label),
            "lm2h_ns_per_tuple": worst(LM_2_H.label),
        }

    # --- tables -----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        for name in NAMES:
            rows = [row for row in self.modelled if row.workload == name]
            size = f"windows {rows[0].windows}, tuples {rows[0].tuples:,.0f}, keys {rows[0].keys:,.0f}"
            self._table(
                f"{name} ({'real' if self.real[name] else 'generated'}; {size}), {_EACH}",
                ("policy", "tuple imbalance", "key imbalance", "hybrid", "aggregation cost"),
                (_model_row(rows, policy.label) for policy in runs.TABLE_2),
            )
        checked = sum(row.windows for row in self.modelled)
        self.console.print(
            f"Proposition 1 holds in all {checked:,} windows: keys <= aggregation cost <= workers x keys.\n"
        )
        self._table(
            f"Several splitters that share nothing, {_SPLIT_WORKERS} workers",
            ("workload", "policy", "splitters", "imbalance", "/ FLD", "aggregation cost", "/ keys"),
            map(_split_row, self.split),
            sections=True,
        )
        names = ("workload", "workers", "best", "chosen", "chosen_vs_best", "chosen_with_several_splitters")
        self._table(
            "The choice of auto, and the policy with the shortest evaluation + aggregation",
            ("workload", "workers", "best", "auto", "auto / best", "auto, several splitters"),
            ([row[name] for name in names] for row in self.selections),
            sections=True,
        )
        self._table(
            f"Cost of partitioning routes, {_EACH}; memory for {self.scale.keys:,} keys",
            ("policy", "ns/tuple", "with hash", "megabytes", "published"),
            (_cost_row(self.costs, policy.label) for policy in runs.TABLE_2),
        )
        named = [row | {"query": f"{row['query']}, V = {row['workers']}"} for row in self.latency]
        first = {row["query"]: row["mean_seconds"] for row in reversed(named)}
        self._table(
            f"Latency on Spark, {self.latency[0]['rows']:,} trips in a window, V workers",
            ("query", "policy", "mean s", "/ first"),
            (_latency_row(row, first[row["query"]]) for row in named),
            sections=True,
        )

    def _table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, sections: bool = False
    ) -> None:
        """Print a table. With `sections`, a line separates rows whose first column differs."""
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        last: object = None
        for row in rows:
            if sections and last is not None and row[0] != last:
                table.add_section()
            last = row[0]
            table.add_row(*map(str, row))
        self.console.print(table)


def _selection(rows: Sequence[runs.Modelled], one: Selected, several: Selected) -> dict[str, Any]:
    """The choice of the rule for a workload and a number of workers, and the best policy by the model."""
    best = runs.best(rows)
    chosen = next(row for row in rows if row.policy == one.partitioning.label)
    return {
        "workload": best.workload,
        "workers": best.workers,
        "best": best.policy,
        "chosen": chosen.policy,
        "chosen_vs_best": round(chosen.path / best.path, 3),
        "chosen_with_several_splitters": several.partitioning.label,
        "why": one.why,
    }


def _model_row(rows: Sequence[runs.Modelled], policy: str) -> Sequence[str]:
    mine = [row for row in rows if row.policy == policy]
    metrics = ("tuple_imbalance", "cardinality_imbalance", "hybrid_imbalance", "aggregation_cost")
    return policy, *(_three([getattr(row, metric) for row in mine]) for metric in metrics)


def _split_row(row: runs.Modelled) -> Sequence[object]:
    imbalance, cost = f"{row.imbalance_vs_fld:.2f}", f"{row.aggregation_cost / row.keys:.2f}"
    shorts = _short(row.tuple_imbalance), _short(row.aggregation_cost)
    return row.workload, row.policy, row.splitters, shorts[0], imbalance, shorts[1], cost


def _cost_row(costs: Sequence[runs.Cost], policy: str) -> Sequence[str]:
    mine = [cost for cost in costs if cost.policy == policy]
    sizes = [(cost.bytes, cost.paper_bytes) for cost in mine if cost.paper_bytes is not None]
    memory = (_three(each[i] / 1e6 for each in sizes) for i in (0, 1))
    return policy, _three(c.assign for c in mine), _three(c.assign + c.hash for c in mine), *memory


def _latency_row(row: dict[str, Any], first: float) -> Sequence[str]:
    mean = row["mean_seconds"]
    return row["query"], row["policy"], f"{mean:.3f}", f"{mean / first:.2f}"


def _three(values: Iterable[float]) -> str:
    """A number for each number of workers."""
    return " ".join(f"{_short(value):>4}" for value in values)


def _short(value: float) -> str:
    """In four characters: 0.03, 4.2, 42, 1.2k, 12k, 1.2M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:
            return f"{value / unit:.1f}{name}" if value < 9.95 * unit else f"{value / unit:.0f}{name}"
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
