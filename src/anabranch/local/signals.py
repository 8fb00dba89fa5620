"""SIGINT and SIGTERM for a driver: it ends after the epoch that runs, also when the signal goes to all processes.

A terminal sends Ctrl-C to the whole process group, and so do service managers with SIGTERM. Spark's Java would end at
once, in the middle of an epoch. PySpark lets it ignore SIGINT; `shielded_children` does the same for SIGTERM. Java
still ends with its driver, whatever ends that: its standard input closes. Python workers have a process group of their
own.
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
    """Python processes forked in here, and what they execute, ignore SIGTERM.

    That a signal is ignored is inherited by a program that is executed; a handler is not. PySpark starts Java by such a
    fork. To ignore the signal in this process for a moment would lose one that comes in that moment.
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


if hasattr(os, "register_at_fork"):  # not on Windows, which has no such signals to shield from
    os.register_at_fork(after_in_child=_in_child)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came. PySpark's own handler would cancel the epoch that runs; a second signal does."""
    asked = False
    before: dict[signal.Signals, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, note)
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
