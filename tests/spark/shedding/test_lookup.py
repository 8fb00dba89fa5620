"""The early drop as Spark evaluates it, beside the ranges that it was made of."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from anabranch.shedding.lookup import Lookup

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TIMES = [None, INT64_MIN + 100, INT64_MAX, *range(-60, 60)]
Ranges = list[list[tuple[int, int]]]


def some_ranges(rng: random.Random, buckets: int) -> Ranges:
    starts = [[rng.randrange(-9, 9) for _ in range(rng.randrange(3))] for _ in range(buckets)]
    return [[(lo, lo + rng.randrange(-1, 5)) for lo in bucket] + [(g, g)] for g, bucket in enumerate(starts)]


def test_a_row_is_left_out_iff_its_place_is_in_a_range(spark: SparkSession) -> None:
    rng = random.Random(1)
    rows = spark.createDataFrame([(t, g) for t in TIMES for g in range(3)], "t bigint, g bigint")
    cases = [
        (some_ranges(rng, buckets), buckets, pane, origin)
        for buckets in (1, 3)
        for pane, origin in ((1, 0), (3, 0), (7, -2), (5, 4))
        for _ in range(3)
    ]
    columns = []
    for ranges, buckets, pane, origin in cases:
        lookup = Lookup.of(ranges)
        assert lookup is not None
        columns.append(lookup.left_out(F.col("t"), F.col("g") if buckets > 1 else None, pane, origin))
    for row in rows.select("t", "g", *(column.alias(f"c{i}") for i, column in enumerate(columns))).collect():
        for i, (ranges, buckets, pane, origin) in enumerate(cases):
            bucket = ranges[row.g] if buckets > 1 else ranges[0]
            gone = row.t is not None and any(lo <= (row.t - origin) // pane <= hi for lo, hi in bucket)
            assert row[f"c{i}"] is gone, (row, ranges, pane, origin)


def test_a_table_that_would_be_too_large_ends_early(spark: SparkSession) -> None:
    lookup = Lookup.of([[(5, 5), (900, 1000)], [(6, 50)]], most=200)
    assert lookup is not None and len(lookup.table) <= 200
    rows = spark.range(0, 1100)
    for bucket, left in ((0, [5]), (1, list(range(6, 51)))):
        gone = rows.where(lookup.left_out(F.col("id"), F.lit(bucket)))
        assert [row.id for row in gone.sort("id").collect()] == left


def test_ranges_beyond_all_times_leave_nothing_out(spark: SparkSession) -> None:
    lookup = Lookup.of([[(2**62, 2**62 + 1)]])
    assert lookup is not None
    assert spark.range(3).where(lookup.left_out(F.col("id"), None, pane=10)).count() == 0
