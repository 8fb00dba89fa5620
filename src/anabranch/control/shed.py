"""When to shed load, where, and how much: the load monitor and the shedding controller.

Seconds of an epoch = fixed + kept rows * per_row + shed rows * per_shed, fitted to the last epochs. An epoch reads the
rows that arrived while the previous one ran, so its oldest row has already waited that long when the epoch begins:

    latency = interval of the previous epoch + seconds of this one

This gives the number of rows that an epoch may keep, and so the share of the work that must be saved. Choosing the drop
points is a linear program with one constraint: the points that lose least (by the weights of their outputs) per second
saved come first, each up to what its gap bound allows. Of all sets of points that can drop together
(`shedding.points.cuts`), the controller takes the one that delivers most; if several do, the one that drops earliest.

| | raised | lowered |
|---|---|---|
| share p | at once, when an epoch within `LOOK_AHEAD` would exceed the bound | to what `LOAD_SLACK` more load needs |
| cut | changed when another delivers `BETTER` more | |
| shut queries | after `PATIENCE` epochs in which no p is enough: the costliest | after as many in which one is |
| headroom | by `LATE` after an epoch whose latency came within `NEAR` of the bound | by `IN_TIME` after any other |

The last row tracks a quantile: the two balance when one epoch in LATE / IN_TIME comes near the bound. How far epochs
deviate from the model differs between machines and sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from anabranch.control.base import RECENT_EPOCHS, excess_backlog, fit_nonnegative, mean_arrival_rate
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.shedding.points import Box, DropPoint
from anabranch.shedding.windrop import most

WARM_UP = 2
"""epochs ignored at the start of a run, while Spark compiles and Python processes start"""
LEAST_HEADROOM = 0.18
"""share of the latency bound that is kept free for what the model does not cover, at least"""
MOST_HEADROOM = 0.4
LATE, IN_TIME = 0.04, 0.001
"""by how much the headroom grows after an epoch that is nearly late, and shrinks after any other"""
SMOOTH = 4
"""epochs over which the rate is averaged: with a source that hands out whole seconds, the rate of one epoch jumps"""
MOST_RATE = 1e12
"""rows per second; a higher capacity counts as unlimited"""
FIXED_SHARE = 1.25
"""epochs are not made shorter than this multiple of their fixed cost: that would drop all rows and gain nothing"""
PRIOR = 0.2
"""weight of the previously fitted costs, against that of one epoch"""
SHED_COST = 0.1
"""cost of a shed row as a share of a kept one, assumed until rows have been shed"""
NEAR = 0.08
"""share of the latency bound: an epoch whose latency comes this close to the bound counts as nearly late"""
OVERRUN = 0.08
"""share of the target duration: if an epoch takes longer by more than this, the next one makes up for it"""
LOAD_SLACK = 0.04
"""hysteresis: a share p is lowered only to what a rate higher by this share would need"""
STEP = 0.05
"""hysteresis: a share p is kept if lowering it would deliver less than this share more"""
LOOK_AHEAD = 3
"""shedding starts when latency is predicted to exceed the bound within this many epochs"""
PATIENCE = 3
"""epochs before a query is shut, or opened again"""
LEAST = 0.02
"""the smallest share of kept rows from which the full number is extrapolated"""
BETTER = 0.02
"""another cut must deliver more by this share to replace the current one"""


@dataclass(frozen=True)
class Load:
    """Measured costs of epochs, in seconds, and the arrival rate."""

    rate: float
    """rows arriving per second"""
    fixed: float
    per_row: float
    per_shed: float
    interval: float
    """from the start of the last epoch to the start of the next"""
    waiting: float
    """rows held back by the source"""
    trigger: float
    headroom: float = LEAST_HEADROOM

    @property
    def costs(self) -> list[float]:
        return [self.fixed, self.per_row, self.per_shed]

    @classmethod
    def of(
        cls, history: Sequence[EpochProgress], trigger: float | None, before: Sequence[float] | None = None
    ) -> Load | None:
        """The load, or None while too little is known. `before`: the costs fitted last.

        While load and p are steady, the epochs do not distinguish the costs; `before` then keeps the earlier estimate.
        """
        known = [epoch for epoch in _representative(history)[-RECENT_EPOCHS:] if _arrived(epoch) > 0]
        if not known:
            return None
        features = np.array([[1.0, _arrived(epoch) - epoch.spared, epoch.spared] for epoch in known])
        seconds = np.array([epoch.seconds for epoch in known])
        if before is None:
            half = float(seconds.mean()) / 2
            per_row = half / float(features[:, 1].mean()) if features[:, 1].any() else 0.0
            before = (half, per_row, SHED_COST * per_row)
        fixed, per_row, per_shed = _fitted(features, seconds, before)
        arrivals = [replace(epoch, rows=round(_arrived(epoch))) for epoch in history[-SMOOTH - 1 :]]
        rate = mean_arrival_rate(arrivals)
        last = history[-1]
        return cls(rate, fixed, per_row, per_shed, last.interval, excess_backlog(last, rate), trigger or 0.0)

    def steady(self, bound: float) -> float:
        """How long an epoch may take if all epochs take equally long."""
        return bound / 2 if self.trigger <= bound / 2 else max(0.0, bound - self.trigger)

    def aim(self, bound: float) -> float:
        """The target duration of an epoch; never below the fixed cost, which no drop can save."""
        return max(self.steady((1 - self.headroom) * bound), FIXED_SHARE * self.fixed)

    def capacity(self, bound: float) -> float:
        """Rows per second that can be processed within the bound without shedding."""
        steady = self.steady(bound)
        work = self.per_row * max(self.trigger, steady)
        return max(0.0, steady - self.fixed) / work if work > 0 else math.inf

    def drowns(self, bound: float) -> bool:
        """Whether dropping everything would not be enough: a row must be read and looked up to be dropped."""
        seconds = self.aim(bound)
        return self.fixed + self.per_shed * self.rate * max(self.trigger, seconds) > seconds

    def latency_ahead(self, epochs: int, more: float = 0.0) -> float:
        """The worst latency of the next epochs if nothing is dropped, at a rate higher by the share `more`."""
        worst, interval, waiting, rate = 0.0, self.interval, self.waiting, self.rate * (1 + more)
        for _ in range(epochs):
            seconds = self.fixed + self.per_row * (rate * interval + waiting)
            worst = max(worst, interval + seconds)
            interval, waiting = max(self.trigger, seconds), 0.0
        return worst

    def to_spare(self, bound: float, more: float = 0.0) -> float:
        """The share of the work on rows that must be saved permanently, at a rate higher by the share `more`.

        A negative share means that there is room for more work.
        """
        steady = self.aim(bound)
        return self._spare(self.rate * (1 + more) * max(self.trigger, steady), steady)

    def to_spare_now(self, bound: float) -> float:
        """The same for the next epoch alone: after a long epoch, more rows than usual have arrived and waited."""
        steady, rows = self.aim(bound), self.rate * self.interval + self.waiting
        seconds = max(min(steady, (1 - NEAR) * bound - self.interval), FIXED_SHARE * self.fixed)
        return self._spare(rows, seconds) if self.interval > (1 + OVERRUN) * max(self.trigger, steady) else -math.inf

    def _spare(self, rows: float, seconds: float) -> float:
        saving = (self.per_row - self.per_shed) * rows
        if saving <= 0:
            return 0.0 if self.fixed + self.per_row * rows <= seconds else 1.0
        return (self.fixed + self.per_row * rows - seconds) / saving


@dataclass(frozen=True)
class WorkShares:
    """The share of the work on rows that each operator does: reading rows, and delivering results."""

    reading: Mapping[str, float]
    delivering: Mapping[str, float]

    @classmethod
    def of(cls, history: Sequence[EpochProgress], boxes: Sequence[Box], points: Mapping[str, DropPoint]) -> WorkShares:
        """The shares as they would be if nothing were shed."""
        reading: dict[str, float] = {}
        delivering: dict[str, float] = {}
        of = {box.name: box for box in boxes}
        for box in boxes:
            known: list[tuple[OperatorProgress, float, float]] = []
            arrived = 0.0
            for epoch in reversed(_representative(history)):
                measured = epoch.operator(box.name)
                shut = [point for drop in epoch.drops if drop.bound is None and (point := points.get(drop.point))]
                # While an operator gets no rows, its cost for all rows cannot be measured.
                if measured is None or len(known) == RECENT_EPOCHS or any(box.name in point.domain for point in shut):
                    continue
                read = delivered = 1.0
                for drop in epoch.drops:
                    point = points.get(drop.point)
                    if point is not None and box.name in point.domain:
                        read -= drop.p * _spared_rows(point, box.name, of)
                        delivered -= drop.p
                known.append((measured, max(read, LEAST), max(delivered, LEAST)))
                arrived += _arrived(epoch)
            # Per arriving row: an epoch in which one operator was shut is ignored for it, but not for the others.
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
        """The share of all work saved, per share of a point's units that is dropped; `shut`: all units are dropped."""
        of = {box.name: box for box in boxes}
        share = 0.0
        for name in point.domain:
            share += self.delivering[name] + self.reading[name] * _spared_rows(point, name, of, shut=shut)
        return share


def _spared_rows(point: DropPoint, name: str, boxes: Mapping[str, Box], *, shut: bool = False) -> float:
    """The share of an operator's rows saved by a point above it, per share of the units that is dropped."""
    if point.kind == "results":
        return 0.0
    if shut:
        return 1.0  # no kept unit needs a row
    above = [emits for origin in boxes[name].reads for emits in point.emits.get(origin, ())]
    first = name in point.at or (point.kind == "source" and set(boxes[name].reads) & set(point.at))
    spans = [point.span] if first else above
    return min((span.spared(point.bound) for span in spans), default=0.0)


def _representative(history: Sequence[EpochProgress]) -> list[EpochProgress]:
    """The epochs whose durations predict those of later ones."""
    run = [epoch for epoch in history if not epoch.replayed]
    if 2 <= len(run) <= WARM_UP + 1 and run[-1].seconds > run[-2].seconds > 0:
        # Epochs should get faster during warm-up. This one was slower: the query is overloaded already.
        return run[-1:]
    return run[WARM_UP:]


def _arrived(epoch: EpochProgress) -> float:
    return float(epoch.rows) if epoch.arrived is None else epoch.arrived


def _fitted(
    features: np.ndarray[Any, Any], seconds: np.ndarray[Any, Any], before: Sequence[float] | None = None
) -> tuple[float, float, float]:
    """Seconds per unit of each feature, none negative. Features that always vary together keep their earlier costs."""
    scale = np.maximum(np.abs(features).max(axis=0), 1e-12)
    scaled = features / scale
    if before is not None:
        # One artificial epoch for each cost, with less weight than the measured ones.
        scale = np.where(features.any(axis=0), scale, 1 / np.maximum(np.array(before), 1e-12))
        scaled = np.vstack([features / scale, PRIOR * np.eye(3)])
        seconds = np.append(seconds, PRIOR * np.array(before) * scale)
    a, b, c = fit_nonnegative(scaled, seconds)
    return a / float(scale[0]), b / float(scale[1]), c / float(scale[2])


def _seconds_of(measured: Sequence[tuple[OperatorProgress, float, float]]) -> tuple[float, float]:
    """Seconds that a mean epoch spends on reading rows and on delivering results, without the fixed part.

    Each epoch comes with the shares of the rows and of the results that it kept. The time of sinks counts for results.
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
    """The share of the bound to keep free. Of late epochs in a row only the first counts: it delayed the rest."""
    if len(history) < 2 or not (history[-1].drops and history[-2].drops):
        return max(LEAST_HEADROOM, before - IN_TIME)  # nothing was dropped, so nothing was learned
    late = [(epoch.latency or 0.0) > (1 - NEAR) * bound for epoch in history[-2:]]
    if late[-1]:
        return before if late[0] else min(MOST_HEADROOM, before + LATE)
    return max(LEAST_HEADROOM, before - IN_TIME)


@dataclass(frozen=True)
class ShedController:
    """Decides for the whole query: `p` (the share dropped at each point), `cut` (the points in use) and `shut` (the
    points where everything is dropped). The other settings are what it remembers, and what is reported about the drops.
    """

    boxes: tuple[Box, ...]
    cuts: tuple[tuple[DropPoint, ...], ...]
    max_latency: float | None
    """seconds; None: only `share` decides"""
    trigger: float | None = None
    share: float | None = None
    """a fixed share to drop, whatever the load"""
    weights: Mapping[str, float] = field(default_factory=dict)
    name: ClassVar[str] = "shed"

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.share is not None:
            return self._fixed(self.share)
        points = {point.name: point for cut in self.cuts for point in cut}
        if self.max_latency is None or not set(current.get("cut", ())) <= points.keys():
            current = {}  # decided by a run with other bounds
        load = Load.of(history, self.trigger, current.get("costs"))
        if load is None or self.max_latency is None:
            kept = (*NO_SHEDDING, "costs", "spare", "headroom")
            return {**NO_SHEDDING, **{name: current[name] for name in kept if name in current}}
        headroom = _headroom(history, self.max_latency, current.get("headroom", LEAST_HEADROOM))
        load = replace(load, headroom=headroom)
        shares = WorkShares.of(history, self.boxes, points)
        measured = {"rate": load.rate, "capacity": min(load.capacity(self.max_latency), MOST_RATE)}
        decided = self._adapted(load, shares, current)
        return {**decided, "costs": load.costs, "load": measured, "headroom": headroom}

    def overloaded(self, history: Sequence[EpochProgress]) -> str | None:
        """Why latency will exceed its bound, or None if it will not; for a query that must not shed."""
        load = Load.of(history, self.trigger)
        if load is None or self.max_latency is None:
            return None
        predicted = load.latency_ahead(LOOK_AHEAD)
        return None if predicted <= self.max_latency else _cause(load, predicted, self.max_latency)

    def _fixed(self, share: float) -> dict[str, Any]:
        cut = self.cuts[0] if self.cuts else ()
        p = {point.name: min(share, most(point.bound)) for point in cut}
        return {**NO_SHEDDING, "cut": [point.name for point in cut], "p": p, "cause": f"a fixed share of {share:g}"}

    def _adapted(self, load: Load, shares: WorkShares, current: Mapping[str, Any]) -> dict[str, Any]:
        assert self.max_latency is not None
        bound = self.max_latency
        shedding = any(current.get("p", {}).values()) or bool(current.get("shut"))
        predicted = load.latency_ahead(LOOK_AHEAD)
        if not shedding and predicted <= bound:
            return {**NO_SHEDDING, "cut": current.get("cut", [])}
        # Where the fixed part is large, the bound can hold without shedding although no p would keep the headroom.
        fits = load.latency_ahead(LOOK_AHEAD, LOAD_SLACK) <= (1 - NEAR) * bound
        calm_for = int(current.get("calm", 0)) + 1 if fits else 0
        if calm_for >= PATIENCE:
            return {**NO_SHEDDING, "cut": current.get("cut", []), "why:p": "the overload is over"}
        needed = max(load.to_spare(bound), load.to_spare_now(bound))
        calm = load.to_spare(bound, LOAD_SLACK)
        cause = _cause(load, predicted, bound)
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
            now, later, was = chosen[1][point.name], lower[1].get(point.name, 0.0), before.get(point.name, 0.0)
            low = max(now, later)
            p[point.name] = now if now >= was else was if low > 0 and was - low < STEP * (1 - was) else min(was, low)
        if not any(p.values()) and not shut:
            return {**NO_SHEDDING, "cut": current.get("cut", []), "why:p": "the overload is over"}
        decided = {
            "cut": [point.name for point in chosen[0]],
            "p": p,
            "spare": {point.name: shares.spared(point, self.boxes, shut=point.name in shut) for point in chosen[0]},
            "shut": shut,
            "unmet": unmet,
            "calm": calm_for,
            "cause": cause if not shut else f"{cause}; no drop within the gap bounds is enough",
        }
        if p != before or shut != current.get("shut", []):
            decided["why:p"] = f"{cause}: {max(needed, 0.0):.0%} of the work must be saved"
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
            bonus = BETTER if names == list(current) else 0.0
            # First saving enough, then delivering most; the cut in force wins unless another is clearly better.
            rank = (-round(short, 2), delivered + bonus)
            if best is None or rank > (best[0], best[1] + 1e-9):
                best = (*rank, cut, p)
        return ((), {}) if best is None else (best[2], best[3])

    def _filled(
        self, cut: Sequence[DropPoint], needed: float, shares: WorkShares, shut: Sequence[str]
    ) -> tuple[dict[str, float], float, float]:
        """The shares p of a cut, the work they save, and the share of all results, by weight, that is delivered."""
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
        """Epochs in a row in which no p was enough; negative: epochs in a row in which fewer shut queries would do."""
        shut, count = list(current.get("shut", ())), int(current.get("unmet", 0))
        if self._short(load.to_spare(bound), shares, shut):
            return max(count, 0) + 1
        if shut and self._opened(load.to_spare(bound, LOAD_SLACK), shares, shut) is not None:
            return min(count, 0) - 1
        return 0

    def _opened(self, needed: float, shares: WorkShares, shut: Sequence[str]) -> list[str] | None:
        """A smaller set of shut queries that would be enough: without the last point, or with a part of its queries."""
        named = {point.name: point for cut in self.cuts for point in cut}
        last = set(named[shut[-1]].domain)
        finer = [name for name, point in named.items() if set(point.domain) < last]
        options = [[*shut[:-1]], *([*shut[:-1], name] for name in finer)]
        return next((then for then in options if not self._short(needed, shares, then)), None)

    def _short(self, needed: float, shares: WorkShares, shut: Sequence[str]) -> bool:
        return self._most_spared(shares, shut) < needed - BETTER

    def _most_spared(self, shares: WorkShares, shut: Sequence[str]) -> float:
        """The largest share of the work that can be saved while these points are shut."""
        able = [cut for cut in self.cuts if set(shut) <= {point.name for point in cut}]
        return max((self._filled(cut, math.inf, shares, shut)[1] for cut in able), default=0.0)

    def shut_one(self, shares: WorkShares, shut: Sequence[str]) -> list[str]:
        """The points to shut when one more query must be shut: the costliest.

        A point shuts all queries below it. So points that shut the fewest queries come first, and among those the ones
        that save most. As a last resort a point replaces the points below it; only the queries that it shuts in
        addition then count. Points that do not increase what can be saved are left out.
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


NO_SHEDDING: dict[str, Any] = {"cut": [], "p": {}, "shut": [], "unmet": 0, "calm": 0, "cause": ""}
"""The decisions when nothing is dropped."""


def _cause(load: Load, predicted: float, bound: float) -> str:
    cause = f"{load.rate:,.0f} rows/s would take {predicted:.1f} s, the bound is {bound:g} s"
    if load.aim(bound) > load.steady(bound):
        return f"{cause}, which cannot be kept: an epoch without rows takes {load.fixed:.1f} s. Raise max_latency"
    if load.drowns(bound):
        return f"{cause}, which cannot be kept: even dropping all rows takes longer. Limit what the source hands out"
    return cause
