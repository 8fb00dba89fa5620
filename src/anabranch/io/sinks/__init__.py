"""Sinks: where results go, and what each guarantees.

Tasks write the results of an epoch as Parquet files to a folder that is not yet visible; when all operators of the
epoch have run, the driver *publishes* it. A crash before that leaves nothing visible. After a crash between publishing
and the ledger's entry, the epoch runs again, and the sink must recognise that it already has it.

| sink | guarantee |
|---|---|
| `FileSink` | exactly once: a folder `epoch=N` per epoch, which appears in one step and never changes |
| `FileSink(flat=True)` | exactly once: files that never change; those of an epoch appear one after another |
| `DeltaSink` | exactly once: one transaction per epoch, which Delta recognises by its number |
| `MemorySink` | exactly once while the process lives; empty after a restart |
| `NoopSink` | none: nothing is kept |
| `CallSink` | at least once: after a crash the function may get an epoch again, with the same rows and number |
"""

from anabranch.io.sinks.base import Published, Sink
from anabranch.io.sinks.call import CallSink
from anabranch.io.sinks.delta import DeltaSink
from anabranch.io.sinks.files import FileSink
from anabranch.io.sinks.memory import MemorySink
from anabranch.io.sinks.noop import NoopSink

__all__ = ["CallSink", "DeltaSink", "FileSink", "MemorySink", "NoopSink", "Published", "Sink"]
