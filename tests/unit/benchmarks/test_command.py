"""`python -m benchmarks`: its help, and the tables and the JSON that every benchmark prints."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.report import Measured, print_json, show, show_ratios

COMMANDS = ("windows", "first", "split", "epochs", "partitioners", "join", "shedding")


def test_help_names_every_benchmark() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_benchmark_has_a_quick_form_and_json(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"}).output
    assert "--quick" in shown and "--json" in shown


def test_a_benchmark_prints_a_table_and_json_last(capsys: pytest.CaptureFixture[str]) -> None:
    measured = [
        Measured("pane", "size 100 s", rows=1000, seconds=0.5, delivered=200),
        Measured("window", "size 1 s", 10, 2.0),
    ]
    console = Console(width=120)
    show(console, "dense", measured)
    show_ratios(console, {"speedup": 400.0}, {"speedup": 20.0})
    print_json({"speedup": 400.0}, {"dense": measured}, quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert any("2,000" in line and "400" in line for line in lines)  # rows/s and delivered/s
    last = json.loads(lines[-1])
    assert last["speedup"] == 400.0 and last["quick"] is True
    assert last["table"][0] == {
        "data": "dense",
        "name": "pane",
        "setting": "size 100 s",
        "rows": 1000,
        "seconds": 0.5,
        "rows_per_second": 2000,
        "delivered_per_second": 400,
    }
