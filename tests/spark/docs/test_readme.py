"""What README and the docs show must run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_readme_examples_run_one_after_the_other(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the examples write into the folder they run in
    names: dict[str, object] = {"spark": spark, "__name__": "__main__"}  # as in a notebook: classes travel by value
    blocks = examples("README.md")
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "-> " in shown and "Spark plan" in shown  # explain()
    assert "| trips|" in shown.replace("|trips|", "| trips|")  # show()
    assert shown.count("only showing top") >= 4  # each example shows something
    assert "rows/s" in shown  # progress, as people read it
    assert spark.read.parquet(str(tmp_path / "highest")).count() > 0


@pytest.mark.parametrize("page", ["docs/windows.md", "docs/aggregates.md", "docs/strategies.md"])
def test_examples_of_the_docs_run(spark: SparkSession, page: str) -> None:
    import anabranch as ab

    df = spark.sql("SELECT timestamp_seconds(id) AS at, id % 3 AS cell, double(id) AS speed FROM range(100)")
    query = ab.stream(df, time="at").window(size="30 s", slide="1 s").by("cell").agg(n=ab.count())
    names: dict[str, object] = {"ab": ab, "df": df, "query": query}
    for block in examples(page):
        exec(compile(block, page, "exec"), names)
    if "busiest" in names:
        assert names["busiest"].to_df().count() > 0  # type: ignore[attr-defined]
    if "spread" in names:
        windows = ab.stream(df, time="at").window(size="10 s", slide="2 s").agg(spread=names["spread"])
        assert windows.order_by_window().collect()[10].spread == 9.0
