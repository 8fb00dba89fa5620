"""What a splitter read and did in an epoch. It reports to the workers, and the first worker to the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.errors import WorkerPythonError
from anabranch.keys.census import KeyCensus

REPORT_VERSION = 2
"""Version of the reports of all tasks. A report of another version is refused, since it comes from another release."""


def check_report(known: Mapping[str, Any]) -> None:
    """Refuse a report of another version. One without a version has version 0."""
    version = known.get("version", 0)
    if version != REPORT_VERSION:
        raise WorkerPythonError(
            f"a task sent a report of version {version}, but its reader expects version {REPORT_VERSION}: the driver "
            "and the workers run different releases of anabranch",
            hint="install the same release of anabranch on the driver and on all workers, then start the query again",
        )


@dataclass
class SplitterCounters:
    """What a splitter counts while it runs; `SplitterMeasure` explains the counters."""

    windows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    routed: int = 0
    broadcast: int = 0
    omitted: int = 0
    read_seconds: float = 0.0
    split_seconds: float = 0.0
    emit_seconds: float = 0.0


@dataclass(frozen=True)
class SplitterReport:
    """What one splitter read from one input. It counts all tuples, including late and bad ones.

    Every worker gets the counts of tuples, which determine the watermark. The first worker also gets the other counters
    and the census of keys, and passes them on to the driver.
    """

    splitter: int
    edge: int
    """the number of the input"""
    rows: int = 0
    late: int = 0
    bad: int = 0
    max_t: int | None = None
    """the latest time of a tuple, in microseconds"""
    counters: SplitterCounters | None = None
    """None in the copies for workers other than the first"""
    keys: KeyCensus | None = None
    """None if no policy places keys, and in the copies for workers other than the first"""

    def to_json(self) -> dict[str, Any]:
        known = {name: value for name, value in vars(self).items() if value is not None}
        if self.counters is not None:
            known["counters"] = vars(self.counters)
        if self.keys is not None:
            known["keys"] = self.keys.to_json()
        return known

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> SplitterReport:
        counters, keys = known.get("counters"), known.get("keys")
        return cls(
            known["splitter"],
            known["edge"],
            known["rows"],
            known["late"],
            known["bad"],
            known.get("max_t"),
            None if counters is None else SplitterCounters(**counters),
            None if keys is None else KeyCensus.from_json(keys),
        )

    def packed(self) -> bytes:
        return json.dumps({"version": REPORT_VERSION, **self.to_json()}).encode()

    @classmethod
    def unpacked(cls, payload: bytes) -> SplitterReport:
        known = json.loads(payload)
        check_report(known)
        return cls.from_json(known)
