"""The fuzzer's own parts, without Spark: cases, the oracle, what compares, what makes a case small."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.cases import (
    KINDS,
    SECOND,
    Aggregate,
    Case,
    Column,
    CountWindow,
    Filter,
    Join,
    Level,
    Row,
    Run,
    Shed,
    Source,
    TimeWindow,
    features,
)
from tests.fuzz.compare import differences
from tests.fuzz.draw import draw
from tests.fuzz.oracle import expected, identity
from tests.fuzz.refusals import may_refuse
from tests.fuzz.script import script_of, source_of
from tests.fuzz.shrink import shrink

FOLDER = Path(__file__).resolve().parents[2] / "fuzz"
COLUMNS = (Column("k", "string"), Column("v", "bigint"))
COUNTS = (Aggregate("n", "count"),)


def source(*epochs: tuple[Row, ...], columns: tuple[Column, ...] = COLUMNS) -> Source:
    return Source("timestamp", columns, epochs)


def at(seconds: float, key: str | None = "a", value: int | None = 1) -> Row:
    return (round(seconds * SECOND), key, value)


def running(*epochs: tuple[Row, ...], **changes: Any) -> Case:
    level = Level(COUNTS, (TimeWindow(4 * SECOND, 2 * SECOND),), keys=("k",))
    case = Case("start", (source(*epochs),), (level,), runs=(Run(len(epochs)),))
    return replace(case, **changes)


def came(case: Case, **changes: Any) -> dict[str, Any]:
    """As if the package had delivered just what the oracle says."""
    wanted = expected(case)
    names = wanted.epochs or {}
    rows = [(names.get(identity(case, row), 0), dict(row)) for row in wanted.must]
    return {"rows": rows, "report": [], "late": wanted.late, "bad": wanted.bad, **changes}


@pytest.mark.parametrize("module", ["cases", "values", "oracle", "compare", "refusals", "draw", "shrink"])
def test_the_oracle_does_not_know_the_package(module: str) -> None:
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] == "anabranch" or name.startswith("tests.oracles")]
    imported = {name.removeprefix("tests.fuzz.") for name in names if name.startswith("tests.")}
    assert not imported & {"run", "script"}, "these import the package"


def test_a_case_survives_json_and_a_seed_gives_the_same_cases() -> None:
    for number in range(60):
        case = draw(7, number, KINDS[number % len(KINDS)])
        assert repr(Case.from_json(case.to_json())) == repr(case)
        assert repr(draw(7, number, KINDS[number % len(KINDS)])) == repr(case)


def test_every_case_is_a_script_and_most_must_be_answered() -> None:
    drawn = [draw(3, number) for number in range(300)]
    for case in drawn:
        compile(source_of(case), "case", "exec")
        assert case.kind in features(case)[0]
    assert sum(may_refuse(case) is not None for case in drawn) < 15


def test_what_was_drawn_covers_the_vocabulary() -> None:
    drawn = {feature for number in range(400) for feature in features(draw(1, number))}
    for wanted in (
        *(f"aggregate: {name}" for name in ("count", "sum", "top_k", "quantile", "user", "user_state", "collect")),
        *(f"policy: {name}" for name in ("sh", "fld", "pk", "cm", "am", "cam", "lm", "heavy", "auto")),
        *(f"join: {how}" for how in ("inner", "left", "right", "full")),
        *(f"time: {kind}" for kind in ("timestamp", "timestamp_ntz", "bigint", "int")),
        *("nested", "count windows", "several windows", "slide not dividing", "restart", "union", "in order"),
    ):
        assert wanted in drawn


def test_a_row_is_late_when_its_pane_was_over_before_the_epoch() -> None:
    #      panes of 2 s:  [0  2)[2  4)[4  6)[6  8)     watermark after epoch 0: 7
    case = running((at(1), at(7)), (at(5.9), at(6.1), at(1)), (at(20),))
    wanted = expected(case)
    assert wanted.late == 2
    windows = {(row["window"]["start"] // SECOND, row["n"]) for row in wanted.must}
    assert windows == {(-2, 1), (0, 1), (4, 2), (6, 2)}
    assert sorted(wanted.epochs.values()) == [0, 0, 2, 2] if wanted.epochs is not None else False


def test_rows_without_a_time_are_bad_and_in_no_window() -> None:
    wanted = expected(running(((None, "a", 1), at(1)), (at(20),)))
    assert wanted.bad == 1
    assert [row["n"] for row in wanted.must] == [1, 1]


def test_a_filter_that_lets_nothing_pass_moves_the_watermark_from_the_next_epoch_on() -> None:
    level = Level(COUNTS, (TimeWindow(2 * SECOND, 2 * SECOND),), where=Filter("v", 5))
    epochs = ((at(1, value=9),), (at(9, value=1),), (at(10, value=1),))
    wanted = expected(running(*epochs, levels=(level,)))
    assert wanted.epochs is not None and list(wanted.epochs.values()) == [2]


def test_count_windows_wait_for_the_watermark() -> None:
    level = Level((Aggregate("all", "collect", "v"),), count=CountWindow(2, 1), keys=("k",))
    wanted = expected(running((at(3, value=3), at(1, value=1)), (at(2, value=9), at(4, value=4)), levels=(level,)))
    # The watermark is at 3 after the first epoch, so the row at 2 is late; at 4 after the second.
    assert [row["all"] for row in wanted.must] == [[1, 3]]
    assert wanted.late == 1


def test_outer_joins_tell_a_row_alone_when_its_window_is_over() -> None:
    left = source((at(1), at(2, "b")), (at(9, "c"),))
    right = source((at(3),), (at(9, "d"),))
    join = Join(("k",), (4 * SECOND, 0), "left")
    wanted = expected(Case("start", (left, right), (), join=join, runs=(Run(2),)))
    assert sorted((row["k"], row["at_right"]) for row in wanted.must) == [("a", 3 * SECOND), ("b", None)]


def test_a_right_answer_passes_and_each_kind_of_wrong_one_is_reported() -> None:
    case = running((at(1), at(2, "b")), (at(20),))
    right = came(case)
    wanted = expected(case)
    assert differences(case, wanted, right) == []
    (epoch, row), *rest = right["rows"]
    for rows, kind in (
        (rest, "missing"),
        ([*right["rows"], (epoch, row)], "twice"),
        ([(epoch, {**row, "n": 7}), *rest], "value"),
        ([(epoch, {**row, "n": float(row["n"])}), *rest], "value"),
        ([(epoch + 1, row), *rest], "epoch"),
        ([*right["rows"], (epoch, {**row, "k": "z"})], "extra"),
    ):
        found = differences(case, wanted, {**right, "rows": rows})
        assert [line.split(":")[0] for line in found] == [kind]
    assert differences(case, wanted, {**right, "late": 3}) == ["late: 3 rows counted, not 0"]


def test_shed_windows_must_be_in_the_report() -> None:
    level = Level(COUNTS, (TimeWindow(SECOND, SECOND),), keys=("k",))
    epochs = (tuple(at(t, key) for t in range(6) for key in "ab"), (at(60),), (at(61),))
    shed = Shed(0.5, max_gap=2)
    case = running(*epochs, levels=(level,), shed=shed, flush=2)
    whole = came(case)

    def report_of(bucket: int, first: int, windows: int, buckets: int = 64) -> tuple[int, dict[str, Any]]:
        starts = {"first_start": first * SECOND, "last_start": (first + windows - 1) * SECOND, "windows": windows}
        return 0, {"window_spec": None, "bucket": bucket, "buckets": buckets, **starts}

    def without(*gone: tuple[str, int]) -> list[Any]:
        return [each for each in whole["rows"] if (each[1]["k"], each[1]["window"]["start"] // SECOND) not in gone]

    wanted = expected(case)
    part = without(("a", 1), ("a", 2), ("b", 4))
    report = [report_of(5, 1, 2), report_of(9, 4, 1)]
    assert differences(case, wanted, {**whole, "rows": part, "report": report}) == []
    assert differences(case, wanted, {**whole, "rows": part, "report": report[:1]}), "missing, and not told"
    assert differences(case, wanted, {**whole, "report": [report_of(0, 1, 2, buckets=1)]}), "told, and delivered"
    gap = without(*(("a", t) for t in (1, 2, 3)))
    found = differences(case, wanted, {**whole, "rows": gap, "report": [report_of(5, 1, 3)]})
    assert [line.split(":")[0] for line in found] == ["gap"]


def test_a_failing_case_is_made_small() -> None:
    case = next(c for c in (draw(5, n, "start") for n in range(200)) if len(c.levels[0].aggregates) > 2 and c.rows > 50)
    function = case.levels[0].aggregates[1].function

    def fails(candidate: Case) -> bool:
        return any(each.function == function for level in candidate.levels for each in level.aggregates)

    small = shrink(case, fails, seconds=20)
    assert small.rows == 0 and len(small.levels[0].aggregates) == 1 and small.zone == "UTC"
    assert fails(small) and small.epochs == 1


def test_the_script_says_what_was_expected() -> None:
    case = running((at(1),), (at(20),))
    text = script_of(case, "what went wrong", expected(case))
    compile(text, "script", "exec")
    assert text.startswith("# what went wrong\n") and "'n': 1" in text and "tests" not in text
