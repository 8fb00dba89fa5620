"""What README and the docs show must run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(page: str, names: dict[str, object]) -> dict[str, object]:
    """Run the examples of a page one after the other, as in a notebook: classes travel by value."""
    names = {"__name__": "__main__", **names}
    for block in examples(page):
        exec(compile(block, page, "exec"), names)
    return names


def test_the_readme_example_runs_and_shows_windows_and_the_plan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(examples("README.md")) == 1
    run("README.md", {"spark": spark})
    shown = capsys.readouterr().out
    assert "|trips|" in shown and "only showing top 5 rows" in shown  # show()
    assert "-> " in shown and "Spark plan" in shown  # explain()


def test_the_tutorial_runs_from_the_first_window_to_a_restarted_query(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anabranch as ab

    monkeypatch.chdir(tmp_path)  # the examples write into the folder they run in
    names = run("docs/tutorial.md", {"spark": spark})
    shown = capsys.readouterr().out
    assert "-> " in shown and "Spark plan" in shown  # explain() of a query
    assert shown.count("only showing top") >= 6  # each example shows something
    assert "rows/s" in shown and "window-1:" in shown  # progress and explain() of a running query
    assert "9900 windows, 9900 distinct" in shown  # nothing lost, nothing twice after the restart
    trips, results = names["trips"], names["results"].drop("epoch")  # type: ignore[attr-defined]
    # The last record of a cell is its highest fare.
    found = {row["cell"]: row["fare"] for row in names["records"].rows()}  # type: ignore[attr-defined]
    assert found == dict(trips.groupBy("cell").agg({"fare": "max"}).collect())  # type: ignore[attr-defined]
    # The restarted query has delivered what one over the whole table gives, as far as the watermark has come.
    windows = ab.stream(trips, time="at").window(size="5 minutes", slide="10 seconds").by("cell")  # type: ignore[arg-type]
    whole = windows.agg(trips=ab.count(), most=ab.max("fare")).to_df()
    complete = whole.where("window.end <= timestamp_seconds(1767225600 + 1999.9 - 10)")
    assert complete.exceptAll(results).count() == results.exceptAll(complete).count() == 0


@pytest.mark.parametrize(
    "page", ["docs/windows.md", "docs/aggregates.md", "docs/strategies.md", "docs/coming-from-spark.md"]
)
def test_examples_of_the_docs_run(spark: SparkSession, page: str) -> None:
    import anabranch as ab

    df = spark.sql("SELECT timestamp_seconds(id) AS at, id % 3 AS cell, double(id) AS speed FROM range(100)")
    query = ab.stream(df, time="at").window(size="30 s", slide="1 s").by("cell").agg(n=ab.count())
    names: dict[str, object] = {"ab": ab, "df": df, "busy": query}
    for block in examples(page):
        exec(compile(block, page, "exec"), names)
    if "busiest" in names:
        assert names["busiest"].to_df().count() > 0  # type: ignore[attr-defined]
    if "in_spark" in names:
        in_spark, here = names["in_spark"], names["here"]
        assert in_spark.columns == here.columns  # type: ignore[attr-defined]
        assert sorted(in_spark.collect()) == sorted(here.collect())  # type: ignore[attr-defined]
    if "spread" in names:
        both = {name: names[name] for name in ("spread", "spread_in_parts")}
        windows = ab.stream(df, time="at").window(size="10 s", slide="2 s").agg(**both)  # type: ignore[arg-type]
        tenth = windows.order_by_window().collect()[10]
        assert tenth.spread == tenth.spread_in_parts == 9.0
