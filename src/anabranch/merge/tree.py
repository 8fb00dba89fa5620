"""The aggregation tree: sums (and maxima) per query over all substreams (paper 5, section 4.4).

A query that was broadcast is answered in part by every substream. The parts are summed on a tree: first those of the
same task, where they are (Spark combines before an exchange), then, with many substreams, those of about sqrt(q)
substreams, and last all that remain of a query. Without the middle level one task would take q parts of every query.

Where all parts of an epoch fit one task, the tree is its root alone (`root`): an exchange would take longer than the
sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.network.columns import quoted

_BRANCH = "__ab_branch"

FLAT = 64
"""Up to so many inputs, one level is enough: what a task combines before the exchange is the first level."""


FEW = 1_000_000
"""Parts of an epoch that one task can sum."""


def fan_in_of(inputs: int) -> int | None:
    """Branches of the middle level: about sqrt(inputs); None where the tree is flat."""
    return None if inputs <= FLAT else math.isqrt(inputs - 1) + 1


def aggregation_tree(
    partial: DataFrame, by: Sequence[str], sums: Sequence[str], maxima: Sequence[str], fan_in: int | None
) -> DataFrame:
    """One row per query: the sums and maxima of its partial answers; columns in the order in which they came."""
    keys = [quoted(name) for name in by]
    totals = [F.sum(quoted(name)).cast(partial.schema[name].dataType).alias(name) for name in sums]
    totals += [F.max(quoted(name)).alias(name) for name in maxima]
    kept = [quoted(name) for name in partial.columns if name in {*by, *sums, *maxima}]
    if fan_in is None:
        return partial.groupBy(*keys).agg(*totals).select(*kept)
    branched = partial.withColumn(_BRANCH, F.pmod(F.spark_partition_id(), F.lit(fan_in)))
    return branched.groupBy(*keys, _BRANCH).agg(*totals).groupBy(*keys).agg(*totals).select(*kept)


def root(partial: pa.Table, by: Sequence[str], sums: Sequence[str], maxima: Sequence[str]) -> pa.Table:
    """The same, of parts that are all here; ordered by query."""
    wanted = [(name, "sum") for name in sums] + [(name, "max") for name in maxima]
    # One thread, so that floats are added in the order in which they came.
    found = partial.group_by(list(by), use_threads=False).aggregate(wanted)
    kept = [field for field in partial.schema if field.name in {*by, *sums, *maxima}]
    names = {name: f"{name}_{how}" for name, how in wanted}
    columns = [found.column(names.get(field.name, field.name)).cast(field.type) for field in kept]
    return pa.Table.from_arrays(columns, schema=pa.schema(kept)).sort_by([(name, "ascending") for name in by])
