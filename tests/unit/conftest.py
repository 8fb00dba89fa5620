"""Fixtures of the runtime's files: an S3 on loopback, and a folder that is on disk or on that S3."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from anabranch.runtime.files import Folder


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Host and port of moto's S3 API."""
    from moto.server import ThreadedMotoServer  # here: it takes a second

    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def s3(s3_endpoint: str) -> fs.S3FileSystem:
    """A file system on that S3, with a bucket named `bucket`."""
    filesystem = s3_at(s3_endpoint)
    filesystem.create_dir("bucket")
    return filesystem


def s3_at(endpoint: str) -> fs.S3FileSystem:
    """An S3 file system that does not try twice."""
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        access_key="x",
        secret_key="x",
        region="us-east-1",
        scheme="http",
        allow_bucket_creation=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder, on disk and on S3 in turn; it does not exist yet."""
    if request.param == "local":
        return Folder.at(tmp_path / "there")
    return Folder.at((request.getfixturevalue("s3"), f"bucket/{uuid.uuid4().hex}"))
