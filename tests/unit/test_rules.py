"""The rules of CONTRIBUTING.md that a reader of the source can check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "anabranch"

SPARK_INTERNALS = {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_sc", "rdd", "sparkContext"}
PICKLERS = {"pickle", "cloudpickle", "dill"}
TALKATIVE = {"cli"}  # the command prints; the rest returns values
BUILDS_SESSIONS = {"local"}
DECIDES_TYPES = {"spark"}  # `spark.arrow` does, for the whole library
OUTSIDE_THE_WHEEL = {"benchmarks", "evidence", "demos", "tests", "examples"}


def violations(source: str, module: str) -> Iterator[str]:
    """The rules broken by one file. `module` is the first name below `anabranch`: `cli` for `cli.py` and `cli/x.py`."""
    for node in ast.walk(ast.parse(source)):
        for problem in _violations_of(node, module):
            yield f"line {getattr(node, 'lineno', '?')}: {problem}"


def _violations_of(node: ast.AST, module: str) -> Iterator[str]:
    match node:
        case ast.Attribute(attr=name) if name in SPARK_INTERNALS:
            yield f"`.{name}` is no part of the DataFrame API, and absent in Spark Connect"
        case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(name), *_]) if name in SPARK_INTERNALS:
            yield f"`getattr(..., {name!r})` is `.{name}` in disguise"
        case ast.Call(func=ast.Name("print")) if module not in TALKATIVE:
            yield "the library does not print"
        case ast.Attribute(value=ast.Name("SparkSession"), attr="builder") if module not in BUILDS_SESSIONS:
            yield "the session comes from the DataFrame"
        case ast.Attribute(attr="mapInArrow") | ast.Name("to_arrow_schema" | "to_arrow_type") if (
            module not in DECIDES_TYPES
        ):
            yield "`spark.arrow` decides in which types rows travel: use its map_in_arrow, arrow_schema or arrow_type"
        case ast.Constant(str(text)) if "__ab_" in text and module != "names":
            yield "`anabranch.names` has the names of our own columns"
        case ast.FunctionDef(name="as_json") if module != "observe":  # `EpochProgress.as_json` is documented
            yield "what writes a record as JSON is called `to_json`"
        case ast.Import(names) | ast.ImportFrom(names=names):
            origin = getattr(node, "module", None) or ""
            parts = {part for alias in names for part in f"{origin}.{alias.name}".split(".")}
            for name in sorted(parts & PICKLERS):
                yield f"`{name}`: state and blocks are Arrow or plain numpy"
            tops = {origin.split(".")[0]} if origin else {alias.name.split(".")[0] for alias in names}
            for name in sorted(tops & OUTSIDE_THE_WHEEL):
                yield f"`{name}` is not part of the installed package"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source_keeps_the_rules(path: Path) -> None:
    module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert not list(violations(path.read_text(encoding="utf-8"), module))


@pytest.mark.parametrize(
    "source",
    [
        "df._jdf.queryExecution()",
        "spark._jvm",
        "df.rdd.map(f)",
        "df.sparkSession.sparkContext.setLogLevel('ERROR')",
        "getattr(df, '_jdf')",
        "getattr(df, 'rdd', None)",
        "print('hello')",
        "SparkSession.builder.getOrCreate()",
        "def as_json(self): ...",
        "import pickle",
        "import pyspark.cloudpickle as cp",
        "from pickle import dumps",
        "from pyspark import cloudpickle",
        "df.mapInArrow(f, 'n bigint')",
        "to_arrow_schema(df.schema, timezone='UTC')",
        "F.col('__ab_pane')",
        "name = f'__ab_k{number}'",
        "from benchmarks.data import Events",
        "import demos.windows",
    ],
)
def test_checker_sees(source: str) -> None:
    assert len(list(violations(source, "plan"))) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("print('hello')", "cli"),
        ("SparkSession.builder.getOrCreate()", "local"),
        ("'''about .rdd and _jvm'''", "plan"),
        ("rdd = 1", "plan"),
        ("from rich import pretty", "plan"),
        ("df.sparkSession.range(3)", "plan"),
        ("map_in_arrow(df, f, schema)", "plan"),
        ("df.mapInArrow(f, 'n bigint')", "spark"),
    ],
)
def test_checker_lets_pass(source: str, module: str) -> None:
    assert not list(violations(source, module))
