"""The layout is the architecture: a folder imports only folders above it, so no two can depend on each other.

The list is the map of docs/architecture.md, top to bottom. Imports inside functions and under `TYPE_CHECKING` count.
No two folders at any depth may import each other in a circle; of the folders inside of folders, only those in
`runtime` have a rank.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "anabranch"

BASE = ("_version", "errors", "names", "text", "calls", "compiled", "_worker_gc")
"""Modules at the top of the package: words and small tools that every folder may use."""

LAYERS = (
    "windows",
    "spark",
    "shedding",
    "io",
    "keys",
    "split",
    "aggregates",
    "merge",
    "operators",
    "query",
    "plan",
    "observe",
    "control",
    "store",
    "runtime",
    "api",
    "local",
)
"""Folders of the library; each imports only those before it."""

RUNTIME = ("tasks", "driver", "shedding", "epoch", "execution")
"""Folders in `runtime`; each imports only those before it, and the modules right in `runtime` import them all."""

PUBLIC = ("__init__", "types", "sinks", "recordings", "controllers", "testing")
"""What users import, and nothing in the library does."""

OPEN = ("errors", "text", "compiled", "merge", "local")
"""Modules and folders of the library that users import too."""

APPLICATIONS = ("linearroad", "cli")
"""Folders that use the public modules only, but for `cli`, which is the library's own command."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.glob(f"{PACKAGE}/**/*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(source: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """The modules of the package that a source imports, anywhere in it: (line, module)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            if node.module is not None and node.module.split(".")[0] == PACKAGE:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield node.lineno, full if full in known else node.module


def room(module: str) -> str:
    """The folder, or the module at the top, that a module is in: `plan` for `anabranch.plan.batch`."""
    parts = module.split(".")
    return "__init__" if len(parts) == 1 else parts[1]


def rank(name: str) -> int:
    if name in BASE:
        return 0
    if name in LAYERS:
        return 1 + LAYERS.index(name)
    if name in PUBLIC:
        return 1 + len(LAYERS)
    assert name in APPLICATIONS, f"{name} has no place in the layers: add it, and to docs/architecture.md"
    return 2 + len(LAYERS) + APPLICATIONS.index(name)


def upward(module: str, source: str, known: set[str]) -> Iterator[str]:
    """The imports of a module that go against the order."""
    mine = room(module)
    for line, target in imported(source, known):
        theirs = room(target)
        if theirs != mine and rank(theirs) > rank(mine):
            yield f"{module}, line {line}: imports {target}, which is below it"


KNOWN = modules()
UNIT_TESTS = Path(__file__).parent
OTHERS = {"benchmarks", "evidence", "fuzz"}
"""Folders with tests of what is not in the package."""


@pytest.mark.parametrize("module", KNOWN)
def test_a_module_imports_only_from_layers_above_its_own(module: str) -> None:
    assert not list(upward(module, KNOWN[module].read_text(encoding="utf-8"), set(KNOWN)))


def graph() -> dict[str, set[str]]:
    """Which module imports which; importing a name from a package imports the package."""
    return {
        module: {target for _, target in imported(path.read_text(encoding="utf-8"), set(KNOWN))}
        for module, path in KNOWN.items()
    }


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (strongly connected, more than one): Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def folders_of(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same between folders, each without the folders in it; a module at the top of the package counts as one."""
    found: dict[str, set[str]] = {}
    for module, targets in edges.items():
        found.setdefault(folder(module), set()).update(map(folder, targets))
    return {name: targets - {name} for name, targets in found.items()}


def folder(module: str) -> str:
    """The folder that a module is in, at any depth: `runtime.tasks` for `anabranch.runtime.tasks.worker`."""
    _, *parts = module.split(".")
    inside = len(parts) > 1 and not is_package(module)
    return ".".join(parts[:-1] if inside else parts) or "__init__"


def is_package(module: str) -> bool:
    return module in KNOWN and KNOWN[module].name == "__init__.py"


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert cycles(folders_of(graph())) == []


def test_the_folders_of_the_runtime_import_only_those_before_them() -> None:
    order = [*(f"runtime.{name}" for name in RUNTIME), "runtime"]
    edges = folders_of(graph())
    assert {name for name in edges if name.startswith("runtime")} == set(order)
    for rank, name in enumerate(order):
        assert edges[name] & set(order) <= set(order[:rank])


def test_no_modules_of_the_runtime_import_each_other_in_a_circle() -> None:
    assert [each for each in cycles(graph()) if any(room(module) == "runtime" for module in each)] == []


def test_the_check_sees_a_circle_of_a_folder_and_one_inside_it() -> None:
    upper, lower = "anabranch.runtime.runner", "anabranch.runtime.tasks.worker"
    assert cycles(folders_of({upper: {lower}, lower: {upper}})) == [["runtime", "runtime.tasks"]]
    assert cycles(folders_of({upper: {lower}, lower: {"anabranch.runtime.tasks"}})) == []


@pytest.mark.parametrize(
    "source",
    [
        "from anabranch.runtime.start import start",
        "import anabranch.runtime.start",
        "def f():\n    from anabranch.api import stream",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from anabranch.runtime.epoch.epoch import Epoch",
        "from anabranch import start",
    ],
)
def test_the_check_sees_an_upward_import(source: str) -> None:
    assert len(list(upward("anabranch.plan.batch", source, set(KNOWN)))) == 1


def test_the_check_sees_a_circle() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def unit_tests() -> list[str]:
    """The unit tests of modules and of packages, without `.py`: `plan/test_tree`."""
    paths = (path.relative_to(UNIT_TESTS).with_suffix("") for path in UNIT_TESTS.glob("*/**/test_*.py"))
    return sorted(path.as_posix() for path in paths if path.parts[0] not in OTHERS)


@pytest.mark.parametrize("test", unit_tests())
def test_a_unit_test_is_where_its_module_is(test: str) -> None:
    """`plan/test_tree.py` tests `plan/tree.py`; a further word says what about it: `live/test_state_damage.py`."""
    place, _, name = test.rpartition("/test_")
    inside = f"{PACKAGE}.{place.replace('/', '.')}."
    mine = [module.removeprefix(inside) for module in KNOWN if module.startswith(inside)]
    assert any(name == each or name.startswith(f"{each}_") for each in mine)


def test_linear_road_is_an_application_of_the_public_api() -> None:
    allowed = {"anabranch", *(f"anabranch.{name}" for name in (*PUBLIC, *OPEN))}
    used = {
        target
        for module, targets in graph().items()
        if room(module) == "linearroad"
        for target in targets
        if room(target) != "linearroad"
    }
    assert used <= allowed
