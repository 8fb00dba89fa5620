"""Live state that somebody changes under a query: its groups are rebuilt, and the results are the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.types import EpochProgress, Listener, Stream
from tests.spark.runtime.test_start import S, complete, random_epochs, sorted_rows
from tests.spark.streams import Feed

EPOCHS = 4


class Flips(Listener):
    """After each epoch flips a bit in every array: the number of the last window that left, as it happens."""

    def __init__(self, live: Path) -> None:
        self.live = live
        self.flipped = 0

    def on_progress(self, progress: EpochProgress) -> None:
        for path in self.live.rglob("*.array"):
            with path.open("r+b", buffering=0) as file:
                content = bytearray(file.read(16))
                content[8] ^= 2
                file.seek(0)
                file.write(content)
            self.flipped += 1


def windows(stream: Stream) -> Any:
    return stream.window(size="60 seconds", slide="5 seconds").by("key").agg(n=ab.count(), v=ab.sum("value"))


def wanted(spark: SparkSession, feed: Feed) -> list[str]:
    batch = windows(ab.stream(feed.batch(spark), time="at")).to_df()
    return sorted_rows(complete(batch, (EPOCHS + 10) * 40 * S - 15 * S))


def delivered(spark: SparkSession, out: Path) -> list[str]:
    return sorted_rows(spark.read.parquet(str(out)).drop("epoch").toArrow().to_pylist())


def run(spark: SparkSession, feed: Feed, folder: Path, *listeners: Listener) -> int:
    """All that is there, then stop; how many groups were restored."""
    stream = ab.stream(feed.stream(spark), time="at", watermark="15 seconds")
    query = windows(stream).start(
        ab.FileSink(folder / "out"),
        checkpoint=folder / "checkpoint",
        live=folder / "live",
        listeners=listeners,
        snapshot_every=2,
    )
    query.processAllAvailable()
    query.stop()
    return sum(epoch.restored for epoch in query.recentProgress)


def test_a_flipped_bit_is_found_and_the_group_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    epochs = random_epochs(11, epochs=EPOCHS)
    feed.add(*epochs[:3])
    flips = Flips(tmp_path / "live")
    assert run(spark, feed, tmp_path, flips) > 0  # while the query runs
    assert flips.flipped
    feed.add(*epochs[3:])
    assert run(spark, feed, tmp_path) > 0  # between two runs
    assert delivered(spark, tmp_path / "out") == wanted(spark, feed)


def test_a_backup_put_back_within_one_session(spark: SparkSession, tmp_path: Path) -> None:
    """Processes that went on after the backup was made still have its files mapped, by the same names."""
    feed, folder, backup = Feed(tmp_path / "in"), tmp_path / "query", tmp_path / "backup"
    epochs = random_epochs(12, epochs=EPOCHS)
    feed.add(*epochs[:2])
    run(spark, feed, folder)
    shutil.copytree(folder, backup)
    feed.add(epochs[2])
    assert run(spark, feed, folder) == 0
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    feed.add(*epochs[3:])
    run(spark, feed, folder)
    assert delivered(spark, folder / "out") == wanted(spark, feed)


def test_groups_that_have_changed_places(spark: SparkSession, tmp_path: Path) -> None:
    """Epoch, plan and checksums fit; but it is the state of other keys."""
    feed = Feed(tmp_path / "in")
    epochs = random_epochs(14, epochs=EPOCHS)
    feed.add(*epochs[:3])
    run(spark, feed, tmp_path)
    one, other = sorted(path.parent for path in (tmp_path / "live").rglob("stamp"))[:2]
    one.rename(tmp_path / "away")
    other.rename(one)
    (tmp_path / "away").rename(other)
    feed.add(*epochs[3:])
    assert run(spark, feed, tmp_path) == 2
    assert delivered(spark, tmp_path / "out") == wanted(spark, feed)


@pytest.mark.slow
def test_live_state_of_another_history_is_not_used(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint is put back, and other rows come: the old live state has the right epoch and the wrong rows."""
    feed, folder, backup = Feed(tmp_path / "in"), tmp_path / "query", tmp_path / "backup"
    epochs = random_epochs(13, epochs=EPOCHS)
    feed.add(*epochs[:2])
    run(spark, feed, folder)
    shutil.copytree(folder, backup)
    feed.add([(at, key, 1_000) for at, key, _ in epochs[3]])
    run(spark, feed, folder)
    (folder / "live").rename(tmp_path / "first history")
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    sorted(feed.folder.iterdir())[-1].unlink()
    feed.add(epochs[2])
    run(spark, feed, folder)
    shutil.rmtree(folder / "live")
    (tmp_path / "first history").rename(folder / "live")
    feed.add(*epochs[3:])
    assert run(spark, feed, folder) > 0
    assert delivered(spark, folder / "out") == wanted(spark, feed)
