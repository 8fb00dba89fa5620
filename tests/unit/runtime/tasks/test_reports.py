"""Reports of tasks: what the driver reads is what the task wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import WorkerPythonError
from anabranch.io.parquet import Written
from anabranch.keys.census import KeyCensus
from anabranch.observe.progress import WorkerMeasure
from anabranch.runtime.tasks.reports import JobReports, SideReport, WorkerReport, WriterReport, from_text, to_text
from anabranch.split.report import REPORT_VERSION, SplitterCounters, SplitterReport

COUNTS = st.integers(0, 2**62)
GROUPS = st.frozensets(st.integers(0, 99), max_size=4)
SECONDS = st.floats(0, 1e6)
WRITTEN = st.builds(Written, COUNTS, COUNTS, st.lists(st.text(max_size=5), max_size=3))
CENSUS = st.builds(
    KeyCensus,
    st.lists(st.tuples(*[st.integers(-(2**62), 2**62)] * 4), max_size=3).map(tuple),
    st.lists(st.tuples(COUNTS, COUNTS), max_size=3).map(tuple),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), COUNTS), max_size=3).map(tuple),
    st.none() | st.integers(),
)
COUNTERS = st.builds(SplitterCounters, *[COUNTS] * 6, SECONDS, SECONDS, SECONDS)
SPLITTERS = st.builds(
    SplitterReport, *[COUNTS] * 5, st.none() | st.integers(), st.none() | COUNTERS, st.none() | CENSUS
)
MEASURES = st.builds(
    WorkerMeasure,
    COUNTS,
    COUNTS,
    SECONDS,
    occupancy=st.none() | SECONDS,
    group_seconds=st.lists(st.tuples(COUNTS, SECONDS), max_size=3).map(tuple),
    rebuilt_why=st.dictionaries(st.text(max_size=5), COUNTS, max_size=2),
)
WORKERS = st.builds(
    WorkerReport,
    MEASURES,
    st.none() | st.integers(),
    GROUPS,
    GROUPS,
    st.dictionaries(st.integers(0, 99), COUNTS, max_size=3),
    st.dictionaries(st.integers(0, 99), COUNTS, max_size=3),
    st.dictionaries(st.text(max_size=5), WRITTEN, max_size=2),
    st.dictionaries(st.text(max_size=5), COUNTS, max_size=2),
    st.lists(SPLITTERS, max_size=2).map(tuple),
)


@given(WORKERS | WRITTEN.map(WriterReport) | st.dictionaries(st.text(max_size=5), COUNTS, max_size=3).map(SideReport))
def test_a_report_arrives_as_it_was_sent(report: WorkerReport | WriterReport | SideReport) -> None:
    assert from_text(to_text(report)) == report


@given(SPLITTERS)
def test_a_splitters_report_arrives_as_it_was_sent(report: SplitterReport) -> None:
    assert SplitterReport.unpacked(report.packed()) == report


def worker(number: int, rows: int, *splitters: SplitterReport) -> WorkerReport:
    return WorkerReport(WorkerMeasure(number, rows, 0.0), 5, frozenset(), frozenset(), splitters=splitters)


def test_of_a_task_that_ran_twice_the_last_report_counts() -> None:
    splitter = SplitterReport(0, 0, rows=3)
    found = JobReports.of(
        [
            worker(1, 10),
            WriterReport(Written(2, 8, ["b"])),
            worker(0, 7, splitter),
            SideReport({"late": 1}),
            worker(1, 20),
            SideReport({"late": 2, "null time": 1}),
        ]
    )
    assert [each.measured.rows for each in found.workers] == [7, 20]
    assert found.splitters == (splitter,)
    assert [each.files for each in found.written] == [["b"]]
    assert found.reasons == {"late": 3, "null time": 1}


@pytest.mark.parametrize("version", [None, REPORT_VERSION - 1, REPORT_VERSION + 1])
def test_a_report_of_another_version_is_not_guessed_at(version: int | None) -> None:
    for sent, read in (
        (to_text(SideReport({})), from_text),
        (SplitterReport(0, 0).packed().decode(), lambda text: SplitterReport.unpacked(text.encode())),
    ):
        other = json.loads(sent)
        del other["version"]
        if version is not None:
            other["version"] = version
        with pytest.raises(
            WorkerPythonError, match=f"version {version or 0}, but its reader expects version {REPORT_VERSION}"
        ) as refused:
            read(json.dumps(other))
        assert "same release" in refused.value.hint


def test_a_splitters_report_to_the_other_workers_is_short() -> None:
    sent = json.loads(SplitterReport(1, 0, rows=3).packed())
    assert sent == {"version": REPORT_VERSION, "splitter": 1, "edge": 0, "rows": 3, "late": 0, "bad": 0}
