"""`anabranch explain`: how a query given on the command line would run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import anabranch as ab
from anabranch.cli.sample_events import write_sample_events
from anabranch.errors import InvalidArgumentError
from anabranch.local.session import local_session
from anabranch.types import Aggregate

_AGGREGATES: dict[str, Callable[..., Aggregate]] = {
    "count": ab.count,
    "sum": ab.sum,
    "avg": ab.avg,
    "min": ab.min,
    "max": ab.max,
    "variance": ab.variance,
    "stddev": ab.stddev,
    "first": ab.first,
    "last": ab.last,
    "count_distinct": ab.count_distinct,
    "median": lambda column: ab.quantile(column, 0.5),
    "collect": ab.collect,
    "top_k": lambda column: ab.top_k(column, 10),
}


def explain_file(
    file: Path | None,
    *,
    time: str,
    time_unit: str | None,
    sizes: Sequence[str],
    slide: str,
    keys: Sequence[str] | None,
    aggregates: Sequence[str],
    strategy: str,
    batch: int | None,
    sample: float,
) -> str:
    """The text of `explain()` for a query over a Parquet file, or over generated events (t, key, v)."""
    parsed = {_name(text): _parse(text) for text in aggregates}
    with tempfile.TemporaryDirectory(prefix="anabranch-explain-") as folder:
        if file is None:
            path, by = write_sample_events(Path(folder)), list(keys or ["key"])
        elif not file.exists():
            raise InvalidArgumentError(f"there is no file {file}", hint="give a Parquet file or folder")
        else:
            path, by = file, list(keys or [])
        rows = local_session(app_name="anabranch explain").read.parquet(str(path))
        stream = ab.stream(rows, time=time, time_unit=time_unit)  # type: ignore[arg-type]  # checked there
        windows = stream.windows(*((size, slide) for size in sizes)).by(*by)
        query = windows.agg(**parsed).using(strategy, batch=batch)
        return (query.sample(sample) if sample else query).explain()


def _name(text: str) -> str:
    return text.replace(":", "_").replace(".", "_")


def _parse(text: str) -> Aggregate:
    name, _, column = text.partition(":")
    if name not in _AGGREGATES:
        raise InvalidArgumentError(f"there is no aggregate {name!r}", hint=f"use one of {', '.join(_AGGREGATES)}")
    if not column and name != "count":
        raise InvalidArgumentError(f"{name} needs a column", hint=f'write "{name}:column"')
    return _AGGREGATES[name](column) if column else ab.count()
