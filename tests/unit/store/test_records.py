"""Records of the ledger: read as they were written, also those of releases before records had versions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CheckpointError
from anabranch.io.sinks.base import SinkPlace
from anabranch.observe.progress import PartitionMeasure
from anabranch.shedding.windrop import DropState, Tally
from anabranch.store.records import (
    VERSION,
    DropPlan,
    EpochDecision,
    EpochOutcome,
    KeyCounts,
    OperatorDecision,
    OperatorOutcome,
    PointDrops,
    Publishing,
    Record,
    Repair,
    TimeLimits,
    UnreadableRecord,
    Void,
)

NAMES = st.text(max_size=5)
TIMES = st.none() | st.integers(-(2**62), 2**62)
GROUPS = st.frozensets(st.integers(0, 99), max_size=4)
SETTINGS = st.dictionaries(NAMES, st.none() | st.booleans() | st.integers() | NAMES, max_size=3)
STATES = st.builds(
    DropState,
    st.integers(),
    st.lists(st.builds(Tally, st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
    st.lists(st.lists(st.tuples(st.integers(), st.integers()), max_size=2).map(tuple), max_size=2).map(tuple),
    st.just(0.5),
)
POINTS = st.builds(PointDrops, st.just(0.5), st.none() | st.integers(0, 9), NAMES, st.just([["k"], [1, 2]]), STATES)
DROPS = st.builds(DropPlan, SETTINGS, TIMES, st.integers(0, 99), st.dictionaries(NAMES, POINTS, max_size=2), TIMES)
DECISIONS = st.builds(
    EpochDecision,
    st.dictionaries(
        NAMES, st.builds(OperatorDecision, st.lists(st.integers(0, 9), max_size=4).map(tuple), SETTINGS), max_size=2
    ),
    NAMES,
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
    st.none() | st.builds(TimeLimits, st.lists(TIMES, max_size=2).map(tuple), st.booleans()),
    st.dictionaries(NAMES, st.builds(SinkPlace, NAMES) | st.builds(SinkPlace, NAMES, NAMES, st.booleans()), max_size=2),
    st.dictionaries(NAMES, st.none() | st.floats(0, 9), max_size=2),
    st.none() | DROPS,
    st.booleans(),
)
KEY_COUNTS = st.builds(
    KeyCounts,
    st.integers(0, 99),
    st.lists(st.builds(PartitionMeasure, TIMES, NAMES, st.just(3), st.just(9), st.just(2), st.just(0.5))).map(tuple),
    st.lists(st.tuples(st.integers(), st.integers(0, 9)), max_size=2).map(tuple),
)


@st.composite
def outcomes(draw: st.DrawFn) -> OperatorOutcome:
    """What the ledger does not keep is left out: `latest` without `since`, `passed` while nothing waits."""
    since = draw(st.none() | st.integers(0, 9))
    waiting = draw(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2))
    passed = draw(st.dictionaries(st.integers(0, 9), TIMES, max_size=2)) if waiting else {}
    return OperatorOutcome(
        draw(TIMES),
        draw(GROUPS),
        draw(st.dictionaries(st.integers(0, 99), st.integers(0, 99), max_size=2)),
        draw(SETTINGS),
        draw(GROUPS),
        draw(st.none() | KEY_COUNTS),
        since,
        None if since is None else draw(TIMES),
        waiting,
        passed,
    )


def through_a_file(content: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(content))
    return loaded


@given(DECISIONS)
def test_a_decision_is_read_as_it_was_written(decision: EpochDecision) -> None:
    assert EpochDecision.read(through_a_file(decision.to_json())) == decision


@given(
    st.builds(
        EpochOutcome,
        st.lists(TIMES, max_size=2).map(tuple),
        st.dictionaries(NAMES, outcomes(), max_size=2),
        GROUPS,
        st.dictionaries(NAMES, st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2),
    )
)
def test_an_outcome_is_read_as_it_was_written(outcome: EpochOutcome) -> None:
    assert EpochOutcome.read(through_a_file(outcome.to_json())) == outcome


@given(DECISIONS)
def test_a_decision_without_a_version_is_read_too(decision: EpochDecision) -> None:
    before = through_a_file(decision.to_json())
    del before["version"]
    assert EpochDecision.read(before) == decision


MARKS = [(Publishing(7), {"epoch": 7}), (Void("a test"), {"reason": "a test"}), (Repair(-5), {"watermark": -5})]
RECORDS = [EpochDecision, EpochOutcome, Publishing, Void, Repair]


@pytest.mark.parametrize(("record", "before"), MARKS)
def test_a_mark_is_read_as_it_was_written_and_as_releases_without_versions_wrote_it(
    record: Record, before: dict[str, Any]
) -> None:
    assert record.to_json() == {"version": VERSION, **before}
    assert type(record).read(through_a_file(record.to_json())) == record
    assert type(record).read(before) == record


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_a_later_release_is_refused_with_both_numbers(record: type[Record]) -> None:
    with pytest.raises(CheckpointError, match=f"has version {VERSION + 1}, .* up to version {VERSION}"):
        record.read({"version": VERSION + 1})


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("content", [None, 5, "text", [], [1], {"operators": 5, "epoch": None, "watermark": "x"}])
def test_what_is_no_record_has_a_reason(record: type[Record], content: Any) -> None:
    with pytest.raises(UnreadableRecord, match=r"it cannot be read \(\w+Error: "):
        record.read(content)


def test_the_ledger_keeps_the_same_of_a_measure_whatever_fields_it_gets() -> None:
    @dataclass(frozen=True)
    class Later(PartitionMeasure):
        skew: float = 0.0

    known = KeyCounts(1, (PartitionMeasure(0, "cAM", 3, 9, 2, 0.5, most_cost=4),), ())
    later = KeyCounts(1, (Later(0, "cAM", 3, 9, 2, 0.5, most_cost=4, skew=0.5),), ())
    assert later.to_json() == known.to_json()
    assert known.to_json()["partitions"] == [asdict(known.partitions[0])]
    written = through_a_file(known.to_json())
    written["partitions"][0]["skew"] = 0.5
    assert KeyCounts.from_json(written) == known


@pytest.mark.parametrize(
    ("place", "written"),
    [
        (SinkPlace("NoopSink"), {"sink": "NoopSink"}),
        (SinkPlace("FileSink", "/out"), {"sink": "FileSink", "path": "/out", "flat": False}),
    ],
)
def test_places_of_sinks_are_written_as_ever(place: SinkPlace, written: dict[str, Any]) -> None:
    decision = EpochDecision(sinks={"window-1.results": place})
    assert decision.to_json()["sinks"] == {"window-1.results": written}


@pytest.mark.parametrize(
    ("sinks", "found"),
    [
        ({"a": {"sink": "FileSink", "path": "/out", "flat": True}}, {"a": SinkPlace("FileSink", "/out", True)}),
        ({"a": {"path": "/out"}}, {"a": SinkPlace("an unknown sink", "/out")}),
        ({"a": 5}, {}),
        (5, {}),
    ],
)
def test_of_a_decision_that_cannot_be_read_a_repair_learns_where_results_may_be(
    sinks: Any, found: dict[str, SinkPlace]
) -> None:
    known = {"operators": 5, "sinks": sinks, "publishing_is_marked": True}
    assert EpochDecision.partly(known) == EpochDecision(sinks=found, marks_publishing=True)
    assert EpochDecision.partly([]) == EpochDecision(marks_publishing=False)
