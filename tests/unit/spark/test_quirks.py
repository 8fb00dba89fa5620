"""What a disk answers to Spark becomes an error of ours; what has another cause does not."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from anabranch.errors import CheckpointError, StateError
from anabranch.spark.quirks import disk_error, disk_errors_translated

FOLDER = "/data/checkpoint/spark"
# As Spark 4.1 words them.
STREAM = "[STREAM_FAILED] Query [id = 232c] terminated with exception: {} SQLSTATE: XXKST\n=== Streaming Query ==="
EPOCH = STREAM.format("[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function: {}")


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("java.io.IOException: No space left on device", f"{FOLDER} cannot be written: No space left on device"),
        ("java.io.IOException: Disk quota exceeded", f"{FOLDER} cannot be written: Disk quota exceeded"),
        (
            f"{FOLDER}/sources/0/.2.c0f28739.tmp (Read-only file system)",
            f"{FOLDER}/sources/0/.2.c0f28739.tmp cannot be written: Read-only file system",
        ),
        (f"file:{FOLDER}/offsets/.7.tmp (Permission denied)", "/offsets/.7.tmp cannot be written: Permission denied"),
    ],
)
def test_sparks_part_of_the_checkpoint_cannot_be_written(cause: str, message: str) -> None:
    error = disk_error(RuntimeError(STREAM.format(cause)), FOLDER)
    assert isinstance(error, StateError)
    assert message in error.message and "Nothing was lost" in error.message and "make room" in error.hint


def test_a_disk_that_fills_in_a_job_is_recognised() -> None:
    error = disk_error(RuntimeError(EPOCH.format("java.io.IOException: No space left on device")), FOLDER)
    assert error is not None and "spark.local.dir" in error.message and FOLDER not in error.message


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.FileNotFoundException: /data/input/part-7.parquet (Permission denied)",
        "java.lang.IllegalStateException: something else",
        "OSError: [Errno 28] No space left on device: '/home/user/report.csv'",
    ],
)
def test_other_causes_are_left_alone(cause: str) -> None:
    assert disk_error(RuntimeError(STREAM.format(cause)), FOLDER) is None
    with pytest.raises(PySparkException, match="terminated"), disk_errors_translated(FOLDER):
        raise PySparkException(STREAM.format(cause))


@pytest.mark.parametrize("kind", [PySparkException, Py4JError])
def test_the_start_of_a_query(kind: type[Exception]) -> None:
    with pytest.raises(StateError, match="No space left"), disk_errors_translated(FOLDER):
        raise kind("java.io.IOException: No space left on device")
    with pytest.raises(CheckpointError, match="ours"), disk_errors_translated(FOLDER):
        raise CheckpointError("ours, No space left on device", hint="none")
