"""What splitting costs: a model in seconds per tuple, and how many splitters a rate needs. See docs/papers.md.

    window router ──▶ p window splitters ──▶ q query processors
    C_PR                C_PS                   C_PQ

**Shares.** Of the tuples that a splitter reads, r are routed to one substream, b are broadcast to all q and o are
omitted; r + b + o = 1. So a tuple leaves the split r + b*q times on average.

| cost of | per tuple read |
|---|---|
| any stream process | cr + u(cp + cm) + cq + sel * (cs(o + r + bq) + ce(r + bq)) |
| the window router | cr_w + cs_w + ce_w |
| a window splitter | cr_w + cs(o + r + bq) + ce(r + bq) |
| a query processor | cr + p(cp + cm) + O |

All four are calls of `process_cost`. Rates are capacities: tuples per second of *busy* time. If only a ratio matters,
any unit (Mbit/s) will do.

**Efficiency** compares the CPU times of whole processes. Per tuple of the input stream all splitters together spend
C_PS, and all processors (r + bq) * C_PQ, because that many copies reach them.

**On Spark** the router is the scheduler, which hands out blocks: `from_measures` leaves cs_w and ce_w at 0. Polling is
not measured apart from merging: cp is 0 and cm covers both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from anabranch.errors import InvalidArgumentError

BROADCAST_SHARE = 0.01
"""Default for b, the share of tuples that are broadcast."""

MOST_SPLITTERS = 1_024
"""Default limit for the number of splitters."""


class SplitterTimes(Protocol):
    """What the model needs from a splitter's measurement; `observe.progress.SplitterMeasure` has it."""

    @property
    def rows(self) -> int: ...
    @property
    def routed(self) -> int: ...
    @property
    def broadcast(self) -> int: ...
    @property
    def omitted(self) -> int: ...
    @property
    def read_seconds(self) -> float: ...
    @property
    def split_seconds(self) -> float: ...
    @property
    def emit_seconds(self) -> float: ...


class WorkerTimes(Protocol):
    """What the model needs from a worker's measurement; `observe.progress.WorkerMeasure` has it."""

    @property
    def rows(self) -> int: ...
    @property
    def read_seconds(self) -> float: ...
    @property
    def merge_seconds(self) -> float: ...
    @property
    def query_seconds(self) -> float: ...


def process_cost(
    *,
    cr: float = 0.0,
    u: int = 1,
    cp: float = 0.0,
    cm: float = 0.0,
    cq: float = 0.0,
    selectivity: float = 1.0,
    cs: float = 0.0,
    ce: float = 0.0,
    b: float = 0.0,
    r: float = 1.0,
    o: float = 0.0,
    q: int = 1,
) -> float:
    """Seconds per tuple of a stream process with u inputs and q outputs."""
    return cr + u * (cp + cm) + cq + selectivity * (cs * (o + r + b * q) + ce * (r + b * q))


@dataclass(frozen=True)
class SplitCosts:
    """The terms of the model in seconds per tuple, and the shares of tuples."""

    cr_w: float = 0.0
    """reading a tuple in a physical window"""
    cs_w: float = 0.0
    """the router's choice of a splitter"""
    ce_w: float = 0.0
    """the router's sending"""
    cr: float = 0.0
    """a query processor's reading"""
    cp: float = 0.0
    """a query processor's polling, per splitter"""
    cm: float = 0.0
    """a query processor's merging, per splitter"""
    cs: float = 0.0
    """the routing and broadcast functions, per copy or omitted tuple"""
    ce: float = 0.0
    """a splitter's sending, per copy"""
    O: float = 0.0  # noqa: E741 (its name in the published model)
    """the query itself"""
    b: float = BROADCAST_SHARE
    r: float = 1.0 - BROADCAST_SHARE
    o: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgumentError(
                    f"{field.name} = {value!r} is not a cost or share, so no rate can be computed from it",
                    hint="give costs in seconds per tuple and shares as fractions, both finite and not negative",
                )
        if not math.isclose(self.b + self.r + self.o, 1.0, abs_tol=1e-6):
            raise InvalidArgumentError(
                f"the shares b + r + o add up to {self.b + self.r + self.o:g}: tuples would be counted twice or never",
                hint="each tuple is broadcast, routed or omitted: the shares must add up to 1",
            )

    @classmethod
    def from_measures(
        cls, splitters: Sequence[SplitterTimes], workers: Sequence[WorkerTimes], q: int
    ) -> SplitCosts | None:
        """The terms from measurements; None if no splitter has read a row."""
        _at_least_1("q", q)
        rows = sum(s.rows for s in splitters)
        # Shares of the rows of a known kind: a splitter that counts no kinds must not make them add up to less than 1.
        routed, broadcast, omitted = (
            sum(getattr(s, kind) for s in splitters) for kind in ("routed", "broadcast", "omitted")
        )
        classified = routed + broadcast + omitted
        if rows <= 0 or classified <= 0:
            return None
        b, r, o = broadcast / classified, routed / classified, omitted / classified
        handed_on = rows * (r + b * q)
        received = sum(w.rows for w in workers)
        return cls(
            cr_w=sum(s.read_seconds for s in splitters) / rows,
            cs=sum(s.split_seconds for s in splitters) / (rows * o + handed_on),
            ce=_ratio(sum(s.emit_seconds for s in splitters), handed_on),
            cr=_ratio(sum(w.read_seconds for w in workers), received),
            cm=_ratio(sum(w.merge_seconds for w in workers), received * len(splitters)),
            O=_ratio(sum(w.query_seconds for w in workers), received),
            b=b,
            r=r,
            o=o,
        )

    def copies(self, q: int) -> float:
        """How often a tuple leaves the split, on average."""
        return self.r + self.b * q

    def router(self) -> float:
        """Seconds per tuple that the window router needs."""
        return process_cost(cr=self.cr_w, cs=self.cs_w, ce=self.ce_w)

    def splitter(self, q: int) -> float:
        """Seconds per tuple that a window splitter needs, if there are q substreams."""
        return process_cost(cr=self.cr_w, cs=self.cs, ce=self.ce, b=self.b, r=self.r, o=self.o, q=q)

    def processor(self, p: int) -> float:
        """Seconds per tuple that a query processor needs, if it merges the output of p splitters."""
        return process_cost(cr=self.cr, u=p, cp=self.cp, cm=self.cm, cq=self.O)

    def stream_rate(self, p: int, q: int) -> float:
        """Tuples per second that p splitters and q processors can take: the lowest of the three kinds' rates."""
        processors = _rate(self.processor(p) * self.copies(q) / q)
        return min(_rate(self.router()), p * _rate(self.splitter(q)), processors)

    def efficiency(self, p: int, q: int) -> float:
        """The splitters' share of all CPU time that splitting takes; 1 if nothing has a cost."""
        splitting = self.splitter(q)
        without_query = (self.processor(p) - self.O) * self.copies(q)
        total = self.router() + splitting + without_query
        return splitting / total if total > 0 else 1.0

    def splitters(self, rate: float, q: int, *, limit: int = MOST_SPLITTERS) -> int:
        """The smallest number of splitters that can take the rate, with these costs and shares."""
        _at_least_1("q", q)
        return _within(rate * self.splitter(q), limit)

    def describe(self, p: int, q: int) -> str:
        """The model as a text table, for explain()."""
        rows = [
            ("window router", self.router(), _rate(self.router())),
            (f"{p} window splitters", self.splitter(q), p * _rate(self.splitter(q))),
            (f"{q} query processors", self.processor(p), _rate(self.processor(p) * self.copies(q) / q)),
        ]
        lines = [f"{'':24}{'us per tuple':>14}{'input tuples/s':>18}"]
        lines += [f"{name:24}{cost * 1e6:14.3f}{_amount(rate):>18}" for name, cost, rate in rows]
        lines.append(f"broadcast {self.b:.2%}, routed {self.r:.2%}, omitted {self.o:.2%}; efficiency ")
        lines[-1] += f"{self.efficiency(p, q):.0%}; at most {_amount(self.stream_rate(p, q))} tuples/s"
        return "\n".join(lines)


def splitters_needed(
    desired: float, single: float, q: int, *, b: float = BROADCAST_SHARE, limit: int = MOST_SPLITTERS
) -> int:
    """The number of splitters that a rate needs: p = ceil(desired / single * (1 - b + b*q)), within 1 .. limit.

    `desired` is the stream's rate and `single` that of one splitter with q = 1, in the same unit; with a cost model it
    is ``1 / costs.splitter(1)``. It assumes that all work grows with the copies and that nothing is omitted;
    `SplitCosts.splitters` does not.
    """
    _at_least_1("q", q)
    if not single > 0:
        raise InvalidArgumentError(
            f"a splitter's rate of {single!r} is not above zero: no number of splitters would be enough",
            hint="measure one splitter on part of the stream first",
        )
    return _within(desired / single * (1.0 - b + b * q), limit)


def _within(needed: float, limit: int) -> int:
    _at_least_1("limit", limit)
    if needed >= limit:
        return limit
    return max(1, math.ceil(needed - 1e-9))  # 3.0000000001 splitters are 3


def _at_least_1(name: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(
            f"{name} = {value!r} is below 1, so there is nowhere to send a tuple", hint=f"give a {name} of 1 or more"
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _rate(cost: float) -> float:
    return 1.0 / cost if cost > 0 else math.inf


def _amount(rate: float) -> str:
    return "no limit" if math.isinf(rate) else f"{rate:,.0f}"
