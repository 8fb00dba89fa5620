"""Where results go. The most used sinks are in `anabranch` too.

To write a sink of your own, derive from `Sink` and write `publish(result)`, which takes a `Published`.
"""

from anabranch.io.sinks.base import Published, Sink
from anabranch.io.sinks.call import CallSink
from anabranch.io.sinks.delta import DeltaSink
from anabranch.io.sinks.files import FileSink
from anabranch.io.sinks.memory import MemorySink
from anabranch.io.sinks.noop import NoopSink

__all__ = ["CallSink", "DeltaSink", "FileSink", "MemorySink", "NoopSink", "Published", "Sink"]
