"""Fixtures of the runtime's files: a folder that is on disk or on an S3."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from anabranch.io.folder import Folder


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder, on disk and on S3 in turn; it does not exist yet."""
    if request.param == "local":
        return Folder.at(tmp_path / "there")
    return Folder.at((request.getfixturevalue("s3"), f"bucket/{uuid.uuid4().hex}"))
