"""The drop plan of a query: which units each point drops in the next epoch. Made by the driver, kept in the ledger.

    history ──▶ ShedController: p per point ──▶ Shedder.plan: units, kept or dropped ──▶ ledger/N
                                                     ▲
    where the query stands: latest times, watermarks ┘

The plan of an epoch holds all decisions that somebody may still ask for (`shedding.windrop.DropState`), so the next one
follows from it alone, and after a restart it is read and not made. What rows and results it leaves out is in
`runtime.shedding.filters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.control.shed import LEAST_HEADROOM, NO_SHEDDING, PATIENCE, ShedController
from anabranch.errors import CheckpointError, InvalidArgumentError, OverloadError
from anabranch.observe.progress import EpochProgress
from anabranch.operators.numbering import SHED
from anabranch.query.graph import Network, Step
from anabranch.query.nodes import PositionsNode, WindowNode
from anabranch.query.origins import Origin, Output, Source
from anabranch.query.settings import QoS
from anabranch.runtime.driver_state import Standing
from anabranch.runtime.settings import Settings
from anabranch.runtime.shedding.columns import bucket_keys, source_name, unresolved
from anabranch.shedding.points import Box, DropPoint, Terms, cuts, drop_points
from anabranch.shedding.windrop import DropState, Tally
from anabranch.spark.columns import MICROS, TimeKind
from anabranch.windows.spans import Span

BUCKETS = 64
"""Buckets of keys that have coins of their own."""
MOST_UNITS = 20_000
"""Units that are decided ahead, over all buckets."""
AHEAD = 3
"""So many times the event time that an epoch brought last: how far ahead is decided. Rows beyond are kept."""
_NEVER = -(1 << 62)


class Shedder:
    """Decides what is dropped. None of it runs where nothing may be dropped: see `shedder_of`."""

    def __init__(self, network: Network, settings: Settings) -> None:
        qos = settings.qos
        self.network = network
        self.boxes = boxes_of(network, qos)
        self.points = tuple(_resolved(network, point) for point in drop_points(self.boxes))
        self.named = {point.name: point for point in self.points}
        self.cuts = _cuts(self.points, qos)
        self.keys = {
            point.name: bucket_keys(network, point) for point in self.points if point.emits and not point.counted
        }
        self.halts = qos.overflow == "halt"
        self.seed = qos.seed
        self._latency = qos.latency_seconds
        weights = {step.name: step.weight for step in network.steps}
        trigger = settings.trigger_seconds
        self.controller = ShedController(self.boxes, self.cuts, qos.latency_seconds, trigger, qos.drop_share, weights)

    def buckets(self, point: DropPoint) -> int:
        """Coins per batch: one, where batches are over before latency could suffer, or where no tuple is spared."""
        short = (self._latency or 8.0) / 8
        if not self.keys[point.name] or point.bound * point.span.slide / 1e6 < short:
            return 1
        if point.kind != "results" and point.span.spared(point.bound) <= 0:
            return 1
        return max(1, min(BUCKETS, MOST_UNITS // self._open_units(point)))

    def _open_units(self, point: DropPoint) -> int:
        """About how many units are undecided at a time: those that rows may come for before the watermark is there."""
        inputs = [each for step in self._readers(point) for each in step.node.inputs]
        delay = max(each.part.origin.delay for each in inputs)
        return (point.span.size + delay) // point.span.slide + 2 * point.bound + 1

    def plan(self, standing: Standing, history: Sequence[EpochProgress], before: Mapping[str, Any]) -> dict[str, Any]:
        """The drop plan of the next epoch; `before` is that of the last one."""
        fault = self.fault(before)
        if fault is not None:
            raise CheckpointError(
                f"{fault}: rows of windows that are still open are gone, and those windows would be delivered wrong",
                hint="start the query as it was until these windows are over, or with a new checkpoint",
            )
        late = self._late(history, before) if self.halts else 0
        decided = {} if self.halts else self.controller.decide(history, before.get("decisions", {}))
        decisions = {**NO_SHEDDING, **decided}
        latest = max((t for t in standing.latest if t is not None), default=None)
        reached = before.get("latest")
        advance = 0 if latest is None or reached is None else latest - reached
        advance = max(advance, int(0.7 * before.get("advance", 0)))
        states: dict[str, DropState] = {}
        entries: dict[str, Any] = {}
        in_force = set(decisions["cut"])
        # Points that are no longer used first: the others begin only after what these have dropped.
        for point in sorted(self.points, key=lambda each: each.name in in_force):
            known = before.get("points", {}).get(point.name)
            p = decisions["p"].get(point.name, 0.0) if point.name in in_force else 0.0
            if known is None and (p == 0 or point.refused is not None):
                continue
            bound = None if point.name in decisions["shut"] else point.bound
            cause = decisions["cause"] if p else "what was dropped before"
            entry = {"p": p, "bound": bound, "cause": cause, "units": self._units_of(point)}
            if point.counted:
                # Keys that are in the middle of a dropped window go on to drop its rows, and these are counted.
                entries[point.name] = entry
                continue
            state = self._decided(point, standing, known, states, p, bound, advance)
            if state is None or (state.empty and p == 0):
                continue
            states[point.name] = state
            entries[point.name] = {**entry, **_as_json(state)}
        told = {"late": late} if self.halts else {}
        return {"decisions": decisions, "latest": latest, "advance": advance, "points": entries, **told}

    def fault(self, plan: Mapping[str, Any]) -> str | None:
        """Why a drop plan cannot be carried out, or a later one cannot follow from it; None: they can."""
        for name, entry in plan.get("points", {}).items():
            point = self.named.get(name)
            if point is None:
                return f"windows are dropped at {name!r}, which is not a drop point of this query"
            if not point.emits:
                return f"windows are dropped at {name}, and cannot be: {point.refused}"
            if entry["units"] != self._units_of(point):
                return f"windows are dropped at {name} while the query had other outputs, or made its keys otherwise"
            if not 0 <= entry["p"] <= 1 or (entry["bound"] is not None and entry["bound"] < 0):
                return f"at {name} a share p of {entry['p']!r} is to be dropped, in gaps of up to {entry['bound']!r}"
            if point.counted:
                continue
            state = state_of(entry)
            if len(state.dropped) != state.buckets or (state.buckets > 1 and not self.keys[name]):
                return f"the units dropped at {name} are of {len(state.dropped)} buckets of keys"
        return None

    def counted(self, step: Step, plan: Mapping[str, Any]) -> dict[str, Any]:
        """The decision about the count windows that an operator counts the rows for; `plan` is that of the epoch."""
        for name, entry in plan.get("points", {}).items():
            point = self.named[name]
            if point.counted and step.name in self.counting(point):
                # The operator counts windows, not units.
                gap = None if entry["bound"] is None else self._gap(point)
                return {SHED: {"p": entry["p"], "bound": gap, "seed": self._seed(point)}}
        return {}

    def counting(self, point: DropPoint) -> list[str]:
        """The operators that count the rows for a point."""
        return [
            self.network.name_of(each.part.origin.node)
            for step in self.network.steps
            if step.name in point.at
            for each in step.node.inputs
            if isinstance(each.part.origin, Output)
        ]

    def _gap(self, point: DropPoint) -> int:
        return min(box.terms.max_gap for box in self.boxes if box.name in point.at and box.terms is not None)

    def _late(self, history: Sequence[EpochProgress], before: Mapping[str, Any]) -> int:
        """For a query that must not shed: how many epochs in a row were too much; an error if it drowns."""
        told = self.controller.overloaded(history)
        late = 0 if told is None else int(before.get("late", 0)) + 1
        if told is not None and late >= PATIENCE:
            raise OverloadError(
                f"{told}, {late} epochs in a row. Results would come later and later",
                hint="give it more cores or a higher max_latency; or let it drop whole windows: QoS(max_gap=...)",
            )
        return late

    def _decided(
        self,
        point: DropPoint,
        standing: Standing,
        known: Mapping[str, Any] | None,
        others: Mapping[str, DropState],
        p: float,
        bound: int | None,
        advance: int,
    ) -> DropState | None:
        seen = self._seen(point, standing)
        if seen is None:
            return None
        span, after = point.span, self._after(point, others)
        opens = max(self._opens(point, standing), after)
        unseen = opens if point.kind == "results" else span.first_after(seen)
        if known is not None and point.refused is not None:
            # Of an earlier run, and how far the rows have come here is not known: what was dropped stays dropped.
            unseen = max([unseen, *(last + 1 for ranges in known["dropped"] for _, last in ranges)])
        opens = unseen if opens == _NEVER else opens
        state = DropState.new(opens, self.buckets(point)) if known is None else state_of(known)
        if known is None or after > state.unit:
            # How many are missing before, nobody knows, or another point has dropped them: the first one opens.
            state = replace(state, unit=opens, tallies=(Tally(run=point.bound),) * state.buckets)
        ahead = max(AHEAD * advance, (point.bound + 1) * span.slide, span.size)
        unseen = max(unseen, opens)
        # The watermark may be years behind a row of another source: what is decided begins with it, and ends somewhere.
        most_units = self._open_units(point) + MOST_UNITS // state.buckets
        through = min(span.first_after(seen + ahead), opens + most_units)
        needed = self._needed(point, standing)
        return state.decided(
            opens=opens, unseen=unseen, through=through, p=p, bound=bound, seed=self._seed(point), needed=needed
        )

    def _units_of(self, point: DropPoint) -> list[Any]:
        """What units and buckets mean: decisions are of no use to a query in which they mean something else."""
        spans = [point.span, *(span for name in point.domain for span in point.emits[name])]
        return [list(self.keys.get(point.name, ())), *([s.slide, s.origin, s.lo, s.hi] for s in spans)]

    def _seed(self, point: DropPoint) -> int:
        return self.seed * 1_000_003 + self.points.index(point)

    def _seen(self, point: DropPoint, standing: Standing) -> int | None:
        """The latest time of the rows that came to a point."""
        times: list[int | None] = []
        for step in self._readers(point):
            for each in step.node.inputs:
                origin = each.part.origin
                if isinstance(origin, Source):
                    times.append(standing.latest[self.network.index_of(origin)])
                else:
                    reached = standing.operators[self.network.name_of(origin.node)].watermark
                    times.append(None if reached is None else reached - 1)
        return max((t for t in times if t is not None), default=None)

    def _readers(self, point: DropPoint) -> list[Step]:
        """The operators right below a point."""
        if point.kind != "source":
            return [step for step in self.network.steps if step.name in point.at]
        return [
            step
            for step in self.network.steps
            if any(
                isinstance(each.part.origin, Source) and source_name(self.network, each.part.origin) in point.at
                for each in step.node.inputs
            )
        ]

    def _opens(self, point: DropPoint, standing: Standing) -> int:
        """The first unit of which no result has left."""
        units = [_NEVER]
        for name, span in _spans(point, point.outputs):
            reached = standing.operators[name].watermark
            if reached is not None:
                units.append(-((span.origin + span.lo - reached) // span.slide))
        return max(units)

    def _needed(self, point: DropPoint, standing: Standing) -> int:
        """The first unit that somebody may still ask for."""
        units = []
        for name, span in _spans(point, point.domain):
            state = standing.operators[name]
            node = next(step.node for step in self.network.steps if step.name == name)
            if state.watermark is None or not isinstance(node, WindowNode):
                return _NEVER
            # Complete windows may wait for the others of their batch (paper 1).
            hold = int(state.decisions.get("batch", 1)) * max(window.slide for window in node.query.panes.windows)
            units.append((state.watermark - hold - span.origin - span.hi) // span.slide)
        return min(units, default=_NEVER)

    def _after(self, point: DropPoint, others: Mapping[str, DropState]) -> int:
        """The first unit after all that other points have dropped of the same outputs: no gap may join another."""
        first = _NEVER
        for name, state in others.items():
            other = self.named[name]
            for output in set(point.outputs) & set(other.outputs):
                for mine, theirs in zip(point.emits[output], other.emits[output], strict=True):
                    ends = [gap[1] for ranges in state.dropped for each in ranges if (gap := theirs.gap(*each))]
                    if ends:
                        first = max(first, -((mine.origin + mine.lo - max(ends)) // mine.slide))
        return first


def shedder_of(network: Network, settings: Settings) -> Shedder | None:
    """Who decides what is dropped; None where nothing ever is."""
    qos = settings.qos
    gaps = [qos.max_gap, *(step.max_gap for step in network.steps)]
    if qos.overflow != "halt" and not any(gaps):
        return None
    trigger = settings.trigger_seconds
    if qos.drop_share is None and qos.latency_seconds is None:
        raise InvalidArgumentError(
            "max_gap without max_latency: nobody could tell when to drop", hint="give QoS(max_latency=..., max_gap=...)"
        )
    bound = qos.latency_seconds
    if bound is not None and trigger is not None and trigger >= (1 - LEAST_HEADROOM) * bound:
        raise InvalidArgumentError(
            f"results within {qos.max_latency}, but an epoch begins only every {settings.trigger}: rows would wait "
            "nearly as long or longer, and dropping helps nothing",
            hint="give a shorter trigger, or a higher max_latency",
        )
    shedder = Shedder(network, settings)
    if not shedder.cuts and not shedder.halts:
        reasons = "; ".join(point.describe() for point in shedder.points)
        raise InvalidArgumentError(
            f"there is no place to drop windows at with drop_at={qos.drop_at!r}: {reasons}",
            hint=f"{_remains(shedder.points)}; see docs/shedding.md for what can be dropped",
        )
    return shedder


def _remains(points: Sequence[DropPoint]) -> str:
    """What a user can do where no point can be used."""
    others = "a higher max_gap, or overflow='halt'"
    results = any(point.kind == "results" and point.refused is None for point in points)
    return f"drop_at='results', which spares only what follows the aggregates; {others}" if results else others


def boxes_of(network: Network, qos: QoS) -> tuple[Box, ...]:
    """The network as `shedding.points` sees it."""
    boxes = []
    for step in network.steps:
        node = step.node
        if isinstance(node, PositionsNode):
            continue  # with the count windows that follow, and nothing else does, it is one box
        reads = tuple(dict.fromkeys(name for each in node.inputs for name in _origins(network, each.part.origin)))
        windows = node.query.panes.windows if isinstance(node, WindowNode) and _exactly_timed(node) else ()
        gap = step.max_gap if step.max_gap is not None else qos.max_gap or 0
        counted = isinstance(node, WindowNode) and node.query.counts_rows
        terms = Terms(gap, step.weight) if step.sinks else None
        boxes.append(Box(step.name, windows, reads, terms, counted))
    return tuple(boxes)


def _origins(network: Network, origin: Origin) -> list[str]:
    """What a box reads: sources and other boxes."""
    if isinstance(origin, Source):
        return [source_name(network, origin)]
    if isinstance(origin.node, PositionsNode):
        return [name for each in origin.node.inputs for name in _origins(network, each.part.origin)]
    return [network.name_of(origin.node)]


def _exactly_timed(node: WindowNode) -> bool:
    """Whether results have the last microsecond of their window as their time, or one that no window tells from it."""
    panes = node.query.panes
    if node.query.time.kind is not TimeKind.SECONDS or node.query.counts_rows:
        return True
    return panes.size % MICROS == 0 and panes.origin % MICROS == 0


def _cuts(points: Sequence[DropPoint], qos: QoS) -> tuple[tuple[DropPoint, ...], ...]:
    """The ways to put points together that the user allows."""
    usable = [point for point in points if point.refused is None]
    if qos.drop_at == "auto":
        return cuts(usable)
    if qos.drop_at == "operators":
        # Right before each aggregate that is delivered and that no other follows: the point with the fewest below it.
        early = [point for point in usable if point.kind != "results"]
        lasts = [point.at[0] for point in usable if point.kind == "results" or point.counted]
        found = [[p for p in early if p.outputs == (last,)] for last in lasts]
        chosen = [min(points, key=lambda p: len(p.domain)) for points in found if points]
    else:
        chosen = [point for point in usable if point.kind == qos.drop_at]
    return (tuple(chosen),) if chosen else ()


def _resolved(network: Network, point: DropPoint) -> DropPoint:
    """The point; refused, if Spark could not drop rows there."""
    fault = unresolved(network, point) if point.refused is None and not point.counted else None
    return point if fault is None else replace(point, refused=f"Spark cannot find what it needs: {fault}")


def _spans(point: DropPoint, boxes: Iterable[str]) -> list[tuple[str, Span]]:
    return [(name, span) for name in boxes for span in point.emits[name]]


def _as_json(state: DropState) -> dict[str, Any]:
    return {
        "unit": state.unit,
        "tallies": [[tally.run, tally.debt] for tally in state.tallies],
        "dropped": [[list(each) for each in ranges] for ranges in state.dropped],
    }


def state_of(known: Mapping[str, Any]) -> DropState:
    return DropState(
        known["unit"],
        tuple(Tally(run, debt) for run, debt in known["tallies"]),
        tuple(tuple((first, last) for first, last in ranges) for ranges in known["dropped"]),
        known["p"],
    )
