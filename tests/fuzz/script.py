"""A case as a Python script. The fuzzer runs the same text that it prints, so a printed script does what failed.

The script needs Anabranch, PySpark and pyarrow, and nothing of the tests. `run(spark, folder)` of it does the work;
run as a program it compares what came with what was expected, and exits with 1 if they differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fuzz.cases import Aggregate, Case, Column, Level, Run, digits_of, duration
from tests.fuzz.oracle import Expected

PATIENCE = 180
"""Seconds that a query may take."""

_ARROW = {
    "timestamp": 'pa.timestamp("us", tz="UTC")',
    "timestamp_ntz": 'pa.timestamp("us")',
    "bigint": "pa.int64()",
    "int": "pa.int32()",
    "double": "pa.float64()",
    "string": "pa.string()",
    "boolean": "pa.bool_()",
    "date": "pa.date32()",
}
_DEFAULTS = {
    "timestamp": "F.timestamp_micros(F.lit(0))",
    "string": 'F.lit("")',
    "boolean": "F.lit(False)",
    "date": 'F.lit("1970-01-01").cast("date")',
}

_IMPORTS = """\
import os
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import anabranch as ab

nan, inf = float("nan"), float("inf")
"""

_WRITE = '''
def write(folder, until):
    """The epochs before `until`, a file each. A file source takes files in the order of their times of change."""
    for number, (types, epochs) in enumerate(zip(TYPES, EPOCHS)):
        for epoch, rows in enumerate(epochs[:until]):
            file = folder / f"in{number}" / f"{epoch:04}.parquet"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                columns = list(zip(*rows)) or [()] * len(types)
                arrays = [array(values, kind) for values, kind in zip(columns, types.values())]
                pq.write_table(pa.table(arrays, names=list(types)), file.with_name(f".{file.name}"))
                os.utime(file.with_name(f".{file.name}"), (1_000_000_000 + epoch,) * 2)
                file.with_name(f".{file.name}").rename(file)


def array(values, kind):
    if pa.types.is_decimal(kind):
        values = [None if value is None else Decimal(value) for value in values]
    return pa.array(values, kind)
'''

_PLAIN = '''
def plain(value):
    """Times as microseconds, dates as days since 1970; floats to nine digits."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return float(f"{value:.9g}") + 0.0 if isinstance(value, float) else value
'''

_READ = '''
def read(folder):
    """(epoch, row) of all that was delivered, in the order of epochs."""
    found = []
    for epoch in sorted(folder.glob("epoch=*"), key=lambda each: int(each.name[6:])):
        for file in sorted(epoch.glob("*.parquet")):
            found += [(int(epoch.name[6:]), row) for row in pq.ParquetFile(file).read().to_pylist()]
    return found
'''

_MAIN = """
if __name__ == "__main__":
    from anabranch.local.session import local_session

    spark = local_session(cores=2, shuffle_partitions=2).newSession()
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    found = run(spark, folder)
    came = [repr(plain(row)) for _, row in found["rows"]]
    missing, wrong = list(MUST), list(came)
    for row in came:
        if row in missing:
            missing.remove(row)
    for row in [*MUST, *MAY]:
        if row in wrong:
            wrong.remove(row)
@TOLD@    for row in missing:
        print("missing:", row)
    for row in wrong:
        print("wrong:  ", row)
    print(f"{len(came)} rows, {len(missing)} missing, {len(wrong)} wrong")
    sys.exit(1 if missing or wrong else 0)
"""

_REPORT = """\
    for _, told in found.get("report", ()):
        print("dropped:", told)
        first, last = plain(told["first_start"]), plain(told["last_start"])
        if first is not None:  # of some keys at least; which ones, their hash says
            missing = [row for row in missing if not first <= eval(row)["window"]["start"] * UNIT <= last]
"""


def source_of(case: Case) -> str:
    """The part of the script that the fuzzer runs: it defines `run(spark, folder)`."""
    parts = [_IMPORTS, _data(case), _WRITE, _streams(case), _query(case)]
    match case.mode:
        case "batch":
            parts.append(_RUN_BATCH)
        case "stream":
            parts.append(f"\nRUNS = {[run.until for run in case.runs]!r}\n{_RUN_STREAM}")
        case _:
            parts += [_READ, _run_start(case)]
    return "".join(parts)


def script_of(case: Case, about: str, expected: Expected | None) -> str:
    """A script that anybody can run. Without `expected` it only runs the query: it is said to fail."""
    must = _texts(expected.must) if expected is not None else []
    may = [row for row in _texts(expected.may) if row not in must] if expected is not None else []
    header = "".join(f"# {line}\n" for line in about.splitlines())
    lists = f"\nMUST = {_listed(must)}\nMAY = {_listed(may)}\n"
    shed = "" if case.shed is None or case.levels[-1].count is not None else _REPORT
    main = _MAIN.replace("@TOLD@", shed.replace("UNIT", str(case.sources[0].unit)))
    return header + source_of(case) + _PLAIN + lists + main


def _listed(rows: Iterable[str]) -> str:
    lines = "".join(f"    {row!r},\n" for row in rows)
    return f"[\n{lines}]" if lines else "[]"


def _texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    names: dict[str, Any] = {}
    exec(_IMPORTS.replace("import anabranch as ab\n", "") + _PLAIN, names)
    return sorted(repr(names["plain"](row)) for row in rows)


# --- data -----------------------------------------------------------------------------------------------------------


def _data(case: Case) -> str:
    settings = {
        "spark.sql.session.timeZone": case.zone,
        "spark.sql.ansi.enabled": str(case.ansi).lower(),
        **dict(case.settings),
    }
    types = "".join(
        "    {" + ", ".join(f'"{name}": {_arrow(kind)}' for name, kind in source.types.items()) + "},\n"
        for source in case.sources
    )
    lines = [f"\nSETTINGS = {settings!r}\n", f"TYPES = [\n{types}]\n", "EPOCHS = [\n"]
    for source in case.sources:
        lines.append("    [\n")
        for epoch in source.epochs:
            rows = "".join(f"            {row!r},\n" for row in epoch)
            lines.append(f"        [\n{rows}        ],\n" if epoch else "        [],\n")
        lines.append("    ],\n")
    return "".join([*lines, "]\n\n"])


def _arrow(kind: str) -> str:
    return f"pa.decimal128{digits_of(kind)}" if kind.startswith("decimal") else _ARROW[kind]


def _streams(case: Case) -> str:
    reader = "spark.read" if case.mode == "batch" else 'spark.readStream.option("maxFilesPerTrigger", 1)'
    watermark = "" if case.mode == "batch" else f', watermark="{duration(case.watermark)}"'
    lines = ["\n\ndef streams(spark, folder):\n"]
    for number, source in enumerate(case.sources):
        schema = ", ".join(f"{name} {kind}" for name, kind in source.types.items())
        lines.append(f'    s{number} = {reader}.schema("{schema}").parquet(str(folder / "in{number}"))\n')
        required = ", ".join(f'"{each.name}": {_never_null(each)}' for each in source.columns if each.required)
        if required:
            lines.append(f"    s{number} = s{number}.withColumns({{{required}}})\n")
    units = [', time_unit="us"' if source.time == "bigint" else "" for source in case.sources]
    made = ", ".join(f'ab.stream(s{number}, time="at"{unit}{watermark})' for number, unit in enumerate(units))
    return "".join([*lines, f"    return [{made}]\n"])


def _never_null(column: Column) -> str:
    default = _DEFAULTS.get(column.type, f'F.lit(0).cast("{column.type}")')
    return f'F.coalesce("{column.name}", {default})'


# --- the query ------------------------------------------------------------------------------------------------------


def _query(case: Case) -> str:
    lines = ["\n\ndef query(s, *others):\n"]
    if case.join is not None:
        within = ", ".join(f'"{duration(each)}"' for each in case.join.within)
        where = "" if case.join.where is None else f", where={_join_where(case)}"
        lines.append(
            f'    s = s.join(*others, on={list(case.join.keys)!r}, within=({within}), how="{case.join.how}"{where})\n'
        )
    elif len(case.sources) > 1:
        lines.append("    s = s.union(*others)\n")
    for number, level in enumerate(case.levels):
        if level.where is not None:
            lines.append(f'    s = s.filter("{level.where.sql}")\n')
        policy = _policy(case) if number == 0 else ""
        by = f".by({', '.join([*map(repr, level.keys), *([policy] if policy else [])])})" if level.keys else ""
        aggregates = "".join(f"        {each.name}={_aggregate(each)},\n" for each in level.aggregates)
        lines.append(f"    s = s.{_window(level)}{by}.agg(\n{aggregates}    )\n")
    if case.strategy is not None:
        nodes = "" if case.strategy.nodes is None else f", nodes={case.strategy.nodes}"
        batch = "" if case.strategy.batch == 1 else f", batch={case.strategy.batch}"
        lines.append(f'    s = s.using("{case.strategy.kind}"{batch}{nodes})\n')
    return "".join([*lines, "    return s\n"])


def _join_where(case: Case) -> str:
    assert case.join is not None and case.join.where is not None
    left, right = case.join.where, f"{case.join.where}_right"
    if case.mode == "start" and case.join.how != "inner":
        return f'lambda rows: pc.fill_null(pc.greater(rows["{left}"], rows["{right}"]), False)'
    return f'"{left} > {right}"'


def _policy(case: Case) -> str:
    if case.policy is None:
        return ""
    settings = {
        "partition": case.policy.partition,
        "choices": case.policy.choices,
        "cardinality": case.policy.cardinality,
        "workers": case.policy.workers,
        "splitters": case.policy.splitters,
    }
    return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)


def _window(level: Level) -> str:
    if level.count is not None:
        slide = "" if level.count.slide == level.count.rows else f", slide_rows={level.count.slide}"
        per_key = "" if level.count.per_key else ", per_key=False"
        return f"window(rows={level.count.rows}{slide}{per_key})"
    origin = f', origin="{duration(level.windows[0].origin)}"' if level.windows[0].origin else ""
    if len(level.windows) > 1:
        pairs = ", ".join(f'("{duration(each.size)}", "{duration(each.slide)}")' for each in level.windows)
        return f"windows({pairs}{origin})"
    window = level.windows[0]
    slide = "" if window.slide == window.size else f', slide="{duration(window.slide)}"'
    return f'window(size="{duration(window.size)}"{slide}{origin})'


def _aggregate(each: Aggregate) -> str:
    column = "" if each.column is None else repr(each.column)
    match each.function:
        case "variance" | "stddev":
            return f"ab.{each.function}({column}{', population=True' if each.parameter else ''})"
        case "quantile":
            several = isinstance(each.parameter, tuple)
            return f"ab.quantile({column}, {list(each.parameter) if several else each.parameter!r})"  # type: ignore[arg-type]
        case "top_k":
            return f"ab.top_k({column}, {each.parameter})"
        case "approx_distinct":
            return f"ab.count_distinct({column}, approx=True, lg_k={each.parameter})"
        case "user" | "user_merge":
            merge = "merge=lambda a, b: a + b, " if each.function == "user_merge" else ""
            return (
                f"ab.user_aggregate({column}, init=list, incr=lambda s, v: [*s, str(v)], {merge}"
                'final=",".join, returns="string")'
            )
        case "user_state":
            return (
                f"ab.user_aggregate({column}, init=int, incr=lambda s, v: s + len(str(v)), merge=lambda a, b: a + b, "
                'final=int, returns="bigint", state="bigint")'
            )
    return f"ab.{each.function}({column})"


# --- how it runs ----------------------------------------------------------------------------------------------------

_RUN_BATCH = """

def run(spark, folder):
    write(folder, len(EPOCHS[0]))
    frame = query(*streams(spark, folder)).to_df()
    return {"rows": [(0, row) for row in frame.toArrow().to_pylist()]}
"""

_RUN_STREAM = f"""

def run(spark, folder):
    rows = []

    def take(frame, epoch):
        rows.extend((epoch, row) for row in frame.toArrow().to_pylist())

    for until in RUNS:
        write(folder, until)
        frame = query(*streams(spark, folder)).to_df()
        writer = frame.writeStream.foreachBatch(take).outputMode("append").trigger(availableNow=True)
        running = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        if not running.awaitTermination({PATIENCE}):
            running.stop()
            raise TimeoutError("the query does not end")
    return {{"rows": rows}}
"""


def _run_start(case: Case) -> str:
    runs = "".join(f"    {_settings(run, number)},\n" for number, run in enumerate(case.runs))
    qos, report = "", ""
    if case.shed is not None:
        shed = case.shed
        at = f', drop_at="{shed.drop_at}"' if shed.drop_at != "auto" else ""
        qos = f"qos=ab.QoS(max_gap={shed.max_gap}, drop_share={shed.drop_share}{at}, seed={shed.seed})"
        report = ', report=ab.FileSink(folder / "report")'
    elif case.in_order:
        qos = "qos=ab.QoS(disorder=0)"
    more = f"            {qos}{report},\n" if qos else ""
    return f"""

RUNS = [
{runs}]


def run(spark, folder):
    late = bad = 0
    for until, live, settings in RUNS:
        write(folder, until)
        running = query(*streams(spark, folder)).start(
            ab.FileSink(folder / "out"),
            checkpoint=folder / "checkpoint",
            live=folder / live,
            trigger="available-now",
{more}            **settings,
        )
        if not running.awaitTermination({PATIENCE}):
            running.stop()
            raise TimeoutError("the query does not end")
        late += sum(progress.late for progress in running.recentProgress)
        bad += sum(progress.bad for progress in running.recentProgress)
    return {{"rows": read(folder / "out"), "report": read(folder / "report"), "late": late, "bad": bad}}
"""


def _settings(run: Run, number: int) -> str:
    live = "live" if run.keeps_live else f"live-{number}"
    return f'({run.until}, "{live}", {{"workers": {run.workers}, "snapshot_every": {run.snapshot_every}}})'
