"""CPU time of the join operator per tuple, measured on one group with full windows."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter

import pyarrow as pa

from anabranch.operators.join import JoinOperator, JoinSettings
from anabranch.operators.state import MemoryState
from benchmarks.join_streams import SCHEMA, SECOND, JoinStream

GROUPS = 60


def cpu_per_tuple(rate: float, window: int, *, probe: str, fine_tuning: bool, epochs: int = 3) -> float:
    """CPU seconds per tuple of one group's operator with full windows, in epochs of two seconds."""
    kind = pa.schema([(name, pa.int64()) for name in SCHEMA.names])
    names = tuple(tuple((n, f"{n}{side}") for n in kind.names if n != "key") for side in range(2))
    result = pa.schema([("key", pa.int64()), *((to, pa.int64()) for side in names for _, to in side)])
    settings = JoinSettings(
        within=(window * SECOND,) * 2,
        keys=("key",),
        times=("t", "t"),
        inputs=(kind, kind),
        columns=names,
        schema=result,
        probe=probe,
        fine_tuning=fine_tuning,
    )
    operator = JoinOperator(settings)
    operator.metrics = Counter()
    operator.open(MemoryState())
    streams = [JoinStream(rate / GROUPS, side, 0.7) for side in range(2)]
    for side, stream in enumerate(streams):
        operator.absorb(stream.seconds(0, window).combine_chunks().to_batches()[0], side)
    taken = []
    for epoch in range(epochs + 1):
        blocks = [s.seconds(window + 2 * epoch, 2).combine_chunks().to_batches()[0] for s in streams]
        gc.collect()
        began = time.process_time()
        for side, block in enumerate(blocks):
            for _ in operator.process(block, side):
                pass
        for _ in operator.on_watermark((window + 2 * epoch + 2) * SECOND):
            pass
        taken.append((time.process_time() - began) / max(1, sum(block.num_rows for block in blocks)))
    return float(statistics.median(taken[1:]))  # the first one compiles
