"""Streams that end and start again from their checkpoint: nothing is lost and nothing comes twice.

Every start builds the query again. The sink is Spark's own for files, which keeps a list of the files that count.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ROOT
from tests.oracles.epochs import Row
from tests.spark.runtime.stream_process import windows, write
from tests.spark.streams import Feed, plain

SECOND = 1_000_000

# Four seconds of disorder, as much as the watermark of the query allows.
EPOCHS = [
    [Row((3 * epoch - back) * SECOND, "ab"[back % 2], epoch * 10 + back) for back in range(5) if 3 * epoch >= back]
    for epoch in range(1, 9)
]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one run over all rows delivers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    Feed(folder / "input").add(*EPOCHS)
    write(windows(spark, folder / "input"), folder / "output", folder / "checkpoint")
    found = delivered(spark, folder / "output")
    assert len(found) > 10
    return found


def delivered(spark: SparkSession, output: Path) -> list[dict[str, Any]]:
    """The windows in the sink; one that came twice is there twice."""
    return sorted(plain(spark.read.parquet(str(output)).toArrow()), key=repr)


def without(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


def process(*folders: Path) -> subprocess.Popen[str]:
    """The same stream in a new process, and a group of processes of its own: its Java is in there, too."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "tests.spark.runtime.stream_process", *map(str, folders)]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("strategy", [pytest.param("pane", marks=pytest.mark.slow), "window"])
def test_stop_and_start_again(
    strategy: str, spark: SparkSession, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    feed, output, checkpoint = Feed(tmp_path / "input"), tmp_path / "output", tmp_path / "checkpoint"
    for epochs in (EPOCHS[:2], EPOCHS[2:5], [], EPOCHS[5:]):
        feed.add(*epochs)
        write(windows(spark, feed.folder, strategy), output, checkpoint)
    found = delivered(spark, output)
    if strategy == "pane":
        assert found == undisturbed
    else:
        # Windows leave one by one here, so some more have left at the end; and it has no user-defined aggregate.
        ends = {row["window"]["end"] for row in undisturbed}
        assert [row for row in found if row["window"]["end"] <= max(ends)] == without("word", undisturbed)


@pytest.mark.slow
def test_start_again_in_a_new_process(spark: SparkSession, tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    feed, output, checkpoint = Feed(tmp_path / "input"), tmp_path / "output", tmp_path / "checkpoint"
    feed.add(*EPOCHS[:4])
    write(windows(spark, feed.folder), output, checkpoint)
    before = delivered(spark, output)
    feed.add(*EPOCHS[4:])
    second = process(feed.folder, output, checkpoint)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    assert 0 < len(before) < len(undisturbed)
    assert delivered(spark, output) == undisturbed


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills a group of processes")
def test_killed_in_the_middle_of_an_epoch(
    spark: SparkSession, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    feed, output, checkpoint = Feed(tmp_path / "input"), tmp_path / "output", tmp_path / "checkpoint"
    feed.add(*EPOCHS)
    victim = process(feed.folder, output, checkpoint)
    begun, last = checkpoint / "offsets" / "4", checkpoint / "commits" / str(len(EPOCHS) - 1)
    end = time.monotonic() + 300
    try:
        while not begun.exists():
            assert victim.poll() is None, victim.communicate()[1]
            assert time.monotonic() < end, "the stream did not come as far as the fifth epoch"
            time.sleep(0.002)
    finally:
        # No time to tidy up: Python and Java go at once.
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
    assert not last.exists(), "the stream was through before the kill"
    before = delivered(spark, output)
    write(windows(spark, feed.folder), output, checkpoint)
    assert 0 < len(before) < len(undisturbed)
    assert delivered(spark, output) == undisturbed
