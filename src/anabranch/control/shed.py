"""When to shed, where, and how much: the load monitor and the controller of paper 4.

Seconds of an epoch = fixed + kept rows * per_row + shed rows * per_shed, fitted to the last epochs. An epoch reads what
came while the one before ran, so its oldest row has waited that long when it begins:

    latency = interval of the epoch before + seconds of this one

From that follows how many rows an epoch may keep, and which share of the work must be spared. Which points spare it is
a linear program with one constraint: the points that lose least (by the weights of their outputs) per second spared
come first, each up to what its gap bound allows. Of all ways to put points together (`plan.drops.cuts`) the one that
delivers most is taken, of equal ones the earliest.

| | raises | lowers |
|---|---|---|
| share p | at once, when an epoch within `LOOK_AHEAD` would pass the bound | to what `SLACK` more load would need |
| cut | when another delivers `BETTER` more | |
| shut queries | after `PATIENCE` epochs that no p relieves: the costliest | after as many that would, with `SLACK` |
| headroom | by `LATE` after an epoch whose latency came `NEAR` the bound | by `IN_TIME` after any other |

The last row is how a quantile is followed: where one epoch in LATE / IN_TIME comes near the bound, the two are in
balance. How far epochs stray from the model is another matter on each machine, and with each source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from anabranch.control.base import RECENT, excess_backlog, fit_nonnegative, mean_arrival_rate, register
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.shedding.points import Box, DropPoint
from anabranch.shedding.windrop import most

WARM_UP = 2
"""epochs at the start of a run that say little: Spark compiles, Python processes start"""
HEADROOM = 0.18
"""share of the latency bound that is left for what the model does not know, at least"""
MOST_HEADROOM = 0.4
LATE, IN_TIME = 0.04, 0.001
"""by how much that grows with an epoch that is nearly late, and shrinks with any other"""
SMOOTH = 4
"""epochs over which the rate is taken: a source that hands out whole seconds makes that of one epoch jump"""
MOST_RATE = 1e12
"""rows per second: more is as good as no limit"""
FIXED_SHARE = 1.25
"""epochs are not made shorter than this share of what they cost without rows: all would be dropped for nothing"""
PRIOR = 0.2
"""weight of the costs as they were found before, against an epoch's"""
SHED_COST = 0.1
"""of what a kept row costs: what a shed one is taken to cost before any was"""
NEAR = 0.08
"""an epoch that took longer by this share is made up for by the next one; one this near the bound is nearly late"""
SLACK = 0.04
"""hysteresis: a share is lowered only to what a rate higher by this would need"""
STEP = 0.05
"""hysteresis: a share p stays as it is where a lower one would deliver less than this share more"""
LOOK_AHEAD = 3
"""epochs within which latency must pass the bound before anything is dropped"""
PATIENCE = 3
"""epochs before a query is shut, or opened again"""
LEAST = 0.02
"""share of rows from which it is concluded how many there would have been"""
BETTER = 0.02
"""share of what is delivered by which another cut must be better"""


@dataclass(frozen=True)
class Load:
    """What epochs cost and how much comes, as measured. Seconds."""

    rate: float
    """rows per second that come"""
    fixed: float
    per_row: float
    per_shed: float
    interval: float
    """from the start of the last epoch to that of the next"""
    waiting: float
    """rows that the source held back"""
    trigger: float
    headroom: float = HEADROOM

    @property
    def costs(self) -> list[float]:
        return [self.fixed, self.per_row, self.per_shed]

    @classmethod
    def of(
        cls, history: Sequence[EpochProgress], trigger: float | None, before: Sequence[float] | None = None
    ) -> Load | None:
        """None as long as too little is known. `before`: the costs as they were found last.

        While load and p are steady, epochs cannot tell one cost from another; then these keep what was found before.
        """
        known = [epoch for epoch in _telling(history)[-RECENT:] if _arrived(epoch) > 0]
        if not known:
            return None
        rows_of = np.array([[1.0, _arrived(epoch) - epoch.spared, epoch.spared] for epoch in known])
        seconds = np.array([epoch.seconds for epoch in known])
        if before is None:
            half = float(seconds.mean()) / 2
            per_row = half / float(rows_of[:, 1].mean()) if rows_of[:, 1].any() else 0.0
            before = (half, per_row, SHED_COST * per_row)
        fixed, per_row, per_shed = _fitted(rows_of, seconds, before)
        came = [replace(epoch, rows=round(_arrived(epoch))) for epoch in history[-SMOOTH - 1 :]]
        rate = mean_arrival_rate(came)
        last = history[-1]
        return cls(rate, fixed, per_row, per_shed, last.interval, excess_backlog(last, rate), trigger or 0.0)

    def steady(self, bound: float) -> float:
        """How long an epoch may take, if all take as long."""
        return bound / 2 if self.trigger <= bound / 2 else max(0.0, bound - self.trigger)

    def aim(self, bound: float) -> float:
        """How long epochs shall take. What they cost without any row no drop can spare, so they get some more."""
        return max(self.steady((1 - self.headroom) * bound), FIXED_SHARE * self.fixed)

    def capacity(self, bound: float) -> float:
        """Rows per second that can be processed, all of them, within the bound."""
        steady = self.steady(bound)
        work = self.per_row * max(self.trigger, steady)
        return max(0.0, steady - self.fixed) / work if work > 0 else math.inf

    def drowns(self, bound: float) -> bool:
        """Whether it would not be enough to drop everything: rows must be read and looked up to be dropped."""
        seconds = self.aim(bound)
        return self.fixed + self.per_shed * self.rate * max(self.trigger, seconds) > seconds

    def latency_ahead(self, epochs: int, more: float = 0.0) -> float:
        """The worst latency of the next epochs, if nothing is dropped; `more`: at a rate higher by this share."""
        worst, interval, waiting, rate = 0.0, self.interval, self.waiting, self.rate * (1 + more)
        for _ in range(epochs):
            seconds = self.fixed + self.per_row * (rate * interval + waiting)
            worst = max(worst, interval + seconds)
            interval, waiting = max(self.trigger, seconds), 0.0
        return worst

    def to_spare(self, bound: float, more: float = 0.0) -> float:
        """The share of the work with rows that must be spared for good. Below 0: room is left.

        `more`: at a rate higher by this share.
        """
        steady = self.aim(bound)
        return self._spare(self.rate * (1 + more) * max(self.trigger, steady), steady)

    def to_spare_now(self, bound: float) -> float:
        """The same for the next epoch alone: if the last one was long, so many rows have come, and have waited."""
        steady, rows = self.aim(bound), self.rate * self.interval + self.waiting
        seconds = max(min(steady, (1 - NEAR) * bound - self.interval), FIXED_SHARE * self.fixed)
        return self._spare(rows, seconds) if self.interval > (1 + NEAR) * max(self.trigger, steady) else -math.inf

    def _spare(self, rows: float, seconds: float) -> float:
        gained = (self.per_row - self.per_shed) * rows
        if gained <= 0:
            return 0.0 if self.fixed + self.per_row * rows <= seconds else 1.0
        return (self.fixed + self.per_row * rows - seconds) / gained


@dataclass(frozen=True)
class WorkShares:
    """Which share of the work with rows each operator has: with what it reads, and with what it delivers."""

    reading: Mapping[str, float]
    delivering: Mapping[str, float]

    @classmethod
    def of(cls, history: Sequence[EpochProgress], boxes: Sequence[Box], points: Mapping[str, DropPoint]) -> WorkShares:
        """As they would be if nothing were shed."""
        reading: dict[str, float] = {}
        delivering: dict[str, float] = {}
        of = {box.name: box for box in boxes}
        for box in boxes:
            known: list[tuple[OperatorProgress, float, float]] = []
            arrived = 0.0
            for epoch in reversed(_telling(history)):
                measured = epoch.operator(box.name)
                shut = [point for drop in epoch.drops if drop.bound is None and (point := points.get(drop.point))]
                # What an operator would do with all rows does not show while it gets none.
                if measured is None or len(known) == RECENT or any(box.name in point.domain for point in shut):
                    continue
                read = delivered = 1.0
                for drop in epoch.drops:
                    point = points.get(drop.point)
                    if point is not None and box.name in point.domain:
                        read -= drop.p * _spared_rows(point, box.name, of)
                        delivered -= drop.p
                known.append((measured, max(read, LEAST), max(delivered, LEAST)))
                arrived += _arrived(epoch)
            # Per row that came: epochs in which one operator was shut do not count for it, but do for the others.
            rows = max(arrived / len(known), 1.0) if known else 1.0
            reading[box.name], delivering[box.name] = (seconds / rows for seconds in _seconds_of(known))
        total = sum(reading.values()) + sum(delivering.values())
        if total <= 0:
            return cls({box.name: 1 / len(boxes) for box in boxes}, {box.name: 0.0 for box in boxes})
        return cls(
            {name: each / total for name, each in reading.items()},
            {name: each / total for name, each in delivering.items()},
        )

    def spared(self, point: DropPoint, boxes: Sequence[Box], *, shut: bool = False) -> float:
        """The share of all work that is spared per share of the units of a point that is dropped; `shut`: all of it."""
        of = {box.name: box for box in boxes}
        share = 0.0
        for name in point.domain:
            share += self.delivering[name] + self.reading[name] * _spared_rows(point, name, of, shut=shut)
        return share


def _spared_rows(point: DropPoint, name: str, boxes: Mapping[str, Box], *, shut: bool = False) -> float:
    """The share of the rows that an operator below a point does not get, per share of the units that is dropped."""
    if point.kind == "results":
        return 0.0
    if shut:
        return 1.0  # no unit is kept that would need a row
    above = [emits for origin in boxes[name].reads for emits in point.emits.get(origin, ())]
    first = name in point.at or (point.kind == "source" and set(boxes[name].reads) & set(point.at))
    spans = [point.span] if first else above
    return min((span.spared(point.bound) for span in spans), default=0.0)


def _telling(history: Sequence[EpochProgress]) -> list[EpochProgress]:
    """The epochs whose seconds say something about those to come."""
    run = [epoch for epoch in history if not epoch.replayed]
    if 2 <= len(run) <= WARM_UP + 1 and run[-1].seconds > run[-2].seconds > 0:
        # Later ones should be faster. This was not: it drowns, and to wait would cost as much again.
        return run[-1:]
    return run[WARM_UP:]


def _arrived(epoch: EpochProgress) -> float:
    return float(epoch.rows) if epoch.arrived is None else epoch.arrived


def _fitted(
    features: np.ndarray[Any, Any], seconds: np.ndarray[Any, Any], before: Sequence[float] | None = None
) -> tuple[float, float, float]:
    """Seconds per unit of each feature, none negative. Where two cannot be told apart, they stay as they were."""
    scale = np.maximum(np.abs(features).max(axis=0), 1e-12)
    scaled = features / scale
    if before is not None:
        # As if an epoch had told each of them, which counts less than those that were measured.
        scale = np.where(features.any(axis=0), scale, 1 / np.maximum(np.array(before), 1e-12))
        scaled = np.vstack([features / scale, PRIOR * np.eye(3)])
        seconds = np.append(seconds, PRIOR * np.array(before) * scale)
    a, b, c = fit_nonnegative(scaled, seconds)
    return a / float(scale[0]), b / float(scale[1]), c / float(scale[2])


def _seconds_of(measured: Sequence[tuple[OperatorProgress, float, float]]) -> tuple[float, float]:
    """Seconds of a mean epoch with what was read and with what was delivered, without the fixed part.

    With each epoch comes which share of the rows and of the results it had, of what it would have had. What sinks take
    is for the results alone.
    """
    if not measured:
        return 0.0, 0.0
    features = np.array([[1.0, each.rows - each.shed, each.emitted] for each, _, _ in measured])
    seconds = np.array([each.seconds for each, _, _ in measured])
    _, per_row, per_result = _fitted(features, seconds)
    rows = np.mean([(each.rows - each.shed) / share for each, share, _ in measured])
    emitted = np.mean([each.emitted / share for each, _, share in measured])
    publishing = np.array([each.publish_seconds for each, _, _ in measured])
    _, _, per_published = _fitted(features * [1.0, 0.0, 1.0], publishing)
    published = float(per_published * emitted)
    if per_row * rows + per_result * emitted <= 0:
        return float(seconds.mean()), published
    return float(per_row * rows), float(per_result * emitted) + published


def _headroom(history: Sequence[EpochProgress], bound: float, before: float) -> float:
    """The share of the bound to leave. Only the first of several late epochs counts: the others wait for its rows."""
    if len(history) < 2 or not (history[-1].drops and history[-2].drops):
        return max(HEADROOM, before - IN_TIME)  # nothing was dropped, so nothing is known about how well
    late = [(epoch.latency or 0.0) > (1 - NEAR) * bound for epoch in history[-2:]]
    if late[-1]:
        return before if late[0] else min(MOST_HEADROOM, before + LATE)
    return max(HEADROOM, before - IN_TIME)


@register
@dataclass(frozen=True)
class Shed:
    """Settings `p` (by point), `cut` (the points in use) and `shut` (points where everything is dropped)."""

    boxes: tuple[Box, ...]
    cuts: tuple[tuple[DropPoint, ...], ...]
    max_latency: float | None
    """seconds; None: only `share` counts"""
    trigger: float | None = None
    share: float | None = None
    """drop this share always"""
    weights: Mapping[str, float] = field(default_factory=dict)
    name: ClassVar[str] = "shed"

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.share is not None:
            return self._fixed(self.share)
        points = {point.name: point for cut in self.cuts for point in cut}
        if self.max_latency is None or not set(current.get("cut", ())) <= points.keys():
            current = {}  # of a run with other bounds
        load = Load.of(history, self.trigger, current.get("costs"))
        if load is None or self.max_latency is None:
            kept = (*QUIET, "costs", "spare", "headroom")
            return {**QUIET, **{name: current[name] for name in kept if name in current}}
        headroom = _headroom(history, self.max_latency, current.get("headroom", HEADROOM))
        load = replace(load, headroom=headroom)
        shares = WorkShares.of(history, self.boxes, points)
        measured = {"rate": load.rate, "capacity": min(load.capacity(self.max_latency), MOST_RATE)}
        decided = self._adapted(load, shares, current)
        return {**decided, "costs": load.costs, "load": measured, "headroom": headroom}

    def overloaded(self, history: Sequence[EpochProgress]) -> str | None:
        """What is wrong, if latency will pass its bound; for a query that must not shed."""
        load = Load.of(history, self.trigger)
        if load is None or self.max_latency is None:
            return None
        predicted = load.latency_ahead(LOOK_AHEAD)
        return None if predicted <= self.max_latency else _told(load, predicted, self.max_latency)

    def _fixed(self, share: float) -> dict[str, Any]:
        cut = self.cuts[0] if self.cuts else ()
        p = {point.name: min(share, most(point.bound)) for point in cut}
        return {**QUIET, "cut": [point.name for point in cut], "p": p, "cause": f"a share of {share:g}, as told"}

    def _adapted(self, load: Load, shares: WorkShares, current: Mapping[str, Any]) -> dict[str, Any]:
        assert self.max_latency is not None
        bound = self.max_latency
        shedding = any(current.get("p", {}).values()) or bool(current.get("shut"))
        predicted = load.latency_ahead(LOOK_AHEAD)
        if not shedding and predicted <= bound:
            return {**QUIET, "cut": current.get("cut", [])}
        # The bound may hold without shedding though no share p would keep the headroom: where the fixed part is large.
        fits = load.latency_ahead(LOOK_AHEAD, SLACK) <= (1 - NEAR) * bound
        calm_for = int(current.get("calm", 0)) + 1 if fits else 0
        if calm_for >= PATIENCE:
            return {**QUIET, "cut": current.get("cut", []), "why:p": "the load is over"}
        needed = max(load.to_spare(bound), load.to_spare_now(bound))
        calm = load.to_spare(bound, SLACK)
        told = _told(load, predicted, bound)
        unmet = self._unmet(load, shares, bound, current)
        shut = list(current.get("shut", ()))
        if unmet >= PATIENCE:
            shut, unmet = self.shut_one(shares, shut), 0
        elif unmet <= -PATIENCE and shut:
            shut, unmet = self._opened(calm, shares, shut) or [], 0
        chosen = self._choose(needed, shares, current.get("cut", []), shut)
        lower = self._choose(calm, shares, [point.name for point in chosen[0]], shut)
        before = current.get("p", {})
        p = {}
        for point in chosen[0]:
            now, then, was = chosen[1][point.name], lower[1].get(point.name, 0.0), before.get(point.name, 0.0)
            low = max(now, then)
            p[point.name] = now if now >= was else was if low > 0 and was - low < STEP * (1 - was) else min(was, low)
        if not any(p.values()) and not shut:
            return {**QUIET, "cut": current.get("cut", []), "why:p": "the load is over"}
        decided = {
            "cut": [point.name for point in chosen[0]],
            "p": p,
            "spare": {point.name: shares.spared(point, self.boxes, shut=point.name in shut) for point in chosen[0]},
            "shut": shut,
            "unmet": unmet,
            "calm": calm_for,
            "cause": told if not shut else f"{told}; no drop within the gap bounds is enough",
        }
        if p != before or shut != current.get("shut", []):
            decided["why:p"] = f"{told}: {max(needed, 0.0):.0%} of the work must be spared"
        return decided

    def _choose(
        self, needed: float, shares: WorkShares, current: Sequence[str], shut: Sequence[str]
    ) -> tuple[tuple[DropPoint, ...], dict[str, float]]:
        """The cut that delivers most, and its shares p."""
        best: tuple[float, float, tuple[DropPoint, ...], dict[str, float]] | None = None
        for cut in self.cuts:
            names = [point.name for point in cut]
            if shut and not set(shut) <= set(names):
                continue
            p, spared, delivered = self._filled(cut, needed, shares, shut)
            short = max(0.0, needed - spared)
            stays = BETTER if names == list(current) else 0.0
            # First what spares enough, then what delivers most; the cut in force wins unless another is clearly better.
            rank = (-round(short, 2), delivered + stays)
            if best is None or rank > (best[0], best[1] + 1e-9):
                best = (*rank, cut, p)
        return ((), {}) if best is None else (best[2], best[3])

    def _filled(
        self, cut: Sequence[DropPoint], needed: float, shares: WorkShares, shut: Sequence[str]
    ) -> tuple[dict[str, float], float, float]:
        """The shares p of a cut, what they spare, and the share of all results, by weight, that is delivered."""
        spare = {point.name: shares.spared(point, self.boxes, shut=point.name in shut) for point in cut}
        worth = {point.name: sum(self.weights.get(name, 1.0) for name in point.outputs) for point in cut}
        p = {point.name: 1.0 if point.name in shut else 0.0 for point in cut}
        spared = sum(spare[name] for name in shut if name in spare)
        for point in sorted(cut, key=lambda each: worth[each.name] / max(spare[each.name], 1e-9)):
            if point.name in shut or spared >= needed or spare[point.name] <= 0:
                continue
            wanted = min(1.0, (needed - spared) / spare[point.name])
            p[point.name] = min(math.ceil(wanted * 100) / 100, most(point.bound))
            spared += p[point.name] * spare[point.name]
        total = sum(self.weights.get(box.name, 1.0) for box in self.boxes if box.terms is not None)
        lost = sum(p[point.name] * worth[point.name] for point in cut)
        return p, spared, 1.0 - lost / total if total else 0.0

    def _unmet(self, load: Load, shares: WorkShares, bound: float, current: Mapping[str, Any]) -> int:
        """Above 0: so many epochs in a row no p was enough; below: so many it would be, with fewer queries shut."""
        shut, count = list(current.get("shut", ())), int(current.get("unmet", 0))
        if self._short(load.to_spare(bound), shares, shut):
            return max(count, 0) + 1
        if shut and self._opened(load.to_spare(bound, SLACK), shares, shut) is not None:
            return min(count, 0) - 1
        return 0

    def _opened(self, needed: float, shares: WorkShares, shut: Sequence[str]) -> list[str] | None:
        """Fewer queries to shut that would be enough: without the last one, or only some of those that it shuts."""
        named = {point.name: point for cut in self.cuts for point in cut}
        last = set(named[shut[-1]].domain)
        finer = [name for name, point in named.items() if set(point.domain) < last]
        options = [[*shut[:-1]], *([*shut[:-1], name] for name in finer)]
        return next((then for then in options if not self._short(needed, shares, then)), None)

    def _short(self, needed: float, shares: WorkShares, shut: Sequence[str]) -> bool:
        return self._most_spared(shares, shut) < needed - BETTER

    def _most_spared(self, shares: WorkShares, shut: Sequence[str]) -> float:
        """The largest share of the work that can be spared while these points are shut."""
        able = [cut for cut in self.cuts if set(shut) <= {point.name for point in cut}]
        return max((self._filled(cut, math.inf, shares, shut)[1] for cut in able), default=0.0)

    def shut_one(self, shares: WorkShares, shut: Sequence[str]) -> list[str]:
        """The points to shut when one query more must be: the costliest (paper 4, section 3.1).

        A point above others shuts all queries below it. So points that shut the fewest queries come first, and among
        those the ones that spare most. A point may also take the place of others that are below it, and counts for what
        it shuts in addition; it is the last resort. None helps that leaves less to spare than there is without it.
        """
        named = {point.name: point for cut in self.cuts for point in cut}
        able, best = self._most_spared(shares, shut), (-math.inf, 0, 0.0, list(shut))
        for cut in self.cuts:
            for point in cut:
                beside = [name for name in shut if not set(named[name].domain) <= set(point.domain)]
                then = [*beside, point.name]
                if point.name in shut or not set(beside) <= {each.name for each in cut}:
                    continue
                if self._most_spared(shares, then) > able + BETTER:
                    closed = {output for name in shut for output in named[name].outputs}
                    more = len(set(point.outputs) - closed)
                    best = max(best, (-more, len(beside), shares.spared(point, self.boxes, shut=True), then))
        return best[3]


QUIET: dict[str, Any] = {"cut": [], "p": {}, "shut": [], "unmet": 0, "calm": 0, "cause": ""}
"""The decisions where nothing is dropped."""


def _told(load: Load, predicted: float, bound: float) -> str:
    told = f"{load.rate:,.0f} rows/s would take {predicted:.1f} s, the bound is {bound:g} s"
    if load.aim(bound) > load.steady(bound):
        return f"{told}; it cannot be kept: an epoch without any row takes {load.fixed:.1f} s. Raise max_latency"
    if load.drowns(bound):
        return f"{told}; it cannot be kept: even to drop all rows takes longer. Limit what the source hands out"
    return told
