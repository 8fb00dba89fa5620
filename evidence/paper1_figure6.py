"""Paper 1, figure 6: throughput of the split, by strategy and overlap of windows.

The split is the step between the source and the workers. It marks each row with its window, batch or pane ids, copies
it as often as needed, and sends the copies to their workers: here id columns, `explode`, and Spark's exchange. In the
paper the split also feeds aggregates; here it runs alone, so that nothing else limits it.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from common import Shape, arguments, report, save_plot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.local.session import local_session
from anabranch.spark.columns import floordiv
from anabranch.windows import Window
from anabranch.windows.ids import batch_window, first_window, last_window, pane_of
from benchmarks.data import Events, write_parts
from benchmarks.report import best_of, drain

OVERLAPS = (1, 2, 5, 10, 20, 50, 100)
BATCHES = (2, 5, 10)
COPIES = 10_000_000


def split(rows: DataFrame, window: Window, strategy: str) -> DataFrame:
    """The rows as they leave the split."""
    at = F.unix_micros("t")
    if strategy == "pane":
        marked = rows.withColumn("id", pane_of(at, window.slide, 0, floordiv))
    else:
        outer = window if strategy == "window" else batch_window(window, int(strategy.removeprefix("batch B=")))
        ids = F.sequence(first_window(at, outer, floordiv), last_window(at, outer, floordiv))
        marked = rows.withColumn("id", F.explode(ids))
    return marked.repartition("id")


def main() -> None:
    options = arguments(__doc__ or "")
    events = Events(seconds=10 if options.quick else 100, rate=20_000, keys=200, every_key=True)
    spark = local_session(app_name="paper 1, figure 6")
    strategies = ["pane", *(f"batch B={b}" for b in BATCHES[::-1]), "window"]
    rates: dict[str, list[float]] = {name: [] for name in strategies}
    with tempfile.TemporaryDirectory(prefix="anabranch-paper1-") as folder:
        table = events.table()
        whole = write_parts(table, Path(folder) / "all", 4)
        drain(split(spark.read.parquet(str(whole)), Window.of_time("1 s"), "pane"))
        for overlap in OVERLAPS:
            window = Window.of_time(f"{overlap} s", "1 s")
            for name in strategies:
                copies = {"pane": 1.0, "window": window.overlap}.get(name)
                if copies is None:
                    copies = batch_window(window, int(name.removeprefix("batch B="))).overlap
                n = int(min(table.num_rows, COPIES / copies / (10 if options.quick else 1)))
                part = Path(folder) / f"rows-{n}"
                if not part.exists():
                    write_parts(table.slice(0, n), part, 4)
                frame = split(spark.read.parquet(str(part)), window, name)
                rates[name].append(n / best_of(1 if options.quick else 3, partial(drain, frame)))
                print(f"size/slide {overlap:4d}  {name:11s} {rates[name][-1]:12,.0f} rows/s", flush=True)
    spark.stop()

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name in strategies:
            axes.plot(OVERLAPS, [r / 1000 for r in rates[name]], marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="window size / slide", ylabel="thousand rows/s through the split")
        axes.set_title("Paper 1, figure 6: throughput of the split")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot("paper1_figure6", draw)
    report("paper1_figure6", _shapes(rates), {"overlaps": OVERLAPS, "rows_per_second": rates}, plot, options.json)


def _shapes(rates: dict[str, list[float]]) -> list[Shape]:
    pane, window = rates["pane"], rates["window"]
    flat = min(pane) / max(pane)
    fall = window[0] / window[-1]
    order = [rates[name][-1] for name in rates]
    # Copies grow linearly with the overlap, so the rate times the overlap should stay within a small factor.
    work = [rate * overlap for rate, overlap in zip(window[2:], OVERLAPS[2:], strict=True)]
    return [
        Shape("pane partitioning does not depend on the overlap", flat > 0.5, f"slowest/fastest {flat:.2f}"),
        Shape("window partitioning is the slowest and falls as windows overlap", fall > 10, f"{fall:.0f} times slower"),
        Shape("the cost of the split grows linearly", max(work) / min(work) < 4, f"within {max(work) / min(work):.1f}"),
        Shape("the larger the batch, the faster", order == sorted(order, reverse=True), "pane, B=10, 5, 2, window"),
    ]


if __name__ == "__main__":
    main()
