"""Listeners: lines of JSON, and a broken listener that affects nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.errors import ListenerError
from anabranch.observe.listeners import JsonLines, notify
from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure


def epoch(number: int, workers: int = 2, query: str = "q") -> EpochProgress:
    measured = tuple(WorkerMeasure(i, 10, 0.25, groups=3) for i in range(workers))
    operator = OperatorProgress(
        "a", 20, workers=measured, splitters=(SplitterMeasure(0, 20, 1),), decisions={"batch": 4, "why:batch": "x"}
    )
    return EpochProgress(query, "r", number, 0.0, 0.5, rows=20, operators=(operator,))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "progress.jsonl"
    with JsonLines(path) as lines:
        lines.on_progress(epoch(1))
        assert path.read_bytes().endswith(b"\n")  # flushed
    with path.open("a") as file:
        file.write('{"cut by a cra')
    with JsonLines(path) as lines:
        lines.on_progress(epoch(2))
    first, _, second = path.read_text().splitlines()
    assert [EpochProgress.from_json(json.loads(line)) for line in (first, second)] == [epoch(1), epoch(2)]


def test_json_lines_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ListenerError):
        JsonLines(tmp_path)


def test_a_broken_listener_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, good = JsonLines(tmp_path / "a"), JsonLines(tmp_path / "b")
    broken.close()
    notify([broken, good], "on_progress", epoch(1))
    good.close()
    assert (tmp_path / "b").read_text()
    assert "the query continues" in caplog.text and "Traceback" not in caplog.text
