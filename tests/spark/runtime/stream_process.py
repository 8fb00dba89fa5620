"""A stream in a process of its own, so that it can be killed and started again.

    python -m tests.spark.runtime.stream_process INPUT OUTPUT CHECKPOINT

It reads all files in INPUT, one per micro-batch, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.local.session import local_session
from tests.spark.streams import Feed


def windows(spark: SparkSession, folder: Path, strategy: str = "pane") -> DataFrame:
    """The query: batches of three windows; with panes a user-defined aggregate as well."""
    rows = ab.stream(Feed(folder).stream(spark), time="at", watermark="4 s").window(size="7 s", slide="2 s").by("key")
    aggregates = {"n": ab.count(), "total": ab.sum("value"), "last": ab.last("value")}
    if strategy == "pane":
        word = ab.user_aggregate("value", init=str, incr=_longer, merge=_joined, final=str, returns="string")
        aggregates["word"] = word
    return rows.agg(**aggregates).using(strategy, max_delay="4 s").to_df()


def write(frame: DataFrame, output: Path, checkpoint: Path) -> None:
    """Run the stream into Parquet files until all input is read."""
    writer = frame.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    writer.option("path", str(output)).option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def _longer(state: str, value: Any) -> str:
    return f"{state}{value}."


def _joined(earlier: str, later: str) -> str:
    return earlier + later


def main(folder: str, output: str, checkpoint: str) -> None:
    spark = local_session(cores=2, shuffle_partitions=2, app_name="anabranch-stream-process")
    write(windows(spark, Path(folder)), Path(output), Path(checkpoint))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
