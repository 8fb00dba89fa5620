"""Queries in the middle of which an executor loses the shuffle files that it has written.

    python -m tests.chaos.lost_output spark://... folder/

Prints one line of JSON per query: what it gave, and whether files were lost. The rows come through an exchange in an
order that is another one each time, as on a busy network.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from tests.chaos.jobs import session

ROWS, KEYS, WORKERS = 4_000, 97, 8
GUARD = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


class Lose:
    """Deletes the executor's shuffle files, once, when tasks of this stage run on both executors.

    So a task of the other executor has read what was lost here, and goes on with it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        folder.mkdir()

    def __call__(self) -> None:
        local = os.environ["SPARK_LOCAL_DIRS"]
        mine = f"{zlib.crc32(local.encode()):010d}"
        if os.path.exists(f"{self.folder}/{mine}"):
            return
        Path(f"{self.folder}/{mine}").touch()
        until = time.monotonic() + 60
        while len(os.listdir(self.folder)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        if mine == min(os.listdir(self.folder)):
            for each in local.split(","):
                for file in glob.glob(f"{each}/**/shuffle_*", recursive=True):
                    os.remove(file)
            Path(f"{self.folder}/lost").touch()

    @property
    def done(self) -> bool:
        return os.path.exists(f"{self.folder}/lost")


def in_any_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in another order each time that it runs."""
    rows = pa.Table.from_batches(list(batches))
    order = np.random.default_rng(time.time_ns()).permutation(rows.num_rows)
    yield from rows.take(pa.array(order)).combine_chunks().to_batches()


def arriving(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(in_any_order, rows.schema).repartition(4, "k")


def partitioned_twice(spark: SparkSession, policy: str, folder: Path) -> dict[str, object]:
    """A bounded plan, without Spark's own guard."""
    lose = Lose(folder)

    def incr(state: int, value: int) -> int:
        lose()
        return state + value

    total = ab.user_aggregate(
        "v", init=int, incr=incr, merge=lambda a, b: a + b, final=int, returns="bigint", state="bigint"
    )
    rows = spark.range(ROWS).selectExpr("id as t", f"cast(id % {KEYS} as string) as k", "1 as v")
    windows = (
        ab.stream(arriving(rows), time="t", time_unit="us")
        .window(size="1 s")
        .by("k", partition=policy, workers=WORKERS)
    )
    found = {row.k: row.n for row in windows.agg(n=total).to_df().collect()}
    return {"query": policy, "lost": lose.done, "wrong": wrong(found)}


class Counting(ab.Operator):
    """Counts the rows of keys, while files are lost."""

    lose: Lose

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None and context.partitionId() >= WORKERS // 2:  # some have ended by then
            self.lose()
        counts = pa.Table.from_batches([block]).group_by("k").aggregate([([], "count_all")])
        yield from counts.rename_columns(["k", "n"]).to_batches()


def running(spark: SparkSession, folder: Path) -> dict[str, object]:
    """An epoch of the runtime, with keys placed by what a splitter has counted."""
    lose = Lose(folder / "marks")

    def counting() -> Counting:
        operator = Counting()
        operator.lose = lose
        return operator

    rows = spark.range(ROWS).selectExpr("id as t", f"cast(id % {KEYS} as string) as k")
    rows.write.parquet(str(folder / "in"))
    stream = spark.readStream.schema("t bigint, k string").parquet(str(folder / "in"))
    source = ab.stream(arriving(stream), time="t", time_unit="us", watermark="0 s")
    parts = source.process(counting, "k string, n bigint", by="k", groups=WORKERS, partition="sh")
    sink = ab.MemorySink()
    parts.combine(by="k", sums="n").start(
        sink, checkpoint=folder / "checkpoint", live=folder / "live", workers=WORKERS, trigger="available-now"
    ).awaitTermination()
    return {"query": "running", "lost": lose.done, "wrong": wrong({row["k"]: row["n"] for row in sink.rows()})}


def wrong(found: dict[str, int]) -> dict[str, int]:
    expected = {str(key): len(range(key, ROWS, KEYS)) for key in range(KEYS)}
    return {key: found.get(key, 0) for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)}


def main(master: str, folder: Path) -> None:
    spark = session(master)
    print(json.dumps(running(spark, folder)), flush=True)
    print(
        json.dumps(partitioned_twice(spark, "fld", folder / "fld")), flush=True
    )  # with the guard, which must find no difference
    spark.conf.set(GUARD, "false")
    for policy in ("sh", "cam"):
        print(json.dumps(partitioned_twice(spark, policy, folder / policy)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
