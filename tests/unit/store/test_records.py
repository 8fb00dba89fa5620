"""Records of the ledger: read as they were written, also those of releases before records had versions."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.observe.progress import PartitionMeasure
from anabranch.shedding.windrop import DropState, Tally
from anabranch.store.records import (
    DropPlan,
    EpochDecision,
    EpochOutcome,
    KeyCounts,
    OperatorDecision,
    OperatorOutcome,
    PointDrops,
    TimeLimits,
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
    st.dictionaries(NAMES, SETTINGS, max_size=2),
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
    assert EpochOutcome.from_json(through_a_file(outcome.to_json())) == outcome


@given(DECISIONS)
def test_a_decision_without_a_version_is_read_too(decision: EpochDecision) -> None:
    before = through_a_file(decision.to_json())
    del before["version"]
    assert EpochDecision.read(before) == decision
