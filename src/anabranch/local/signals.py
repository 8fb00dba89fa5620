"""SIGINT and SIGTERM for a driver: it ends after the current epoch, even if the signal goes to all processes.

A terminal sends Ctrl-C to the whole process group, and service managers do so with SIGTERM. Spark's Java would end at
once, in the middle of an epoch. PySpark makes it ignore SIGINT; `shielded_children` does the same for SIGTERM. Java
still ends with its driver in any case, because its standard input closes. Python workers have their own process group.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_shielding = False


@contextmanager
def shielded_children() -> Iterator[None]:
    """Processes forked inside this context, and the programs they execute, ignore SIGTERM.

    An executed program inherits ignored signals, but not handlers. PySpark starts Java by such a fork. Ignoring the
    signal in this process for a moment instead would lose one that arrives in that moment.
    """
    global _shielding
    _shielding = True
    try:
        yield
    finally:
        _shielding = False


def _in_child() -> None:
    if _shielding:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no such signals
    os.register_at_fork(after_in_child=_in_child)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """A function that returns whether SIGINT or SIGTERM has arrived.

    PySpark's own handler would cancel the current epoch; only a second signal gets it.
    """
    asked = False
    before: dict[signal.Signals, Any] = {}

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, remember)
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
