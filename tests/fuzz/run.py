"""Run a case, and say whether it came out right."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import anabranch
from anabranch.errors import AnabranchError
from tests.fuzz.cases import Case
from tests.fuzz.compare import differences
from tests.fuzz.oracle import Expected, expected
from tests.fuzz.refusals import may_refuse
from tests.fuzz.script import PATIENCE, script_of, source_of


def python_path() -> str:
    """For other processes, so that they find the package that this one has."""
    package = str(Path(anabranch.__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))


@dataclass(frozen=True)
class Outcome:
    """How a case came out: "passed", "refused" (as the documentation says) or "failed"."""

    status: str
    signature: str = ""
    """what kind of failure: a smaller case with the same one fails alike"""
    detail: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.status == "failed"


def run(case: Case, spark: SparkSession) -> Outcome:
    """Run a case in a folder of its own, and compare."""
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="anabranch-fuzz-"))
    try:
        outcome = _outcome(case, spark, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(outcome.status, outcome.signature, outcome.detail, time.perf_counter() - began)


def _outcome(case: Case, spark: SparkSession, folder: Path) -> Outcome:
    wanted = expected(case)
    try:
        came = _killed(case, wanted, folder) if case.kills else _run(case, spark, folder)
    except Exception as error:  # whatever it is, it is reported
        return _error(case, wanted, error)
    if wanted.overflow == "must":
        return Outcome("failed", "overflow", "a sum that does not fit a bigint was delivered")
    found = differences(case, wanted, came)
    if not found:
        return Outcome("passed")
    kinds = sorted({line.split(":")[0] for line in found})
    return Outcome("failed", f"differs: {', '.join(kinds)}", "\n".join(found))


def _run(case: Case, spark: SparkSession, folder: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "fuzz_case"}
    exec(compile(source_of(case), f"case of {case.kind}", "exec"), names)
    session = spark.newSession()
    for name, value in names["SETTINGS"].items():
        session.conf.set(name, value)
    came: dict[str, Any] = names["run"](session, folder)
    return came


def _error(case: Case, wanted: Expected, error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    if wanted.overflow != "no" and "overflow" in text.lower():
        return Outcome("passed")
    line = _telling(text)
    if isinstance(error, AnabranchError) or line.startswith("anabranch.errors."):  # raised in a task of Spark's
        reason = may_refuse(case)
        if reason is not None:
            return Outcome("refused", line, reason)
    return Outcome("failed", f"error: {_without_details(line)}", "\n".join(dict.fromkeys([line, *_places(text)])))


def _telling(text: str) -> str:
    """The line of an error that says most: Spark's text is a page of stack traces."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Invalid)\b.*: ", line)]
    return (messages or lines or [text])[-1][:300]


def _places(text: str) -> list[str]:
    """Where in the package it happened."""
    found = re.findall(r'anabranch/([\w/]+\.py)", line (\d+), in (\w+)', text)
    return [f"{file}, line {line}, in {function}" for file, line, function in found][-4:]


def _without_details(line: str) -> str:
    """So that the same failure of a smaller case reads the same."""
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "...", line)
    return re.sub(r"/\S+|\d+|fields?:.*", "#", line)[:120]


# --- kills ----------------------------------------------------------------------------------------------------------


def _killed(case: Case, wanted: Expected, folder: Path) -> dict[str, Any]:
    """Run the script of a case in a process, kill that with all its children, and run it again until it ends."""
    rng = random.Random(case.to_json())
    file = folder / "case.py"
    file.write_text(script_of(case, "", wanted), encoding="utf-8")
    for _ in range(case.kills):
        process = _start(file, folder)
        try:
            _until_results(process, folder)
            time.sleep(rng.uniform(0.0, 3.0))
        finally:
            _end(process)
    process = _start(file, folder)
    try:
        process.wait(PATIENCE)
    finally:
        _end(process)
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    if "missing" not in log:  # it did not come to the end
        raise RuntimeError(log[-4_000:])
    names: dict[str, Any] = {"__name__": "fuzz_case"}
    exec(compile(source_of(case), "case", "exec"), names)
    # Counts of late rows are those of the last life only.
    return {"rows": names["read"](folder / "out"), "report": [], "late": wanted.late, "bad": wanted.bad}


def _start(file: Path, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, str(file), str(folder)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def _until_results(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the query has begun: kills before that show nothing."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if (folder / "checkpoint" / "spark" / "offsets" / "0").exists():
            return
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process group that this started, and only that."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
