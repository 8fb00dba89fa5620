"""The documentation holds together: links resolve, every page can be found, and modules that it names exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_layers import APPLICATIONS, LAYERS, PUBLIC

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
PAGES = sorted([*(ROOT / name for name in OUTSIDE), *DOCS.rglob("*.md")])

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
MODULE = re.compile(r"(?<![\w./-])anabranch(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)*")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NOT_MODULES = {"anabranch.svg", "anabranch.md"}
HISTORY = {"CHANGELOG.md"}
"""Pages that name modules of earlier releases."""


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """The page without its code blocks and inline code, which may have brackets of their own."""
    return re.sub(r"`[^`\n]+`", "code", FENCE.sub("", read(page)))


def anchor(heading: str) -> str:
    """What GitHub makes of a heading: lower case, no punctuation, hyphens for spaces."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The anchors of a page; a heading that comes twice gets a number."""
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", read(page))):
        name = anchor(heading)
        found.append(name if name not in found else f"{name}-{found.count(name)}")
    return set(found)


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """The relative links of a page: (as written, file, anchor)."""
    for link in LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", link):
            path, _, name = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, name


def label(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    broken = [
        link
        for link, file, name in links(page)
        if not file.exists() or (name and file.suffix == ".md" and name not in anchors(file))
    ]
    assert broken == []


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = {DOCS / "index.md"}, [DOCS / "index.md"]
    while waiting:
        for _, file, _ in links(waiting.pop()):
            if file.suffix == ".md" and file.exists() and file not in reached:
                reached.add(file)
                waiting.append(file)
    assert [label(page) for page in PAGES if page not in reached and page.name not in HISTORY] == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=label)
def test_modules_that_are_named_exist(page: Path) -> None:
    named = {name for name in MODULE.findall(read(page)) if name not in NOT_MODULES}
    assert [name for name in sorted(named) if not exists(name)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=label)
def test_source_files_that_are_named_exist(page: Path) -> None:
    """Paths such as `plan/batch.py` and `tests/unit/test_rules.py`, in the repository or in the package."""
    named = set(re.findall(r"`((?:[\w]+/)+[\w]+\.py)`", read(page)))
    roots = (ROOT, ROOT / "src" / "anabranch")
    assert [name for name in sorted(named) if not any((root / name).exists() for root in roots)] == []


def test_the_map_has_the_folders_in_the_order_of_the_layers() -> None:
    table = read(DOCS / "architecture.md").partition("## The map")[2].partition("Outside the package")[0]
    folders = [name for name in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) if name not in PUBLIC]
    assert folders == [*LAYERS, *APPLICATIONS]


@pytest.mark.parametrize("page", ["controllers.md", "metrics.md", "ordered-merge.md"])
def test_examples_without_spark_run_and_give_what_their_comments_say(page: str) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", read(DOCS / page), flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    if page == "ordered-merge.md":
        names.clear()
        for line in block.splitlines():
            call, _, said = line.partition("  # ")
            expected = re.match(r"[\[(].*?[\])](?=:|$)", said)
            if expected:
                assert eval(call, names) == ast.literal_eval(expected[0]), line
            else:
                exec(call, names)


CITED = re.compile(r"[Pp]aper ?\d|[Ee]quations? \(|[Pp]roposition \d")


@pytest.mark.parametrize("page", sorted([*(ROOT / name for name in OUTSIDE), *DOCS.glob("*.md")]), ids=label)
def test_papers_are_cited_in_one_place(page: Path) -> None:
    if page.name != "papers.md":
        assert CITED.findall(read(page)) == []


def test_examples_that_do_not_run_are_python_and_the_page_says_so() -> None:
    """Blocks marked `py` need what no test has, such as a broker."""
    found = {label(page): re.findall(r"^```py\n(.*?)```", read(page), re.M | re.S) for page in PAGES}
    assert {page for page, blocks in found.items() if blocks} == {"docs/coming-from-spark.md", "docs/sinks.md"}
    for page, blocks in found.items():
        for block in blocks:
            compile(block, page, "exec")
            before = read(ROOT / page).partition(block)[0]
            assert "has not been tested" in before[-400:].replace("\n", " "), page


def test_the_check_sees_a_broken_link(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `heading`: twice\n# A `heading`: twice\n[x](gone.md) [y](#nowhere) [z](#a-heading-twice-1)\n")
    found = [(link, file.exists(), name in anchors(page)) for link, file, name in links(page)]
    assert found == [("gone.md", False, False), ("#nowhere", True, False), ("#a-heading-twice-1", True, True)]


def test_the_check_sees_a_module_that_is_gone() -> None:
    assert not exists("anabranch.network.columns") and not exists("anabranch.errors.NoSuchError")
    assert exists("anabranch.errors.StateError") and exists("anabranch.spark.arrow.map_in_arrow")
