"""How a notebook shows streams and queries: their columns and what they compute, in one line. Runs no job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from anabranch.names import EVENT
from anabranch.windows import describe

if TYPE_CHECKING:
    from anabranch.api.joined import Joined
    from anabranch.api.processing import Processed
    from anabranch.api.stream import Stream
    from anabranch.api.windowed import Aggregation, Windowed
    from anabranch.windows import Window

_MOST = 8
"""columns that are named; the rest is counted"""


def stream_repr(stream: Stream) -> str:
    kind = "streaming" if stream.branches or stream.source.isStreaming else "bounded"
    return f"<Stream [{_columns(stream.source.schema)}], time {stream.time.name!r}, {kind}>"


def windowed_repr(windowed: Windowed) -> str:
    return f"<Windowed {_windows(windowed.panes.windows, windowed.keys)} of {stream_repr(windowed.stream)}>"


def aggregation_repr(aggregation: Aggregation) -> str:
    query = aggregation.query
    asked = ", ".join(f"{name} = {aggregate.describe()}" for name, aggregate in query.aggregates.items())
    of = "" if aggregation.stream is None else f" of {stream_repr(aggregation.stream)}"
    return f"<Aggregation {asked} over {_windows(query.panes.windows, query.keys)}{of}>"


def joined_repr(joined: Joined) -> str:
    spec = joined.spec
    within = ", ".join(describe(window) for window in spec.within)
    streams = " and ".join(map(stream_repr, joined.streams))
    return f"<Joined [{_columns(spec.schema)}], {spec.how} on {', '.join(spec.on)} within {within}, of {streams}>"


def processed_repr(processed: Processed) -> str:
    node = processed.node
    schemas: Mapping[str, StructType]
    schemas = node.schemas
    outputs = "; ".join(f"{name} [{_columns(schema)}]" for name, schema in schemas.items())
    return f"<Processed {node.describe()[0]}: {outputs}>"


def _windows(windows: Sequence[Window], keys: Iterable[str]) -> str:
    by = ", ".join(keys)
    return f"windows {', '.join(window.label for window in windows)}" + (f" by {by}" if by else "")


def _columns(schema: StructType) -> str:
    fields = [field for field in schema.fields if field.name != EVENT]
    named = [f"{field.name}: {field.dataType.simpleString()}" for field in fields[:_MOST]]
    more = [f"{len(fields) - _MOST} more"] if len(fields) > _MOST else []
    return ", ".join([*named, *more])
