"""Trades and quotes of three symbols: a row shares its key with a third of all others, so only time limits the pairs.

The rows are real (`shared_data`: a week of October 2013) or, without that data, generated: bursts of quotes, and a
tenth as many trades. Binary search counts the pairs first (`count_pairs`), and every contestant must find as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.windows import describe
from benchmarks.join_streams import SECOND

SYMBOLS = ("aig", "bac", "ibm")
START = 1_381_152_600 * SECOND  # 7 October 2013, 13:30 UTC; in the files, New York's 9:30 without a zone


@dataclass(frozen=True)
class Ticks:
    """Both tables, in the order of time."""

    trades: pa.Table
    quotes: pa.Table
    real: bool

    @property
    def rows(self) -> int:
        return int(self.trades.num_rows + self.quotes.num_rows)

    def between(self, first: int, last: int) -> Ticks:
        """The rows from second `first` of the recording up to, but not including, second `last`."""
        start = pc.min(self.quotes["ts"]).cast(pa.int64()).as_py()
        begin, end = start + first * SECOND, start + last * SECOND

        def cut(table: pa.Table) -> pa.Table:
            t = table["ts"].cast(pa.int64()).to_numpy()
            return table.slice(int(np.searchsorted(t, begin)), int(np.searchsorted(t, end) - np.searchsorted(t, begin)))

        return Ticks(cut(self.trades), cut(self.quotes), self.real)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """As Parquet files."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / "trades.parquet", folder / "quotes.parquet"
        for path, table in zip(paths, (self.trades, self.quotes), strict=True):
            pq.write_table(table, path, row_group_size=100_000)
        return paths


def ticks(shared: Path | None, *, seconds: int = 3_600, seed: int = 1) -> Ticks:
    """The first `seconds` after the opening of the first day: real rows if there are any."""
    if shared is not None and (shared / "ticks-2013" / "quotes.parquet").is_file():
        tables = (pq.read_table(shared / "ticks-2013" / f"{name}.parquet") for name in ("trades", "quotes"))
        trades, quotes = (t.set_column(1, "ts", t["ts"].cast(pa.timestamp("us", "UTC"))) for t in tables)
        opening = 5 * 3_600 + 1_800  # the files begin at four in the morning
        return Ticks(trades, quotes, True).between(opening, opening + seconds)
    rng = np.random.default_rng(seed)
    return Ticks(_made(rng, 15 * seconds, seconds, "price"), _made(rng, 150 * seconds, seconds, "bid"), False)


def _made(rng: np.random.Generator, rows: int, seconds: int, price: str) -> pa.Table:
    # A third of the rows come in bursts, within milliseconds of each other.
    bursts = rng.integers(0, seconds * 1_000, max(1, rows // 60))
    t = np.where(rng.random(rows) < 0.33, rng.choice(bursts, rows) + rng.integers(0, 5, rows), 0)
    t = np.where(t == 0, rng.integers(0, seconds * 1_000, rows), t)
    return pa.table(
        {
            "symbol": pa.array(SYMBOLS).take(pa.array(rng.choice(3, rows, p=[0.3, 0.45, 0.25]))),
            "ts": pa.array(START + np.sort(t) * 1_000, pa.timestamp("us", "UTC")),
            price: rng.integers(100_000, 2_000_000, rows).astype(np.int32),
            "size": rng.integers(1, 50, rows).astype(np.int32) * 100,
        }
    )


def count_pairs(data: Ticks, window: int) -> int:
    """Trades and quotes of the same symbol at most `window` microseconds apart."""
    total = 0
    for symbol in SYMBOLS:
        a, b = (
            np.sort(t.filter(pc.equal(t["symbol"], symbol))["ts"].cast(pa.int64()).to_numpy())
            for t in (data.trades, data.quotes)
        )
        total += int((np.searchsorted(b, a + window, "right") - np.searchsorted(b, a - window, "left")).sum())
    return total


def frames(spark: SparkSession, paths: tuple[Path, Path]) -> tuple[DataFrame, DataFrame]:
    """The files as DataFrames, with columns renamed so that no name is in both."""
    trades, quotes = (spark.read.parquet(str(path)) for path in paths)
    return trades.withColumnRenamed("size", "volume"), quotes.withColumnRenamed("ts", "quoted")


def ours(spark: SparkSession, paths: tuple[Path, Path], window: int) -> DataFrame:
    """Our join."""
    trades, quotes = frames(spark, paths)
    left, right = ab.stream(trades, time="ts"), ab.stream(quotes, time="quoted")
    return left.join(right, on="symbol", within=(describe(window), describe(window))).to_df()


def sparks(spark: SparkSession, paths: tuple[Path, Path], window: int) -> DataFrame:
    """Spark's equi-join on the symbol, and a filter on the times."""
    trades, quotes = frames(spark, paths)
    apart = F.unix_micros("quoted") - F.unix_micros("ts")
    return trades.join(quotes, "symbol").where(F.abs(apart) <= window)
