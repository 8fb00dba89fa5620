"""`anabranch run`: job files, what it shows, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import anabranch as ab
from anabranch.cli import main
from anabranch.cli.run import MODULE, deliveries_of, load_job, run_file, settings_of
from anabranch.errors import InvalidArgumentError, JobError, OperatorError
from anabranch.io.blocks import write_blocks
from anabranch.local.session import is_local, spark_session
from anabranch.observe.progress import EpochProgress
from anabranch.query.deliveries import Delivery

ROOT = Path(__file__).resolve().parents[3]

JOB = """
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import anabranch as ab


@dataclass(frozen=True)
class Limit:
    rows: int = {limit}


class Count(ab.Operator):
    limit = Limit()

    def open(self, state: State) -> None:
        self.n = state.array("n", np.int64, 1)

    def process(self, block: pa.RecordBatch, port: int = 0):
        self.n[0] += block.num_rows
        if self.n[0] > self.limit.rows:
            raise ValueError("too many rows")
        yield pa.RecordBatch.from_pydict({{"n": [int(self.n[0])]}})


def build(spark):
    rows = ab.replay(spark, {recording!r}, time="t", {options})
    counted = ab.stream(rows, time="t", time_unit="us", watermark="0 s").process(Count, "n bigint")
    return counted.to(ab.FileSink({results!r}))
"""


def job(folder: Path, *, limit: int = 10**9, options: str = "rows_per_epoch=500") -> Path:
    """A job file that counts 1,000 rows, in the folder."""
    recording = folder / "recording"
    recording.mkdir()
    blocks = [pa.RecordBatch.from_pydict({"t": np.arange(i, i + 100) * 1_000}) for i in range(0, 1_000, 100)]
    write_blocks(recording / "rows.arrow", blocks)
    text = JOB.format(limit=limit, options=options, recording=str(recording), results=str(folder / "results"))
    path = folder / "job.py"
    path.write_text(text)
    return path


def run_it(path: Path, shown: StringIO | None = None, **options: Any) -> None:
    given = {"trigger": "available-now", "checkpoint": str(path.parent / "checkpoint"), **options}
    run_file(path, console=Console(file=shown or StringIO(), width=120), **given)


def test_a_job_runs_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    shown = StringIO()
    live = tmp_path / "live"
    run_it(job(tmp_path), shown, json_lines=tmp_path / "progress.jsonl", prometheus=0, workers=1, live=str(live))
    assert live.exists()
    counts = spark.read.parquet(str(tmp_path / "results")).orderBy("epoch").collect()
    assert [row.n for row in counts] == [500, 1_000]
    epochs = [EpochProgress.from_json(json.loads(line)) for line in (tmp_path / "progress.jsonl").open()]
    assert [epoch.rows for epoch in epochs] == [500, 500]
    assert [len(epoch.operators[0].workers) for epoch in epochs] == [1, 1]
    text = shown.getvalue()
    assert "epoch 0 | rows 500 |" in text and "process-1: emitted 1" in text
    assert re.search(r"metrics at http://127.0.0.1:\d+/metrics", text)
    assert "2 epochs, 1,000 rows, 2 emitted" in text.splitlines()[-1]


def test_a_query_that_fails_ends_with_a_hint(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job(tmp_path, limit=600)
    arguments = ["run", str(path), "--checkpoint", str(tmp_path / "ck"), "--trigger", "available-now"]
    monkeypatch.setattr(sys, "argv", ["anabranch", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    shown = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 1
    assert "ERROR query " in shown and "failed after epoch 0: Count failed in group" in shown  # the log, on stderr
    assert "too many rows" in shown and "hint:" in shown and "Traceback" not in shown
    assert [row.n for row in spark.read.parquet(str(tmp_path / "results")).collect()] == [500]


def test_without_a_checkpoint_nothing_stays(spark: SparkSession, tmp_path: Path) -> None:
    shown = StringIO()
    with pytest.raises(OperatorError, match="too many rows"):
        run_it(job(tmp_path, limit=100), shown, checkpoint=None)
    assert "no --checkpoint" in shown.getvalue()


def test_stop_while_epoch_follows_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hands over the next epoch while `stop` waits: neither may wait for the other, and nothing has failed."""
    path = job(tmp_path, options="rows_per_epoch=20")
    (delivery,) = deliveries_of(path, load_job(path), spark)
    query = ab.start(delivery, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live")
    while query.lastProgress is None:
        assert not query.awaitTermination(1)
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert query.awaitTermination()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_stops_after_the_epoch_that_runs(tmp_path: Path, number: signal.Signals) -> None:
    """As from a terminal or a service manager: the signal goes to all processes of the group, Spark's too."""
    path = job(tmp_path, options="rate=50.0")
    checkpoint = tmp_path / "checkpoint"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "anabranch.cli.main", "run", str(path), "--checkpoint", str(checkpoint)]
    running = subprocess.Popen(
        [*command, "--master", "local[1]"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        lines = []
        for line in running.stdout:
            lines.append(line)
            if line.startswith("epoch 1 "):
                os.killpg(running.pid, number)
        assert running.wait(60) == 0, "".join(lines[-20:])
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert "stopping after the current epoch" in "".join(lines)
    assert re.match(r"[\d,]+ epochs, ", lines[-1])
    plans, done = (len(list((checkpoint / "ledger").glob(f"*.{kind}"))) for kind in ("plan", "done"))
    assert plans == done >= 2  # no epoch was cut short


# --- job files, without Spark ---------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "job.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no function build"),
        ("build = 3", "has no function build"),
        ("import nowhere_to_be_found", "failed at line 1: ModuleNotFoundError"),
        ("x = 1\ny = x / 0", "failed at line 2: ZeroDivisionError"),
        ("def build(spark:\n", "SyntaxError"),
    ],
)
def test_a_job_file_that_cannot_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        load_job(written(tmp_path, text))
    assert MODULE not in sys.modules


def test_settings_of_the_command() -> None:
    assert settings_of(["spark.a = 1", "spark.b=x=y"]) == {"spark.a": "1", "spark.b": "x=y"}
    for wrong in ("spark.a", "=1"):
        with pytest.raises(JobError, match="--conf"):
            settings_of([wrong])


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no file"):
        load_job(tmp_path / "job.py")


def test_a_guarded_part_does_not_run_and_neighbours_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_job.py").write_text("NUMBER = 7")
    text = "from neighbour_of_a_job import NUMBER\ndef build(spark): return NUMBER\nif __name__ == '__main__': 1 / 0"
    before = list(sys.path), os.environ.get("PYTHONPATH")
    try:
        assert load_job(written(tmp_path, text))(None) == 7  # type: ignore[arg-type, comparison-overlap]
    finally:
        sys.path[:] = before[0]
        os.environ.pop("PYTHONPATH") if before[1] is None else os.environ.__setitem__("PYTHONPATH", before[1])


def test_what_build_returns() -> None:
    delivery, nothing = Delivery(()), None
    file = Path("job.py")
    assert deliveries_of(file, lambda spark: delivery, nothing) == (delivery,)  # type: ignore[arg-type]
    assert deliveries_of(file, lambda spark: [delivery, delivery], nothing) == (delivery, delivery)  # type: ignore[arg-type]
    for wrong in (None, [], [delivery, 3], ab.MemorySink()):
        with pytest.raises(JobError, match="not results with a sink"):
            deliveries_of(file, lambda spark, wrong=wrong: wrong, nothing)  # type: ignore[arg-type, misc]
    with pytest.raises(JobError, match=r"build\(spark\) of job.py failed: ZeroDivisionError"):
        deliveries_of(file, lambda spark: 1 / 0, nothing)  # type: ignore[arg-type, return-value]


def test_masters(spark: SparkSession) -> None:
    assert spark_session() is spark
    assert spark_session("local[3]") is spark  # one runs already
    assert all(map(is_local, (None, "local", "local[*]", "local[2]", "local[2,8]", "local[*, 3]")))
    assert not any(map(is_local, ("spark://host:7077", "yarn", "local-cluster[2,1,1024]")))
    with pytest.raises(InvalidArgumentError, match="Spark Connect"):
        spark_session("sc://localhost")
