"""`start(controllers=[...])`: a user's controller decides, is checked, and what it remembers survives a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import EpochProgress
from tests.spark.runtime.test_start import random_epochs
from tests.spark.streams import Feed


class Turns:
    """Sets B to 1 and 2 in turns, and remembers how often it has decided."""

    name = "turns"
    operator = "window-1"
    settings = ("batch", "turns_taken")

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        taken = current.get("turns_taken", 0) + 1
        return {"batch": 1 + taken % 2, "turns_taken": taken, "why:batch": f"turn {taken}"}


class Elsewhere(Turns):
    operator = "window-7"


def run(spark: SparkSession, feed: Feed, folder: Path, sink: ab.MemorySink, *controllers: Any) -> list[EpochProgress]:
    """All epochs that are there; the query ends when its input does."""
    query = ab.stream(feed.stream(spark), time="at", watermark="1 s").window(size="8 s", slide="2 s").by("key")
    running = query.agg(n=ab.count()).start(sink, checkpoint=folder / "checkpoint", controllers=controllers)
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    return running.recentProgress


def decided(progress: list[EpochProgress]) -> list[tuple[int, int]]:
    return [(each.operators[0].decisions["batch"], each.operators[0].decisions["turns_taken"]) for each in progress]


def test_a_controller_of_the_user_decides_and_remembers_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    feed, epochs = Feed(tmp_path / "in"), random_epochs(3, epochs=5)
    feed.add(*epochs[:3])
    sink, plain = ab.MemorySink(), ab.MemorySink()
    assert decided(run(spark, feed, tmp_path, sink, Turns())) == [(2, 1), (1, 2), (2, 3)]
    feed.add(*epochs[3:])
    assert decided(run(spark, feed, tmp_path, sink, Turns())) == [(1, 4), (2, 5), (1, 6)]
    run(spark, feed, tmp_path / "plain", plain)
    held_back = [row for row in plain.rows() if row not in sink.rows()]
    assert all(row in plain.rows() for row in sink.rows()) and len(held_back) < len(sink.rows())


def test_without_the_controller_its_settings_are_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    feed, epochs = Feed(tmp_path / "in"), random_epochs(4, epochs=4)
    feed.add(*epochs[:2])
    run(spark, feed, tmp_path, ab.MemorySink(), Turns())
    feed.add(*epochs[2:])
    for each in run(spark, feed, tmp_path, ab.MemorySink()):
        assert "turns_taken" not in each.operators[0].decisions


@pytest.mark.parametrize(
    ("controller", "message"),
    [(Elsewhere(), "the query has no such operator"), (object(), "is not a controller")],
)
def test_a_controller_that_would_decide_nothing_is_refused(
    controller: Any, message: str, spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(random_epochs(5, epochs=1)[0])
    with pytest.raises(InvalidArgumentError, match=message):
        run(spark, feed, tmp_path, ab.MemorySink(), controller)


def test_a_controller_of_a_setting_that_the_query_fixes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(random_epochs(6, epochs=1)[0])
    stream = ab.stream(feed.stream(spark), time="at", watermark="1 s")
    query = stream.window(size="8 s", slide="2 s").by("key").agg(n=ab.count()).using("pane", batch=3)
    with pytest.raises(InvalidArgumentError, match="owns batch of window-1, which the query fixes"):
        query.start(ab.MemorySink(), checkpoint=tmp_path / "checkpoint", controllers=[Turns()])
    assert not (tmp_path / "checkpoint").exists()


class Policies(Turns):
    """Places keys by two policies in turns."""

    name = "policies"
    settings = ("partition", "turns_taken")

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        label = "FLD-1" if current.get("partition") == "cAM-2" else "cAM-2"
        return {"partition": label, "turns_taken": current.get("turns_taken", 0) + 1}


def test_a_controller_of_the_key_policy_finds_what_it_decided(spark: SparkSession, tmp_path: Path) -> None:
    feed, epochs = Feed(tmp_path / "in"), random_epochs(7, epochs=3)
    stream = ab.stream(feed.stream(spark), time="at", watermark="15 s").window(size="20 s", slide="8 s")
    query = stream.by("key", partition="auto").agg(n=ab.count())
    found, sink, plain = [], ab.MemorySink(), ab.MemorySink()
    for some in (epochs[:2], epochs[2:]):
        feed.add(*some)
        running = query.start(sink, checkpoint=tmp_path / "checkpoint", controllers=[Policies()])
        try:
            running.processAllAvailable()
        finally:
            running.stop()
        found += [each.operators[0].decisions for each in running.recentProgress]
    assert [each["turns_taken"] for each in found] == list(range(1, len(found) + 1))
    assert [each["partition"] for each in found] == [("FLD-1", "cAM-2")[turn % 2] for turn in range(1, len(found) + 1)]
    started = query.start(plain, checkpoint=tmp_path / "plain")
    started.processAllAvailable()
    started.stop()
    order = repr
    assert sink.rows() and sorted(sink.rows(), key=order) == sorted(plain.rows(), key=order)
