"""Errors of tasks reach the driver as text; the handle of a query makes errors of ours of it."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import errors
from anabranch.errors import AnabranchError, CheckpointError, OperatorError, StateError
from anabranch.runtime.handle import _unwrapped

ALL = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, AnabranchError)),
    key=lambda each: each.__name__,
)

# What Spark puts around a Python traceback.
JOB = "Job aborted due to stage failure: Task 1 failed 1 times: org.apache.spark.api.python.PythonException: "
FRAMES = "\n\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala)"


def arrived(error: BaseException) -> RuntimeError:
    """The error as the driver gets it."""
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"{JOB}{text}{FRAMES}\nCaused by: {text}{FRAMES}\n")


@pytest.mark.parametrize("kind", ALL)
def test_every_error_of_a_task_is_made_again(kind: type[AnabranchError]) -> None:
    found = _unwrapped(arrived(kind("the state is torn: 3 bytes", hint="restore it")))
    assert type(found) is kind
    assert (found.message, found.hint) == ("the state is torn: 3 bytes", "restore it")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1), st.text("abc: .'", min_size=1))
def test_message_and_hint_come_whole(message: str, hint: str) -> None:
    found = _unwrapped(arrived(StateError(message, hint=hint)))
    assert found is not None
    assert (found.message, found.hint) == (message, hint.rstrip())


def test_a_message_of_several_lines() -> None:
    found = _unwrapped(arrived(CheckpointError("of another query\n    -by a\n    +by b", hint="take another")))
    assert isinstance(found, CheckpointError)
    assert found.message == "of another query\n    -by a\n    +by b"


def test_the_last_of_a_chain_counts() -> None:
    try:
        try:
            raise StateError("the disk is full", hint="make room")
        except StateError as cause:
            raise OperatorError("Totals failed", hint="mend it") from cause
    except OperatorError as error:
        found = _unwrapped(arrived(error))
    assert isinstance(found, OperatorError)
    assert found.hint == "mend it"


def test_an_error_of_the_driver_comes_as_it_is() -> None:
    ours = StateError("torn", hint="restore it")
    outer = RuntimeError("the batch failed")
    outer.__cause__ = ours
    assert _unwrapped(outer) is ours


def test_an_error_of_a_later_release_keeps_its_words() -> None:
    found = _unwrapped(RuntimeError("anabranch.errors.NewerError: no such thing\n  hint: take an older one\n"))
    assert type(found) is AnabranchError
    assert found.message == "no such thing"


@pytest.mark.parametrize("text", ["ValueError: nothing of ours", "anabranch.errors.StateError: and no more"])
def test_what_is_not_ours_is_left(text: str) -> None:
    assert _unwrapped(RuntimeError(text)) is None
