"""Operators: what runs on a worker, one instance per partition-group.

The runtime splits a stream into partition-groups and runs one instance of an operator over each:

    open(state)        once, before anything else: take up the state (empty at the very first time)
    process(block)     once per epoch that brought rows: an Arrow record batch, its rows in the order of time,
                       with timestamps in UTC
    on_watermark(t)    once per epoch, after `process`: no row earlier than t (microseconds) will come any more

`process` and `on_watermark` yield what they have to say: record batches of the output's columns, or pairs of an
output's name and a record batch where there are several outputs.

**An operator must be deterministic**: the same blocks and watermarks give the same state and the same output. After a
crash the runtime restores a group by folding its logged blocks into its last snapshot, and throws the output of that
away. **Whatever must survive lives in the `State`**, as numpy arrays and Arrow tables. Other attributes are allowed as
an index over it that `open` can build anew.
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
    """Which partition-group this instance works for; set before `open`."""

    decisions: Mapping[str, Any] = {}
    """What the controllers decided for this epoch; from the ledger, so a replay sees the same."""

    metrics: Counter[str] = Counter()  # noqa: RUF012  # a subclass need not call our __init__; the runtime sets a new one
    """What the operator counts, for those who watch: summed over all groups in `progress`. A new one in each epoch."""

    def open(self, state: State) -> None:
        """Take up the state. Called once per instance."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
        """Take the rows of an epoch; `port` says which input they came from, where an operator has several."""
        raise OperatorError(
            f"{type(self).__name__} has no process(block), so the rows of its group would be lost",
            hint="write def process(self, block, port=0), as a generator of record batches",
        )

    def on_watermark(self, t: int) -> Iterable[Emitted]:
        """No row earlier than t will come."""
        return ()

    def on_set_back(self, t: int, starts: int) -> None:
        """The watermark, which had run away, was set back to t by a repair: rows from t on come again.

        Results that need rows from before `starts` cannot be complete, and should not be emitted. Called once, before
        the rows of the next epoch. Override it if your state remembers a watermark.
        """

    def absorb(self, block: pa.RecordBatch, port: int = 0) -> None:
        """Take rows that were processed before, to rebuild the state. Override it if that is cheaper without output."""
        for _ in self.process(block, port) or ():
            pass


OperatorFactory = Callable[[], Operator]
"""What makes an instance: the class itself, or a function without arguments."""
