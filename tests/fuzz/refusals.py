"""Which cases the documentation refuses. For these an `AnabranchError` is an answer; for others it is a failure."""

from __future__ import annotations

import math

from tests.fuzz.cases import SECOND, Case

LAST_SECOND = 2**31 - 1
PYTHON = ("user", "user_merge", "user_state")


def may_refuse(case: Case) -> str | None:
    """Why the package may refuse a case; None if it must answer."""
    functions = [each.function for level in case.levels for each in level.aggregates]
    inner = [each.function for level in case.levels[:-1] for each in level.aggregates]
    counting = any(level.count is not None for level in case.levels)
    if case.mode == "stream":
        if counting:
            return "count windows over a stream run in start()"
        if case.join is not None and case.levels:
            return "what follows a join of streams runs in start()"
        if any(len(level.windows) > 1 for level in case.levels[:-1]):
            return "several windows cannot feed a further aggregate in to_df() of a stream"
        if any(function in (*PYTHON, "top_k") for function in inner):
            return "Python cannot feed a further aggregate in to_df() of a stream"
        if case.policy is not None:
            return "to_df() of a stream leaves keys to Spark"
    if case.policy is not None and counting:
        return "the rows of a key must be counted in one place"
    if case.policy is not None and any(each.function == "user" for each in case.levels[0].aggregates):
        return "an aggregate without merge needs all rows of a window in one place"
    if counting and len(case.levels) > 1:
        return "results of count windows have no time"
    if case.strategy is not None:
        if case.strategy.kind == "pane" and "user" in functions:
            return "an aggregate without merge cannot run on panes"
        if case.mode == "start" or case.policy is not None:
            return "start() and policies choose the strategy themselves"
        if case.strategy.nodes is not None and (case.mode == "stream" or case.levels[-1].keys):
            return "a ring of nodes is for bounded windows without a key"
    if case.shed is not None and case.join is not None:
        return "nothing is dropped above a join"
    if case.shed is not None and counting and case.shed.drop_at == "source":
        return "count windows are dropped after their rows were counted"
    if case.shed is not None and any(len(level.windows) > 1 for level in case.levels):
        slides = [window.slide for level in case.levels for window in level.windows]
        if any(math.lcm(*slides) // window.slide > case.shed.max_gap for window in case.levels[-1].windows):
            return "windows of different slides are dropped together, more of them than max_gap"
    if case.in_order and case.join is not None and not case.levels:
        return "pairs have no order"
    lengths = [n for level in case.levels for w in level.windows for n in (w.size, w.slide, w.origin)]
    if case.sources[0].time == "int" and any(n % SECOND for n in lengths):
        return "windows over a time in seconds have whole seconds"
    if case.sources[0].time == "int" and _latest(case) + sum(lengths) // SECOND > LAST_SECOND:
        return "an int of seconds ends in 2038"
    return None


def _latest(case: Case) -> int:
    times = [row[0] for source in case.sources for epoch in source.epochs for row in epoch]
    return max((t for t in times if isinstance(t, int)), default=0)
