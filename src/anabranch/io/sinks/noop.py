"""Results that are not kept."""

from __future__ import annotations

from anabranch.io.sinks.base import Published, Sink


class NoopSink(Sink):
    """Keeps nothing, like Spark's "noop": rows are computed and counted. For measurements."""

    guarantee = "nothing is kept"
    keeps = False

    def publish(self, result: Published) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return "NoopSink()"
