"""Calls that do not fit a signature are errors of ours, with the right call as their hint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

import anabranch as ab
from anabranch.calls import called_as, fits
from anabranch.errors import InvalidArgumentError
from anabranch.windows import Duration


@called_as('cut(3, unit="cm")')
def cut(length: int, *, unit: str = "m", times: Sequence[int] = ()) -> str:
    """Cut something."""
    return f"{length + sum(times)} {unit.upper()}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cut(), "cut() does not accept this call: missing a required argument: 'length'"),
        (lambda: cut(1, "m"), "too many positional arguments"),
        (lambda: cut(1, unti="m"), "unexpected keyword argument 'unti'; did you mean 'unit'?"),
        (lambda: cut(1, unit=5), "unit=5 of cut() must be of type str"),
        (lambda: cut(None), "length=None of cut() must be of type int"),
        (lambda: cut(1, times=[1, "2"]), "times=[1, '2'] of cut() must be of type Sequence[int]"),
    ],
)
def test_a_call_that_does_not_fit(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert message in raised.value.message
    assert raised.value.hint == 'write cut(3, unit="cm")'


def test_a_call_that_fits_and_fails_is_left_alone() -> None:
    @called_as("fail()")
    def fail(value: int) -> None:
        raise KeyError(value)

    with pytest.raises(KeyError):
        fail(3)


def test_signature_and_words_stay_for_editors() -> None:
    assert list(inspect.signature(cut).parameters) == ["length", "unit", "times"]
    assert cut.__doc__ == "Cut something." and cut(2, unit="km") == "2 KM"
    assert list(inspect.signature(ab.stream).parameters)[:3] == ["source", "time", "watermark"]
    assert "max_latency" in inspect.signature(ab.QoS).parameters


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        (1, int, True), (True, int, False), (1, float, True), ("1", float, False), (None, str | None, True),
        ("5 s", Duration, True), (timedelta(1), Duration, True), ([], Duration, False),
        ("k", str | Sequence[str], True), ([1], str | Sequence[str], False), (("a", "b"), tuple[str, str], True),
        (("a",), tuple[str, str], False), ({"a": 1}, Mapping[str, str], False), ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False), ([], Literal["a"], False), (len, Callable[[str], int], True),
        (Path("x"), str | Path, True), (object(), Any, True),
    ],
)  # fmt: skip
def test_types_as_annotations_say_them(value: object, wanted: Any, expected: bool) -> None:
    assert fits(value, wanted) is expected


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "stream without a time": (lambda: ab.stream(object()), "time="),
    "an aggregate without a column": (lambda: ab.avg(), 'ab.avg("fare")'),
    "a rank that is missing": (lambda: ab.quantile("fare"), 'ab.quantile("fare", 0.95)'),
    "a QoS that does not exist": (lambda: ab.QoS(latency="1 s"), "max_latency"),
    "a sink without a folder": (lambda: ab.FileSink(), 'ab.FileSink("results/")'),
    "a sink that is no path": (lambda: ab.FileSink(5), 'ab.FileSink("results/")'),
    "start with nothing": (lambda: ab.start(), 'checkpoint="checkpoint/"'),
    "a listener without a file": (lambda: ab.JsonLines(), "ab.JsonLines("),
    "partition_by without workers": (lambda: ab.partition_by("k"), "workers=8"),
    "replay without a path": (lambda: ab.replay(), "ab.replay(spark"),
    "an aggregate of one's own": (lambda: ab.user_aggregate("v"), "init=list"),
    "tuning that does not exist": (lambda: ab.JoinTuning(slot=3), "ab.JoinTuning("),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_is_public_shows_how_to_call_it(case: str) -> None:
    call, hint = CALLS[case]
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert hint in raised.value.hint
