"""Kernels are compiled once per machine, wherever the package is installed, and never from another user's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from anabranch.compiled import kernel, own_folder


@pytest.fixture
def no_locator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As where neither the package nor the home folder can be written; the temporary folder is `tmp_path`."""
    njit = numba.njit

    def refusing(*args: Any, cache: bool = False, **options: Any) -> Callable[..., Any]:
        def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
            if cache and not numba.config.CACHE_DIR:
                raise RuntimeError("cannot cache function: no locator available")
            made: Callable[..., Any] = njit(cache=cache, **options)(function)
            return made

        return compiled

    monkeypatch.setattr(numba, "njit", refusing)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    return tmp_path


def plus_one(x: int) -> int:
    return x + 1


def test_code_is_kept_in_a_folder_of_the_user(no_locator: Path) -> None:
    assert kernel()(plus_one)(1) == 2
    folder = own_folder()
    assert folder is not None and folder.parent == no_locator
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))
    assert numba.config.CACHE_DIR == ""  # nothing else is changed


def test_a_folder_that_others_can_write_is_not_used(no_locator: Path) -> None:
    folder = own_folder()
    assert folder is not None
    folder.chmod(0o777)
    assert own_folder() is None
    assert kernel()(plus_one)(1) == 2
    assert not list(folder.rglob("*.nbi"))


def test_a_link_is_not_followed(no_locator: Path) -> None:
    folder = own_folder()
    assert folder is not None
    folder.rmdir()
    (no_locator / "theirs").mkdir()
    folder.symlink_to(no_locator / "theirs")
    assert own_folder() is None


def test_a_folder_of_the_users_choice_counts(tmp_path: Path) -> None:
    """NUMBA_CACHE_DIR is read when numba is imported: in a process of its own."""
    code = "from anabranch.aggregates.kernels import sorted_by_group as f; import numpy as np; f(np.zeros(3, np.int64))"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("*.nbi"))
