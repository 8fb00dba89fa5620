"""`EpochRun` takes the settings of `start`, but for those that it sets itself."""

from __future__ import annotations

import inspect

from anabranch.runtime.start import start
from anabranch.testing import EpochRun


def test_the_settings_are_those_of_start_with_the_same_defaults() -> None:
    ours = ("deliveries", "checkpoint", "trigger", "store", "live")
    taken = [each for name, each in inspect.signature(EpochRun).parameters.items() if name not in ("query", "folder")]
    assert taken == [each for name, each in inspect.signature(start).parameters.items() if name not in ours]
