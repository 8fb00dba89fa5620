"""A folder for results belongs to one checkpoint, and errors name that folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import anabranch as ab
from anabranch.errors import CheckpointError, StateError
from anabranch.io.folder import Folder
from anabranch.io.sinks import Published
from anabranch.io.sinks.base import SinkPlace


def published(query: str, tmp_path: Path) -> Published:
    return Published(0, query, Folder.at(tmp_path / "staging"), (), pa.schema([]), None, 0)  # type: ignore[arg-type]


def test_results_of_another_query_are_named_as_such(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    ab.FileSink(results).publish(published("one", tmp_path))
    ab.FileSink(results).publish(published("one", tmp_path))
    with pytest.raises(CheckpointError) as raised:
        ab.FileSink(results).publish(published("another", tmp_path))
    assert f"{results} contains the results of another query" in raised.value.message
    assert "FileSink(...)" in raised.value.hint and "another checkpoint folder" not in raised.value.hint


def test_a_damaged_owner_of_results_is_named_as_such(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    ab.FileSink(results).publish(published("one", tmp_path))
    (results / "_owner").write_bytes(b"torn")
    with pytest.raises(StateError, match=r"_owner is torn") as raised:
        ab.FileSink(results).publish(published("one", tmp_path))
    assert "use a separate folder for these results" in raised.value.hint


def test_a_sink_says_where_it_is(tmp_path: Path) -> None:
    assert ab.MemorySink().place.to_json() == {"sink": "MemorySink"}
    for flat in (False, True):
        place = ab.FileSink(tmp_path, flat=flat).place
        assert place.to_json() == {"sink": "FileSink", "path": str(tmp_path), "flat": flat}
        assert SinkPlace.from_json(place.to_json()) == place
