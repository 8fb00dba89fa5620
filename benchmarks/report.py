"""Timing, tables and JSON that all benchmarks share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True)
class Measured:
    """One contestant at one setting: the best of several runs, because noise only adds time."""

    name: str
    setting: str
    rows: int
    seconds: float
    delivered: int | None = None

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    def to_json(self) -> dict[str, Any]:
        delivered = None if self.delivered is None else round(self.delivered / self.seconds)
        return {
            "name": self.name,
            "setting": self.setting,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rate),
            "delivered_per_second": delivered,
        }


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def drain(frame: DataFrame) -> None:
    """Make Spark compute every row and column, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def progress(console: Console) -> Progress:
    """The progress line of a benchmark."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def show(console: Console, title: str, measured: Sequence[Measured]) -> None:
    """Print the measurements as a table."""
    table = Table(title=title, title_justify="left")
    for column in ("setting", "contestant"):
        table.add_column(column)
    for column in ("rows", "seconds", "rows/s", "delivered/s"):
        table.add_column(column, justify="right")
    last = None
    for m in measured:
        if last is not None and m.setting != last:
            table.add_section()
        last = m.setting
        delivered = "" if m.delivered is None else f"{m.delivered / m.seconds:,.0f}"
        table.add_row(m.setting, m.name, f"{m.rows:,}", f"{m.seconds:.2f}", f"{m.rate:,.0f}", delivered)
    console.print(table)


def show_ratios(
    console: Console, ratios: Mapping[str, float], goals: Mapping[str, float], limits: Mapping[str, float] | None = None
) -> None:
    """Print the figures beside their goals: the least or the most that each should be."""
    table = Table(title="Figures", title_justify="left")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("at least", justify="right")
    if limits:
        table.add_column("at most", justify="right")
    for name, value in ratios.items():
        bounds = [goals.get(name), *([limits.get(name)] if limits else [])]
        table.add_row(name, f"{value:,.2f}", *("" if bound is None else f"{bound:g}" for bound in bounds))
    console.print(table)


def print_json(ratios: Mapping[str, float], tables: Mapping[str, Sequence[Measured]], **more: Any) -> None:
    """Print one JSON object on one line: the last line on standard output."""
    figures = {name: round(value, 3) for name, value in ratios.items()}
    table = [{"data": data, **m.to_json()} for data, measured in tables.items() for m in measured]
    print(json.dumps({**figures, **more, "table": table}), flush=True)
