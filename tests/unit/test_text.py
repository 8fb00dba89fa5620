"""Numbers and times, formatted for people."""

from __future__ import annotations

from anabranch.text import amount, clock, moment, size, with_noun


def test_amounts_have_three_digits() -> None:
    assert [amount(n) for n in (0, 950, 12_345, 4.56e6, 2e9)] == ["0", "950", "12.3 k", "4.56 M", "2 G"]


def test_sizes_are_in_powers_of_1024() -> None:
    assert [size(n) for n in (0, 1_023, 1_024, 3 << 20, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_event_times_are_times_in_utc() -> None:
    assert moment(None) == "-"
    assert moment(-1_000_000) == "1969-12-31 23:59:59Z"
    assert moment(1_250_000) == "1970-01-01 00:00:01.25Z"
    assert moment(-(62_000_000_000 * 1_000_000)) == "0005-04-19 09:46:40Z"
    assert moment(2**62) == f"{2**62:,} microseconds since 1970"  # beyond the calendar
    assert clock(90.7) == "1970-01-01 00:01:30Z"


def test_counts_have_their_noun() -> None:
    assert [with_noun(n, "row") for n in (0, 1, 1_200)] == ["0 rows", "1 row", "1,200 rows"]
