"""Rows in the forms that tests write them in, and their comparison.

Two values are equal if Python says so, with these additions: NaN equals NaN, null equals null only, and a time without
a time zone counts as UTC. So `datetime(2024, 1, 1)` equals midnight UTC in any zone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from anabranch.errors import InvalidArgumentError
from anabranch.spark.arrow import arrow_schema, common_schema

Schema: TypeAlias = str | StructType | pa.Schema
"""Columns and their types: "cell string, n bigint" (needs a Spark session), a StructType or a pyarrow schema."""

Rows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]] | Iterable[Sequence[Any]]
"""An Arrow table or record batch; dictionaries, or tuples in the order of the columns."""

SHOWN = 10
"""The most rows that a failed comparison shows of each kind."""


def schema_of(schema: Schema) -> pa.Schema:
    """The Arrow types in which the runtime passes these columns."""
    if isinstance(schema, str):
        if SparkSession.getActiveSession() is None:
            raise InvalidArgumentError(
                f"the schema {schema!r} is text, which only Spark can read, and no session is active",
                hint="start a session first, or give a pyarrow schema: pa.schema([...])",
            )
        return schema_of(StructType.fromDDL(schema))
    return arrow_schema(schema) if isinstance(schema, StructType) else common_schema(schema)


def table_of(rows: Rows, schema: pa.Schema | None) -> pa.Table:
    """The rows as a table with these columns; without a schema, with the types that Arrow finds."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows if schema is None else rows.select(schema.names).cast(schema)
    if isinstance(rows, Mapping | str | Row):
        raise InvalidArgumentError(f"{rows!r} is not a list of rows", hint="put a single row into a list: [row]")
    given = [_as_dict(row) for row in rows]
    if schema is None:
        if not all(isinstance(row, Mapping) for row in given):
            raise InvalidArgumentError(
                "rows that are tuples have no names for their columns", hint="give dictionaries, or a schema"
            )
        return pa.Table.from_pylist(given)
    return pa.Table.from_pylist([_named(row, schema.names) for row in given], schema)


def _named(row: Any, names: Collection[str]) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in names]
        if unknown:
            raise InvalidArgumentError(
                f"the row {row!r} has the column {unknown[0]!r}, which is not in the schema: it would be lost",
                hint=f"the columns are {', '.join(names)}; one that is left out is null",
            )
        return row
    if len(row) != len(names):
        raise InvalidArgumentError(
            f"the row {row!r} has {len(row)} values for {len(names)} columns",
            hint=f"give one for each of {', '.join(names)}",
        )
    return dict(zip(names, row, strict=True))


def assert_rows_equal(
    actual: DataFrame | Rows,
    expected: DataFrame | Rows,
    *,
    columns: Sequence[str] | None = None,
    ordered: bool = False,
    tolerance: float = 0.0,
) -> None:
    """Fail with an AssertionError that shows the difference, unless both have the same rows, each as often.

    Args:
        actual: the rows that came: an Arrow table, a DataFrame, or dictionaries.
        expected: the rows wanted. They may be tuples too, in the order of `columns` or, without these, of the columns
            of `actual`.
        columns: compare these columns only.
        ordered: the rows must come in this order.
        tolerance: floats are equal if they differ by at most this share of the larger one.
    """
    names, came = _dictionaries(actual, columns, columns)
    _, wanted = _dictionaries(expected, columns, names)
    if ordered:
        _compare_in_order(came, wanted, tolerance)
        return
    missing, unexpected = _differences(came, wanted, tolerance)
    if missing or unexpected:
        head = f"rows differ: {len(missing)} of {len(wanted)} missing, {len(unexpected)} of {len(came)} unexpected"
        raise AssertionError("\n".join([head, *_report(missing, unexpected, tolerance)]))


def _dictionaries(
    rows: DataFrame | Rows, columns: Sequence[str] | None, names: Sequence[str] | None
) -> tuple[Sequence[str] | None, list[dict[str, Any]]]:
    """The names of the columns, if known, and the rows by name. `names` are for rows that are tuples."""
    if isinstance(rows, DataFrame):
        rows = rows.toArrow()
    if isinstance(rows, pa.Table | pa.RecordBatch):
        names, found = rows.schema.names, rows.to_pylist()
    else:
        given = [_as_dict(row, recursive=True) for row in rows]
        if given and isinstance(given[0], Mapping):
            names = list(given[0])
        if names is None and given:
            names = [f"_{i + 1}" for i in range(len(given[0]))]
        found = [dict(_named(row, row if isinstance(row, Mapping) else names or ())) for row in given]
    if columns is None:
        return names, found
    for row in found:
        absent = [name for name in columns if name not in row]
        if absent:
            raise AssertionError(f"the row {_text(row)} has no column {absent[0]!r}")
    return columns, [{name: row[name] for name in columns} for row in found]


def _as_dict(row: Any, *, recursive: bool = False) -> Any:
    """Spark's rows with names as dictionaries; others as they are."""
    return row.asDict(recursive) if isinstance(row, Row) and hasattr(row, "__fields__") else row


def _compare_in_order(came: list[dict[str, Any]], wanted: list[dict[str, Any]], tolerance: float) -> None:
    for number, (mine, theirs) in enumerate(zip(came, wanted, strict=False)):
        if not _same(mine, theirs, tolerance):
            raise AssertionError(f"row {number} differs: {_difference(mine, theirs, tolerance)}")
    if len(came) != len(wanted):
        kind, rest = ("unexpected", came) if len(came) > len(wanted) else ("missing", wanted)
        begin = min(len(came), len(wanted))
        lines = [f"{len(came)} rows came, {len(wanted)} were expected; {kind} from row {begin} on:"]
        raise AssertionError("\n".join([*lines, *_listed(rest[begin:])]))


def _differences(
    came: list[dict[str, Any]], wanted: list[dict[str, Any]], tolerance: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows that are only expected, and those that only came."""
    equal = Counter(map(_canonical, came)) & Counter(map(_canonical, wanted))
    missing, unexpected = _without(wanted, equal), _without(came, equal)
    if not tolerance or not missing or not unexpected:
        return missing, unexpected
    # Rows that differ in floats only: those with the same other values are candidates for each other.
    candidates: defaultdict[Hashable, list[dict[str, Any]]] = defaultdict(list)
    for row in unexpected:
        candidates[_canonical(row, floats=False)].append(row)
    left = []
    for row in missing:
        near = candidates[_canonical(row, floats=False)]
        match = next((i for i, each in enumerate(near) if _same(each, row, tolerance)), None)
        if match is None:
            left.append(row)
        else:
            del near[match]
    return left, [row for near in candidates.values() for row in near]


def _without(rows: list[dict[str, Any]], equal: Counter[Hashable]) -> list[dict[str, Any]]:
    paired, rest = Counter(equal), []
    for row in rows:
        key = _canonical(row)
        if paired[key]:
            paired[key] -= 1
        else:
            rest.append(row)
    return rest


def _canonical(value: Any, floats: bool = True) -> Hashable:
    """A form of the value that is equal for values that count as equal; without floats, the same for all of them."""
    if isinstance(value, Mapping):
        return ("struct", *((name, _canonical(value[name], floats)) for name in sorted(value, key=str)))
    if isinstance(value, list | tuple | np.ndarray):
        return ("list", *(_canonical(item, floats) for item in value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not floats:
        return "float"
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _same(mine: Any, theirs: Any, tolerance: float) -> bool:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return mine.keys() == theirs.keys() and all(_same(mine[name], theirs[name], tolerance) for name in mine)
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        pairs = zip(mine, theirs, strict=False)
        return len(mine) == len(theirs) and all(_same(a, b, tolerance) for a, b in pairs)
    if isinstance(mine, float) and isinstance(theirs, float) and tolerance:
        return math.isclose(mine, theirs, rel_tol=tolerance) or (math.isnan(mine) and math.isnan(theirs))
    return _canonical(mine) == _canonical(theirs)


# --- messages -------------------------------------------------------------------------------------------------------


def _report(missing: list[dict[str, Any]], unexpected: list[dict[str, Any]], tolerance: float) -> list[str]:
    """The differences, line by line: rows that are alike together, then the others."""
    lines: list[str] = []
    alone, rest = [], list(unexpected)
    for row in missing:
        best = max(rest, key=lambda each: _alike(each, row, tolerance), default=None)
        if best is None or _alike(best, row, tolerance) == 0 or len(lines) == SHOWN:
            alone.append(row)
        else:
            rest = [each for each in rest if each is not best]
            lines.append(f"  differs: {_difference(best, row, tolerance)}")
    if alone:
        lines += ["  missing:", *_listed(alone)]
    if rest:
        lines += ["  unexpected:", *_listed(rest)]
    return lines


def _alike(mine: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> int:
    return sum(1 for name in theirs if name in mine and _same(mine[name], theirs[name], tolerance))


def _difference(mine: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> str:
    """Two rows: the values that they have in common, and the others as expected and as they came."""
    shared, apart = [], []
    for name in dict.fromkeys([*theirs, *mine]):
        if name not in mine or name not in theirs:
            apart.append(f"column {name!r} is {'missing' if name in theirs else 'unexpected'}")
        elif _same(mine[name], theirs[name], tolerance):
            shared.append(f"{name}={_text(mine[name])}")
        else:
            apart.append(f"{name}: expected {_text(theirs[name])}, got {_text(mine[name])}")
    where = f"({', '.join(shared)}) " if shared else ""
    return where + ", ".join(apart)


def _listed(rows: list[dict[str, Any]]) -> list[str]:
    more = [f"    ... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return [*(f"    {_text(row)}" for row in rows[:SHOWN]), *more]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}={_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, datetime):
        return str(value)
    return repr(value)
