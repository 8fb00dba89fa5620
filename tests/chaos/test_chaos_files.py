"""Files that are torn, lost, foreign or cannot be written: a clear error and, once mended, a correct resume.

Each test takes a query that stopped halfway, without its live state, damages something, and starts it: the error is
one of ours, with a hint, and is what `exception()` gives and `awaitTermination()` raises. Then the damage is mended,
and the query runs to its end: its results must be those of an undisturbed run, byte for byte.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.errors import AnabranchError, CheckpointError, StateError
from anabranch.io.folder import FILE_FORMAT, OLDEST_FORMAT
from anabranch.observe.listeners import Listener
from anabranch.observe.progress import EpochProgress
from anabranch.runtime.handle import EpochQuery
from tests.chaos.harness import differences
from tests.chaos.jobs import record, start
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

EPOCHS, ROWS, HALF = 7, 1_000, 3
JOB = "split"
STATE = f"{JOB}/checkpoint/state/process-1"
LEDGER = f"{JOB}/checkpoint/ledger"


@dataclass(frozen=True)
class Query:
    """A query and its files."""

    spark: SparkSession
    recording: Path
    folder: Path

    def start(self, job: str = JOB, **settings: Any) -> EpochQuery:
        return start(self.spark, job, self.recording, self.folder, rows_per_epoch=ROWS, **settings)

    def fails(self, kind: type[AnabranchError], **settings: Any) -> str:
        """Start it; the error it ends with, which must be of that kind and must have a hint."""
        with pytest.raises(AnabranchError) as raised:
            handle = self.start(**settings)
            handle.awaitTermination()
        error = raised.value
        assert type(error) is kind
        assert error.hint
        return error.message

    def file(self, pattern: str) -> Path:
        """The last file of that pattern."""
        return sorted(self.folder.glob(pattern))[-1]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    record(folder, EPOCHS, ROWS)
    return folder


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a query that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    Query(spark, recording, folder).start().awaitTermination()
    return folder


@pytest.fixture(scope="module")
def halfway(spark: SparkSession, recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a query that was stopped in the middle, as another machine would find them: without live state."""
    folder = tmp_path_factory.mktemp("halfway")
    handle = Query(spark, recording, folder).start()
    wait_for(lambda: handle.lastProgress is not None and handle.lastProgress.epoch >= HALF - 1)
    handle.stop()
    assert handle.lastProgress is not None
    assert handle.lastProgress.epoch < EPOCHS - 1, "it was through before it was stopped"
    shutil.rmtree(folder / JOB / "live")
    return folder


@pytest.fixture
def query(spark: SparkSession, recording: Path, halfway: Path, tmp_path: Path) -> Query:
    shutil.copytree(halfway / JOB, tmp_path / JOB)
    return Query(spark, recording, tmp_path)


@pytest.fixture
def resumes(query: Query, undisturbed: Path) -> Callable[..., None]:
    """Checks that the query, once mended, runs to its end and has given what it should."""

    def check(**settings: Any) -> None:
        query.start(**settings).awaitTermination()
        assert differences(undisturbed / JOB, query.folder / JOB) == []

    return check


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


# --- damaged files --------------------------------------------------------------------------------------------------


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)


def newer(path: Path) -> None:
    """As a later release would write it."""
    of_format(FILE_FORMAT + 1, path)


def too_old(path: Path) -> None:
    """As a release wrote it whose files nobody reads any more."""
    of_format(OLDEST_FORMAT - 1, path)


def of_format(version: int, path: Path) -> None:
    content = path.read_bytes()
    prefix = content[:8] + struct.pack("<I", version) + content[12:20]
    path.write_bytes(prefix + struct.pack("<I", zlib.crc32(prefix)) + content[24:])


def lost(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("pattern", "damage", "kind", "message"),
    [
        (f"{STATE}/blocks/*", torn, StateError, "is torn or damaged"),
        (f"{STATE}/blocks/*", lost, StateError, "is missing: without it the state of the query cannot be rebuilt"),
        (f"{STATE}/snapshots/*/*", flipped, StateError, "does not match its checksum"),
        (f"{STATE}/snapshots/*/*", newer, CheckpointError, f"has format {FILE_FORMAT + 1}"),
        (f"{LEDGER}/*.done", too_old, CheckpointError, f"the oldest that this release reads is {OLDEST_FORMAT}"),
        (f"{LEDGER}/*.plan", lost, StateError, "is missing from the ledger"),
        (f"{LEDGER}/*.done", torn, StateError, "is torn or damaged"),
        (f"{JOB}/checkpoint/query.json", newer, CheckpointError, f"has format {FILE_FORMAT + 1}"),
        (f"{JOB}/checkpoint/query.json", lost, CheckpointError, "has no query.json"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value).rpartition("/")[2]),
)
def test_a_damaged_file(
    query: Query,
    resumes: Callable[..., None],
    pattern: str,
    damage: Callable[[Path], None],
    kind: type[AnabranchError],
    message: str,
) -> None:
    path = query.file(pattern)
    content = path.read_bytes()
    damage(path)
    error = query.fails(kind)
    assert message in error
    path.write_bytes(content)
    resumes()


def test_the_handle_tells_what_a_task_raised(query: Query) -> None:
    torn(query.file(f"{STATE}/blocks/*"))
    handle = query.start()
    wait_for(lambda: not handle.isActive)
    error = handle.exception()
    assert isinstance(error, StateError)
    assert "blocks" in error.message
    assert "restore the file from a copy" in error.hint


# --- folders that are gone, or another's ----------------------------------------------------------------------------


def test_a_checkpoint_of_another_query(query: Query, resumes: Callable[..., None]) -> None:
    other = {"checkpoint": query.folder / JOB / "checkpoint"}
    assert "is the checkpoint of another query" in query.fails(CheckpointError, job="aggregates", **other)
    resumes()


def test_a_checkpoint_that_vanishes_while_the_query_runs(query: Query, resumes: Callable[..., None]) -> None:
    folder, away = query.folder / JOB / "checkpoint", query.folder / "away"
    vanish = _Once(lambda: folder.rename(away))
    assert "cannot be written" in query.fails(StateError, listeners=[vanish])
    assert vanish.done
    # Spark has begun a new one in its place, which must not be taken for the old.
    assert "has no query.json" in query.fails(CheckpointError)
    shutil.rmtree(folder)
    away.rename(folder)
    resumes()


def test_a_checkpoint_that_is_gone_while_results_are_there(query: Query, resumes: Callable[..., None]) -> None:
    folder, away = query.folder / JOB / "checkpoint", query.folder / "away"
    folder.rename(away)
    # A new query would begin with epoch 0, and the sink has one already.
    assert "contains the results of another query" in query.fails(CheckpointError)
    shutil.rmtree(folder)
    away.rename(folder)
    resumes()


def test_results_that_vanish_while_the_query_runs(query: Query, resumes: Callable[..., None]) -> None:
    output, away = query.folder / JOB / "output", query.folder / "away"
    vanish = _Once(lambda: output.rename(away))
    assert "disappeared while the query ran" in query.fails(StateError, listeners=[vanish])
    shutil.rmtree(output)
    away.rename(output)
    resumes()


def test_epochs_of_nobody_knows_whom(query: Query) -> None:
    (query.folder / JOB / "output" / "_owner").unlink()
    assert "contains epochs of an unknown query" in query.fails(CheckpointError)


class _Once(Listener):
    """Does something after the first epoch that it hears of."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action
        self.done = False

    def on_progress(self, progress: EpochProgress) -> None:
        if not self.done:
            self.done = True
            self.action()


# --- full disks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True) if mount else None
    if made is None or made.returncode:
        pytest.skip(f"no small disk: {made.stderr.strip() if made else 'there is no mount command'}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return ballast


@pytest.mark.parametrize("place", ["state", "live", "output", "spark"])
def test_a_full_disk(place: str, query: Query, resumes: Callable[..., None], small_disk: Path) -> None:
    there = query.folder / JOB / {"state": "checkpoint/state", "spark": "checkpoint/spark"}.get(place, place)
    if there.exists():
        shutil.copytree(there, small_disk / place)
        shutil.rmtree(there)
    else:
        (small_disk / place).mkdir()
    there.symlink_to(small_disk / place)
    ballast = fill(small_disk)
    error = query.fails(StateError)
    assert os.strerror(errno.ENOSPC) in error
    assert "Nothing was lost" in error
    ballast.unlink()
    resumes()


LIMITED = """
import resource, sys
import numpy as np, pyarrow as pa
from anabranch.errors import StateError
from anabranch.io.folder import Folder
from anabranch.store.live.state import LiveState
from anabranch.io.parquet import Target, write_rows
from anabranch.store.epoch_store import EpochStore

folder = Folder.at(sys.argv[1])
store = EpochStore(folder, "q", "node")
store.create()
folder.sub("out").create()
block = pa.record_batch({"x": np.random.default_rng(1).random(100_000)})
resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
writers = {
    "blocks": lambda: store.write_blocks(0, 0, {0: [(0, block)]}),
    "rows": lambda: write_rows(Target(folder.sub("out"), block.schema), 0, [block]),
    "live": lambda: LiveState(sys.argv[1] + "/live").array("x", "f8", 100_000),
    "table": lambda: LiveState(sys.argv[1] + "/live").put("t", pa.table(block)),
}
for name, write in writers.items():
    try:
        write()
    except StateError as error:
        assert error.hint and "Nothing was lost" in error.message, error
        print(name)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """A disk that takes no more, without the right to mount one; nothing half written stays."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "store")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["blocks", "rows", "live", "table"]
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
