"""How many tasks a cluster runs at once: the default number of workers of a query."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

LOCAL_MASTER = re.compile(r"local(?:\[([1-9]\d*|\*)(?:\s*,\s*([1-9]\d*))?\])?")
"""A local master as Spark reads it: the number of cores, and how often a task may fail."""
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_ROWS = 1 << 14
"""Rows enough for one in every partition of any cluster."""

Conf = Callable[[str], str | None]


def slots_of(session: SparkSession) -> int:
    """The slots of the session's cluster.

    From the settings if they say. Otherwise from a DataFrame without a partitioning of its own: Spark gives it one
    partition per core. That takes a small job, run twice, because executors may only start with the first one.
    """

    def conf(name: str) -> str | None:
        return session.conf.get(name, None)

    known = configured_slots(conf)
    if known is not None:
        return known
    for _ in range(2):
        partitions = session.range(_ROWS).select(F.spark_partition_id().alias("part")).distinct().count()
    return max(1, partitions // _number(conf("spark.task.cpus"), 1))


def configured_slots(conf: Conf) -> int | None:
    """The slots according to the settings; None if they do not say."""
    cores = _cores(conf)
    return None if cores is None else max(1, cores // _number(conf("spark.task.cpus"), 1))


def _cores(conf: Conf) -> int | None:
    master = (conf("spark.master") or "").strip()
    if found := LOCAL_MASTER.fullmatch(master):
        asked = found[1] or "1"
        return (os.cpu_count() or 1) if asked == "*" else int(asked)
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * int(found[2])
    if (conf("spark.dynamicAllocation.enabled") or "").lower() == "true":
        return None  # executors come and go
    executors, cores = (_number(conf(f"spark.executor.{name}"), 0) for name in ("instances", "cores"))
    return executors * cores or None


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.strip().isdigit() and int(text) > 0 else otherwise
