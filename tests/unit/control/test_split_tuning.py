"""Tuning a split: how many splitters, how large a block, and what survives a history that was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.control.base import arrival_rate, operator_rate
from anabranch.control.split_tuning import SplitTuning
from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure
from anabranch.split.cost import splitters_needed
from anabranch.split.window_size import SAMPLES
from tests.oracles.window_size import next_window_bytes
from tests.unit.control.measures import epoch, split


def test_splitters_stay_without_measures_or_after_a_replay() -> None:
    tuning = SplitTuning("split", 8)
    for history in ([], [epoch(0)], [epoch(0, split(1_000, 100.0), replayed=True)]):
        assert tuning.decide(history, {"splitters": 3})["splitters"] == 3
        assert "why:splitters" not in tuning.decide(history, {"splitters": 3})


def test_splitters_follow_the_measured_costs_and_say_why() -> None:
    # One splitter takes 100 rows/s; 1,000 come. Nothing is broadcast, so q does not matter.
    found = SplitTuning("split", 8).decide([epoch(0, split(1_000, 100.0))], {"splitters": 1})
    assert found["splitters"] == splitters_needed(1_000, 100.0, 8, b=0.0) == 10
    assert found["why:splitters"].startswith("1,000 rows/s, one splitter takes 100 with q = 8 and 0.0% broadcast")


def test_no_more_splitters_than_slots() -> None:
    most = SplitTuning("split", 8, most_splitters=4).decide([epoch(0, split(1_000, 100.0))], {"splitters": 1})
    assert most["splitters"] == 4


def test_only_the_sources_that_a_split_reads_count_for_its_splitters() -> None:
    """The sources send 108,000 rows/s; the split reads one of them, 1,000 rows/s, which a splitter can take."""
    history = [epoch(i, split(1_000, 1_001.0), rows=108_000) for i in range(4)]
    assert arrival_rate(history) == 108_000
    assert operator_rate(history, "split") == pytest.approx(1_000)
    assert SplitTuning("split", 8).decide(history, {"splitters": 1})["splitters"] == 1
    # Its own source sends more: at once.
    history.append(epoch(4, split(4_000, 1_001.0), rows=108_000))
    assert operator_rate(history, "split") == pytest.approx(4_000)
    assert SplitTuning("split", 8).decide(history, {"splitters": 1})["splitters"] == 4
    assert operator_rate(history, "another") == operator_rate([], "split") == 0


@pytest.mark.parametrize(("broadcast", "omitted"), [(500, 0), (500, 400), (10, 0)])
def test_what_is_broadcast_and_omitted_counts_as_measured(broadcast: int, omitted: int) -> None:
    """q = 100, b = 0.5: the splitters were busy for 3.5 s in a second. With b taken as 0.01, p fell from 4 to 1."""
    copies = 1_000 - broadcast - omitted + 100 * broadcast
    cs = 2.0 / (copies + omitted)
    measured = SplitterMeasure(
        0, 1_000, 10, routed=1_000 - broadcast - omitted, broadcast=broadcast, omitted=omitted, read_seconds=0.5,
        split_seconds=cs * (copies + omitted), emit_seconds=1.0,
    )  # fmt: skip
    history = [epoch(i, OperatorProgress("split", rows=1_000, splitters=(measured,))) for i in range(3)]
    assert SplitTuning("split", 100).decide(history, {"splitters": 4})["splitters"] == 4
    assert SplitTuning("split", 100).decide(history, {"splitters": 1})["splitters"] == 4


def test_splitters_are_given_back_only_with_slack() -> None:
    tuning = SplitTuning("split", 1)
    history = [epoch(0, split(1_000, 100.0))]
    assert tuning.decide(history, {"splitters": 12})["splitters"] == 12  # 25 % more rows would need 13
    assert tuning.decide(history, {"splitters": 20})["splitters"] == 13


# --- the search for W -----------------------------------------------------------------------------------------------


def searched(history: Sequence[EpochProgress], current: Mapping[str, Any], **limits: int) -> dict[str, Any]:
    return dict(SplitTuning("split", 8, **{"smallest_window": 4_096, **limits}).decide(history, current))


def test_epochs_too_small_for_their_windows_say_nothing() -> None:
    history = [epoch(i, split(1_000, 100.0 + i, windows=3)) for i in range(10)]  # fewer than FULL_WINDOWS
    history += [epoch(i, split(1_000, 100.0 + i), replayed=True) for i in range(10, 20)]
    history += [epoch(i, split(1_000, 100.0, size=None)) for i in range(20, 30)]
    found = searched(history, {})
    assert found["window_bytes"] == 4_096
    assert found["window_search"]["rates"] == [] and found["window_search"]["epoch"] == 29


@given(
    rates=st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30),
    kept=st.integers(1, 5),
    limit=st.sampled_from([4_096, 16_384, 1 << 20]),
)
def test_a_cut_history_finds_the_same_w(rates: list[float], kept: int, limit: int) -> None:
    """A controller that sees the last few epochs only, and its own settings, decides as the one that sees all."""
    history: list[EpochProgress] = []
    current: dict[str, Any] = {}
    measured: list[tuple[int, float]] = []
    for number, rate in enumerate(rates):
        current = {k: v for k, v in searched(history[-kept:], current, largest_window=limit).items() if ":" not in k}
        assert current["window_bytes"] == next_window_bytes(measured, limit=limit)[0]
        size = current["window_bytes"]
        operator = split(1_000, rate, size)
        busy = sum(s.seconds for s in operator.splitters)
        measured.append((size, 1_000 / busy))
        history.append(epoch(number, operator))


def test_a_restart_goes_on_with_the_search() -> None:
    """After a restart the history is empty and epochs go on; what the ledger kept is enough."""
    first = [epoch(i, split(1_000, 100.0)) for i in range(SAMPLES - 1)]
    before = searched(first, {})
    assert before["window_search"]["rates"] == [pytest.approx(100.0)] * (SAMPLES - 1)
    resumed = searched([], before)
    assert resumed["window_search"] == before["window_search"]
    after = searched([epoch(SAMPLES - 1, split(1_000, 100.0))], resumed)
    assert after["window_bytes"] == 8_192
    assert after["why:window_bytes"].startswith("W 4096 -> 8192")


def test_an_epoch_counts_once() -> None:
    history = [epoch(0, split(1_000, 100.0))]
    current: dict[str, Any] = {}
    for _ in range(3 * SAMPLES):
        current = searched(history, current)
    assert current["window_bytes"] == 4_096
    assert len(current["window_search"]["rates"]) == 1
