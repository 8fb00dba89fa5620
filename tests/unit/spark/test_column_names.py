"""Names with dots and backquotes, taken apart as Spark does."""

from __future__ import annotations

import pytest

from anabranch.spark.column_names import parts_of


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("at", ["at"]),
        ("a.b", ["a", "b"]),
        ("`a.b`", ["a.b"]),
        ("`a.b`.c", ["a.b", "c"]),
        ("a.`b c`", ["a", "b c"]),
        ("`a``b`", ["a`b"]),
        ("the time of day", ["the time of day"]),
        # What Spark could not read is a name as it stands.
        ("a..b", ["a..b"]),
        (".a", [".a"]),
        ("a`b", ["a`b"]),
        ("", [""]),
    ],
)
def test_parts(name: str, parts: list[str]) -> None:
    assert parts_of(name) == parts
