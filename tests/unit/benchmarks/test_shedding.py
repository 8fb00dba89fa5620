"""The benchmark of shedding: what it concludes from epochs, by itself. No Spark."""

from __future__ import annotations

import json
import math

import pytest

from anabranch.observe.progress import DropProgress, EpochProgress, OperatorProgress
from benchmarks.shedding_loads import early_kept
from benchmarks.shedding_overhead import Compared
from benchmarks.shedding_runs import Costs, Load, Output, Run, Trial, percentile, settled_from

S = 1_000_000
KEYS = 10


def load(slide: int = S) -> Load:
    return Load("a query", lambda stream: [], (Output("window-1", slide),), rows_per_second=100, guess=1_000)


def epochs(count: int, seconds: float = 4.0, kept: float = 1.0, drops: bool = True) -> tuple[EpochProgress, ...]:
    """Each brings `seconds` of the stream, and delivers the kept share of the windows that end in them."""
    windows = round(seconds) * KEYS
    drop = DropProgress("source 0", 1 - kept, 10, "", windows=windows, dropped=windows - round(kept * windows))
    return tuple(
        EpochProgress(
            "q",
            "r",
            i,
            started=1_000.0 + i * seconds,
            seconds=seconds,
            rows=round(seconds * 1_000),
            latency=2 * seconds if i else None,
            operators=(
                OperatorProgress("window-1", emitted=round(kept * windows), watermark=round((i + 1) * seconds) * S),
            ),
            drops=(drop,) if drops else (),
        )
        for i in range(count)
    )


@pytest.mark.parametrize(("fixed", "per_row"), [(0.5, 20e-6), (0.0, 1e-4), (2.0, 1e-6)])
def test_the_line_through_epochs_is_found(fixed: float, per_row: float) -> None:
    found = Costs.fit([(rows, fixed + per_row * rows) for rows in (10_000, 40_000, 70_000)])
    assert found.fixed == pytest.approx(fixed, abs=1e-9)
    assert found.per_row == pytest.approx(per_row)


def test_where_costs_cannot_be_told_apart_all_is_for_the_rows() -> None:
    assert Costs.fit([(1_000, 2.0)]) == Costs(0.0, 0.002)
    assert Costs.fit([(1_000, 2.0), (2_000, 1.0)]) == Costs(0.0, 0.001)  # no row gives time back
    assert Costs.fit([(1_000, 1.0), (2_000, 5.0)]) == Costs(0.0, 0.002)  # nor is an epoch without rows over before


def test_at_capacity_epochs_take_half_the_bound() -> None:
    costs, bound = Costs(0.5, 20e-6), 8.0
    capacity = costs.capacity(bound)
    assert costs.seconds(capacity * bound / 2) == pytest.approx(bound / 2)
    assert Costs(5.0, 20e-6).capacity(bound) == 0.0


def test_epochs_are_settled_after_eight_or_after_forty_seconds() -> None:
    assert settled_from([float(i) for i in range(20)]) == 8
    assert settled_from([10.0 * i for i in range(20)]) == 4
    assert settled_from([0.0, 1.0]) == 2
    assert settled_from([]) == 0


def test_delivered_over_windows_times_keys() -> None:
    run = Run(load(), 1_000.0, epochs(13, kept=0.5))
    assert len(run.settled) == 5
    results, windows = run.delivered()
    assert (results, windows) == (5 * 4 * KEYS // 2, 5 * 4 * KEYS)
    assert run.reported_share() == pytest.approx(0.5)


def test_an_epoch_without_drop_points_tells_no_share() -> None:
    assert Run(load(), 1_000.0, epochs(13, drops=False)).reported_share() is None


#     [0------)[1------)[2------)      slide 4 s
#   watermarks:  5 s       10 s
def test_windows_between_two_watermarks() -> None:
    assert Output("window-1", 4 * S).windows(5 * S, 10 * S) == 1
    assert Output("window-1", 4 * S).windows(3 * S, 12 * S) == 3


def test_a_trial_says_how_near_to_the_ideal() -> None:
    trial = Trial.of(Run(load(), 1_000.0, epochs(13, kept=0.4)), "a", "2 x", capacity=500.0, bound=10.0)
    assert trial.share == pytest.approx(0.4)
    assert trial.ideal == 0.5
    assert trial.of_ideal == pytest.approx(0.8)
    assert trial.of_bound(0.95) == pytest.approx(0.8)
    assert trial.held
    assert trial.drop_share == pytest.approx(0.6)


def test_a_trial_without_settled_epochs_is_no_number_and_still_json() -> None:
    trial = Trial.of(Run(load(), 1_000.0, epochs(1)), "a", "2 x", capacity=500.0, bound=10.0)
    assert math.isnan(trial.share)
    assert not trial.held
    trial_json = json.loads(json.dumps(trial.to_json(), allow_nan=False))
    assert trial_json["delivered"] is None


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert math.isnan(percentile([], 0.5))


def test_the_median_epoch_of_all_rounds_is_compared() -> None:
    rounds = (
        {"p = 0": ((10, 1.0), (10, 2.0)), "no window drop": ((10, 1.0), (10, 1.0))},
        {"no window drop": ((10, 1.0), (10, 9.0)), "p = 0": ((10, 1.25), (10, 1.25))},
    )
    found = Compared("a query", rounds)
    assert found.ratio("p = 0") == pytest.approx(0.8)
    assert [(row.name, row.rows, row.seconds) for row in found.table()] == [
        ("no window drop", 20, 6.0),
        ("p = 0", 20, 2.75),
    ]


def test_the_share_of_tuples_that_pass() -> None:
    """sel_w1 = 1 - p * ((B+1)s - w) / ((B-1)s + w), and nothing is dropped early for B < floor(w/s)."""
    assert early_kept(0.5, 10, 100, 100) == pytest.approx(1 - 0.5 * (1100 - 100) / (900 + 100)) == 0.5
    assert early_kept(0.4, 4, 4, 2) == pytest.approx(1 - 0.4 * 6 / 10)
    assert early_kept(0.9, 1, 4, 2) == 1.0
    assert early_kept(0.9, 2, 4, 2) == pytest.approx(1 - 0.9 * 2 / 6)
    assert early_kept(0.0, 2, 4, 2) == 1.0
