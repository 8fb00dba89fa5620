"""Tests of your queries and operators, with pytest or any other framework (docs/testing.md).

| to test | use |
|---|---|
| an `Operator`, without Spark | `OperatorHarness`, `assert_survives_restarts`, `MemoryState` |
| a query over a stream | `StreamFeed` for its input, `EpochRun` to run it epoch by epoch |
| results | `assert_rows_equal` |

Nothing is simulated: `EpochRun` runs the query on the Spark session that you give, with a checkpoint on disk.
"""

from anabranch.operators.state import MemoryState
from anabranch.testing.epochs import Epoch, EpochRun
from anabranch.testing.feed import StreamFeed
from anabranch.testing.harness import OperatorHarness, assert_survives_restarts
from anabranch.testing.results import Results
from anabranch.testing.rows import assert_rows_equal

__all__ = [
    "Epoch",
    "EpochRun",
    "MemoryState",
    "OperatorHarness",
    "Results",
    "StreamFeed",
    "assert_rows_equal",
    "assert_survives_restarts",
]
