"""What `explain()` says of splits and operators, before they run and while they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from anabranch.io.blocks import schema_of, write_blocks
from anabranch.types import Stream


class Rows(ab.Operator):
    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [block.num_rows]})


def route(block: pa.RecordBatch, q: int) -> np.ndarray[Any, Any]:
    return np.asarray(block.column("x").to_numpy() % q)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    x = np.arange(4_000)
    write_blocks(folder / "rows.arrow", pa.table({"t": x * 1_000, "x": x}).to_batches(max_chunksize=500))
    return folder


@pytest.fixture
def blocks(spark: SparkSession, recording: Path) -> Stream:
    source = ab.replay(spark, recording, time="t", rows_per_epoch=2_000, blocks=True)
    return ab.block_stream(
        source, time="t", time_unit="us", watermark="0 s", schema=schema_of(recording / "rows.arrow")
    )


@pytest.fixture
def rows(spark: SparkSession, recording: Path) -> Stream:
    return ab.stream(ab.replay(spark, recording, time="t"), time="t", time_unit="us", watermark="0 s")


def test_blocks_are_read_in_the_splitters_or_unpacked_first(blocks: Stream, rows: Stream) -> None:
    direct = blocks.split(4, route=route).explain()
    assert "substreams  q = 4" in direct
    assert "route       the function route, over whole blocks" in direct and "broadcast   none" in direct
    assert "splitters   p = tuned while running, by the measured costs" in direct
    assert "window      W = tuned while running" in direct
    assert "input 0     blocks, read in the splitters" in direct
    filtered = blocks.filter("x > 3").split(4, route=route).explain()
    assert "unpacked into rows first: a filter or selection comes before the split" in filtered
    by_column = blocks.split(4, route=F.col("x") % 4, broadcast="x = 7").explain()
    assert "unpacked into rows first: Spark computes the route" in by_column
    assert "broadcast   a Column, computed by Spark" in by_column
    of_rows = rows.split(4, route=route).explain()
    assert "input 0     rows" in of_rows and "p = the tasks that read the rows" in of_rows
    asked = rows.split(4, route=route, splitters=3, window_bytes=100_000).explain()
    assert "p = 3, as requested" in asked and "W = 100,000 bytes, as requested" in asked


def test_an_operator_before_it_runs(rows: Stream) -> None:
    text = rows.process(Rows, "n bigint", by="x", groups=12).explain()
    assert "operator Rows, by x, in 12 groups" in text and "output rows: struct<n:bigint>" in text
    assert "route       by x: hash of the key, 12 partition-groups" in text
    whole = rows.process(Rows, "n bigint")
    assert "q = 1" in whole.explain() and "the function to_the_only" in whole.explain()
    later = whole.as_stream(time="n", time_unit="us").process(Rows, "n bigint").explain()
    assert "input 0     rows of process, output rows" in later
    parts = rows.process(Rows, "n bigint, part bigint, at bigint")
    combined = parts.combine(by="n", sums="part", maxima="at")
    assert combined.explain() == "combine     sum of part, max of at by n"
    with pytest.raises(InvalidArgumentError, match="twice"):
        parts.combine(by="n", sums="n")


def test_a_running_query(blocks: Stream, tmp_path: Path) -> None:
    processed = blocks.split(4, route=route, splitters=2).process(Rows, "n bigint")
    windows = blocks.window(size="2 s", slide="1 s").agg(n=ab.count())
    query = ab.start(
        processed.to(ab.MemorySink()), windows.to(ab.FileSink(tmp_path / "windows")),
        checkpoint=tmp_path / "checkpoint", trigger="available-now", idle="5 s", qos=ab.QoS(max_latency="1 minute"),
    )  # fmt: skip
    query.awaitTermination()
    text = query.explain()
    assert "trigger     available-now" in text and "bounds      results within 1 minute" in text
    assert "an idle source stops holding the watermark back after 5 s" in text
    assert "measured    epoch 1: 2,000 rows" in text
    assert "process-1: operator Rows, by route, in 4 groups" in text  # the network
    assert "groups      4 on 2 workers" in text and "groups      1 on 1 workers" in text
    assert "setting     splitters = 2" in text
    assert "setting     window_bytes = 65,536, since epoch 0: W None -> 65536" in text
    assert "window_search" not in text
    assert "sink        rows -> MemorySink(" in text and "exactly once while the process lives" in text
    assert "sink        rows -> FileSink(" in text
    for line in ("window router ", "window splitters ", "query processors ", "splitters: ", "efficiency, measured"):
        assert line in text
    assert text.count("cost of the split") == 1  # windows have none
    assert "loads       0: " in text
