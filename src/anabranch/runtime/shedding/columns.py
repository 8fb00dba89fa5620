"""The columns of rows at a drop point: the time of a row, and the keys that decide its bucket."""

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
from anabranch.query.origins import Branch, Origin, Source
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import quoted


def source_name(network: Network, source: Source) -> str:
    return f"source {network.index_of(source)}"


def time_at(input_: Input) -> Column:
    """The time of an input's rows in microseconds, as they come from a source or a windowed aggregate."""
    origin = input_.branch.origin
    if isinstance(origin, Source):
        return origin.time.micros()
    return origin.time.micros(F.col(WINDOW)["end"]) - 1


def drops_rows(network: Network, point: DropPoint, reader: str, input_: Input) -> bool:
    """Whether a point drops rows of this input, before the steps that lead to the operator."""
    origin = input_.branch.origin
    if point.kind == "operator":
        # Rows of a join or a user's operator have no such time. An old decision for them only drops results.
        return reader in point.at and (isinstance(origin, Source) or origin.node.aggregate is not None)
    # Rows of blocks are dropped where the blocks are unpacked: in each reader.
    if point.kind != "source" or not isinstance(origin, Source) or origin.packed is None:
        return False
    return source_name(network, origin) in point.at


def bucket_keys(network: Network, point: DropPoint) -> tuple[str, ...]:
    """The keys that make up a bucket: rows have them at the point, and all operators below group by them unchanged."""
    nodes = [step.node for step in network.steps if step.name in point.domain]
    common: list[str] | None = None
    for node in nodes:
        query = node.aggregate
        assert query is not None
        keys = [key for key in query.keys if _plain(query.source.schema[key].dataType)]
        if point.kind != "results":
            for input_ in node.inputs:
                keys = [key for key in keys if _carried(input_.branch, key)]
        common = keys if common is None else [key for key in common if key in keys]
    return tuple(common or ())


def unresolved(network: Network, point: DropPoint) -> str | None:
    """Spark's error if it cannot resolve the columns that a point needs, else None. This runs no job.

    Without this check, a decision that Spark cannot carry out would be in the ledger and fail at every restart.
    """
    try:
        for source in network.sources:
            if point.kind == "source" and source_name(network, source) in point.at:
                _shape(source).select(source.time.micros())
        for step in network.steps:
            for input_ in step.node.inputs:
                if drops_rows(network, point, step.name, input_):
                    _shape(input_.branch.origin).select(time_at(input_))
    except AnalysisException as error:
        return str(error).splitlines()[0]
    return None


def _shape(origin: Origin) -> DataFrame:
    """An empty DataFrame with the columns of rows from a source or a windowed aggregate."""
    if isinstance(origin, Source):
        session, packed = origin.frame.sparkSession, origin.packed
        return session.createDataFrame([], origin.frame.schema if packed is None else from_arrow_schema(packed.schema))
    assert origin.node.aggregate is not None
    return origin.node.aggregate.result_like(batch_plan.build)


def _plain(kind: DataType) -> bool:
    """Whether equal keys have equal bytes: with a collation, equal keys could fall into different buckets."""
    return not isinstance(kind, (StructType, ArrayType)) and (not isinstance(kind, StringType) or kind == StringType())


def _carried(branch: Branch, key: str) -> bool:
    """Whether a key is a column of the branch's origin that no step has changed."""
    origin = branch.origin
    if isinstance(origin, Source) and origin.packed is not None:
        return not branch.transforms and key in origin.packed.schema.names
    if not isinstance(origin, Source):
        query = origin.node.aggregate
        if query is None or key not in query.keys:
            return False
    shape = _shape(origin)
    try:
        rows = branch.apply(shape)
        return bool(rows.select(quoted(key)).sameSemantics(rows.select(shape[f"`{key}`"])))
    except AnalysisException:
        return False  # the column of the origin is no longer there
