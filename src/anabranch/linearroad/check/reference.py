"""The right answers, from a slow and obvious computation. A run is compared with them.

This shares no code with the fast path. The whole input is known, so each rule is one SQL view (`reference_sql.py`), and
DuckDB runs them on one machine; data may be larger than memory. It is an offline computation: if a validator uses what
no system can know in time, so does the reference, and the rule's comment says so.

DuckDB is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from anabranch.errors import MissingDependencyError
from anabranch.linearroad.check.reference_sql import RULES
from anabranch.linearroad.schema import HISTORY, INPUT, SEGMENT_HISTORY, Mode

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Paths = str | Path | Sequence[str | Path]
"""Parquet files: one, several, globs, or folders of them."""

_TABLES = {
    "toll": "toll",
    "accident": "accident_alert",
    "balance": "balance",
    "expenditure": "expenditure",
    "traveltime": "traveltime",
}


@dataclass(frozen=True)
class Expected:
    """The right answers as Parquet files, one for each kind, with the columns of the answers.

    `balance` has a row for every acceptable answer: Balance with a ResultTime from Earliest to Latest. Each QID has one
    row that is not an Alternative; its ResultTime is the one that the validator of this mode gives.
    """

    mode: Mode
    folder: Path

    def path(self, kind: str) -> Path:
        """The file of a kind of answers, a key of `schema.ANSWERS`."""
        return self.folder / f"{kind}.parquet"


def expected_answers(
    input: Paths,
    history: Paths | None,
    segment_history: Paths | None,
    mode: Mode,
    folder: str | Path,
    *,
    threads: int | None = None,
) -> Expected:
    """Compute the right answers to an input and write them into a folder.

    `history` and `segment_history` may be None if no query needs them: a query without history has no answer. The
    input may have any number of expressways. While this runs, the folder also holds a database and spilled data, about
    twice as large as the input.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "reference.duckdb"
    database.unlink(missing_ok=True)
    expected = Expected(mode, folder)
    with connect(database, threads=threads) as connection:
        _read(connection, "input", input, INPUT)
        _read(connection, "history", history, HISTORY)
        _read(connection, "segment_history", segment_history, SEGMENT_HISTORY)
        for rule in RULES:
            connection.execute(rule.statement(mode))
        for kind, view in _TABLES.items():
            connection.execute(f"COPY (FROM {view}) TO {quoted(expected.path(kind))} (FORMAT parquet)")
    database.unlink()
    return expected


def connect(database: Path | None = None, *, threads: int | None = None) -> DuckDBPyConnection:
    """A DuckDB connection, in memory or with a file, beside which it spills."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "the reference of Linear Road needs DuckDB, which is not installed; without it no answer can be checked",
            hint='run pip install "anabranch[linearroad]"',
        ) from error
    connection = duckdb.connect(str(database) if database else ":memory:")
    connection.execute("SET preserve_insertion_order = false")  # order costs memory, and no answer depends on it
    if threads is not None:
        connection.execute(f"SET threads = {int(threads)}")
    return connection


def parquet(paths: Paths) -> str:
    """The SQL that reads Parquet files."""
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [path / "**" / "*.parquet" if path.is_dir() else path for path in map(Path, several)]
    return f"read_parquet([{', '.join(quoted(path) for path in files)}])"


def quoted(text: str | Path) -> str:
    """The text as a SQL string literal."""
    return "'" + str(text).replace("'", "''") + "'"


def _read(connection: DuckDBPyConnection, name: str, paths: Paths | None, schema: pa.Schema) -> None:
    columns = ", ".join(schema.names)
    if paths is None:
        connection.register("nothing", schema.empty_table())
        connection.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM nothing")
        connection.unregister("nothing")
    else:
        connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {parquet(paths)}")
