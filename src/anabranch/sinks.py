"""Where results go. The most used sinks are in `anabranch` too.

To write a sink of your own, derive from `Sink` and write `publish(result)`, which takes a `Published`.
"""

from anabranch.io.sinks.base import CallSink, DeltaSink, FileSink, MemorySink, NoopSink, Published, Sink

__all__ = ["CallSink", "DeltaSink", "FileSink", "MemorySink", "NoopSink", "Published", "Sink"]
