"""Progress: derived figures, and the way to JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import (
    PROGRESS_VERSION,
    EpochProgress,
    OperatorProgress,
    SplitterMeasure,
    WorkerMeasure,
)

count, seconds, text = st.integers(0, 2**53), st.floats(0, 1e9), st.text(max_size=8)
workers = st.builds(WorkerMeasure, count, count, seconds, count, count, count, count, seconds, seconds, seconds)
splitters = st.builds(SplitterMeasure, *[count] * 8, seconds, seconds, seconds)
plain = st.none() | st.booleans() | count | text | st.floats(allow_nan=False, allow_infinity=False)
operators = st.builds(
    OperatorProgress,
    name=text,
    rows=count,
    watermark=st.none() | st.integers(-(2**62), 2**62),
    workers=st.lists(workers, max_size=2).map(tuple),
    splitters=st.lists(splitters, max_size=2).map(tuple),
    decisions=st.dictionaries(text, plain | st.lists(plain, max_size=2), max_size=3),
)
epochs = st.builds(
    EpochProgress,
    query=text,
    run=text,
    epoch=count,
    started=seconds,
    seconds=seconds,
    trigger_seconds=st.none() | seconds,
    rows=count,
    backlog=st.none() | count,
    event_latency=st.none() | seconds,
    replayed=st.booleans(),
    operators=st.lists(operators, max_size=2).map(tuple),
)


@given(epochs)
def test_json_and_back(epoch: EpochProgress) -> None:
    assert EpochProgress.from_json(json.loads(json.dumps(epoch.as_json(), allow_nan=False))) == epoch


def test_unknown_keys_are_skipped() -> None:
    epoch = EpochProgress("q", "r", 1, 0.0, 1.0, operators=(OperatorProgress("a", late=2),))
    record = epoch.as_json()
    record["of_a_later_release"] = record["operators"][0]["too"] = 1
    assert EpochProgress.from_json(record) == epoch
    assert record["late"] == 2


def test_a_line_of_an_older_release_gets_the_defaults() -> None:
    line = {"query": "q", "run": "r", "epoch": 1, "started": 0.0, "seconds": 1.0, "operators": [{"name": "a"}]}
    assert EpochProgress.from_json(line) == EpochProgress("q", "r", 1, 0.0, 1.0, operators=(OperatorProgress("a"),))


@pytest.mark.parametrize("line", [None, [], 5, {}, {"epoch": 1}, {"operators": 5}, {"operators": [{"rows": 1}]}])
def test_what_is_no_progress_is_refused(line: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="this is not the progress of an epoch: "):
        EpochProgress.from_json(line)


def test_progress_of_a_later_version_is_refused_with_both_numbers() -> None:
    line = EpochProgress("q", "r", 1, 0.0, 1.0).as_json()
    assert line["version"] == PROGRESS_VERSION
    line["version"] += 1
    with pytest.raises(
        InvalidArgumentError, match=f"version {PROGRESS_VERSION + 1}, .* up to version {PROGRESS_VERSION}"
    ):
        EpochProgress.from_json(line)


def test_decisions_become_plain() -> None:
    found = OperatorProgress("a", decisions={"batch": np.int64(3), "share": (0.5, float("inf"))}).decisions
    assert json.dumps(found) == '{"batch": 3, "share": [0.5, null]}'


def test_rates() -> None:
    waits = EpochProgress("q", "r", 1, 0.0, seconds=0.5, trigger_seconds=2.0, rows=100)
    assert (waits.input_rate, waits.processed_rate) == (50, 200)
    late = EpochProgress("q", "r", 1, 0.0, seconds=4.0, trigger_seconds=2.0, rows=100)
    assert (late.input_rate, late.processed_rate) == (25, 25)
    assert EpochProgress("q", "r", 1, 0.0, 0.0).input_rate == 0


def test_imbalance_load_and_efficiency() -> None:
    measured = (WorkerMeasure(0, 30, 1.0, merge_seconds=0.5), WorkerMeasure(1, 10, 0.5, read_seconds=0.5))
    split = SplitterMeasure(0, 40, 1, read_seconds=1.0, split_seconds=1.0, emit_seconds=1.0)
    operator = OperatorProgress("a", workers=measured, splitters=(split,))
    epoch = EpochProgress("q", "r", 1, 0.0, seconds=1.0, trigger_seconds=2.0, operators=(operator,))
    assert operator.imbalance == pytest.approx(0.5)
    assert operator.efficiency == 0.75
    assert epoch.loads("a") == {0: 0.5, 1: 0.25}
    assert epoch.loads("b") == {}
    assert OperatorProgress("a").imbalance == 0
    assert OperatorProgress("a").efficiency is None
