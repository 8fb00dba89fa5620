"""The aggregation tree: sums (and maxima) per query over all substreams.

A query that was broadcast gets a partial answer from every substream. These are summed on a tree: first those of the
same task, in place (Spark combines before an exchange); then, with many substreams, those of about sqrt(q) substreams;
and finally all that remain of a query. Without the middle level one task would get q partial answers to every query.

Where all partial answers of an epoch fit into one task, the tree is only its root (`root`): an exchange would take
longer than the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.aggregates.sums import checked_sum
from anabranch.errors import ArithmeticOverflowError
from anabranch.names import BRANCH, rough_name
from anabranch.spark.columns import quoted

FLAT = 64
"""inputs up to which one level is enough, besides what each task combines before the exchange"""
FEW = 1_000_000
"""partial answers of an epoch that one task can sum"""


def fan_in_of(inputs: int) -> int | None:
    """Branches of the middle level, about sqrt(inputs); None where the tree is flat."""
    return None if inputs <= FLAT else math.isqrt(inputs - 1) + 1


def aggregation_tree(
    partial: DataFrame, by: Sequence[str], sums: Sequence[str], maxima: Sequence[str], fan_in: int | None
) -> DataFrame:
    """One row per query: the sums and maxima of its partial answers, with columns in the original order."""
    keys = [quoted(name) for name in by]
    totals = [checked_sum(quoted(name), partial.schema[name].dataType).alias(name) for name in sums]
    totals += [F.max(quoted(name)).alias(name) for name in maxima]
    kept = [quoted(name) for name in partial.columns if name in {*by, *sums, *maxima}]
    if fan_in is None:
        return partial.groupBy(*keys).agg(*totals).select(*kept)
    branched = partial.withColumn(BRANCH, F.pmod(F.spark_partition_id(), F.lit(fan_in)))
    return branched.groupBy(*keys, BRANCH).agg(*totals).groupBy(*keys).agg(*totals).select(*kept)


def root(partial: pa.Table, by: Sequence[str], sums: Sequence[str], maxima: Sequence[str]) -> pa.Table:
    """The same for partial answers that are all in memory; ordered by query."""
    exact = [name for name in sums if not pa.types.is_floating(partial.schema.field(name).type)]
    rough = {name: rough_name(i) for i, name in enumerate(exact)}
    for name, about in rough.items():
        partial = partial.append_column(about, partial.column(name).cast(pa.float64(), safe=False))
    wanted = [(name, "sum") for name in (*sums, *rough.values())] + [(name, "max") for name in maxima]
    # One thread, so that floats are added in a fixed order.
    found = partial.group_by(list(by), use_threads=False).aggregate(wanted)
    kept = [field for field in partial.schema if field.name in {*by, *sums, *maxima}]
    names = {name: f"{name}_{how}" for name, how in wanted}
    for name, about in rough.items():
        _check_fits(name, found.column(names[name]), found.column(names[about]), partial.schema.field(name).type)
    columns = [found.column(names.get(field.name, field.name)).cast(field.type) for field in kept]
    return pa.Table.from_arrays(columns, schema=pa.schema(kept)).sort_by([(name, "ascending") for name in by])


def _check_fits(name: str, totals: pa.ChunkedArray, rough: pa.ChunkedArray, kind: pa.DataType) -> None:
    """Arrow's sums wrap around on overflow: then they are far from the sums of the same numbers as floats."""
    room = 2.0**127 / 10.0**kind.scale if pa.types.is_decimal(kind) else 2.0**63
    apart = pc.max(pc.abs(pc.subtract(totals.cast(pa.float64(), safe=False), rough))).as_py()
    try:
        totals.cast(kind).validate(full=True)
        wrapped = apart is not None and apart > room / 2
    except pa.ArrowInvalid:
        wrapped = True
    if wrapped:
        raise ArithmeticOverflowError(
            f"a sum of the partial answers in {name!r} does not fit their type, {kind}",
            hint="declare the column as a wider type in the schema of the operator that emits it",
        )
