"""`join` of streams and of the results of a join are the same call."""

from __future__ import annotations

import inspect

from anabranch.api.joined import Joined
from anabranch.api.stream import Stream


def test_results_of_a_join_are_joined_with_the_same_settings_as_streams() -> None:
    assert inspect.signature(Joined.join) == inspect.signature(Stream.join)
