"""How the tests run Java: they start it often, and run everything a few times only.

`python -m tests.quick_java` archives the classes that Spark loads, which halves the time until Spark's first result.
`make` does so once for an environment. Without the archive the tests only take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")

_OPTIONS = (
    # Java's second compiler would never earn back what it takes.
    "-XX:TieredStopAtLevel=1",
    # The usual garbage collector looks through the heap after every large array.
    "-XX:+UseSerialGC",
    # Hadoop starts a process for the permissions of every file and folder that Spark makes.
    *(["-Djdk.lang.Process.launchMechanism=VFORK"] if sys.platform == "linux" else []),
)


def options() -> str:
    """The options for each Java that a test starts."""
    # An archive of another Java or another Spark is ignored, without a word.
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xshare:auto", "-Xlog:disable"] if ARCHIVE.exists() else []
    return " ".join([*_OPTIONS, *archive])


def use_quick_java() -> None:
    """From here on, each driver that this process or its children start has these options."""
    os.environ["SPARK_SUBMIT_OPTS"] = options()


def make_archive() -> None:
    """Run some batch and streaming queries, and archive the classes that they load."""
    from pyspark import SparkContext
    from pyspark.sql import functions as F

    import anabranch as ab
    from anabranch.local import local_session

    part = ARCHIVE.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*_OPTIONS, f"-XX:ArchiveClassesAtExit={part}", "-Xlog:disable"])
    spark = local_session(cores=2, shuffle_partitions=2)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(100).select(F.timestamp_seconds("id").alias("at"), (F.col("id") % 3).alias("key"))
        rows.write.parquet(f"{folder}/rows")
        windows = ab.stream(rows, time="at").window(size="10 s", slide="2 s").by("key").agg(n=ab.count())
        windows.to_df().toArrow()
        stream = ab.stream(spark.readStream.schema(rows.schema).parquet(f"{folder}/rows"), time="at", watermark="1 s")
        query = (
            stream.window(size="10 s", slide="2 s")
            .by("key")
            .agg(n=ab.count())
            .start(ab.FileSink(f"{folder}/results"), checkpoint=f"{folder}/checkpoint", trigger="available-now")
        )
        query.awaitTermination()
        gateway = SparkContext._gateway
        spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends, and writes the archive
    gateway.proc.wait(timeout=120)
    part.replace(ARCHIVE)


if __name__ == "__main__":
    make_archive()
