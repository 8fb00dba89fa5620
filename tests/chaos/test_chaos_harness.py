"""The harness itself: a comparison that finds nothing must have been able to find something."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.cluster import family, kill
from tests.chaos.harness import VICTIMS, delivered, differences, rounds
from tests.chaos.jobs import JOBS, record


def results(folder: Path, epochs: dict[int, list[int]]) -> Path:
    """A job's folder with these rows per epoch, and what a reader passes over."""
    for epoch, rows in epochs.items():
        path = folder / "output" / f"epoch={epoch}" / "part-00000.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"x": rows}), path)
    hidden = folder / "output" / "_staging" / "epoch=9"
    hidden.mkdir(parents=True)
    (hidden / "part-00000.parquet").write_bytes(folder.name.encode())
    (folder / "output" / "_owner").write_bytes(folder.name.encode())
    return folder


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    return results(tmp_path / "wanted", {0: [1, 2, 3], 2: [4]})


def test_equal_results(wanted: Path, tmp_path: Path) -> None:
    assert differences(wanted, results(tmp_path / "got", {0: [1, 2, 3], 2: [4]})) == []
    assert sorted(delivered(wanted)) == [f"output/epoch={epoch}/part-00000.parquet" for epoch in (0, 2)]


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ({0: [1, 2, 3]}, "output/epoch=2/part-00000.parquet is missing"),
        ({0: [1, 2, 3], 1: [9], 2: [4]}, "output/epoch=1/part-00000.parquet should not be there"),
        ({0: [1, 3], 2: [4]}, "output/epoch=0/part-00000.parquet: 1 rows lost, 0 rows that should not be there"),
        ({0: [1, 2, 2, 3], 2: [4]}, "output/epoch=0/part-00000.parquet: 0 rows lost, 1 rows that should not be there"),
        ({0: [3, 2, 1], 2: [4]}, "output/epoch=0/part-00000.parquet: the same rows in another order or encoding"),
    ],
    ids=["epoch lost", "epoch twice", "row lost", "row twice", "order"],
)
def test_what_differs_is_reported(wanted: Path, tmp_path: Path, got: dict[int, list[int]], expected: str) -> None:
    assert differences(wanted, results(tmp_path / "got", got)) == [expected]


def test_late_rows_are_compared_too(wanted: Path, tmp_path: Path) -> None:
    got = results(tmp_path / "got", {0: [1, 2, 3], 2: [4]})
    late = got / "checkpoint" / "side" / "window-1-0" / "epoch=1" / "part-00000.parquet"
    late.parent.mkdir(parents=True)
    late.write_bytes(b"")
    assert len(differences(wanted, got)) == 1


def test_an_empty_reference_is_no_reference(tmp_path: Path) -> None:
    assert differences(tmp_path, tmp_path) == ["the undisturbed run delivered nothing"]


def test_rounds_have_every_job_and_every_place() -> None:
    short = list(rounds(1, short=True))
    assert {each.job for each in short} == set(JOBS)
    assert {each.place for each in short} == set(VICTIMS)
    long = list(itertools.islice(rounds(1, short=False), 2 * len(JOBS) * len(VICTIMS)))
    assert len(set(long)) == len(long)
    assert {(each.job, each.place) for each in long} == set(itertools.product(JOBS, VICTIMS))


def test_only_a_live_process_counts_as_killed() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    found = family(sleeper.pid)
    assert kill(found) == 1
    sleeper.wait()
    assert kill(found) == 0
    assert family(sleeper.pid) == []


@pytest.mark.slow
def test_a_recording_is_the_same_every_time(tmp_path: Path) -> None:
    for name in "ab":
        record(tmp_path / name, epochs=2, rows_per_epoch=100)
    first, second = (pq.read_table(tmp_path / name / "recording.parquet") for name in "ab")
    assert first.equals(second)
    assert first.num_rows == 200
