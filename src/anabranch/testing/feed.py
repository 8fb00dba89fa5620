"""A stream that a test feeds by hand, epoch by epoch."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from anabranch.api.stream import Stream, stream
from anabranch.errors import InvalidArgumentError
from anabranch.names import EVENT, TICK
from anabranch.spark.arrow import arrow_schema
from anabranch.spark.column_names import column_name
from anabranch.spark.columns import TimeUnit, quoted
from anabranch.testing.rows import Rows, table_of
from anabranch.windows import Duration, micros

_FIRST = 1_000_000_000
_PER_UNIT = {"us": 1, "ms": 1_000, "s": 1_000_000}


class StreamFeed:
    """Rows that a test adds, as a stream that Spark reads: one file per epoch, in the order in which they were added.

        feed = StreamFeed(spark, "at timestamp, cell string, speed double", tmp_path / "input")
        feed.add([{"at": datetime(2024, 1, 1, 9, 0), "cell": "a", "speed": 50.0}])
        trips = feed.stream(time="at", watermark="10 s")

    A row is a dictionary, in which a missing column is null, or a tuple with all columns. Times are datetimes, UTC if
    they have no time zone, or whole numbers: microseconds since 1970 for a timestamp.

    Args:
        spark: the session of the test.
        schema: the columns, "at timestamp, cell string", or as a StructType.
        folder: where the files go. A feed on a folder that has files already adds to them.
    """

    def __init__(self, spark: SparkSession, schema: str | StructType, folder: str | Path) -> None:
        self.spark = spark
        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, StructType):
            raise InvalidArgumentError(f"{schema!r} has no columns", hint='write "at timestamp, cell string"')
        self.schema = parsed
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.epochs = len(list(self.folder.glob("*.parquet")))
        """How many epochs were added."""
        self._ticking: list[tuple[str, TimeUnit | None, int]] = []
        self._plain = False

    def add(self, *epochs: Rows) -> None:
        """Add the rows of one epoch, or of several; `add([])` adds an epoch without rows."""
        schema = arrow_schema(self.schema)
        for table in [table_of(rows, schema) for rows in epochs]:  # all of them, or none
            self._write(table)

    def frame(self) -> DataFrame:
        """The rows as a streaming DataFrame. `advance_watermark` does not work on it: add a row with a later time."""
        self._plain = True
        return self._read(self.schema)

    def stream(self, *, time: str, watermark: Duration = "0 s", time_unit: TimeUnit | None = None) -> Stream:
        """The rows as a stream, like `anabranch.stream`, whose watermark `advance_watermark` can move."""
        time = column_name(self.spark, self.schema.names, time)
        rows = stream(
            self._read(self._with_tick),
            time=time,
            watermark=watermark,
            time_unit=time_unit,
        )
        self._ticking.append((time, time_unit, micros(watermark, "watermark")))

        def without_ticks(each: DataFrame) -> DataFrame:
            # Spark moves a filter below a watermark unless it mentions the watermark's column.
            event = quoted(EVENT if EVENT in each.columns else time)
            return each.where(F.col(TICK).isNull() | event.isNull()).drop(TICK)

        return rows._then("the feed", without_ticks)

    def batch(self) -> DataFrame:
        """All rows so far as a bounded DataFrame, to compute from it what the stream must give in the end."""
        return self.spark.read.schema(self._with_tick).parquet(str(self.folder)).where(f"{TICK} is null").drop(TICK)

    def advance_watermark(self, to: datetime | int) -> None:
        """Move the watermark to this time, which is written like the times of rows. Takes two epochs without rows.

        All streams of this feed get there: a time after `to` passes by, but no row that a query could see.
        """
        if self._plain or not self._ticking:
            raise InvalidArgumentError(
                "advance_watermark() works on streams that come from stream(), where the feed knows the watermark",
                hint='write feed.stream(time="at", watermark="10 s"), or add a row with a later time',
            )
        names = [time for time, _, _ in self._ticking]
        if len(set(names)) > 1:
            raise InvalidArgumentError(
                f"the streams of this feed have different time columns ({', '.join(sorted(set(names)))}), and their "
                "watermarks cannot move together",
                hint="create a separate StreamFeed for each time column",
            )
        latest = max(self._delayed(to, unit, delay) for _, unit, delay in self._ticking)
        schema = arrow_schema(self._with_tick)
        self._write(table_of([{names[0]: latest, TICK: True}], schema))
        self._write(schema.empty_table())  # a watermark counts from the next epoch on

    @property
    def _with_tick(self) -> StructType:
        return StructType(list(self.schema.fields)).add(TICK, "boolean")

    def _delayed(self, to: Any, unit: TimeUnit | None, delay: int) -> Any:
        """The time of a row that moves a watermark of this delay there."""
        if isinstance(to, datetime):
            return to + timedelta(microseconds=delay)
        kind = self.schema[self._ticking[0][0]].dataType.typeName()
        counts = unit or ("us" if kind in ("timestamp", "timestamp_ntz") else "s")
        return to - -delay // _PER_UNIT[counts]

    def _read(self, schema: StructType) -> DataFrame:
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder))

    def _write(self, table: pa.Table) -> None:
        """Write one epoch. The file source takes files in the order of their times of change."""
        file = self.folder / f"{self.epochs:06d}.parquet"
        draft = file.with_name(f".{file.name}")  # hidden from the source until it is whole
        pq.write_table(table, draft)
        os.utime(draft, (_FIRST + self.epochs,) * 2)
        draft.rename(file)
        self.epochs += 1
