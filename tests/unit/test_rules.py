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
CHOOSES_EXECUTIONS = "runtime.execution.choose"
IMPORTS_BY_NAME = {"import_module", "__import__"}


def node_classes() -> set[str]:
    """`Node` and the classes derived from it: the kinds of operators of a query."""
    found = {"Node"}
    for statement in ast.parse((PACKAGE / "query" / "nodes.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef) and found & {ast.unparse(base) for base in statement.bases}:
            found.add(statement.name)
    return found


NODES = node_classes()


def violations(source: str, path: str) -> Iterator[str]:
    """The rules broken by one file. `path` is the module without `anabranch`: `cli.main`, or `text`."""
    for node in ast.walk(ast.parse(source)):
        for problem in [*_violations_of(node, path.split(".")[0]), *_kind_checks(node, path)]:
            yield f"line {getattr(node, 'lineno', '?')}: {problem}"


def _kind_checks(node: ast.AST, path: str) -> Iterator[str]:
    """Decisions by an operator's kind, which belong into its execution or into its node."""
    match node:
        case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, kinds]):
            asked: ast.AST = kinds
        case ast.MatchClass(cls=kind):
            asked = kind
        case ast.Compare(left=ast.Call(func=ast.Name("type")), comparators=[kind]):
            asked = kind
        case _:
            return
    names = {getattr(each, "id", getattr(each, "attr", None)) for each in ast.walk(asked)}
    if names & NODES and path != CHOOSES_EXECUTIONS:
        yield f"only `{CHOOSES_EXECUTIONS}` asks which kind a node is: give nodes or executions a method"


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
        case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), args=args) if name in IMPORTS_BY_NAME:
            texts = [each.value for arg in args for each in ast.walk(arg) if isinstance(each, ast.Constant)]
            if any("anabranch" in str(text) for text in texts):
                yield f"`{name}` of our own module: the layer test sees only import statements"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source_keeps_the_rules(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
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
        "isinstance(step.node, WindowNode)",
        "isinstance(step.node, (ProcessNode, nodes.JoinNode))",
        "isinstance(node, ProcessNode | JoinNode)",
        "issubclass(kind, Stateful)",
        "type(node) is CombineNode",
        "match node:\n    case PositionsNode() as known:\n        pass",
        "importlib.import_module('anabranch.runtime.start')",
        "import_module(f'anabranch.{name}')",
        "__import__('anabranch.api')",
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
        ("match node:\n    case JoinNode():\n        pass", "runtime.execution.choose"),
        ("isinstance(origin, Source)", "plan"),
        ("import_module('numba')", "plan"),
    ],
)
def test_checker_lets_pass(source: str, module: str) -> None:
    assert not list(violations(source, module))
