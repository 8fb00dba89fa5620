"""The example of docs/testing.md is run as it stands: its tests pass, and fail on code that is wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[3] / "docs" / "testing.md"


def example(change: Callable[[str], str] = lambda code: code) -> dict[str, Any]:
    """The names that the page's code defines, after a change to the code under test."""
    code, tests = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a script: classes travel to the workers by value
    for block in (change(code), tests):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


TESTS = [name for name in example() if name.startswith("test_")]


def run(names: dict[str, Any], name: str, **fixtures: Any) -> None:
    test = names[name]
    test(**{each: fixtures[each] for each in inspect.signature(test).parameters})


@pytest.mark.parametrize("name", TESTS)
def test_the_example_passes(name: str, spark: SparkSession, tmp_path: Path) -> None:
    assert len(TESTS) == 3
    run(example(), name, spark=spark, tmp_path=tmp_path)


def test_the_example_sees_an_operator_that_forgets() -> None:
    def forgetful(code: str) -> str:
        return code.replace('state.array("known", np.bool_, 100)', "np.zeros(100, np.bool_)")

    assert forgetful(PAGE.read_text(encoding="utf-8")) != PAGE.read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="epoch 1: an instance opened on the stored state"):
        run(example(forgetful), "test_jumps_survive_restarts")
