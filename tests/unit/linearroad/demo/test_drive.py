"""The end of the demo's query, in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.linearroad.demo.drive import _ended
from anabranch.types import Health
from tests.unit.linearroad.test_job import Failed


def test_the_demo_says_why_it_ended() -> None:
    query: Any = Failed()
    assert "the disk is gone" in _ended(query).message
    stopped: Any = SimpleNamespace(health=Health("stopped", "the query ended"), stop=lambda: None)
    assert "the query was stopped" in _ended(stopped).message
