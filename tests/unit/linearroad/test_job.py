"""A query that fails becomes an error for people, with the cause in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from anabranch.errors import JobError
from anabranch.linearroad.job import wait_for
from anabranch.types import Health


class Failed:
    """A query that has ended with Spark's error."""

    health = Health("failed", "java.io.IOException: the disk is gone")
    stopped = False

    def awaitTermination(self, timeout: float | None = None) -> bool:
        raise StreamingQueryException("a page of stack traces")

    def stop(self) -> None:
        self.stopped = True


def test_a_run_that_fails_says_why() -> None:
    query: Any = Failed()
    with pytest.raises(JobError, match=r"the run failed: .*the disk is gone"):
        wait_for(query)
    assert query.stopped
