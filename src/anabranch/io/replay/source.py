"""Recorded files as a stream: the same rows in the same order in every run, at the chosen speed.

An offset is ``{"files": fingerprint, "row": position}``. A range of offsets always means the same rows, so a stream
that restarts from its checkpoint neither loses nor repeats a row; files that have changed are an error. `recording` has
positions and the fingerprint, `pacer` the clock.

There are two forms: **rows**, the columns of the files in Spark's types; or **references** (`blocks=True`), one small
row per block, so that Spark moves references and the workers read the blocks themselves with `read_block`.

Offsets are made in one process that lives as long as the query, and rows are read by tasks; both must see the files
under the same path.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.io.blocks import bounds_of, micros_of, one_batch, read_block
from anabranch.io.replay.pacer import Pacer
from anabranch.io.replay.recording import Recording, Slice, changed, shares
from anabranch.spark.arrow import arrow_schema, conformed

SOURCE_FORMAT = "anabranch-replay"
REFERENCES = "path string, block int, first bigint, rows bigint, min_t bigint, max_t bigint"
BATCH_ROWS = 262_144
"""The most rows that a task gives Spark at once; small blocks are joined up to a quarter of that."""
SMALLEST_SHARE = 8_192
"""Below this many rows a separate partition costs more than it gains."""
DEFAULT_PARTITIONS = 2


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay, and how fast. `start` and `pace_from` are in microseconds since 1970."""

    path: str
    time: str
    rate: float | None = None
    pace: float | None = None
    pace_from: int | None = None
    rows_per_epoch: int | None = None
    blocks: bool = False
    whole_instants: bool = False
    start: int | None = None
    partitions: int = DEFAULT_PARTITIONS

    def __post_init__(self) -> None:
        if self.rate is not None and self.pace is not None:
            raise InvalidArgumentError(
                "rate and pace are both set, but a stream can follow only one clock",
                hint="give rate=... in rows per second, or pace=... as a multiple of the recorded time",
            )
        if self.pace_from is not None and self.pace is None:
            raise InvalidArgumentError(
                "pace_from says when the clock starts, but without pace there is no clock",
                hint="give pace=... too, or leave out pace_from",
            )
        for name, value in (("rate", self.rate), ("pace", self.pace), ("rows_per_epoch", self.rows_per_epoch),
                            ("partitions", self.partitions)):  # fmt: skip
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InvalidArgumentError(
                    f"{name}={value!r} is not above zero: no row would ever arrive", hint="give a number above zero"
                )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReplayOptions:
        """From the strings that Spark passes."""
        missing = [name for name in ("path", "time") if name not in options]
        if missing:
            raise InvalidArgumentError(
                f"the option {missing[0]!r} is missing", hint='write .option("time", "at").load(path)'
            )
        kinds = {"rate": float, "pace": float, "rows_per_epoch": int, "pace_from": int, "start": int, "partitions": int}
        try:
            values: dict[str, Any] = {name: kind(options[name]) for name, kind in kinds.items() if name in options}
        except ValueError as error:
            raise InvalidArgumentError(f"an option is not a number: {error}", hint="see docs/replay.md") from error
        for name in ("blocks", "whole_instants"):
            values[name] = options.get(name, "false").lower() == "true"
        return cls(options["path"], options["time"], **values)

    def strings(self) -> dict[str, str]:
        """The options as Spark takes them."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}

    def open(self) -> Recording:
        """Open the recording and check it."""
        ordered = self.pace is not None or self.start is not None or self.whole_instants
        recording = Recording(self.path, self.time, times=ordered or self.blocks)
        if ordered:
            recording.check_order()
        return recording


@called_as('ab.replay(spark, "trips/", time="at")')
def replay(
    spark: SparkSession,
    path: str | Path,
    *,
    time: str,
    rate: float | None = None,
    pace: float | None = None,
    pace_from: datetime | int | None = None,
    rows_per_epoch: int | None = None,
    blocks: bool = False,
    whole_instants: bool = False,
    start: datetime | int | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """A streaming DataFrame of a recorded Arrow or Parquet file, or a folder of them.

    `rate` is in rows per second; `pace` is a multiple of the recorded time (1.0 as it was, 60 an hour a minute); with
    neither, rows come as fast as they are read, `rows_per_epoch` at a time. Rows recorded before `pace_from` also come
    as fast as they are read; the clock starts there. `start` begins at the first row of that time. `blocks=True` gives
    references to blocks instead of rows. With `whole_instants` no epoch ends between two rows of the same time, even if
    that makes it longer than `rows_per_epoch`. The options and files are checked immediately.
    """
    conf = spark.conf.get("spark.default.parallelism", None)
    options = ReplayOptions(
        path=os.path.abspath(path),
        time=time,
        rate=rate,
        pace=pace,
        pace_from=_micros(pace_from) if isinstance(pace_from, datetime) else pace_from,
        rows_per_epoch=rows_per_epoch,
        blocks=blocks,
        whole_instants=whole_instants,
        start=_micros(start) if isinstance(start, datetime) else start,
        partitions=int(conf or DEFAULT_PARTITIONS) if partitions is None else partitions,
    )
    _spark_schema(options.open().schema)
    spark.dataSource.register(ReplaySource)
    return spark.readStream.format(SOURCE_FORMAT).options(**options.strings()).load()


def backlog(source: Any) -> int:
    """Rows that were due but not yet read when an epoch ended, for one of `query.lastProgress.sources`."""
    latest, end = (_json(source[name]) for name in ("latestOffset", "endOffset"))
    return 0 if latest is None or end is None else max(0, latest["row"] - end["row"])


class ReplaySource(DataSource):
    """The data source "anabranch-replay"."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_FORMAT

    def schema(self) -> StructType | str:
        options = ReplayOptions.parse(self.options)
        return REFERENCES if options.blocks else _spark_schema(options.open().schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReplayReader(ReplayOptions.parse(self.options), schema)


@dataclass
class Share(InputPartition):
    """What one task reads."""

    slices: list[Slice]


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Makes offsets and reads rows. Tasks get a copy, so the recording is opened only where offsets are made."""

    def __init__(self, options: ReplayOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._everything = False

    @cached_property
    def _recording(self) -> Recording:
        return self._options.open()

    @cached_property
    def _pacer(self) -> Pacer:
        return Pacer(self._recording, self._options.rate, self._options.pace, self._options.pace_from)

    def initialOffset(self) -> dict[str, Any]:
        start = self._options.start
        return self._offset(0 if start is None else self._recording.first_after(start - 1))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.rows_per_epoch
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        # All of a recording is available; by the clock nothing would be due yet, and the query would end.
        self._everything = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = self._position(start)
        due = self._recording.rows if self._everything else self._pacer.due(position)
        if isinstance(limit, ReadMaxRows):
            due = min(due, position + limit.max_rows)
        if self._options.whole_instants:
            due = self._recording.whole_instants(position, due)
        return self._offset(due)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        due = self._recording.rows if self._everything else self._pacer.due_now()
        return None if due is None else self._offset(due)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._position(start), self._position(end)
        self._recording.check_unchanged()
        slices = self._recording.slices(first, last)
        if not slices:
            return []
        if not self._options.blocks:
            return [Share(share) for share in shares(slices, self._options.partitions, SMALLEST_SHARE)]
        parts = min(self._options.partitions, len(slices))  # references are not cut any further
        return [Share(slices[i * len(slices) // parts : (i + 1) * len(slices) // parts]) for i in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        target = arrow_schema(self._schema)
        for piece in partition.slices:
            if os.stat(piece.path).st_size != piece.file_bytes:
                raise changed(Path(piece.path).name)
        if self._options.blocks:
            yield _references(partition.slices, self._options.time, target)
            return
        batches = (read_block(p.path, p.block, first=p.first, rows=p.rows) for p in partition.slices)
        yield from _regrouped(conformed(batch, target) for batch in batches)

    def _offset(self, row: int) -> dict[str, Any]:
        return {"files": self._recording.fingerprint, "row": row}

    def _position(self, offset: dict[str, Any]) -> int:
        if offset["files"] != self._recording.fingerprint:
            raise changed(Path(self._options.path).name)
        return int(offset["row"])


def _references(slices: Sequence[Slice], time: str, target: pa.Schema) -> pa.RecordBatch:
    rows = []
    for piece in slices:
        low, high = piece.min_t, piece.max_t
        if not piece.whole:
            part = read_block(piece.path, piece.block, first=piece.first, rows=piece.rows, columns=[time])
            low, high = bounds_of(micros_of(part.column(0)))
        rows.append((piece.path, piece.block, piece.first, piece.rows, low, high))
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), target.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _regrouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches that are too large, and join those that are too small."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH_ROWS):
            waiting.append(batch.slice(first, BATCH_ROWS))
            if sum(b.num_rows for b in waiting) >= BATCH_ROWS // 4:
                yield one_batch(pa.Table.from_batches(waiting))
                waiting = []
    if waiting:
        yield one_batch(pa.Table.from_batches(waiting))


def _spark_schema(schema: pa.Schema) -> StructType:
    fields = []
    for field in schema:
        try:
            fields.append(StructField(field.name, from_arrow_type(field.type)))
        except PySparkTypeError as error:
            raise ColumnTypeError(
                f"Spark has no type for the column {field.name!r} of type {field.type}",
                hint="convert it in the recording, for example an unsigned integer to the next larger signed type",
            ) from error
    return StructType(fields)


def _micros(time: datetime) -> int:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _json(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset
