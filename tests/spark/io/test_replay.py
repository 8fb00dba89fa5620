"""Recorded files as a stream: exact after a restart, in rows and in references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from anabranch.io.blocks import micros_of, read_block, write_blocks
from anabranch.io.replay import backlog, replay


def table(rows: int, first: int = -30) -> pa.Table:
    times = pa.array(range(first, first + rows), pa.int64())
    columns = {
        "at": times.cast(pa.timestamp("us", tz="UTC")),
        "n": pa.array(range(rows), pa.int32()),
        "name": pa.array([f"row {i}" for i in range(rows)]).dictionary_encode(),
    }
    return pa.table(columns)


def run(stream: DataFrame, checkpoint: Path, stop_after: int | None = None) -> tuple[list[pa.Table], Any]:
    """The epochs that came until all was read, or until the sink failed after so many."""
    epochs: list[pa.Table] = []

    def take(rows: DataFrame, epoch: int) -> None:
        if len(epochs) == stop_after:
            raise RuntimeError("stopped in the middle")
        epochs.append(rows.toArrow())

    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if stop_after is None:
        query.awaitTermination()
    else:
        with pytest.raises(StreamingQueryException, match="stopped in the middle"):
            query.awaitTermination()
    return epochs, query


def test_a_restart_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    folder.mkdir()
    rows = table(100)
    pq.write_table(rows.slice(0, 60), folder / "a.parquet", row_group_size=25)
    pq.write_table(rows.slice(60), folder / "b.parquet", row_group_size=25)

    def stream() -> DataFrame:
        return replay(spark, folder, time="at", rows_per_epoch=30)

    before, _ = run(stream(), tmp_path / "checkpoint", stop_after=2)
    after, query = run(stream(), tmp_path / "checkpoint")
    assert [epoch.num_rows for epoch in before + after] == [30, 30, 30, 10]
    assert stream().dtypes == [("at", "timestamp"), ("n", "int"), ("name", "string")]
    came = sorted(row["n"] for epoch in before + after for row in epoch.to_pylist())
    assert came == list(range(100))
    assert [backlog(p.sources[0]) for p in query.recentProgress][-1] == 0

    pq.write_table(rows.slice(0, 50), folder / "b.parquet")
    with pytest.raises(StreamingQueryException, match="have changed since the stream began"):
        run(stream(), tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns", tz="UTC"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (pa.int64(), pa.int16(), pa.timestamp("us"))),
    ],
)
def test_references_are_the_rows(spark: SparkSession, tmp_path: Path, kind: pa.DataType) -> None:
    file = tmp_path / "blocks.arrow"
    rows = table(50)
    times = pa.array(range(50), kind) if kind == pa.int16() else rows["at"].cast(pa.timestamp("us")).cast(kind)
    rows = rows.set_column(0, "at", times)
    write_blocks(file, rows.combine_chunks().to_batches(max_chunksize=20))
    as_rows, _ = run(replay(spark, file, time="at"), tmp_path / "rows")
    references, _ = run(replay(spark, file, time="at", blocks=True, rows_per_epoch=15), tmp_path / "references")
    found = []
    for reference in (row for epoch in references for row in epoch.to_pylist()):
        block = read_block(reference["path"], reference["block"], first=reference["first"], rows=reference["rows"])
        times = micros_of(block.column("at")).to_pylist()
        assert (reference["min_t"], reference["max_t"]) == (min(times), max(times))
        found += block.column("n").to_pylist()
    assert found == [row["n"] for epoch in as_rows for row in epoch.to_pylist()] == list(range(50))


def test_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "empty.parquet")
    epochs, _ = run(replay(spark, tmp_path / "empty.parquet", time="at"), tmp_path / "checkpoint")
    assert sum(epoch.num_rows for epoch in epochs) == 0
