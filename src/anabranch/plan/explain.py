"""Why a plan was chosen, as text for `explain()`."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame

from anabranch.names import PREFIX
from anabranch.plan.batch import tumbling
from anabranch.plan.choose import Choice, delay_of
from anabranch.plan.placement import Placement, not_placed, placement
from anabranch.query.windowed import Query
from anabranch.spark.order import OPERATOR, physical_plan
from anabranch.windows import Axis, describe

_SHOWN_OPERATORS = {
    "Exchange", "HashAggregate", "SortAggregate", "ObjectHashAggregate", "MapInArrow", "PythonMapInArrow", "Generate",
    "Expand", "Window", "Sort", "Filter", "FileScan", "Scan", "BatchScan", "LocalTableScan", "Range", "Union",
    "StateStoreSave", "StateStoreRestore", "BroadcastHashJoin", "SortMergeJoin", "StreamingRelation",
    "ShuffledHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct", "StreamingSymmetricHashJoin",
}  # fmt: skip


def explain(query: Query, choice: Choice, result: DataFrame) -> str:
    """The text that `explain()` returns."""
    lines = [f"windows     {', '.join(w.label for w in query.panes.windows)}"]
    lines.append(f"panes       {_panes(query)}")
    lines.append(f"aggregates  {_aggregates(query)}")
    lines.append(f"keys        {', '.join(query.keys) or _no_keys(query, choice)}")
    asked = choice.taken if choice.asked else None
    by_policy = None if query.streaming else placement(query, choice.statistics, asked)
    if query.keys:
        lines.append(f"partition   {_partition(query, by_policy)}")
    lines.append(f"strategy    {'pane' if by_policy else choice.taken.label}, {_reason(choice, by_policy)}")
    if query.streaming and (delay := delay_of(query, choice.taken)):
        lines.append(f"delivery    in batches: a complete window waits for at most {describe(delay)}")
    lines.append(
        f"density     {choice.statistics.rows_per_pane:,.1f} rows per key and pane ({choice.statistics.source})"
    )
    lines += ["", "prices, in row touches per row (1 = one row into one aggregation):", *_table(choice), ""]
    lines += ["Spark plan, from the source to the result:", *(f"  {step}" for step in spark_plan(result))]
    return "\n".join(lines)


def _no_keys(query: Query, choice: Choice) -> str:
    by_rows = query.native and (choice.taken.kind != "pane" or tumbling(query))
    return "none" if query.streaming or by_rows else "none: batches of panes go round a ring"


def _panes(query: Query) -> str:
    size = describe(query.panes.size) if query.panes.axis is Axis.TIME else f"{query.panes.size} rows"
    counts = ", ".join(f"{query.panes.per_window(w):,}" for w in query.panes.windows)
    return f"of {size}; {counts} to a window"


def _aggregates(query: Query) -> str:
    names = []
    for name, aggregate in query.aggregates.items():
        kind = "invertible" if aggregate.invertible else "mergeable" if aggregate.mergeable else "whole windows only"
        names.append(f"{name} = {aggregate.describe()} ({kind})")
    return ", ".join(names)


def _partition(query: Query, by_policy: Placement | None) -> str:
    if by_policy is not None:
        return by_policy.describe(query)
    if query.streaming:
        return "left to Spark: a fixed plan cannot place keys by what it measures; start() can"
    return f"left to Spark: {not_placed(query) or 'the requested strategy does not place keys'}"


def _reason(choice: Choice, by_policy: Placement | None) -> str:
    if by_policy is not None:
        return "because a key policy evaluates panes"
    if choice.asked:
        return "as requested"
    others = [p.per_row for p in choice.prices if p.per_row is not None and p.strategy != choice.taken]
    if not others or choice.price.per_row is None:
        return "the only one that can run"
    return f"the cheapest: {min(others) / choice.price.per_row:,.1f} times cheaper than the next"


def _table(choice: Choice) -> list[str]:
    rows = [("", "strategy", "price", "copies of a row")]
    for p in sorted(choice.prices, key=lambda p: (p.per_row is None, p.per_row or 0.0)):
        mark = "->" if p.strategy == choice.taken else ""
        cost = "-" if p.per_row is None else f"{p.per_row:,.2f}"
        rows.append((mark, p.strategy.label, cost, p.reason or f"{p.replication:,.2f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  " + "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows]


def spark_plan(result: DataFrame) -> list[str]:
    """The operators of Spark's physical plan that cost something, from source to result."""
    steps = []
    for line in physical_plan(result).splitlines():
        match = OPERATOR.match(line)
        if match and match[1] in _SHOWN_OPERATORS:
            steps.append(f"{match[1]}{_detail(match[1], match[2])}")
    return steps[::-1]


def _detail(operator: str, rest: str) -> str:
    if operator == "Exchange":
        kind = re.search(r"(hashpartitioning|rangepartitioning|SinglePartition|[\w]*partition\w*)\(?([^)]*)", rest)
        # Spark nests parentheses where rows go to a partition by its number.
        return f" {kind[1]}({_columns(kind[2])}{')' * (1 + kind[2].count('('))}" if kind else ""
    if operator.endswith("Aggregate"):
        keys = re.search(r"keys=\[([^\]]*)\]", rest)
        partial = "partial " if "partial_" in rest else ""
        return f" {partial}by ({_columns(keys[1])})" if keys else ""
    if operator in ("FileScan", "Scan", "BatchScan"):
        return f" {rest.split()[0]}" if rest.split() else ""
    return ""


def _columns(text: str) -> str:
    """Column names without Spark's ids."""
    return re.sub(r"#\d+L?", "", text).replace(PREFIX, "")
