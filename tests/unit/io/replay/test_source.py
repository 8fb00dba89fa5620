"""The options of a replay."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidArgumentError
from anabranch.io.replay.source import ReplayOptions


def test_options() -> None:
    options = ReplayOptions("p", "at", rate=2.5, blocks=True, start=-5)
    assert ReplayOptions.parse(options.strings()) == options
    approach = ReplayOptions("p", "at", pace=2.5, pace_from=7, whole_instants=True)
    assert ReplayOptions.parse(approach.strings()) == approach
    for bad in ({"rate": 1.0, "pace": 1.0}, {"rate": 0.0}, {"pace": float("nan")}, {"partitions": 0}, {"pace_from": 3}):
        with pytest.raises(InvalidArgumentError):
            ReplayOptions("p", "at", **bad)  # type: ignore[arg-type]
