"""A few cases of the fuzzer, of every kind, and the scripts that it prints."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.cases import SECOND, Aggregate, Case, Column, Join, Level, Run, Shed, Source, Strategy, TimeWindow
from tests.fuzz.oracle import expected
from tests.fuzz.run import run
from tests.fuzz.script import script_of

ROOT = Path(__file__).resolve().parents[3]
ROWS = (((0, "a", 1), (SECOND, "b", 2)), ((3 * SECOND, "a", 3), (1_500_000, "b", 4)), ((9 * SECOND, "a", 5),))
LEVEL = Level((Aggregate("n", "count"), Aggregate("t", "sum", "v")), (TimeWindow(2 * SECOND, SECOND),), keys=("k",))
CASE = Case(
    "start",
    (Source("timestamp", (Column("k", "string"), Column("v", "bigint")), ROWS),),
    (LEVEL,),
    watermark=2 * SECOND,
    runs=(Run(1), Run(3, workers=1, snapshot_every=1, keeps_live=False)),
)


BUSY = tuple(
    tuple((t * SECOND + at, key, t) for t in range(4 * epoch, 4 * epoch + 4) for at, key in enumerate("abcdef"))
    for epoch in range(4)
)
FLUSH = (((60 * SECOND, "a", 0),), ((90 * SECOND, "a", 0),))
CASES = {
    "batch": replace(CASE, mode="batch", zone="Asia/Kolkata", strategy=Strategy("batch", 3), runs=()),
    "stream": replace(CASE, mode="stream", flush=1),
    "start": CASE,
    "join": replace(
        CASE, mode="batch", sources=CASE.sources * 2, levels=(), runs=(), join=Join(("k",), (SECOND, 0), "full")
    ),
    "shed": replace(
        CASE,
        sources=(replace(CASE.sources[0], epochs=BUSY + FLUSH),),
        levels=(replace(LEVEL, windows=(TimeWindow(SECOND, SECOND),)),),
        runs=(Run(3), Run(6)),
        shed=Shed(0.5, max_gap=2, seed=3),
        flush=2,
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_case_of_each_kind_comes_out_as_the_oracle_says(spark: SparkSession, kind: str) -> None:
    assert CASES[kind].kind == kind
    outcome = run(CASES[kind], spark)
    assert outcome.status == "passed", outcome.detail


def test_a_wrong_answer_is_found_and_its_script_shows_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bug is planted in the oracle, which counts one row too many."""
    case = replace(CASE, mode="batch", runs=())
    right, wrong = expected(case), expected(case)
    wrong.may[0]["n"] += 1
    wrong.must = wrong.may
    monkeypatch.setattr("tests.fuzz.run.expected", lambda case: wrong)
    outcome = run(case, spark)
    assert outcome.signature == "differs: value"
    for answer, code in ((wrong, 1), (right, 0)):
        script = tmp_path / f"{code}.py"
        script.write_text(script_of(case, outcome.detail, answer), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / f"folder-{code}")])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == code
        assert f"{code} missing, {code} wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_prints_what_came_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seed", "0", "--case", "3", "--kind", "batch", "--zone", "UTC"]
    ended = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "1 passed, 0 failed"


@pytest.mark.slow
def test_a_killed_driver_delivers_the_rest(spark: SparkSession) -> None:
    outcome = run(replace(CASE, runs=(Run(3),), kills=1), spark)
    assert outcome.status == "passed", outcome.detail
