"""Sinks: where results go, and what each guarantees.

Tasks write the results of an epoch as Parquet files into a folder that nobody sees yet; when all operators of the epoch
have run, the driver *publishes* it. A crash before that leaves nothing to see; a crash after it, before the ledger has
the epoch as done, runs the epoch again, and the sink must recognise that it has it already.

| sink | guarantee |
|---|---|
| `FileSink` | exactly once: a folder `epoch=N` per epoch that appears at once and is never changed |
| `FileSink(flat=True)` | exactly once: files that never change; those of an epoch appear one after the other |
| `DeltaSink` | exactly once: one transaction per epoch, which Delta recognises by its number |
| `MemorySink` | exactly once while the process lives; empty after a restart |
| `NoopSink` | none: nothing is kept |
| `CallSink` | at least once: the function may see an epoch again after a crash, the same rows under the same number |
"""

from anabranch.io.sinks.base import Published, Sink
from anabranch.io.sinks.call import CallSink
from anabranch.io.sinks.delta import DeltaSink
from anabranch.io.sinks.files import FileSink
from anabranch.io.sinks.memory import MemorySink
from anabranch.io.sinks.noop import NoopSink

__all__ = ["CallSink", "DeltaSink", "FileSink", "MemorySink", "NoopSink", "Published", "Sink"]
