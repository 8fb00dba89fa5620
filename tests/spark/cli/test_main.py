"""The command, as a user types it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from anabranch import __version__
from anabranch.cli import main


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_version() -> None:
    assert run("--version").strip() == f"anabranch {__version__}"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["demo", "--help"],
        ["linearroad", "rate", "--help"],
        ["explain", "--help"],
    ],
)
def test_help_teaches(command: list[str]) -> None:
    assert "Usage" in run(*command)


def test_explain_needs_no_file(spark: SparkSession) -> None:
    shown = run("explain", "--size", "30 min", "--size", "5 min", "--agg", "avg:v", "--agg", "count", "--sample", "0.5")
    assert "windows     30 min / 1 s, 5 min / 1 s" in shown
    assert "-> " in shown and "pane" in shown
    assert "a sample of 50.00%" in shown
    assert "Exchange hashpartitioning" in shown


def test_explain_reads_a_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    spark.sql("SELECT timestamp_seconds(id) AS at, id AS n FROM range(10)").write.parquet(str(path))
    shown = run(
        "explain", str(path), "--time", "at", "--size", "4 s", "--agg", "max:n", "--strategy", "batch", "--batch", "3"
    )
    assert "strategy    batch, B = 3, as requested" in shown
    assert "keys        none" in shown


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["explain", "--agg", "mean:v"], "there is no aggregate 'mean'", "use one of count"),
        (["explain", "--agg", "avg"], "avg needs a column", 'write "avg:column"'),
        (["explain", "nowhere.parquet"], "there is no file nowhere.parquet", "give a Parquet file"),
        (["explain", "--size", "soon"], "'soon' is not a duration", "30 minutes"),
        (["explain", "--time", "tt"], "there is no column 'tt'", "did you mean 't'"),
    ],
)
def test_errors_are_for_people(
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    hint: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["anabranch", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    shown = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 1
    assert message in shown and hint in shown
    assert "Traceback" not in shown
