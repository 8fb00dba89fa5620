"""Fixtures of all tests: one Spark per test process, the shared sample data, and how hypothesis draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from pyarrow import fs

from tests.quick_java import use_quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# "ci" draws the same examples on every run, so a red build stays red. "explore" looks for new ones:
# pytest --hypothesis-profile explore. No deadlines: compiling a numba kernel or a busy machine is not a bug.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("ci")

use_quick_java()


# A test runs each plan once or twice, over a few rows: compiling and adapting it would take longer than all the rest.
QUICK_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
USUAL_PLANS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}
"""Spark's own defaults."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Answers must depend neither on the session's time zone nor on whether Spark compiles its plans."""
    parser.addoption("--session-zone", default="UTC", help="time zone of the tests' Spark session (UTC)")
    parser.addoption("--compiled", action="store_true", help="let Spark compile and adapt its plans, as for users")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The one Spark of this test process. Do not stop it; a test that must, starts a process of its own."""
    # Here, so that the tests which need no Spark start without it.
    from anabranch.local.session import local_session

    # Workers import the test module of a function they are sent, wherever pytest was started.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    config = {
        "spark.sql.session.timeZone": request.config.getoption("--session-zone"),
        "spark.driver.extraJavaOptions": "-Xms1g -Xmn600m",
        # The usual file system makes a checksum file beside each file, and starts a process for each of the two.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        **({} if request.config.getoption("--compiled") else QUICK_PLANS),
    }
    remember_classes()
    session = local_session(cores=2, shuffle_partitions=2, config=config, app_name="anabranch-tests")
    yield session
    session.stop()


def remember_classes() -> None:
    """PySpark looks up the same few classes before nearly every call, and Java goes through all its jars each time.

    That is a tenth of what the tests' Java does.
    """
    from py4j.java_gateway import JavaClass, JVMView

    look_up = JVMView.__getattr__

    def remembered(self: JVMView, name: str) -> object:
        found = look_up(self, name)
        if isinstance(found, JavaClass):
            vars(self)[name] = found
        return found

    JVMView.__getattr__ = remembered


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Spark compiles and adapts the plans of this test, as it does for users."""
    before = {name: spark.conf.get(name) for name in QUICK_PLANS}
    for name, value in USUAL_PLANS.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of sample data beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no sample data: {os.path.relpath(SHARED_DATA, ROOT)} does not exist")
    return SHARED_DATA


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the sample data has the marker `shared`, so that the two cannot drift apart."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared)
