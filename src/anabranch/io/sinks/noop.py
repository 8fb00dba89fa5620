"""No results at all."""

from __future__ import annotations

from anabranch.io.sinks.base import Published, Sink


class NoopSink(Sink):
    """Takes everything and keeps nothing, as Spark's "noop": rows are made and counted. For measurements."""

    guarantee = "nothing is kept"
    keeps = False

    def publish(self, result: Published) -> None:
        """Nothing is to be done."""

    def __repr__(self) -> str:
        return "NoopSink()"
