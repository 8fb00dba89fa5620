"""How far ahead a row may be: the limits of an epoch, and what a gate does with rows beyond."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import InvalidArgumentError, InvalidWindowError
from anabranch.runtime.driver.ahead import FEWEST_ROWS, MaxAhead, decided_limits, shows_own_clock, within_types
from anabranch.spark.columns import LAST_SECOND, TimeColumn, TimeKind
from anabranch.split.gates import Census, RowGate
from anabranch.store.records import TimeLimits

S = 1_000_000
DAY = 86_400 * S


def network(*kinds: TimeKind) -> Any:
    return SimpleNamespace(sources=[SimpleNamespace(time=TimeColumn("at", kind)) for kind in kinds], steps=())


def test_the_limit_is_ahead_of_the_clock_or_of_the_data_whichever_is_later() -> None:
    bound = MaxAhead.of("1 h")
    #        clock 10 h            latest: none        9 h              12 h
    found = decided_limits(bound, 10 * 3600 * S, [None, 9 * 3600 * S, 12 * 3600 * S], ())
    assert found.latest == (11 * 3600 * S, 11 * 3600 * S, 13 * 3600 * S)
    assert not found.auto


def test_auto_is_a_day_and_off_for_a_source_with_a_clock_of_its_own() -> None:
    found = decided_limits(MaxAhead.of("auto"), 5 * S, [None, None], {1})
    assert found.latest == (DAY + 5 * S, None)
    assert found.auto


def test_a_bound_that_was_asked_for_holds_for_every_source() -> None:
    assert decided_limits(MaxAhead.of("1 day"), 0, [None], {0}).latest == (DAY,)


def test_without_a_bound_there_is_no_limit() -> None:
    assert MaxAhead.of(None) is None
    assert decided_limits(None, 0, [None, 7], ()).latest == (None, None)


def test_limits_survive_the_ledger() -> None:
    limits = TimeLimits((5, None), auto=True)
    assert TimeLimits.from_json(limits.to_json()) == limits
    assert limits.without({0}).latest == (None, None)


def test_an_int_of_seconds_has_a_limit_of_its_own() -> None:
    limits = within_types(TimeLimits((None, None)), network(TimeKind.SECONDS, TimeKind.TIMESTAMP))
    assert limits == [LAST_SECOND * S, None]


@pytest.mark.parametrize("value", [60, -1, "yesterday", "1 month"])
def test_a_bound_is_a_duration(value: Any) -> None:
    with pytest.raises(InvalidWindowError):
        MaxAhead.of(value)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="would refuse rows with the current time"):
        MaxAhead.of("-1 s")


def test_a_few_rows_do_not_show_a_clock_of_their_own() -> None:
    assert not shows_own_clock(FEWEST_ROWS - 1, FEWEST_ROWS - 1)
    assert not shows_own_clock(100, 50)
    assert shows_own_clock(100, 51)


def test_a_gate_takes_rows_beyond_the_limit_for_rows_without_a_time() -> None:
    census = Census()
    #                           late  in time     ahead
    block = pa.record_batch({"t": [1, 5, 9, None, 11, 2**62], "v": [0, 1, 2, 3, 4, 5]})
    kept = RowGate("t", 3, 10)(block, census)
    assert kept.column("v").to_pylist() == [1, 2]
    assert (census.rows, census.late, census.bad, census.max_t) == (6, 1, 3, 9)


def test_a_gate_whose_rows_are_all_ahead_moves_no_watermark() -> None:
    census = Census()
    assert RowGate("t", None, 10)(pa.record_batch({"t": [11, 12]}), census).num_rows == 0
    assert (census.bad, census.max_t) == (2, None)
