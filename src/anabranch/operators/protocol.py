"""Operators: what runs on a worker, one instance per partition-group.

The runtime splits a stream into partition-groups and runs one instance of an operator over each:

    open(state)        once, before anything else: load the state (empty the very first time)
    process(block)     once per epoch that brought rows: an Arrow record batch of all rows of the group in the epoch, in
                       the order of time, with timestamps in UTC. The next epoch may bring rows that are older, by at
                       most the stream's watermark
    on_watermark(t)    once per epoch, after `process`: no more rows earlier than t (microseconds) will come

`process` and `on_watermark` yield results: record batches with the output's columns, or, if there are several outputs,
pairs of an output's name and a record batch.

**An operator must be deterministic**: the same blocks and watermarks give the same state and the same output. After a
crash the runtime restores a group by applying its logged blocks to its last snapshot, and discards the output of that.
**Whatever must survive belongs in the `State`**, as numpy arrays and Arrow tables. Other attributes may hold an index
over it that `open` can rebuild.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from anabranch.errors import OperatorError
from anabranch.operators.state import State

Emitted: TypeAlias = pa.RecordBatch | tuple[str, pa.RecordBatch]
"""A record batch for the only output, or (name of the output, record batch)."""


class Operator:
    """Base of all operators. Override `open`, `process` and, where time matters, `on_watermark`."""

    group: int = 0
    """The partition-group of this instance; set before `open`."""

    decisions: Mapping[str, Any] = {}
    """What the controllers decided for this epoch; from the ledger, so that a replay gets the same."""

    metrics: Counter[str] = Counter()  # noqa: RUF012  # a subclass need not call our __init__; the runtime sets a new one
    """The operator's own counts, summed over all groups in `progress`. A new counter in each epoch."""

    def open(self, state: State) -> None:
        """Load the state. Called once per instance."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
        """Process the rows of an epoch. `port` is the input they came from: 0 in an operator of your own."""
        raise OperatorError(
            f"{type(self).__name__} has no process(block), so the rows of its group would be lost",
            hint="define process(self, block, port=0) as a generator of record batches",
        )

    def on_watermark(self, t: int) -> Iterable[Emitted]:
        """No more rows earlier than t will come."""
        return ()

    def on_set_back(self, t: int, starts: int) -> None:
        """A repair set the watermark, which was too far ahead, back to t: rows from t on are accepted again.

        Results that need rows from before `starts` cannot be complete, and should not be emitted. Called once, before
        the rows of the next epoch. Override it if your state remembers a watermark.
        """

    def absorb(self, block: pa.RecordBatch, port: int = 0) -> None:
        """Rebuild the state from rows that were processed before. Override it if that is cheaper without output."""
        for _ in self.process(block, port) or ():
            pass


OperatorFactory = Callable[[], Operator]
"""Makes an instance: the class itself, or a function without arguments."""
