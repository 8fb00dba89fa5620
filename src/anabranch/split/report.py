"""What a splitter read and did in an epoch. It reports to the workers, and the first worker to the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.keys.census import KeyCensus


@dataclass(frozen=True)
class SplitterReport:
    """What one splitter read from one input. It counts all tuples, including late and bad ones.

    Every worker gets the counts, which determine the watermark. The first worker also gets the measures and the census
    of keys, and passes them on to the driver.
    """

    splitter: int
    edge: int
    """the number of the input"""
    rows: int = 0
    late: int = 0
    bad: int = 0
    max_t: int | None = None
    """the latest time of a tuple, in microseconds"""
    keys: KeyCensus | None = None
    """None if no policy places keys, and in the copies for workers other than the first"""
    windows: int = 0
    """physical windows"""
    bytes_in: int = 0
    bytes_out: int = 0
    routed: int = 0
    broadcast: int = 0
    omitted: int = 0
    read_seconds: float = 0.0
    split_seconds: float = 0.0
    emit_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "keys": None if self.keys is None else self.keys.to_json()}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> SplitterReport:
        keys = known["keys"]
        return cls(**{**known, "keys": None if keys is None else KeyCensus.from_json(keys)})

    def packed(self) -> bytes:
        return json.dumps(self.to_json()).encode()

    @classmethod
    def unpacked(cls, payload: bytes) -> SplitterReport:
        return cls.from_json(json.loads(payload))
