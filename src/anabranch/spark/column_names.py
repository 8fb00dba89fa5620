"""Column names, as Spark resolves them.

| a user writes | it means |
|---|---|
| `at`, `AT` | the column `at`: case does not matter, unless ``spark.sql.caseSensitive`` is true |
| `` `a.b` `` | the column whose name has a dot |
| `a.b` | the field `b` of the struct `a`; if there is no such struct, the column whose name has a dot |
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import SparkSession

from anabranch.errors import InvalidArgumentError, column_not_found

_PART = r"`(?:[^`]|``)+`|[^.`]+"
_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")


def parts_of(name: str) -> list[str]:
    """The parts between dots, without backquotes; a name that Spark cannot parse is one part."""
    if not _NAME.fullmatch(name):
        return [name]
    return [part[1:-1].replace("``", "`") if part[0] == "`" else part for part in re.findall(_PART, name)]


def same_name(session: SparkSession, one: str, other: str) -> bool:
    """Whether Spark treats two names as the same."""
    return one == other or (not _by_case(session) and one.lower() == other.lower())


def find_column(session: SparkSession, columns: Sequence[str], name: str) -> str | None:
    """The column of that name, as `columns` spells it; None if there is none. Fields of structs do not count."""
    parts = parts_of(name)
    wanted = parts[0] if len(parts) == 1 else name
    found = [wanted] if wanted in columns else []
    if not _by_case(session):
        found = [column for column in columns if column.lower() == wanted.lower()]
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{name!r} is ambiguous: it could be any of the columns {', '.join(found)}",
            hint="rename them, or make names case-sensitive: spark.conf.set('spark.sql.caseSensitive', True)",
        )
    return found[0] if found else None


def column_name(session: SparkSession, columns: Sequence[str], name: str) -> str:
    """As `find_column`, but raises an error that suggests similar names if there is no such column."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{name!r} is not a column name", hint='write for example "at"')
    found = find_column(session, columns, name)
    if found is not None:
        return found
    parts = parts_of(name)
    if len(parts) > 1 and find_column(session, columns, parts[0]) is not None:
        raise InvalidArgumentError(
            f"{name!r} is a field of the column {parts[0]!r}, but a column is needed here",
            hint=f'make it a column first: df.withColumn("{parts[-1]}", F.col("{name}"))',
        )
    raise column_not_found(name, columns)


def _by_case(session: SparkSession) -> bool:
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"
