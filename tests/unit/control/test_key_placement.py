"""Routes and gates that place keys, what they count, and the controller that chooses a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.control.key_placement import HEAVY, KeyPlacement
from anabranch.keys.census import HEAVY_KEYS, MOST_WINDOWS, KeyCensus, KeyCounter, heaviest_of, loads_by_window
from anabranch.keys.hashing import hash_keys
from anabranch.keys.partitioner import HeavyKeys, Partitioner
from anabranch.keys.policy import POLICIES_COMPARED, Partitioning
from anabranch.observe.progress import EpochProgress, OperatorProgress, PartitionMeasure
from anabranch.split.gates import Census, CountingPaneGate, OpenGate
from anabranch.split.key_routes import KeyRoute
from anabranch.split.readers import RowReader
from anabranch.split.report import SplitterReport
from anabranch.split.splitter import REPORT_GROUP, Splitter
from anabranch.windows.ids import Stretch
from benchmarks.partitioner_runs import loads_of

S = 1_000_000


def block(keys: list[str | None], times: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "t": pa.array(times, pa.int64())})


def test_a_route_hashes_here_or_takes_sparks_hashes() -> None:
    rows = block(["a", None, "b", "a"], [0, 1, 2, 3])
    hashed = rows.append_column("h", pa.array(hash_keys([rows.column("key")])))
    here = KeyRoute(Partitioning("cam"), ("key",)).begun(0)
    there = KeyRoute(Partitioning("cam"), hashed="h").begun(0)
    to, _, travelling = there(hashed, 3)
    assert to.tolist() == here(rows, 3)[0].tolist()
    assert travelling.schema.names == ["key", "t"]


def test_a_route_counts_per_window_of_its_time() -> None:
    #  windows  [-10 s, 0)  [0, 10 s)
    rows = block(["a"] * 4, [-1, -10 * S, 0, 10 * S - 1])
    route = KeyRoute(Partitioning("sh"), ("key",), time="t", stretch=Stretch(10 * S)).begun(0)
    # Each window has its own turn: it starts with the worker of the window's number.
    assert route(rows, 3)[0].tolist() == [2, 0, 0, 1]


def test_a_row_without_a_time_goes_somewhere() -> None:
    route = KeyRoute(Partitioning("cam"), ("key",), time="t", stretch=Stretch(S)).begun(0)
    assert route(block(["a", "a"], [None, 5]), 4)[0].tolist() == [route(block(["a"], [5]), 4)[0][0]] * 2


def test_every_task_begins_anew() -> None:
    """The route of a plan is sent to many tasks: what one of them counts must not reach another."""
    plan = KeyRoute(Partitioning("pk"), ("key",), counting=True)
    rows = block(["a", "a", "a"], [0, 0, 0])
    first, second = plan.begun(0), plan.begun(0)
    assert first(rows, 2)[0].tolist() == second(rows, 2)[0].tolist()
    assert not plan.state and not plan.counter.pieces


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-30, 30)), min_size=1, max_size=60),
    st.sampled_from(POLICIES_COMPARED),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_what_a_splitter_tells_is_what_it_did(rows: list[tuple[str, int]], policy: Any, workers: int) -> None:
    keys, times = [key for key, _ in rows], [t * S for _, t in rows]
    stretch = Stretch(20 * S)
    route = KeyRoute(Partitioning(policy), ("key",), time="t", stretch=stretch, counting=True)
    splitter = Splitter(0, RowReader(), OpenGate(), route, tuple(range(workers)), workers)
    batches = [block(keys[i : i + 7], times[i : i + 7]) for i in range(0, len(rows), 7)]
    marks = [row for out in splitter(iter(batches)) for row in out.to_pylist() if row["grp"] == REPORT_GROUP]
    censuses = [SplitterReport.unpacked(row["block"]).keys for row in marks]
    assert censuses[0] is not None and all(each is None for each in censuses[1:])  # once, not once per worker
    hashes, windows = hash_keys([pa.array(keys)]), stretch.of(np.array(times))
    # The splitter gathers its batches into one window before it routes them.
    to = Partitioner(Partitioning(policy), workers).assign(hashes, windows)
    for window, (tuples, pairs) in loads_by_window([censuses[0]], workers).items():
        mine = windows == window
        expected = loads_of(to[mine], hashes[mine], workers)
        assert (tuple(tuples), tuple(pairs)) == (expected.tuples, expected.keys)
        assert dict(censuses[0].distinct)[window] == expected.distinct
    assert sum(n for _, n in heaviest_of([censuses[0]])) == len(rows)


def test_a_gate_counts_the_panes_that_pass_it() -> None:
    gate = CountingPaneGate("pane", "rows", "timed", "max_t", "part", "hash", 2, Stretch(3))
    #   worker = part modulo 2; the window of three panes: -1 for panes -3..-1, 0 for 0..2
    panes = pa.RecordBatch.from_pydict(
        {
            "pane": pa.array([-1, 0, 2, 2, None], pa.int64()),
            "rows": [4, 1, 2, 3, 9],
            "timed": [4, 1, 2, 3, 5],
            "max_t": [1, 2, 3, 4, 5],
            "part": [0, 2, 3, 3, 0],
            "hash": [7, 7, 7, 8, 7],
        }
    )
    census = Census()
    left = gate(panes, census)
    assert left.schema.names == ["pane", "rows", "part"] and left.num_rows == 4
    assert (census.rows, census.late, census.bad) == (19, 5, 4)
    reported = census.keys.census()
    assert reported is not None
    assert reported.loads == ((-1, 0, 4, 1), (0, 0, 1, 1), (0, 1, 5, 2))
    assert reported.distinct == ((-1, 1), (0, 2)) and reported.heaviest == ((7, 7), (8, 3))


def test_only_the_latest_windows_and_the_heaviest_keys_are_reported() -> None:
    counter = KeyCounter()
    n = 5_000
    counter.add(np.arange(n) % 40, np.zeros(n, np.int64), np.arange(n), np.arange(n))
    reported = counter.census()
    assert reported is not None
    assert [row[0] for row in reported.loads] == list(range(40 - MOST_WINDOWS, 40))
    assert reported.since == 40 - MOST_WINDOWS
    assert len(reported.heaviest) == HEAVY_KEYS and reported.heaviest[0] == (n - 1, n - 1)
    assert KeyCensus.from_json(json.loads(json.dumps(reported.to_json()))) == reported
    assert len(heaviest_of([reported, reported])) == HEAVY_KEYS


# --- the controller -------------------------------------------------------------------------------------------------


def epoch(number: int, keys: int, tuples: int, workers: int = 4, **more: Any) -> EpochProgress:
    by_policy = PartitionMeasure(0, "cAM-2", workers, tuples, keys, 0.0)
    operator = OperatorProgress("window-1", partitions=(by_policy,), **more)
    return EpochProgress("q", "r", number, 0.0, 1.0, operators=(operator,))


def test_it_starts_with_cam_and_follows_the_rule() -> None:
    control = KeyPlacement("window-1", 4)
    first = control.decide([], {})
    assert first["partition"] == "cAM-2" and "nothing measured" in first["why:partition"]
    few = control.decide([epoch(0, 3, 4_000)], first)
    assert few["partition"] == "SH-w" and "3 keys" in few["why:partition"]
    again = control.decide([epoch(0, 3, 4_000), epoch(1, 3, 4_000)], few)
    assert again["partition"] == "SH-w" and "why:partition" not in again
    many = control.decide([epoch(2, 900, 4_000)], again)
    assert many["partition"] == "heavy"
    assert KeyPlacement("window-1", 4, splitters=1).decide([epoch(2, 900, 4_000)], again)["partition"] == "cAM-2"


def test_the_table_is_of_the_last_epoch_and_survives_the_ledger() -> None:
    control = KeyPlacement("window-1", 2, fixed="heavy")
    heaviest = ((-5, 60), (9, 50), (11, 10))
    decided = control.decide([epoch(0, 3, 120, 2, heaviest=heaviest)], {"partition": "heavy"})
    assert "partition" not in decided  # it is the user's
    table = HeavyKeys.from_json(json.loads(json.dumps(decided[HEAVY])))
    where = dict(zip(table.keys.tolist(), table.workers.tolist(), strict=True))
    # 60 on the first worker, 50 on the second, 10 on the lighter one.
    assert where == {2**64 - 5: 0, 9: 1, 11: 1}
    assert Partitioner(Partitioning("heavy"), 2, heavy=table).assign(np.array([-5, 9, 11])).tolist() == [0, 1, 1]


def test_other_policies_have_no_table() -> None:
    decided = KeyPlacement("window-1", 2, fixed="PK-2").decide([epoch(0, 3, 9, 2, heaviest=((1, 9),))], {})
    assert decided[HEAVY] == {"keys": [], "workers": []} and "partition" not in decided


def test_a_table_for_more_workers_does_no_harm() -> None:
    table = HeavyKeys(np.array([5], np.uint64), np.array([7], np.int32))
    assert Partitioner(Partitioning("heavy"), 4, heavy=table).assign(np.array([5])).tolist() == [3]


def test_part_of_a_window_does_not_change_the_policy() -> None:
    control = KeyPlacement("window-1", 4)
    current: Mapping[str, Any] = {"partition": "SH-w"}
    whole = [epoch(n, 100, 40_000) for n in range(4)]
    assert control.decide([*whole, epoch(4, 5, 40)], current)["partition"] == "SH-w"


def test_a_restart_decides_as_if_nothing_had_happened() -> None:
    """Without the epochs before the last, which only the process knew, but with the settings: the ledger has them."""
    control = KeyPlacement("window-1", 4)
    epochs = [epoch(n, 3 if n < 3 else 700, 4_000, heaviest=((n, 9),)) for n in range(6)]
    whole, restarted = [], []
    current: Mapping[str, Any] = {}
    for n in range(7):
        # The process has forgotten all; the ledger has the counts of the last epoch.
        again = KeyPlacement("window-1", 4, before=epochs[n - 1] if n else None)
        afresh = again.decide([], current)
        current = control.decide(epochs[:n], current)
        whole.append(current)
        restarted.append(afresh)
    assert restarted == whole
    assert {each["partition"] for each in whole} == {"cAM-2", "SH-w", "heavy"}


@pytest.mark.parametrize("label", ["SH-w", "FLD-1", "PK-3", "CM-2", "AM-5", "cAM-2", "LM-2", "LM-2-H", "heavy"])
def test_labels_can_be_read_back(label: str) -> None:
    assert Partitioning.of_label(label).label == label
