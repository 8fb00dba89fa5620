"""What a row has at a drop point: the column of its time, and the keys that say which bucket it is in."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructType

from anabranch.plan import batch as batch_plan
from anabranch.plan.panes import WINDOW
from anabranch.query.graph import Network
from anabranch.query.nodes import Input
from anabranch.query.origins import Origin, Part, Source
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import quoted


def source_name(network: Network, source: Source) -> str:
    return f"source {network.index_of(source)}"


def time_at(each: Input) -> Column:
    """The time of the rows of an input, as they come from a source or a windowed aggregate, in microseconds."""
    origin = each.part.origin
    if isinstance(origin, Source):
        return origin.time.micros()
    return origin.time.micros(F.col(WINDOW)["end"]) - 1


def drops_rows(network: Network, point: DropPoint, reader: str, each: Input) -> bool:
    """Whether a point drops rows of this input of an operator, before the steps to it."""
    origin = each.part.origin
    if point.kind == "operator":
        # Rows of a join or a user operator have no such time: of an old decision there, only results are left out.
        return reader in point.at and (isinstance(origin, Source) or origin.node.aggregate is not None)
    # Blocks are dropped where they are unpacked, and so for each reader.
    if point.kind != "source" or not isinstance(origin, Source) or origin.packed is None:
        return False
    return source_name(network, origin) in point.at


def bucket_keys(network: Network, point: DropPoint) -> tuple[str, ...]:
    """The keys that rows have at a point and all operators below group by, unchanged: a bucket is made of those."""
    nodes = [step.node for step in network.steps if step.name in point.domain]
    common: list[str] | None = None
    for node in nodes:
        query = node.aggregate
        assert query is not None
        keys = [key for key in query.keys if _plain(query.source.schema[key].dataType)]
        if point.kind != "results":
            for each in node.inputs:
                keys = [key for key in keys if _carried(each.part, key)]
        common = keys if common is None else [key for key in common if key in keys]
    return tuple(common or ())


def unresolved(network: Network, point: DropPoint) -> str | None:
    """What Spark says against the columns that a point needs; None: nothing. Analysis only, no job.

    A decision that Spark cannot carry out would be in the ledger before the epoch fails, and fail at every restart.
    """
    try:
        for source in network.sources:
            if point.kind == "source" and source_name(network, source) in point.at:
                _shape(source).select(source.time.micros())
        for step in network.steps:
            for each in step.node.inputs:
                if drops_rows(network, point, step.name, each):
                    _shape(each.part.origin).select(time_at(each))
    except AnalysisException as error:
        return str(error).splitlines()[0]
    return None


def _shape(origin: Origin) -> DataFrame:
    """No rows, with the columns that rows have as they come from a source or a windowed aggregate."""
    if isinstance(origin, Source):
        session, packed = origin.frame.sparkSession, origin.packed
        return session.createDataFrame([], origin.frame.schema if packed is None else from_arrow_schema(packed.schema))
    assert origin.node.aggregate is not None
    return origin.node.aggregate.result_like(batch_plan.build)


def _plain(kind: DataType) -> bool:
    """Whether equal keys have equal bytes: a collation may call others equal, and these would be in other buckets."""
    return not isinstance(kind, (StructType, ArrayType)) and (not isinstance(kind, StringType) or kind == StringType())


def _carried(part: Part, key: str) -> bool:
    """Whether a key is a column of the part's origin that no step has changed."""
    origin = part.origin
    if isinstance(origin, Source) and origin.packed is not None:
        return not part.steps and key in origin.packed.schema.names
    if not isinstance(origin, Source):
        query = origin.node.aggregate
        if query is None or key not in query.keys:
            return False
    shape = _shape(origin)
    try:
        rows = part.apply(shape)
        return bool(rows.select(quoted(key)).sameSemantics(rows.select(shape[f"`{key}`"])))
    except AnalysisException:
        return False  # the column of the origin is no longer there
