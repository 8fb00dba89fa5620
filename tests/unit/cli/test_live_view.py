"""The live view: one line per epoch where there is no terminal, one table where there is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from anabranch.cli.live_view import LiveView, bars
from anabranch.observe.progress import EpochProgress, OperatorProgress, WorkerMeasure

OPERATOR = OperatorProgress(
    "window-1",
    rows=1_000,
    emitted=20,
    late=3,
    watermark=90_000_000,
    state_bytes=2_048,
    workers=(WorkerMeasure(0, 900, 1.0), WorkerMeasure(1, 100, 0.25)),
)
EPOCH = EpochProgress("q", "r", 7, 0.0, 2.0, rows=1_000, backlog=5_000, event_latency=1.25, operators=(OPERATOR,))


def test_lines_without_a_terminal() -> None:
    shown = StringIO()
    view = LiveView(Console(file=shown, width=40))
    with view.shown():
        view.on_started("q", "r")
        view.on_progress(EPOCH)
        view.on_terminated("q", None)
    first, second, third = shown.getvalue().splitlines()  # long lines are not broken: a log wants one per epoch
    assert "Ctrl-C" in first and third == "query q ended"
    assert second.startswith("epoch 7 | rows 1000 | seconds 2.00 | input/s 500 | processed/s 500 | backlog 5000")
    assert "window-1: emitted 20 late 3 bad 0 watermark 1970-01-01 00:01:30" in second


def test_a_table_in_a_terminal() -> None:
    shown = StringIO()
    console = Console(file=shown, width=140, force_terminal=True, color_system=None)
    view = LiveView(console)
    with view.shown():
        view.on_progress(EPOCH)
        view.on_progress(EPOCH)
    text = shown.getvalue()
    for part in (
        "window-1",
        "5 k",
        "1.2 s",
        "2.0 KiB",
        "0.80",
        "▄▁ at most 50%",
        "2 epochs, 2,000 rows, 40 emitted, 6 late",
    ):
        assert part in text


def test_before_the_first_epoch_there_is_a_note_only() -> None:
    console = Console(file=StringIO(), width=80)
    with console.capture() as captured:
        console.print(LiveView(console))
    assert captured.get().strip() == "waiting for the first epoch"


def test_operators_without_workers_and_figures_that_nobody_knows() -> None:
    epoch = EpochProgress("q", "r", 0, 0.0, 1.0, operators=(OperatorProgress("combine-2"),))
    console = Console(file=StringIO(), width=140, force_terminal=True, color_system=None)
    view = LiveView(console)
    with console.capture() as captured:
        view._live = object()  # type: ignore[assignment]  # as if shown
        view.on_progress(epoch)
        console.print(view)
    line = next(line for line in captured.get().splitlines() if line.startswith("combine-2"))
    assert line.split() == ["combine-2", "0", "0", "0", "-", "0", "B", "-", "-"]


@pytest.mark.parametrize(("load", "bar"), [(0.0, " "), (0.01, " "), (0.5, "▄"), (1.0, "█"), (7.0, "█"), (-1.0, " ")])
def test_bars(load: float, bar: str) -> None:
    assert bars([load]) == bar
