"""`anabranch repair`: a watermark that ran away is set back, and a ledger that lost its last entries goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import anabranch as ab
from anabranch.cli.main import app
from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.store.repair import CheckpointRepair, parse_time
from anabranch.text import moment
from anabranch.types import EpochQuery
from tests.spark.streams import Feed, in_micros, plain

S = 1_000_000
YEAR_2200 = 7_258_118_400 * S


def minutes(first: int, last: int) -> list[tuple[int, str, int]]:
    return [(t * S, "ab"[t // 10 % 2], t) for t in range(first * 60, last * 60, 10)]


def windows(source: DataFrame) -> Any:
    stream = in_micros(source, time="at", watermark="10 seconds" if source.isStreaming else None)
    return stream.window(size="1 minute", slide="30 seconds").by("key").agg(n=ab.count(), total=ab.sum("value"))


def nested(source: DataFrame) -> Any:
    return windows(source).window(size="2 minutes").agg(n=ab.sum("n"))


def run(query: Any, folder: Path, **settings: Any) -> EpochQuery:
    handle = query.start(
        ab.FileSink(folder / "out"),
        checkpoint=folder / "c",
        live=folder / "live",
        trigger="available-now",
        **settings,
    )
    handle.awaitTermination()
    return handle


def results(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "out").glob("epoch=*/*.parquet"), key=lambda file: int(file.parent.name.split("=")[1]))
    return [row for file in files for row in plain(pq.read_table(file, partitioning=None))]


def counts_of(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def command(*words: object) -> str:
    result = CliRunner().invoke(app, ["repair", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("query", "complete"), [(windows, 0), (nested, 1)])
def test_a_watermark_that_ran_away_is_set_back(spark: SparkSession, tmp_path: Path, query: Any, complete: int) -> None:
    feed, folder = Feed(tmp_path / "in"), tmp_path
    feed.add(minutes(0, 3), [*minutes(3, 5), (YEAR_2200, "a", -1)], minutes(5, 6))
    first = run(query(feed.stream(spark)), folder, max_ahead=None)
    assert first.recentProgress[-1].late == 6  # all of them
    shown = command(folder / "c")
    assert "moved by more than a year in epoch 1" in shown
    assert "--watermark" in shown
    command(folder / "c", "--watermark", moment(6 * 60 * S))
    before = len(results(folder))
    feed.add(minutes(6, 9), minutes(9, 12))
    second = run(query(feed.stream(spark)), folder)
    assert sum(epoch.late for epoch in second.recentProgress) == 0
    found = results(folder)[before:]
    # Every window that starts at 6 minutes or later, and is over by 11:40; of results, later by their longest window.
    starts = (6 + complete) * 60 * S
    clean = query(feed.batch(spark)).to_df().toArrow()
    wanted = [
        row for row in plain(clean)
        if row["window"]["start"] >= starts and row["window"]["end"] <= (11 * 60 + 40) * S
    ]  # fmt: skip
    assert wanted
    assert counts_of(found) == counts_of(wanted)


def test_a_restore_after_the_repair_finds_the_same_state(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(minutes(0, 3), [(YEAR_2200, "a", -1)])
    run(windows(feed.stream(spark)), tmp_path, max_ahead=None)
    CheckpointRepair(str(tmp_path / "c")).set_watermark(3 * 60 * S)
    feed.add(minutes(3, 5))
    run(windows(feed.stream(spark)), tmp_path)
    feed.add(minutes(5, 8))
    # Live state elsewhere: all groups are folded again, through the repair.
    handle = windows(feed.stream(spark)).start(
        ab.FileSink(tmp_path / "out"), checkpoint=tmp_path / "c", live=tmp_path / "other", trigger="available-now"
    )
    handle.awaitTermination()
    assert handle.recentProgress[-1].restored > 0
    ends = [row["window"]["end"] // S for row in results(tmp_path) if row["window"]["start"] >= 180 * S]
    assert sorted(ends) == sorted([*range(240, 465, 30)] * 2)


def test_keys_that_come_later_hear_of_the_repair_too(spark: SparkSession, tmp_path: Path) -> None:
    """Their rows before the repair were late, so a window over these and later ones would be incomplete."""
    feed = Feed(tmp_path / "in")
    later = [f"z{i}" for i in range(8)]
    feed.add([*minutes(0, 3), (YEAR_2200, "a", -1)], [(178 * S, key, 1) for key in later])
    run(windows(feed.stream(spark)), tmp_path, max_ahead=None)
    CheckpointRepair(str(tmp_path / "c")).set_watermark(180 * S)
    feed.add([(181 * S, "a", 1)], [(191 * S, key, 1) for key in later], minutes(8, 9))
    run(windows(feed.stream(spark)), tmp_path)
    found = [row for row in results(tmp_path) if row["key"] in later]
    assert sorted((row["key"], row["window"]["start"] // S) for row in found) == [(key, 180) for key in later]


def test_rows_of_the_future_are_no_clock_after_a_repair(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([*minutes(0, 1), *((YEAR_2200 + i * S, "a", -1) for i in range(7))])
    first = run(windows(feed.stream(spark)), tmp_path)
    assert first.recentProgress[-1].ahead == 0  # most rows were from then: the data seemed to have a clock of its own
    assert "moved by more than a year in epoch 0" in command(tmp_path / "c")
    command(tmp_path / "c", "--watermark", moment(60 * S))
    feed.add(minutes(1, 3), [(YEAR_2200, "a", -1)], minutes(3, 5))
    second = run(windows(feed.stream(spark)), tmp_path)
    assert [sum(getattr(epoch, name) for epoch in second.recentProgress) for name in ("ahead", "late")] == [1, 0]
    starts = {
        row["window"]["start"] // S for row in results(tmp_path) if 60 * S <= row["window"]["start"] < YEAR_2200 // 2
    }
    assert starts == set(range(60, 240, 30))


def test_a_watermark_is_only_set_back(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(minutes(0, 3))
    run(windows(feed.stream(spark)), tmp_path)
    repair = CheckpointRepair(str(tmp_path / "c"))
    with pytest.raises(InvalidArgumentError, match="nothing to set back"):
        repair.set_watermark(3600 * S)
    assert "would be" in repair.set_watermark(60 * S, dry_run=True)[0]
    assert not repair.ledger.set_back()
    with pytest.raises(InvalidArgumentError, match="the ledger is complete up to epoch 0"):
        repair.to_last_complete()


@pytest.mark.parametrize("how", ["lost", "torn", "lost with its plan"])
def test_a_lost_last_entry_of_the_ledger(spark: SparkSession, tmp_path: Path, how: str) -> None:
    feed, folder = Feed(tmp_path / "in"), tmp_path
    feed.add(*(minutes(at, at + 1) for at in range(12)))
    run(windows(feed.stream(spark)), folder, snapshot_every=2)
    ledger = folder / "c" / "ledger"
    last = ledger / f"{11:012d}.done"
    if how == "torn":
        last.write_bytes(last.read_bytes()[:-3])
    else:
        last.unlink()
    if how == "lost with its plan":
        last.with_suffix(".plan").unlink()
    feed.add(minutes(12, 14))
    with pytest.raises((CheckpointError, StateError)):
        run(windows(feed.stream(spark)), folder)
    # The failed start may have fixed what the next epoch reads, which nothing has published.
    shown = command(folder / "c", "--to-last-complete")
    assert "epoch 11 runs once more" in shown
    assert ("are made again" in shown) == (how == "lost with its plan")
    run(windows(feed.stream(spark)), folder)
    wanted = [
        row for row in plain(windows(feed.batch(spark)).to_df().toArrow())
        if row["window"]["end"] <= (13 * 60 + 40) * S
    ]  # fmt: skip
    assert counts_of(results(folder)) == counts_of(wanted)
    assert list((folder / "c" / "repaired").rglob("11"))  # Spark's commit is kept


def test_epochs_that_are_out_are_not_given_other_rows(spark: SparkSession, tmp_path: Path) -> None:
    feed, folder = Feed(tmp_path / "in"), tmp_path
    feed.add(*(minutes(at, at + 1) for at in range(6)))
    run(windows(feed.stream(spark)), folder)
    for epoch in (3, 4, 5):
        (folder / "c" / "ledger" / f"{epoch:012d}.done").unlink()
    repair = CheckpointRepair(str(folder / "c"))
    with pytest.raises(CheckpointError, match=r"epochs 4 to 5 are published.*epoch 4"):
        repair.to_last_complete()
    for epoch in (4, 5):
        for file in (folder / "out" / f"epoch={epoch}").iterdir():
            file.unlink()
        (folder / "out" / f"epoch={epoch}").rmdir()
    repair.to_last_complete()
    run(windows(feed.stream(spark)), folder)
    wanted = [
        row for row in plain(windows(feed.batch(spark)).to_df().toArrow())
        if row["window"]["end"] <= (5 * 60 + 40) * S
    ]  # fmt: skip
    assert counts_of(results(folder)) == counts_of(wanted)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        CheckpointRepair(str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:01", 60), ("1970-01-01 01:01:00+01:00", 60), ("1970-01-01T00:00:01Z", 1), ("1969-12-31", -86400)],
)
def test_times_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds * S


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'tomorrow' is not a time"):
        parse_time("tomorrow")
