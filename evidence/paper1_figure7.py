"""Paper 1, figures 7(a) and 7(b): how the strategies scale with the number of nodes, at size/slide = 100.

The paper has 1 to 4 machines as nodes. Here the nodes are cores of this machine; each number of cores runs in a new
process with its own Spark. Figure 7(a) also shows how busy the split is: here, the share of the time that the split
alone takes. With one node, window partitioning in the paper makes no copies, because all rows go to that node. Spark's
plan always copies, so the paper's drop from one node to two does not appear here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from common import Shape, arguments, report, save_plot
from paper1_figure6 import split

import anabranch as ab
from anabranch.local.session import local_session
from anabranch.windows import Window
from benchmarks.data import Events, write_parts
from benchmarks.report import best_of, drain

OVERLAP = 100
BATCHES = (2, 10, 33, 50)
EVENTS = Events(seconds=200, rate=20_000, keys=200, every_key=True)
COPIES = 20_000_000
WORKER = "--worker"


def strategies() -> list[tuple[str, int]]:
    return [("pane", 1), *(("batch", b) for b in BATCHES), ("window", 1)]


def label(kind: str, batch: int) -> str:
    return f"batch B={batch}" if kind == "batch" else kind


def work(cores: int, whole: str, part: str, rows: tuple[int, int], repeats: int) -> dict[str, dict[str, float]]:
    """Runs in a new process: rows/s of each strategy on that many cores, and the split's share of the time."""
    spark = local_session(cores=cores, shuffle_partitions=2 * cores, app_name="paper 1, figure 7")
    results: dict[str, dict[str, float]] = {}
    for kind, batch in strategies():
        name, n = label(kind, batch), rows[0] if kind == "pane" else rows[1]
        source = spark.read.parquet(whole if kind == "pane" else part)
        windows = ab.stream(source, time="t").window(size=f"{OVERLAP} s", slide="1 s").by("key")
        query = windows.agg(n=ab.count(), low=ab.min("v"), high=ab.max("v"), mean=ab.avg("v")).using(kind, batch=batch)
        frame = query.to_df()
        drain(frame)
        seconds = best_of(repeats, partial(drain, frame))
        alone = split(source, Window.of_time(f"{OVERLAP} s", "1 s"), name)
        busy = best_of(repeats, partial(drain, alone))
        results[name] = {"rate": n / seconds, "split_share": min(1.0, busy / seconds)}
    return results


def main() -> None:
    options = arguments(__doc__ or "")
    nodes = list(range(1, (os.cpu_count() or 1) + 1))
    repeats = 1 if options.quick else 3
    table = EVENTS.table().slice(0, EVENTS.rows // (10 if options.quick else 1))
    n = min(table.num_rows, COPIES // OVERLAP // (10 if options.quick else 1))
    measured: dict[int, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="anabranch-paper1-") as folder:
        whole = write_parts(table, Path(folder) / "all", 8)
        part = write_parts(table.slice(0, n), Path(folder) / "part", 8)
        for cores in nodes:
            job = json.dumps([cores, str(whole), str(part), [table.num_rows, n], repeats])
            command = [sys.executable, __file__, WORKER, job]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            measured[cores] = json.loads(done.stdout.splitlines()[-1])
            for name, result in measured[cores].items():
                print(f"{cores} node(s)  {name:11s} {result['rate']:12,.0f} rows/s", flush=True)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.plot(nodes, [measured[c]["pane"]["rate"] / 1000 for c in nodes], marker="o", label="pane")
        left.plot(nodes, [measured[1]["pane"]["rate"] * c / 1000 for c in nodes], ls="--", color="grey", label="linear")
        left.set(
            title="7(a): pane partitioning", xlabel="nodes (cores)", ylabel="thousand rows/s", xticks=nodes, ylim=0
        )
        busy = left.twinx()
        shares = [100 * measured[c]["pane"]["split_share"] for c in nodes]
        busy.bar(nodes, shares, width=0.2, alpha=0.25, label="split's share")
        busy.set(ylabel="split's share of the time, %", ylim=(0, 100))
        left.legend(loc="upper left")
        for kind, batch in strategies()[1:]:
            name = label(kind, batch)
            right.plot(nodes, [measured[c][name]["rate"] / 1000 for c in nodes], marker="o", label=name)
        right.set(
            title="7(b): window and batch", xlabel="nodes (cores)", ylabel="thousand rows/s", xticks=nodes, ylim=0
        )
        right.legend()

    plot = save_plot("paper1_figure7", draw, (11, 4.5))
    report("paper1_figure7", _shapes(measured, nodes), {"measured": measured}, plot, options.json)


def _shapes(measured: dict[int, dict[str, dict[str, float]]], nodes: list[int]) -> list[Shape]:
    last = nodes[-1]
    gain = {name: measured[last][name]["rate"] / measured[1][name]["rate"] for name in measured[1]}
    top = {name: result["rate"] for name, result in measured[last].items()}
    others = max(rate for name, rate in top.items() if name != "pane")
    shapes = [
        Shape(
            "pane partitioning is far ahead of the others",
            top["pane"] > 3 * others,
            f"{top['pane'] / others:.0f} times",
        ),
        Shape(
            "batch partitioning is better than window partitioning",
            top["batch B=50"] > top["window"],
            f"B=50 is {top['batch B=50'] / top['window']:.2f} times window",
        ),
        Shape(
            "larger batches gain less and less",
            top["batch B=50"] / top["batch B=33"] < top["batch B=10"] / top["batch B=2"],
            f"B=2 to 10: {top['batch B=10'] / top['batch B=2']:.2f}, "
            f"B=33 to 50: {top['batch B=50'] / top['batch B=33']:.2f}",
        ),
    ]
    if last > 1:
        shapes.append(
            Shape(
                "pane partitioning scales near to linearly", gain["pane"] > 0.7 * last, f"{gain['pane']:.2f} on {last}"
            )
        )
    return shapes


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        cores, whole, part, rows, repeats = json.loads(sys.argv[2])
        print(json.dumps(work(cores, whole, part, tuple(rows), repeats)))
    else:
        main()
