"""Seven queries over a recording, in a process of their own, so that it can be killed and started again.

    python -m tests.chaos.jobs aggregates --input in/ --folder run/ [--master "local[2,4]"]

| job | what it shows |
|---|---|
| `aggregates` | sliding windows by key; the last bits of a float's sum tell in which order it was added up |
| `split` | a split with broadcasts, and an operator's running totals: a row lost or taken twice shows ever after |
| `nested` | windows over windows, so that one epoch is two Spark jobs |
| `placed` | an aggregate in Python over keys that a policy places, which changes; sums of floats tell who added what |
| `joined` | a join whose groups change their worker in every epoch, and find no state there: it comes from the log |
| `shed` | windows dropped, in every epoch another share and elsewhere; counted windows, too; and the list of them |
| `linearroad` | all of Linear Road, from blocks: cars' accounts, broadcast queries, an aggregation tree, six outputs |

A job has all its files in `folder/NAME`: `output`, `checkpoint` and `live`. It reads the whole recording in epochs of
`ROWS_PER_EPOCH` rows, and ends. Some rows come late, so that the side output has its share, too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.linearroad.generate import Trace, Traffic, write_trace
from anabranch.linearroad.operator import Road
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import Mode
from anabranch.local.session import local_session
from anabranch.query.deliveries import Delivery
from anabranch.runtime.execution import join as join_execution
from anabranch.runtime.shedding import planner
from anabranch.types import EpochQuery, State, Stream
from tests import quick_java
from tests.wandering import Wandering, WanderingShed

ROWS_PER_EPOCH = 20_000
"""Enough for two partitions of the source: an order of rows that an exchange could change."""
EPOCH_SECONDS = 4
ROAD_SECONDS = 30
"""Of the traffic of Linear Road, per epoch."""
CELLS, VEHICLES = 40, 500
SNAPSHOT_EVERY = 4
"""Seldom enough that a restore has blocks to fold in again."""


# --- the recording --------------------------------------------------------------------------------------------------


def record(folder: Path, epochs: int, rows_per_epoch: int = ROWS_PER_EPOCH, seed: int = 7) -> None:
    """Write a recording of so many epochs; the same for the same seed."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    rows = epochs * rows_per_epoch
    # A row in twenty has the time of another, and a few come after the watermark has passed them.
    times = np.sort(rng.integers(0, epochs * EPOCH_SECONDS * 1_000, rows)) * 1_000
    late = (rng.random(rows) < 1e-4) & (np.arange(rows) // rows_per_epoch % 5 == 3)
    times = np.where(late, np.maximum(times - 20_000_000, 0), times)
    table = pa.table(
        {
            "at": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "cell": pa.array([f"cell-{i:02d}" for i in range(CELLS)]).take(pa.array(rng.integers(0, CELLS, rows))),
            "vehicle": rng.integers(0, VEHICLES, rows),
            "speed": rng.normal(80, 25, rows),
            "alarm": rng.random(rows) < 0.002,
        }
    )
    pq.write_table(table, folder / "recording.parquet", row_group_size=rows_per_epoch // 2)
    pq.write_table(table.filter(pc.field("alarm")).select(["at", "cell", "vehicle"]), folder / "alarms.parquet")
    traffic = Traffic(expressways=2, seconds=max(60, ROAD_SECONDS * epochs), seed=seed, peak_rate=500)
    write_trace(folder / "road", traffic, formats=("blocks",))


# --- the queries ----------------------------------------------------------------------------------------------------


def aggregates(rows: Stream) -> Any:
    return (
        rows.window(size="10 s", slide="2 s")
        .by("cell")
        .agg(
            rows=ab.count(),
            mean=ab.avg("speed"),
            total=ab.sum("speed"),
            low=ab.min("speed"),
            high=ab.max("speed"),
            vehicles=ab.count_distinct("vehicle"),
        )
    )


def split(rows: Stream) -> Any:
    totals = "grp bigint, at bigint, rows bigint, alarms bigint, speed double, vehicles bigint"
    parts = rows.split(8, route=by_vehicle, broadcast=is_alarm, splitters=2, window_bytes=100_000)
    return parts.process(Totals, totals)


def nested(rows: Stream) -> Any:
    per_cell = rows.window(size="3 s", slide="1 s").by("cell").agg(n=ab.count(), mean=ab.avg("speed"))
    return per_cell.window(size="12 s", slide="4 s").agg(
        windows=ab.count(), rows=ab.sum("n"), mean=ab.avg("mean"), fastest=ab.max("mean")
    )


def linearroad(spark: SparkSession, recording: Path, output: Path) -> list[Delivery]:
    trace = Trace.load(recording / "road")
    per_epoch = -(-trace.tuples * ROAD_SECONDS // trace.seconds)
    history, usual = str(trace.history_file), str(trace.segment_history_file)
    return linear_road(
        recorded(spark, trace.folder / "blocks", rows_per_epoch=per_epoch),
        Road(Mode.PAPER, trace.expressways, trace.expressways, history, usual),
        output,
        # Not tuned: files are compared byte by byte, and the order of equal times depends on the splitters.
        splitters=2,
        window_bytes=100_000,
    )


def by_policy(rows: Stream) -> Any:
    total = ab.user_aggregate(
        "speed",
        init=lambda: [0.0, 0.0],
        incr=lambda state, speed: [state[0] + 1.0, state[1] + speed],
        merge=lambda a, b: [a[0] + b[0], a[1] + b[1]],
        final=lambda state: state[1],
        returns="double",
        state="array<double>",
    )
    # 500 vehicles in an epoch's 20,000 rows: many, so `auto` goes from cAM to the shared table.
    return rows.window(size="4 s", slide="2 s").by("vehicle", workers=3).agg(speed=total)


def joined(spark: SparkSession, recording: Path, output: Path, rows_per_epoch: int) -> list[Delivery]:
    # From two sources, as many epochs of each.
    per_epoch = {
        "alarms": -(-pq.read_metadata(recording / "alarms.parquet").num_rows * rows_per_epoch // _rows(recording))
    }
    sides = []
    for name in ("alarms", "recording"):
        rows = ab.replay(
            spark, recording / f"{name}.parquet", time="at", rows_per_epoch=per_epoch.get(name, rows_per_epoch)
        )
        sides.append(ab.stream(rows, time="at", watermark="1 s"))
    tuning = ab.JoinTuning(theta=2, block=16)
    near = sides[0].join(sides[1], on="cell", within=("200 ms", "300 ms"), how="left", groups=12, tuning=tuning)
    return [near.to(ab.FileSink(output))]


def _rows(recording: Path) -> int:
    return int(pq.read_metadata(recording / "recording.parquet").num_rows)


def shed(rows: Stream, output: Path) -> list[Delivery]:
    per_cell = rows.window(size="2 s", slide="1 s").by("cell").agg(n=ab.count(), mean=ab.avg("speed"))
    longer = per_cell.window(size="6 s", slide="2 s").by("cell").agg(n=ab.sum("n"), fastest=ab.max("mean"))
    count_windows = rows.filter("vehicle < 50").window(rows=100, slide_rows=60).by("cell").agg(mean=ab.avg("speed"))
    return [
        per_cell.to(ab.FileSink(output / "cells"), max_gap=8),
        longer.to(ab.FileSink(output / "longer"), weight=2.0),
        count_windows.to(ab.FileSink(output / "counted")),
    ]


JOBS = ("aggregates", "split", "nested", "placed", "joined", "shed", "linearroad")


def deliveries(
    spark: SparkSession, name: str, recording: Path, output: Path, rows_per_epoch: int
) -> Sequence[Delivery]:
    """What a job delivers, into that folder."""
    if name == "linearroad":
        return linearroad(spark, recording, output)
    if name == "joined":
        return joined(spark, recording, output, rows_per_epoch)
    source = ab.replay(spark, recording / "recording.parquet", time="at", rows_per_epoch=rows_per_epoch)
    if name == "shed":
        return shed(ab.stream(source, time="at", watermark="1 s"), output)
    queries = {"aggregates": aggregates, "split": split, "nested": nested, "placed": by_policy}
    query = queries[name]
    return [query(ab.stream(source, time="at", watermark="1 s")).to(ab.FileSink(output))]


def by_vehicle(block: pa.RecordBatch, q: int) -> Any:
    return block.column("vehicle").to_numpy() % q


def is_alarm(block: pa.RecordBatch) -> Any:
    return block.column("alarm")


class Totals(ab.Operator):
    """Running totals in an array that grows, and the vehicles seen in a table: both kinds of state."""

    def open(self, state: State) -> None:
        self.state = state
        self.total = state.array("total", np.float64, 3)
        self.at = state.array("at", np.int64, 1)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        alarms = block.column("alarm").to_numpy(zero_copy_only=False)
        # Added one by one: the sum has the order of the rows in its last bits.
        for speed in block.column("speed").to_numpy()[:200]:
            self.total[2] += speed
        self.total[0] += block.num_rows
        self.total[1] += alarms.sum()
        known = self.state.table("vehicles")
        vehicles = np.unique(block.column("vehicle").to_numpy())
        if known is not None:
            vehicles = np.union1d(known.column("vehicle").to_numpy(), vehicles)
        self.state.put("vehicles", pa.table({"vehicle": vehicles}))
        yield from ()

    def on_watermark(self, t: int) -> Iterator[pa.RecordBatch]:
        # Once a second of event time, which is several times an epoch or not at all.
        vehicles = self.state.table("vehicles")
        while self.at[0] + 1_000_000 <= t:
            self.at[0] += 1_000_000
            yield pa.RecordBatch.from_pydict(
                {
                    "grp": [self.group],
                    "at": [int(self.at[0])],
                    "rows": [int(self.total[0])],
                    "alarms": [int(self.total[1])],
                    "speed": [float(self.total[2])],
                    "vehicles": [0 if vehicles is None else len(vehicles)],
                }
            )


# --- how they run ---------------------------------------------------------------------------------------------------


def session(master: str) -> SparkSession:
    """A session, local or on a cluster. It allows failures of a task, and has the same parallelism everywhere."""
    return local_session(
        shuffle_partitions=2,
        app_name="anabranch-chaos",
        config={
            "spark.master": master,
            "spark.default.parallelism": "2",
            "spark.task.maxFailures": "8",
            "spark.cores.max": "2",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "spark.executor.extraJavaOptions": quick_java.options(),
        },
    )


def start(
    spark: SparkSession,
    name: str,
    recording: Path,
    folder: Path,
    *,
    rows_per_epoch: int = ROWS_PER_EPOCH,
    **settings: Any,
) -> EpochQuery:
    """Start a job, or start it again."""
    found = deliveries(spark, name, recording, folder / name / "output", rows_per_epoch)
    # By the clock groups would move at other times in every run, and files are compared byte by byte.
    Wandering.live = None
    vars(join_execution)["Rebalance"] = Wandering
    if name == "shed":
        vars(planner)["ShedController"] = WanderingShed
        report = ab.FileSink(folder / name / "output" / "report")
        settings = {"qos": ab.QoS(max_gap=5, max_latency="1 minute"), "report": report, **settings}
    places = {"checkpoint": folder / name / "checkpoint", "live": folder / name / "live"}
    usual = {**places, "trigger": "available-now", "snapshot_every": SNAPSHOT_EVERY, "workers": 2}
    query = ab.start(*found, **{**usual, **settings})
    Wandering.live = query._runner.settings.live.path
    return query


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run jobs over a recording, and end.")
    parser.add_argument("names", nargs="+", choices=JOBS)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", default="local[2,8]")
    given = parser.parse_args(arguments)
    spark = session(given.master)
    for name in given.names:
        start(spark, name, given.input, given.folder).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Under its own name: workers import the operator from there, and `__main__` would be sent by value.
    from tests.chaos import jobs

    jobs.main()
