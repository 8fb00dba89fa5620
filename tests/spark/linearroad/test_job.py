"""Linear Road from end to end: generated and shared traces through the network, judged by the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

import anabranch as ab
from anabranch.cli.main import app
from anabranch.errors import CheckpointError, InvalidArgumentError
from anabranch.linearroad import job
from anabranch.linearroad.check.validate import validate
from anabranch.linearroad.commands.rate import Course, Rater, rating
from anabranch.linearroad.generate import Trace, Traffic, write_trace
from anabranch.linearroad.operator import Road
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import ANSWERS, INPUT, Mode, answer_schema
from anabranch.linearroad.watch import read_emitted, write_emitted

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two expressways, dense enough for tolls, and three copies of them."""
    return write_trace(tmp_path_factory.mktemp("road") / "trace", Traffic(2, 300, seed=5, peak_rate=900), copies=3)


def answer(
    trace: Trace, output: Path, mode: Mode, rows_per_epoch: int = 150_000, read: int | None = None
) -> dict[str, int]:
    read = trace.tuples if read is None else read
    done = job.run(
        input=trace.folder / "input", history=trace.history_file, segment_history=trace.segment_history_file,
        output=output, mode=mode, rows_per_epoch=rows_per_epoch, console=QUIET,
    )  # fmt: skip
    assert (done.left, done.late, done.bad, done.rejected) == (0, 0, 0, 0)
    assert done.tuples == read
    return done.answers


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_all_answers_of_a_trace(spark: SparkSession, trace: Trace, tmp_path: Path, mode: Mode) -> None:
    answers = answer(trace, tmp_path / "output", mode)
    report = validate(trace.input_files, trace.history_file, trace.segment_history_file, tmp_path / "output", mode)
    assert not report.differences, report.to_json()
    assert min(answers["toll"], answers["balance"], answers["expenditure"], answers["traveltime"]) > 0
    for kind in ANSWERS:
        read = spark.read.parquet(str(tmp_path / "output" / kind))
        assert read.columns == answer_schema(kind).names
        assert read.count() == answers[kind] == report.by_kind[kind].given
    charged = spark.read.parquet(str(tmp_path / "output" / "balance")).where("Balance > 0").count()
    assert charged > 0, "a trace without charges would show nothing"


@pytest.mark.slow
def test_blocks_and_many_epochs_give_the_same(spark: SparkSession, trace: Trace, tmp_path: Path) -> None:
    road = Road(Mode.PAPER, trace.expressways, 4, str(trace.history_file), str(trace.segment_history_file))
    stream = recorded(spark, trace.folder / "blocks", rows_per_epoch=60_000)
    query = ab.start(
        *linear_road(stream, road, tmp_path / "output"), checkpoint=tmp_path / "checkpoint", trigger="available-now"
    )
    query.awaitTermination()
    report = validate(
        trace.input_files, trace.history_file, trace.segment_history_file, tmp_path / "output", Mode.PAPER
    )
    assert not report.differences, report.to_json()


@pytest.mark.slow
def test_a_second_run_has_nothing_to_do(trace: Trace, tmp_path: Path) -> None:
    first = answer(trace, tmp_path / "output", Mode.FLAT_LAV, 10**7)
    assert answer(trace, tmp_path / "output", Mode.FLAT_LAV, 10**7, read=0) == first
    with pytest.raises(CheckpointError, match="another query"):
        answer(trace, tmp_path / "output", Mode.PAPER, 10**7)


def test_the_command(trace: Trace, tmp_path: Path) -> None:
    """`run` and `validate`; a wrong answer makes the latter fail, and says which."""
    run = CliRunner().invoke
    output, history = str(tmp_path / "output"), str(trace.history_file)
    given = ["--input", str(trace.folder / "input"), "--history", history, "--output", output, "--mode", "flat-lav"]
    ran = run(app, ["linearroad", "run", *given])
    assert ran.exit_code == 0, ran.output
    assert "tuples in" in ran.output
    judged = run(app, ["linearroad", "validate", *given, "--json"])
    assert judged.exit_code == 0, judged.output
    found = json.loads(judged.output.splitlines()[-1])
    assert found["differences"] == 0
    # As fast as it goes: nothing was due, so nothing can be said to be in time.
    assert found["timed"] is False and found["by_kind"]["toll"]["late"] is None
    assert "response times were not measured" in " ".join(judged.output.split())
    file = next(Path(output, "toll").glob("*.parquet"))
    table = pq.read_table(file)
    pq.write_table(table.set_column(2, "LAV", pa.array([7] * len(table), pa.int32())), file)
    judged = run(app, ["linearroad", "validate", *given])
    assert judged.exit_code == 1
    assert "toll wrong" in judged.output


def test_a_kind_without_answers_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    row = {name: -1 for name in INPUT.names} | {
        "Type": 0,
        "Time": 3,
        "VID": 5,
        "XWay": 0,
        "Lane": 0,
        "Dir": 1,
        "Seg": 9,
    }
    pq.write_table(pa.Table.from_pylist([row, {**row, "Seg": 100}], INPUT), tmp_path / "input.parquet")
    done = job.run(
        input=tmp_path / "input.parquet", history=None, segment_history=None, output=tmp_path / "output",
        mode=Mode.PAPER, console=QUIET,
    )  # fmt: skip
    assert done.answers == {"toll": 1, "accident": 0, "balance": 0, "expenditure": 0, "traveltime": 0}
    assert pq.read_table(tmp_path / "output" / "accident").num_rows == 0
    assert spark.read.parquet(str(tmp_path / "output" / "rejected")).count() == 1


def test_inputs_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for path, message in (
        (tmp_path / "other.parquet", "no column Type"),
        (tmp_path / "absent", "there is no recording"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            job.run(
                input=path, history=None, segment_history=None, output=tmp_path / "o", mode=Mode.PAPER, console=QUIET
            )


@pytest.mark.slow
def test_a_run_in_real_time_can_be_late(spark: SparkSession, tmp_path: Path) -> None:
    """The last ten seconds in real time, and an epoch in them that is held up: `validate` finds what was late."""
    trace = write_trace(tmp_path / "trace", Traffic(1, 70, seed=5, peak_rate=60))
    output = tmp_path / "output"
    given = ["--input", str(trace.folder / "input"), "--history", str(trace.history_file), "--output", str(output)]
    invoke = CliRunner().invoke
    ran = invoke(app, ["linearroad", "run", *given, "--paced-from", "60"])
    assert ran.exit_code == 0, ran.output
    judged = invoke(app, ["linearroad", "validate", *given, "--json"])
    found = json.loads(judged.output.splitlines()[-1])
    assert found["timed"] and found["by_kind"]["toll"]["worst_response"] > 0, "an answer takes time"
    moments = read_emitted(output)
    assert moments and min(moments.values()) > 60
    write_emitted(output, {epoch: second + 60 for epoch, second in moments.items()})  # as if all had been held up
    judged = invoke(app, ["linearroad", "validate", *given, "--json"])
    late = json.loads(judged.output.splitlines()[-1])["by_kind"]["toll"]["late"]
    answered = spark.read.parquet(str(output / "toll")).where("Time >= 60").count()
    assert judged.exit_code == 1 and late == answered > 0
    assert "toll late" in judged.output
    again = invoke(app, ["linearroad", "run", *given, "--paced-from", "60"])
    assert isinstance(again.exception, InvalidArgumentError) and "answers of another run" in str(again.exception)


@pytest.mark.slow
def test_rating_in_small(spark: SparkSession, tmp_path: Path) -> None:
    """A trial of four expressways, the last minute in real time: it holds, and says what it must."""
    course = Course(seconds=180, paced=60, peak_rate=60.0)
    said: list[str] = []
    trial = Rater(spark, course, tmp_path, said.append).trial(4)
    assert not trial.report.differences
    assert trial.expressways == 4 and trial.epochs > 3
    assert set(trial.worst_response) >= {"toll", "balance"}
    assert min(trial.worst_response.values()) > 0, "an answer takes time"
    found = rating([trial], course, cores=2)
    assert {"L", "tuples_per_second", "worst_response", "differences"} <= set(found)
    assert found["tuples_in_real_time"] == trial.paced_tuples < found["tuples"] == trial.tuples
    assert json.loads(json.dumps(found)) == found
    assert not list(tmp_path.rglob("L*")), "a trial's files are gigabytes, and do not stay"


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("mode", Mode)
def test_the_shared_forty_minutes(spark: SparkSession, shared_data: Path, tmp_path: Path, mode: Mode) -> None:
    folder = shared_data / "linear-road"
    job.run(
        input=folder / "input.parquet", history=folder / "history.parquet", segment_history=None,
        output=tmp_path / "output", mode=mode, console=QUIET,
    )  # fmt: skip
    found = {kind: spark.read.parquet(str(tmp_path / "output" / kind)) for kind in ANSWERS}
    for kind, wanted in expected(spark, folder, mode).items():
        columns = wanted.columns
        assert found[kind].select(columns).exceptAll(wanted).count() == 0, kind
        assert wanted.exceptAll(found[kind].select(columns)).count() == 0, kind
    balance = spark.read.parquet(str(folder / f"expected-{mode.value}" / "balance.parquet"))
    columns = ["Time", "QID", "ResultTime", "Balance"]
    assert found["balance"].select(columns).exceptAll(balance.select(columns)).count() == 0
    assert found["balance"].select("QID").distinct().count() == balance.select("QID").distinct().count()


def expected(spark: SparkSession, folder: Path, mode: Mode) -> dict[str, object]:
    """The expected answers that have one right value each, by kind."""
    read = lambda name: spark.read.parquet(str(folder / f"expected-{mode.value}" / f"{name}.parquet"))  # noqa: E731
    if mode is Mode.FLAT_LAV:
        return {kind: read(kind) for kind in ("toll", "accident", "expenditure")}
    both = read("toll_and_accident")
    alerts = both.where("AccidentSeg >= 0").selectExpr("Time", "AccidentSeg AS Seg", "Dir", "VID")
    return {"toll": both.select("VID", "Time", "LAV", "Toll"), "accident": alerts}
