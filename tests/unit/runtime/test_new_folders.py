"""A start that fails leaves no folders behind, and takes nothing of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.runtime.new_folders import NewFolders


def fail_after(folders: NewFolders, *made: Path) -> None:
    with pytest.raises(ValueError, match="no"), folders.removed_on_failure():
        for path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        raise ValueError("no")


def test_new_folders_are_gone_with_their_new_parents(tmp_path: Path) -> None:
    own, shared = tmp_path / "a" / "checkpoint", tmp_path / "a" / "results"
    folders = NewFolders([own], [shared])
    shared.mkdir(parents=True)
    fail_after(folders, own / "ledger" / "0.plan")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    own, shared = tmp_path / "checkpoint", tmp_path / "results"
    own.mkdir()
    folders = NewFolders([own], [shared])
    fail_after(folders, own / "state", shared / "of another query")
    assert (own / "state").exists()
    assert (shared / "of another query").exists()  # not empty: another query writes there


def test_after_a_start_that_succeeds_all_stays(tmp_path: Path) -> None:
    with NewFolders([tmp_path / "checkpoint"], []).removed_on_failure():
        (tmp_path / "checkpoint").mkdir()
    assert (tmp_path / "checkpoint").exists()
