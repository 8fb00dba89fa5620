"""What a notebook shows of streams and queries: one line each, without a Spark job."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from tests.spark.streams import Feed

STREAM = "<Stream [at: timestamp, key: string, value: bigint], time 'at', streaming>"


def test_reprs_say_what_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(1, "a", 1)])
    stream = ab.stream(feed.stream(spark), time="at", watermark="10 seconds")
    windows = stream.window(size="5 min", slide="10 s").by("key")
    aggregation = windows.agg(n=ab.count(), most=ab.max("value"))
    joined = stream.join(stream, on="key", within=("1 min", "0 s"), how="left")
    processed = stream.process(ab.Operator, "key string, n bigint", by="key")
    assert repr(stream) == STREAM
    assert repr(windows) == f"<Windowed windows 5 min / 10 s by key of {STREAM}>"
    assert (
        repr(aggregation)
        == f"<Aggregation n = count(), most = max(value) over windows 5 min / 10 s by key of {STREAM}>"
    )
    assert repr(joined) == (
        "<Joined [key: string, at: timestamp, value: bigint, at_right: timestamp, value_right: bigint], left on key "
        f"within 1 min, 0 s, of {STREAM} and {STREAM}>"
    )
    assert repr(processed) == (
        "<Processed operator Operator, by key, in 60 groups: rows [key: string, n: bigint]>".replace(
            "rows", processed.outputs[0]
        )
    )


def test_wide_rows_and_times_of_other_types(spark: SparkSession) -> None:
    wide = spark.range(1).select(F.lit(5).alias("t"), *(F.lit(i).alias(f"c{i}") for i in range(10)))
    shown = repr(ab.stream(wide, time="t"))
    assert shown.startswith("<Stream [t: int, c0: int, c1: int,")
    assert shown.endswith("c6: int, 3 more], time 't', bounded>")
