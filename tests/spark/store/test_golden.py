"""Checkpoints that earlier releases wrote are resumed: with them the answers are those of one whole run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.io.folder import FILE_FORMAT
from anabranch.store.records import VERSION
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


QUICK = ("format-2", "windows")
"""the one that `make test` resumes: written before records had versions"""


@pytest.mark.parametrize(
    ("archive", "name"),
    [
        pytest.param(archive, name, id=f"{archive.stem}-{name}", marks=() if each == QUICK else pytest.mark.slow)
        for archive in GOLDEN
        for name in QUERIES
        for each in [(archive.stem, name)]
    ],
)
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


def test_there_is_a_checkpoint_of_every_format_and_of_every_version_of_its_records() -> None:
    """`format-N` was written before records had versions, `format-N-records-M` with version M."""
    formats = {f"format-{number}" for number in range(1, FILE_FORMAT + 1)}
    records = {f"format-{FILE_FORMAT}-records-{number}" for number in range(1, VERSION + 1)}
    assert {path.stem for path in GOLDEN} == formats | records
