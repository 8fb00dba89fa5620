"""What a Python worker of Spark does once in its life."""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_loaded_objects() -> None:
    """Take all that is loaded by now out of the garbage collector's sight; the first call counts.

    Spark's worker collects all garbage after every task. With numba, Arrow and pandas loaded that goes over a million
    objects which will never be garbage: a tenth of a second per task, more than the task itself in a small epoch.
    """
    gc.collect()
    gc.freeze()
