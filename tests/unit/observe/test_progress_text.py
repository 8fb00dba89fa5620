"""`print(query.lastProgress)` is a few lines that a person can read; the whole record is `.json`."""

from __future__ import annotations

import json

from anabranch.observe.progress import DropProgress, EpochProgress, OperatorProgress, WorkerMeasure

OPERATOR = OperatorProgress(
    "window-1",
    rows=20_000,
    emitted=140,
    late=3,
    watermark=1_706_693_390_000_000,
    state_bytes=2_048,
    seconds=0.61,
    workers=(WorkerMeasure(0, 12_000, 0.5), WorkerMeasure(1, 8_000, 0.25)),
    decisions={"batch": 8, "why:batch": "B 4 -> 8", "routing": list(range(500)), "why:routing": "dealt anew"},
)
EPOCH = EpochProgress(
    "9f3c",
    "r",
    12,
    started=1_706_693_405.5,
    seconds=0.8,
    rows=20_000,
    backlog=1,
    event_latency=0.4,
    latency=1.9,
    restored=2,
    operators=(OPERATOR, OperatorProgress("combine-2", emitted=7)),
    drops=(DropProgress("window-1", 0.5, 3, "too much", rows=10, shed=5),),
    name="busy",
)


def test_print_shows_a_few_lines() -> None:
    lines = str(EPOCH).splitlines()
    assert lines[:5] == [
        "epoch 12 of busy: 20,000 rows in 0.80 s, began 2024-01-31 09:30:05Z",
        "  rates       25 k rows/s in, 25 k rows/s processed, backlog 1 row",
        "  latency     1.9 s from the oldest row to publishing; the newest event is 0.4 s old",
        "  restored    the state of 2 groups, from the epoch store",
        "  window-1    20,000 rows -> 140 rows in 0.61 s; watermark 2024-01-31 09:29:50Z; 3 late; 2.0 KiB of state; "
        "2 workers, imbalance 0.20",
    ]
    assert lines[5] == "              batch = 8: B 4 -> 8"
    assert lines[6].endswith("...: dealt anew") and len(lines[6]) < 120
    assert lines[7] == "  combine-2   7 rows in 0.00 s"
    assert lines[8].startswith("  dropping    window-1: p = 0.50, B = 3; 5 of 10 rows shed")
    assert len(lines) == 9


def test_a_first_epoch_of_nothing() -> None:
    assert str(EpochProgress("q", "r", 0, 0.0, 0.0)).splitlines() == [
        "epoch 0: 0 rows in 0.00 s, began 1970-01-01 00:00:00Z",
        "  rates   0 rows/s in, 0 rows/s processed",
    ]


def test_the_repr_is_one_line_and_json_has_everything() -> None:
    assert repr(EPOCH) == "<EpochProgress epoch 12 of busy: 20,000 rows in 0.80 s>"
    assert json.loads(EPOCH.json) == json.loads(EPOCH.prettyJson) == EPOCH.as_json()
    assert "\n" not in EPOCH.json
    assert EpochProgress.from_json(json.loads(EPOCH.json)).name == "busy"
