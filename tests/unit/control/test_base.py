"""Controllers alone: who may decide what, which measurements count, and what survives a history that was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.control import base
from anabranch.control.base import (
    RECENT,
    BatchSize,
    SplitTuning,
    arrival_rate,
    decide_all,
    excess_backlog,
    largest_batch,
    measured_costs,
    operator_rate,
)
from anabranch.errors import ControllerError
from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure
from anabranch.split.cost import splitters_needed
from anabranch.split.window_size import SAMPLES, next_window_bytes
from anabranch.windows import Window

WINDOW = Window(10, 1)


def epoch(number: int, *operators: OperatorProgress, **fields: Any) -> EpochProgress:
    """An epoch of a second and a thousand rows, one second after the one before."""
    known = {"started": float(number), "seconds": 1.0, "rows": 1_000, **fields}
    return EpochProgress("q", "r", number, operators=operators, **known)


def split(rows: int, rate: float, size: int | None = 4_096, windows: int = 10) -> OperatorProgress:
    """A splitter that takes `rate` rows per busy second."""
    each = rows / rate / 3
    splitter = SplitterMeasure(
        0, rows, windows, bytes_in=windows * (size or 1), routed=rows, read_seconds=each, split_seconds=each,
        emit_seconds=each,
    )  # fmt: skip
    decisions = {} if size is None else {"window_bytes": size}
    return OperatorProgress("split", rows=rows, splitters=(splitter,), decisions=decisions)


# --- the registry ---------------------------------------------------------------------------------------------------


def test_the_registry_knows_its_controllers() -> None:
    assert {"batch-size", "split-tuning"} <= set(base.names())
    assert list(base.names()) == sorted(base.names())
    assert base.get("batch-size") is BatchSize
    assert base.get("split-tuning") is SplitTuning


def test_an_unknown_controller_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ControllerError, match="there is no controller 'batchsize'") as error:
        base.get("batchsize")
    assert "batch-size" in error.value.hint


def test_a_name_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", {})

    @dataclass(frozen=True)
    class Mine:
        name: ClassVar[str] = "mine"

        def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
            return {}

    class Other(Mine):
        pass

    assert base.register(Mine) is Mine
    assert base.register(Mine) is Mine  # a module that is loaded twice
    with pytest.raises(ControllerError, match="already"):
        base.register(Other)
    assert base.names() == ("mine",)


# --- several controllers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sets:
    """Always decides the same; remembers what it was shown."""

    name: str
    values: Mapping[str, Any]

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(self.values)


def test_settings_that_nobody_owns_stay_and_old_reasons_go() -> None:
    current = {"batch": 1, "fixed": "as asked", "why:batch": "of the last change"}
    found = decide_all(
        [Sets("a", {"batch": 2}), Sets("b", {"splitters": 3, "why:splitters": "more rows"})], [], current
    )
    assert found == {"batch": 2, "fixed": "as asked", "splitters": 3, "why:splitters": "more rows"}
    assert current["why:batch"] == "of the last change"  # not changed in place


def test_two_controllers_of_one_setting_are_refused_in_either_order() -> None:
    both = [Sets("a", {"batch": 2}), Sets("b", {"batch": 2})]
    for order in (both, both[::-1]):
        with pytest.raises(ControllerError, match="both decide 'batch'"):
            decide_all(order, [], {})


def test_all_decide_on_the_same_settings() -> None:
    @dataclass(frozen=True)
    class Copies:
        name: str = "copies"

        def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"copy": current.get("batch")}

    assert decide_all([Sets("a", {"batch": 2}), Copies()], [], {"batch": 1}) == {"batch": 2, "copy": 1}


# --- how many rows come ---------------------------------------------------------------------------------------------


def test_arrivals_without_any_epoch_and_with_one() -> None:
    assert arrival_rate([]) == 0
    assert arrival_rate([epoch(0, rows=500)]) == 500


def test_without_a_backlog_rows_came_since_the_epoch_before_began() -> None:
    # An epoch follows the other at once: 0 .. 4 s busy, then 2,000 rows that came in those 4 s.
    history = [epoch(0, started=0.0, seconds=4.0), epoch(1, started=4.0, seconds=1.0, rows=2_000)]
    assert arrival_rate(history) == 500


def test_with_a_backlog_its_growth_counts() -> None:
    history = [epoch(0, backlog=100), epoch(1, backlog=700)]
    assert arrival_rate(history) == 1_600
    drained = [epoch(0, backlog=5_000), epoch(1, backlog=0)]
    assert arrival_rate(drained) == 0  # nothing came: all that was read had waited


def test_a_clock_that_stands_still_does_no_harm() -> None:
    assert arrival_rate([epoch(0, started=1.0), epoch(1, started=1.0, seconds=2.0)]) == 500
    assert arrival_rate([epoch(0, started=1.0, seconds=0.0), epoch(1, started=1.0, seconds=0.0)]) == 0


rows = st.integers(0, 10_000)


@given(st.lists(st.tuples(rows, st.floats(0.1, 10.0)), min_size=2, max_size=3 * RECENT))
def test_arrivals_are_the_last_or_the_mean_whichever_is_higher(epochs: list[tuple[int, float]]) -> None:
    history, clock = [], 0.0
    for number, (count, seconds) in enumerate(epochs):
        history.append(epoch(number, started=clock, seconds=seconds, rows=count))
        clock += seconds
    # Oracle: each epoch read what came while the one before it ran.
    came = [(count, epochs[i][1]) for i, (count, _) in enumerate(epochs[1:])][-RECENT:]
    mean = sum(count for count, _ in came) / sum(seconds for _, seconds in came)
    assert arrival_rate(history) == pytest.approx(max(mean, came[-1][0] / came[-1][1]))


def test_backlog_in_excess_of_one_interval() -> None:
    assert excess_backlog(epoch(0, backlog=1_500), 1_000) == 500
    assert excess_backlog(epoch(0, backlog=500), 1_000) == 0
    assert excess_backlog(epoch(0), 1_000) == 0


# --- measurements that do not count ---------------------------------------------------------------------------------


def aggregate(seconds: float, *, rows: int = 1_000) -> OperatorProgress:
    worker = WorkerMeasure(0, rows, seconds)
    return OperatorProgress("aggregate", rows=rows, emitted=10, workers=(worker,), decisions={"batch": 1})


def test_without_measures_the_batch_stays() -> None:
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    unknown = [epoch(0), epoch(1, OperatorProgress("another", rows=5)), epoch(2, aggregate(1.0, rows=0))]
    for history in ([], unknown):
        assert controller.decide(history, {"batch": 7}) == {"batch": 7}
        assert controller.decide(history, {}) == {"batch": 1}


def panes(rows: int, states: int, busy: float, batch: int = 1) -> OperatorProgress:
    """Spark made panes of the rows, and two workers got those."""
    workers = tuple(WorkerMeasure(i, states // 2, busy / 2) for i in range(2))
    return OperatorProgress("aggregate", rows=rows, emitted=100, workers=workers, decisions={"batch": batch})


@pytest.mark.parametrize("in_force", [1, 5])
def test_a_worker_that_is_idle_most_of_the_time_needs_no_batches(in_force: int) -> None:
    """100,000 rows/s become 1,000 panes/s, and the workers are busy for 1 % of the time: B = 1 is enough."""
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    history = [epoch(i, panes(100_000, 1_000, 0.02, in_force), rows=100_000) for i in range(5)]
    assert controller.decide(history, {"batch": in_force})["batch"] == 1


def test_a_worker_that_is_too_busy_with_panes_gets_batches() -> None:
    controller = BatchSize("aggregate", WINDOW, 2, max_latency=1.0)
    history = [epoch(i, panes(100_000, 1_000, 4.0), rows=100_000) for i in range(5)]
    found = controller.decide(history, {"batch": 1})
    assert found["batch"] > 1
    assert "100 rows or panes/s on 2 workers" in found["why:batch"]  # ten copies of each, for B = 1


def test_no_window_waits_for_its_batch_longer_than_the_bound_allows() -> None:
    assert largest_batch(4.0, 60.0) == 8  # the first of eight waits for seven slides: 28 s
    assert largest_batch(0.001, 60.0) == 1_000
    assert largest_batch(3_600.0, 5.0) == 1


def test_a_replayed_epoch_says_nothing_of_costs() -> None:
    slow = epoch(1, aggregate(50.0), replayed=True)
    assert measured_costs([slow], "aggregate", WINDOW) is None
    with_it, without = ([epoch(0, aggregate(0.5)), *more] for more in ([slow], []))
    assert measured_costs(with_it, "aggregate", WINDOW) == measured_costs(without, "aggregate", WINDOW)


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
    return dict(SplitTuning("split", 8, **limits).decide(history, current))


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
