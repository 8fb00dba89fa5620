"""Whether a run answered everything, right and in time: its output against the reference.

Each kind of answer is compared separately. Every answer has a key (the car and the second, or the query), and:

============  ======================================================================================
equal         an expected key with a right answer
wrong         an expected key with answers, none of which is right
missing       an expected key without an answer
unexpected    a key with answers, none of which is expected
duplicates    answers beyond the first for a key
late, early   answers after the limit of their kind, or before their question; counted in addition to the above,
              and only for a run in real time: in other runs, tuples are never due
============  ======================================================================================

Large runs use copies of one base trace, which differ only in their numbers. The reference is computed for the base, and
the answers of each copy, renumbered like the base, must be the same rows. Their count and the sum of their hashes show
that without a join; only copies that differ are compared row by row.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.check.reference import Expected, Paths, connect, expected_answers, parquet, quoted
from anabranch.linearroad.generate.copies import Copies
from anabranch.linearroad.schema import LIMITS, Mode, answer_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXAMPLES = 5
"""How many answers are shown for each difference."""
NEVER = 1e9
"""The time of an answer whose publication was not recorded."""
EMIT = "Emit"
"""When an answer was published, in simulated seconds: known from its epoch, not a column of the answers."""
COPIES_IN_DETAIL = 3
"""How many copies that differ are compared row by row."""


@dataclass(frozen=True)
class Example:
    """One difference: an answer in the run's own numbers, and what is wrong with it."""

    difference: str
    answer: dict[str, float | None]
    reason: str


@dataclass(frozen=True)
class KindReport:
    """The comparison of one kind of answers; the module's docstring says what is counted."""

    expected: int = 0
    given: int = 0
    equal: int = 0
    missing: int = 0
    unexpected: int = 0
    wrong: int = 0
    duplicates: int = 0
    late: int | None = None
    early: int | None = None
    """None if the run was not in real time; so are `late` and `worst_response`"""
    worst_response: float | None = None
    """The longest response time in seconds."""
    copies_estimated: int = 0
    """Copies that differ but were not compared row by row: all their answers count as missing and as unexpected."""
    examples: tuple[Example, ...] = ()

    @property
    def differences(self) -> int:
        """An upper bound of the differences."""
        of_time = (self.late or 0) + (self.early or 0)
        return self.missing + self.unexpected + self.wrong + self.duplicates + of_time


@dataclass(frozen=True)
class Report:
    """The comparison of a run's answers with the reference."""

    mode: Mode
    by_kind: dict[str, KindReport]

    @property
    def differences(self) -> int:
        """0 if all answers are right and, if that was measured (`timed`), in time."""
        return sum(kind.differences for kind in self.by_kind.values())

    @property
    def timed(self) -> bool:
        """Whether response times were measured: the run was in real time."""
        return any(kind.late is not None for kind in self.by_kind.values())

    def examples(self) -> list[str]:
        """Some of the differences, one line each."""
        return [
            f"{name} {each.difference}: {each.answer} {each.reason}"
            for name, kind in self.by_kind.items()
            for each in kind.examples
        ]

    def to_json(self) -> dict[str, Any]:
        """The figures and examples as plain values."""
        kinds = {name: asdict(kind) | {"differences": kind.differences} for name, kind in self.by_kind.items()}
        return {"mode": self.mode.value, "differences": self.differences, "timed": self.timed, "by_kind": kinds}

    def table(self) -> Table:
        """The figures as a table, with a line for each kind of answer."""
        right = "all answers are right and in time" if self.timed else "all answers are right"
        verdict = right if not self.differences else f"{self.differences:,} differences"
        verdict += "" if self.timed else "; response times were not measured"
        table = Table(title=f"Linear Road, {self.mode.value}: {verdict}", title_justify="left")
        columns = [field.name for field in fields(KindReport) if field.name not in ("examples", "copies_estimated")]
        table.add_column("answers")
        for column in columns:
            table.add_column(column.replace("_", " "), justify="right")
        for name, kind in self.by_kind.items():
            values = [getattr(kind, column) for column in columns]
            table.add_row(name, *("–" if value is None else f"{value:,}" for value in values))
        return table


def validate(
    trace_input: Paths,
    history: Paths | None,
    segment_history: Paths | None,
    output: str | Path,
    mode: Mode,
    copies: Copies | None = None,
    *,
    expected: Expected | None = None,
    published: Mapping[int, float] | None = None,
    threads: int | None = None,
) -> Report:
    """Compare a run's output folder with the reference.

    `published`: for each epoch in real time, the simulated second in which its answers were published. Response times
    count until then, and only for these epochs; without it, there are no response times.

    With `copies`, the first three arguments are those of the base trace. `expected` are its right answers, if they have
    already been computed.
    """
    if expected is not None and expected.mode is not mode:
        raise InvalidArgumentError(
            f"the expected answers are for the mode {expected.mode.value}, not {mode.value}, and the modes differ",
            hint="compute them in the mode of the run",
        )
    if not Path(output).is_dir():
        raise InvalidArgumentError(f"there is no folder {output} to validate", hint="give the output folder of a run")
    with tempfile.TemporaryDirectory(prefix="linear-road-") as folder:
        if expected is None:
            expected = expected_answers(trace_input, history, segment_history, mode, folder, threads=threads)
        with connect(Path(folder) / "validate.duckdb", threads=threads) as connection:
            return Report(
                mode, {kind: _Comparison(connection, kind, expected, output, copies, published).run() for kind in KEYS}
            )


KEYS = {
    "toll": ("VID", "Time"),
    "accident": ("VID", "Time"),
    "balance": ("QID",),
    "expenditure": ("QID",),
    "traveltime": ("QID",),
}
"""The key columns of each kind of answers."""

_NUMBER = {"toll": "VID", "accident": "XWay"}
"""The column that says which copy an answer belongs to; QID for the kinds not listed."""


class _Sum(NamedTuple):
    """Counts and hashes of the answers of one copy, from one pass."""

    answers: int = 0
    checksum: int = 0
    late: int = 0
    early: int = 0
    worst_response: float | None = None


class _Comparison:
    """Compares one kind of answers: the views `given` and `expected`, numbered like the base, and queries on them."""

    def __init__(
        self,
        connection: DuckDBPyConnection,
        kind: str,
        expected: Expected,
        output: str | Path,
        copies: Copies | None,
        published: Mapping[int, float] | None,
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._copies = copies
        self._timed = bool(published)
        self._asked = answer_schema(kind).names
        self._columns = [*self._asked, EMIT] if self._timed else self._asked
        self._values = [column for column in self._asked if column not in KEYS[kind]]
        self._numbers = range(copies.count if copies else 1)
        self._view_given(Path(output) / kind, published)
        connection.execute(f"CREATE OR REPLACE VIEW expected AS FROM {parquet(expected.path(kind))}")

    def run(self) -> KindReport:
        """Compare the counts, and the rows of copies whose counts differ."""
        sums = self._sums()
        wanted = _Sum(*self._row(f"SELECT count(DISTINCT ({self._key})), {self._checksum} FROM expected"))
        # A balance may have several right answers, so hashes prove nothing. Balances are few: compare all of them.
        compare_all = self._kind == "balance"
        differing = [n for n in self._numbers if compare_all or sums.get(n, _Sum())[:2] != wanted[:2]]
        detailed = differing if compare_all else differing[:COPIES_IN_DETAIL]
        estimated = differing[len(detailed) :]
        equal_copies = len(self._numbers) - len(differing)
        stray = sum(each.answers for number, each in sums.items() if number not in self._numbers)
        compared = self._row_by_row(detailed, wanted.answers)
        report = replace(
            compared,
            expected=wanted.answers * len(self._numbers),
            given=sum(each.answers for each in sums.values()),
            equal=compared.equal + wanted.answers * equal_copies,
            missing=compared.missing + wanted.answers * len(estimated),
            unexpected=compared.unexpected + stray + sum(sums.get(n, _Sum()).answers for n in estimated),
            late=sum(each.late for each in sums.values()) if self._timed else None,
            early=sum(each.early for each in sums.values()) if self._timed else None,
            worst_response=max((e.worst_response for e in sums.values() if e.worst_response is not None), default=None),
            copies_estimated=len(estimated),
        )
        wanting = {name: sql for name, sql in self._differing(detailed).items() if getattr(report, name)}
        return replace(report, examples=tuple(e for name, sql in wanting.items() for e in self._examples(name, sql)))

    def _view_given(self, folder: Path, published: Mapping[int, float] | None) -> None:
        """All answers of the run, with the number of their copy, renumbered like the base."""
        files = [path for path in sorted(folder.rglob("*.parquet")) if not _is_hidden(path.relative_to(folder))]
        if files:
            read = ", hive_partitioning = false, filename = true"
            source = f"read_parquet([{', '.join(map(quoted, files))}]{read})"
        else:
            source = f"(SELECT {', '.join(f'NULL AS {column}' for column in self._asked)}, '' AS filename WHERE false)"
        left = {str(path): _moment(path, published) for path in files} if published is not None else {}
        self._connection.execute("CREATE OR REPLACE TABLE left_at (filename VARCHAR, Moment DOUBLE)")
        if left:
            self._connection.executemany("INSERT INTO left_at VALUES (?, ?)", list(left.items()))
        number = _NUMBER.get(self._kind, "QID")
        copy = f"coalesce({number}::BIGINT // {self._offset(number)}, -1)" if self._copies else "0"
        base = ", ".join(
            "coalesce(Moment, Time) AS Emit"
            if column == EMIT
            else f"{column}::BIGINT - Copy * {self._offset(column)} AS {column}"
            for column in self._columns
        )
        self._connection.execute(f"""
            CREATE OR REPLACE VIEW given AS
            SELECT Copy, {base} FROM (SELECT *, {copy} AS Copy FROM {source}) LEFT JOIN left_at USING (filename)
        """)

    def _sums(self) -> dict[int, _Sum]:
        times = f"count(*) FILTER (WHERE {self._late}), count(*) FILTER (WHERE Emit < Time), max(Emit - Time)"
        rows = self._rows(f"""
            SELECT Copy, count(*), {self._checksum} {f", {times}" if self._timed else ""} FROM given GROUP BY Copy
        """)
        return {copy: _Sum(*figures) for copy, *figures in rows}

    def _row_by_row(self, copies: list[int], answers: int) -> KindReport:
        """Compare these copies row by row. The table `judged` has a row for each key with an answer."""
        self._connection.execute(f"""
            CREATE OR REPLACE TABLE judged AS
            SELECT Copy, {self._key}, any_value(Wanted) AS Wanted, bool_or(IsRight) AS IsRight, count(*) AS Answers
            FROM (
                SELECT g.*, EXISTS (FROM expected AS e WHERE {self._same_key}) AS Wanted,
                       EXISTS (FROM expected AS e WHERE {self._same_key} AND {self._acceptable}) AS IsRight
                FROM given AS g WHERE Copy IN ({_listed(copies)}))
            GROUP BY ALL
        """)
        equal, wrong, unexpected, duplicates = self._row("""
            SELECT count(*) FILTER (WHERE IsRight), count(*) FILTER (WHERE Wanted AND NOT IsRight),
                   count(*) FILTER (WHERE NOT Wanted), coalesce(sum(Answers - 1), 0)::BIGINT
            FROM judged
        """)
        missing = answers * len(copies) - equal - wrong
        return KindReport(equal=equal, wrong=wrong, unexpected=unexpected, duplicates=duplicates, missing=missing)

    def _differing(self, copies: list[int]) -> dict[str, str]:
        """For each kind of difference, the SQL for copy, answer and reason, based on `judged`."""
        keys = KEYS[self._kind]
        given = ", ".join(f"g.{column}" for column in self._columns)
        judged = f"given AS g JOIN judged AS j ON g.Copy = j.Copy AND {_equal(keys, 'g', 'j')}"
        right = " || ', ' || ".join(f"'{column} ' || e.{column}" for column in self._values)
        absent = ", ".join("NULL" if column == EMIT else f"e.{column}" for column in self._columns)
        return {
            "missing": f"""
                SELECT c.Copy, {absent}, 'the run has no such answer'
                FROM expected AS e, (SELECT unnest([{_listed(copies)}]) AS Copy) AS c
                WHERE c.Copy IS NOT NULL {"AND NOT e.Alternative" if self._kind == "balance" else ""}
                  AND NOT EXISTS (FROM judged AS j WHERE j.Copy = c.Copy AND {_equal(keys, "j", "e")})
                """,
            "unexpected": f"""
                SELECT g.Copy, {given}, 'the reference has no such answer' FROM {judged} WHERE NOT j.Wanted
                UNION ALL
                SELECT g.Copy, {given}, 'copy ' || g.Copy || ' is not in the trace' FROM given AS g
                WHERE g.Copy NOT BETWEEN {self._numbers[0]} AND {self._numbers[-1]}
                """,
            "wrong": f"""
                SELECT g.Copy, {given},
                       (SELECT 'expected ' || string_agg({right}, '; or ') FROM expected AS e WHERE {self._same_key})
                FROM {judged} WHERE j.Wanted AND NOT j.IsRight
                """,
            "duplicates": f"SELECT g.Copy, {given}, j.Answers || ' answers' FROM {judged} WHERE j.Answers > 1",
            "late": f"""
                SELECT g.Copy, {given}, 'after ' || round(Emit - Time, 2) || ' s, the limit is {LIMITS[self._kind]} s'
                FROM given AS g WHERE {self._late}
                """,
            "early": f"SELECT g.Copy, {given}, 'emitted before its question' FROM given AS g WHERE Emit < Time",
        }

    def _examples(self, difference: str, sql: str) -> Iterator[Example]:
        """Some rows of a kind of difference, in the run's own numbers."""
        for copy, *answer, reason in self._rows(f"FROM ({sql}) LIMIT {EXAMPLES}"):
            own = {
                name: None if value is None else value + copy * self._offset(name)
                for name, value in zip(self._columns, answer, strict=True)
            }
            yield Example(difference, own, reason or "")

    def _offset(self, column: str) -> int:
        return self._copies.steps.get(column, 0) if self._copies else 0

    @property
    def _late(self) -> str:
        return f"coalesce(Emit - Time > {LIMITS[self._kind]}, true)"

    @property
    def _key(self) -> str:
        return ", ".join(KEYS[self._kind])

    @property
    def _same_key(self) -> str:
        return _equal(KEYS[self._kind], "g", "e")

    @property
    def _acceptable(self) -> str:
        """The condition under which an answer g with the key of an expected answer e is right.

        A balance is right if it was true at its ResultTime, and that is recent enough. Both depend on the mode: the
        reference has each acceptable balance, with the times at which it is acceptable.
        """
        if self._kind == "balance":
            return "g.Time = e.Time AND g.Balance = e.Balance AND g.ResultTime BETWEEN e.Earliest AND e.Latest"
        return _equal(self._values, "g", "e")

    @property
    def _checksum(self) -> str:
        """A sum does not depend on the order, and unlike an exclusive or, it changes with every duplicate."""
        return f"coalesce(sum(hash({', '.join(f'{column}::BIGINT' for column in self._asked)})::HUGEINT), 0)"

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def _row(self, sql: str) -> tuple[Any, ...]:
        return self._rows(sql)[0]


def _equal(columns: Sequence[str], a: str, b: str) -> str:
    return " AND ".join(f"{a}.{column} = {b}.{column}" for column in columns)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"


def _moment(path: Path, published: Mapping[int, float]) -> float | None:
    """When the answers of a file were published; None before real time began: they count as answered at once.

    A later epoch whose time is not known counts as never published.
    """
    epoch = _epoch_of(path)
    return published.get(epoch, None if epoch < min(published, default=epoch + 1) else NEVER)


def _epoch_of(path: Path) -> int:
    """The epoch that published a file; -1 if the path does not say."""
    found = re.match(r"epoch-(\d+)-", path.name)
    return int(found[1]) if found else -1


def _is_hidden(path: Path) -> bool:
    """Whether the file is hidden, so that Spark would not read it either."""
    return any(part.startswith(("_", ".")) for part in path.parts)
