"""Kernels: numba functions that are compiled once per machine.

numba caches compiled code beside the source, in the user's cache folder, or in `NUMBA_CACHE_DIR`. If none of these is
writable (another user installed the package, a worker has no home folder), numba refuses to define the function at all,
and `import anabranch` would fail. In that case the cache goes to a private folder below the temporary folder; if even
that is not safe, every process compiles the code again.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(*, nogil: bool = False) -> Callable[[F], F]:
    """Compile a function with numba when it is first called on this machine, for the argument types of that call."""

    def compiled(function: F) -> F:
        try:
            return _compiled(function, cache=True, nogil=nogil)
        except RuntimeError:  # "no locator available": no writable folder
            folder = own_folder()
        if folder is None:
            return _compiled(function, nogil=nogil)
        settings: Any = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            return _compiled(function, cache=True, nogil=nogil)
        finally:
            settings.CACHE_DIR = before

    return compiled


def _compiled(function: F, **options: bool) -> F:
    njit: Any = numba.njit
    made: F = njit(**options)(function)
    return made


def own_folder() -> Path | None:
    """A folder below the temporary folder that only this user can write to; None if there is no such folder.

    Its content is loaded as code, so it must not belong to anyone else.
    """
    folder = Path(tempfile.gettempdir(), f"anabranch-kernels-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        return None
    return folder if not found.st_mode & 0o077 else None


def splitmix64(x: Any) -> Any:
    """The finaliser of splitmix64: mixes the bits of an uint64, or of each in an array."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


mix64 = kernel(nogil=True)(splitmix64)
"""The same for use in other kernels."""
