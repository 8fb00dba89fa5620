"""Queries that give the same answers on a classic session and on Spark Connect.

`test_connect` runs them in its own process on the classic session. As a program this is a Spark Connect client, which
prints the answers as JSON:

    python -m tests.spark.api.connect_cases sc://127.0.0.1:15002 INPUT OUTPUT

A process of its own, because PySpark decides once per process which of the two its functions are for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import AnabranchError
from tests.spark.streams import Feed, plain

NO_ERROR = "no error"

Answers = dict[str, Any]
"""Queries by name, and what each gives."""


def answers(spark: SparkSession, folder: Path, output: Path) -> dict[str, Answers]:
    """All queries over the rows in `folder`, by topic; streams write below `output`."""
    feed = Feed(folder)
    return {
        "batch": _batch(feed.batch(spark)),
        "planner": _planner(feed.batch(spark)),
        "errors": _errors(feed.batch(spark), feed.stream(spark)),
        "streams": _streams(spark, feed, output),
    }


def _batch(source: DataFrame) -> Answers:
    rows = ab.stream(source, time="at")
    sliding = rows.window(size="7 s", slide="3 s", origin="1 s").by("key")
    numbers = sliding.agg(
        n=ab.count(), total=ab.sum("value"), mean=ab.avg("value"), low=ab.min("value"), last=ab.last("value")
    )
    found: Answers = {
        "pane": sorted_rows(numbers.using("pane").to_df()),
        "batch": sorted_rows(numbers.using("batch", batch=3).to_df()),
        "window": sorted_rows(numbers.using("window").to_df()),
        "auto": sorted_rows(numbers.to_df()),
        "ordered": plain(numbers.order_by_window().toArrow()),
        "without a key": sorted_rows(rows.window(size="7 s", slide="3 s").agg(n=ab.count()).using("pane").to_df()),
        "key of an expression": sorted_rows(
            rows.window(size="7 s", slide="3 s").by((F.col("value") % 2).alias("odd")).agg(n=ab.count()).to_df()
        ),
        "sketches": sorted_rows(
            sliding.agg(
                different=ab.count_distinct("value"),
                about=ab.count_distinct("value", approx=True),
                median=ab.quantile("value", 0.5),
                top=ab.top_k("value", 2),
                all=ab.collect("value"),
                spread=ab.stddev("value"),
            ).to_df()
        ),
        "several windows": sorted_rows(
            rows.windows(("7 s", "3 s"), ("4 s", "2 s")).by("key").agg(n=ab.count(), total=ab.sum("value")).to_df()
        ),
        "count windows": sorted_rows(rows.window(rows=4, slide_rows=3).by("key").agg(all=ab.collect("value")).to_df()),
        "count windows over all keys": sorted_rows(
            rows.window(rows=5, slide_rows=2, per_key=False).by("key").agg(all=ab.collect("value")).to_df()
        ),
        "nested": sorted_rows(
            numbers.filter("n > 1").window(size="9 s", slide="4 s").by("key").agg(most=ab.max("n")).to_df()
        ),
        "transform": sorted_rows(
            source.transform(ab.sliding(time="at", size="6 s", slide="2 s", by="key", n=ab.count()))
        ),
        "bad rows": sorted_rows(rows.bad_rows()),
        "join": sorted_rows(rows.join(rows, on="key", within=("2 s", "1 s"), how="full", where="value < 9").to_df()),
        "join of three": sorted_rows(rows.join(rows, rows, on="key", within=("1 s", "0 s", "1 s")).to_df()),
        "join with a function": sorted_rows(rows.join(rows, on="key", within=("0 s", "0 s"), where=_even)
                                            .window(size="4 s").agg(n=ab.count()).to_df()),
    }  # fmt: skip
    for name, merge in (("with merge", _joined), ("without merge", None)):
        words = ab.user_aggregate("value", init=list, incr=_longer, merge=merge, final=_word, returns="string")
        found[f"user-defined, {name}"] = sorted_rows(sliding.agg(word=words).to_df())
    observation = Observation("rows without a time")
    numbers.to_df(observation=observation).collect()
    found["observation"] = observation.get
    return found


def _planner(source: DataFrame) -> Answers:
    windows = ab.stream(source, time="at").window(size="7 s", slide="3 s").by("key")
    query = windows.agg(n=ab.count(), top=ab.top_k("value", 1))
    sampled = query.sample(1.0)
    return {
        # The plan below the prices is Spark's own, with names of its own.
        "explain": query.explain().split("Spark plan")[0],
        "explain names the kernel": "MapInArrow" in query.explain().split("Spark plan")[1],
        "sample": [sampled.statistics.rows_per_pane, sampled.statistics.source],
        "explain after a sample": sampled.explain().split("Spark plan")[0],
        "explain a join": query.stream.join(query.stream, on="key", within=("1 us", "1 us"))
        .explain()
        .split("Spark plan")[0],
    }


def _errors(source: DataFrame, streaming: DataFrame) -> Answers:
    rows = ab.stream(source, time="at")
    stream = ab.stream(streaming, time="at", watermark="1 s")
    attempts: dict[str, Callable[[], Any]] = {
        "unknown column": lambda: rows.window(size="7 s").agg(total=ab.sum("valeu")),
        "unknown key": lambda: rows.window(size="7 s").by("kee"),
        "filter on an unknown column": lambda: rows.filter("valeu > 1"),
        "join where a column is unknown": lambda: rows.join(rows, on="key", within=("1 us", "1 us"), where="valeu > 1"),
        "join of a stream and a table": lambda: rows.join(stream, on="key", within=("1 us", "1 us")),
        "no watermark": lambda: ab.stream(streaming, time="at"),
        "replaced time of a stream": lambda: stream.select((F.col("at") + F.expr("interval 1 hour")).alias("at")),
        "count windows on a stream": lambda: stream.window(rows=5).agg(n=ab.count()).to_df(),
    }
    return {name: _message(attempt) for name, attempt in attempts.items()}


def _message(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except AnabranchError as error:
        return f"{type(error).__name__}: {error}"
    return NO_ERROR


def _streams(spark: SparkSession, feed: Feed, output: Path) -> Answers:
    given = ab.stream(feed.stream(spark), time="at", watermark="2 s")
    own = ab.stream(feed.stream(spark).withWatermark("at", "2 seconds"), time="at")
    words = ab.user_aggregate("value", init=list, incr=_longer, merge=_joined, final=_word, returns="string")
    other = ab.stream(feed.stream(spark), time="at", watermark="2 s").filter("value is not null")
    queries = {
        "join": given.join(other, on="key", within=("2 s", "1 s"), how="left").to_df(),
        "panes": given.window(size="7 s", slide="3 s").by("key").agg(n=ab.count(), word=words).to_df(),
        "its own watermark": own.window(size="7 s", slide="3 s").agg(n=ab.count()).using("window").to_df(),
    }
    return {name: sorted_rows(_run(spark, windows, output / name)) for name, windows in queries.items()}


def _run(spark: SparkSession, windows: DataFrame, folder: Path) -> DataFrame:
    writer = windows.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    options = {"path": str(folder / "windows"), "checkpointLocation": str(folder / "checkpoint")}
    query = writer.options(**options).start()
    assert query.awaitTermination(120), "the stream did not end"
    return spark.read.schema(windows.schema).parquet(options["path"])


def sorted_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows in an order of their own, with times as microseconds."""
    return sorted(plain(frame.toArrow()), key=repr)


def _even(pairs: pa.RecordBatch) -> Any:
    return pc.equal(pc.bit_wise_and(pairs["value"], 1), 0)


def _longer(state: list[Any], value: int | None) -> list[Any]:
    state.append(value)
    return state


def _joined(earlier: list[Any], later: list[Any]) -> list[Any]:
    return earlier + later


def _word(state: list[Any]) -> str:
    return " ".join(map(str, state))


def refused_start(spark: SparkSession, folder: Path, output: Path) -> Answers:
    """What `start()` says on a session of Spark Connect, and the folders that it leaves."""
    windows = ab.stream(Feed(folder).stream(spark), time="at", watermark="1 s").window(size="2 s").agg(n=ab.count())
    made = output / "start"
    message = _message(lambda: windows.start(ab.FileSink(made / "results"), checkpoint=made / "checkpoint"))
    return {"message": message, "left": made.exists()}


def main(url: str, folder: str, output: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    found = {"session": type(spark).__module__, **answers(spark, Path(folder), Path(output))}
    found["start"] = refused_start(spark, Path(folder), Path(output))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
