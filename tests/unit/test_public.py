"""The public surface: which names each public module has, and that docs and examples use no others."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

NAMES = {
    "anabranch": """
        AnabranchError CallSink DeltaSink FileSink JoinTuning JsonLines MemorySink Operator Prometheus QoS __version__
        avg block_stream collect count count_distinct drop_plan first last max min partition_by partition_report
        quantile replay sliding start stddev stream sum top_k user_aggregate variance
    """,
    "anabranch.compiled": "kernel",
    "anabranch.controllers": """
        BatchSize Cluster Controller Simulation SplitCosts SplitTuning SplitWork WindowWork constant simulate
        splitters_needed step
    """,
    "anabranch.errors": """
        AnabranchError ArithmeticOverflowError CheckpointError ColumnNotFoundError ColumnTypeError ControllerError
        DisorderError InvalidArgumentError InvalidWindowError JavaNotFoundError JobError ListenerError
        MissingDependencyError OperatorError OverloadError ReplayError StateError StrategyError StreamingError
        WorkerPythonError
    """,
    "anabranch.local": "asked_to_stop ensure_java is_local local_session spark_session usable_cores",
    "anabranch.merge": "PENDING OrderedMerge Pending merge_ordered",
    "anabranch.recordings": "BlockRef Recording columns_of read_block write_blocks",
    "anabranch.sinks": "CallSink DeltaSink FileSink MemorySink NoopSink Published Sink",
    "anabranch.testing": """
        Epoch EpochRun MemoryState OperatorHarness Results StreamFeed assert_rows_equal assert_survives_restarts
    """,
    "anabranch.text": "amount clock moment size with_noun",
    "anabranch.types": """
        Aggregate Aggregation Delivery DropProgress Duration Emission Emitted EpochProgress EpochQuery Health Joined
        Listener OperatorFactory OperatorProgress PartitionMeasure Processed Split SplitterMeasure State Stream Trigger
        Window Windowed WorkerMeasure
    """,
}
"""A name that is added here is a promise; one that is removed breaks the code of users."""

ALIASES = {"Duration", "Emitted", "OperatorFactory", "Trigger", "PENDING", "__version__"}
"""Values and type aliases, which have no docstring of their own."""


@pytest.mark.parametrize("module", NAMES)
def test_a_public_module_has_exactly_these_names(module: str) -> None:
    public = importlib.import_module(module).__all__
    assert sorted(public) == sorted(NAMES[module].split())
    assert len(set(public)) == len(public)


def test_the_top_of_the_package_has_about_thirty_names() -> None:
    assert len(NAMES["anabranch"].split()) <= 35


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    public = importlib.import_module(module)
    assert public.__doc__
    assert [name for name in public.__all__ if name not in ALIASES and not documented(getattr(public, name))] == []


def test_all_errors_are_public() -> None:
    errors = importlib.import_module("anabranch.errors")
    kinds = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, Exception)]
    assert {each.__name__ for each in kinds} == set(errors.__all__)


def documented(value: Any) -> bool:
    return bool(inspect.getdoc(value))


def imports(source: str) -> Iterator[tuple[str, str | None]]:
    """What a source imports of the package: (module, name), or (module, None) for the module itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names if each.name.split(".")[0] == "anabranch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "anabranch":
            yield from ((str(node.module), each.name) for each in node.names)


def not_public(source: str, *also: str) -> list[str]:
    """The imports that are not of public names; of the modules `also` everything is."""
    found = []
    for module, name in imports(source):
        if module in also or any(module.startswith(f"{each}.") for each in also):
            continue
        submodule = name is not None and f"{module}.{name}" in NAMES
        if module not in NAMES or not (name is None or submodule or name in NAMES[module].split()):
            found.append(f"{module}.{name}")
    return found


def used(source: str) -> set[str]:
    """The names of `ab.…` in a source."""
    tree = ast.walk(ast.parse(source))
    return {
        n.attr for n in tree if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "ab"
    }


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def code(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_import_public_names_only(page: Path) -> None:
    also = ("anabranch.linearroad",) if page.name == "linear-road.md" else ()
    for block in code(page):
        assert not_public(block, *also) == []
        assert used(block) <= set(NAMES["anabranch"].split())


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.name)
def test_examples_import_public_names_only(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert not_public(source) == []
    assert used(source) <= set(NAMES["anabranch"].split())


@pytest.mark.parametrize(
    "source",
    [
        "from anabranch.io.blocks import write_blocks",
        "import anabranch.runtime.start",
        "from anabranch import Stream",
        "from anabranch import runtime",
        "def f():\n    from anabranch.errors import cause_of",
    ],
)
def test_the_check_sees_a_private_import(source: str) -> None:
    assert len(not_public(source)) == 1


def test_the_check_lets_public_imports_pass() -> None:
    source = "import anabranch as ab\nfrom anabranch import errors, stream\nfrom anabranch.types import Stream"
    assert not_public(source) == []
    assert not_public("from anabranch.linearroad.schema import Mode", "anabranch.linearroad") == []
