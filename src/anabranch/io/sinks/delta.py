"""Results in a Delta table."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks.base import Published, Sink
from anabranch.spark.quirks import SPARK_ERRORS


@made_as('ab.DeltaSink("tables/results")')
class DeltaSink(Sink):
    """A Delta table. Needs the Delta connector in the session (package delta-spark)."""

    guarantee = "exactly once: one transaction per epoch, which Delta recognises by its number"

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def open(self, session: SparkSession) -> None:
        try:
            session.read.format("delta").load(self.path)
        except SPARK_ERRORS as error:
            # Any other error, such as a missing table, comes from Delta itself.
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                raise InvalidArgumentError(
                    "the session has no Delta connector, so it cannot write to a Delta table",
                    hint="install delta-spark and start the session with it, or use FileSink",
                ) from error

    def publish(self, result: Published) -> None:
        if not result.files:
            return
        writer = result.frame().write.format("delta").mode("append")
        # Delta skips a transaction of this application that it already has.
        writer = writer.option("txnAppId", f"anabranch-{result.query}").option("txnVersion", str(result.epoch))
        writer.save(self.path)

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r})"
