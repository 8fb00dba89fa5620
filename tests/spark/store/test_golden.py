"""Checkpoints that earlier releases wrote are resumed: with them the answers are those of one whole run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.io.folder import FILE_FORMAT
from tests.golden.make import BASE
from tests.golden.queries import EPOCHS, QUERIES, add_epochs, run

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.zip"))


def unpacked(archive: Path, folder: Path) -> None:
    """The checkpoints, as if they had been written there."""
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    written_in = (folder / BASE).read_text()
    for log in folder.glob("*/checkpoint/spark/sources/**/*"):
        if log.is_file():
            log.write_text(log.read_text().replace(written_in, str(folder)))


def delivered(spark: SparkSession, base: Path) -> list[str]:
    return sorted(map(str, spark.read.parquet(str(base / "out")).drop("epoch").collect()))


@pytest.mark.parametrize(
    "name", ["windows", *(pytest.param(n, marks=pytest.mark.slow) for n in QUERIES if n != "windows")]
)
@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.stem)
def test_a_checkpoint_of_an_earlier_release_is_resumed(
    archive: Path, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    unpacked(archive, tmp_path)
    whole = tmp_path / "whole"
    add_epochs(whole, 0, EPOCHS)
    run(spark, name, whole, "live")
    resumed = tmp_path / name
    before = delivered(spark, resumed)
    add_epochs(resumed, EPOCHS // 2, EPOCHS)
    run(spark, name, resumed, "live")
    expected = delivered(spark, whole)
    assert delivered(spark, resumed) == expected
    assert 0 < len(before) < len(expected)


def test_there_is_a_checkpoint_of_every_earlier_format() -> None:
    assert {path.stem for path in GOLDEN} >= {f"format-{number}" for number in range(1, FILE_FORMAT)}
