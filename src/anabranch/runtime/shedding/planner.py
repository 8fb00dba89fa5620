"""The drop plan of a query: which units each point drops in the next epoch. Made by the driver, kept in the ledger.

    history ──▶ controller: p per point ──▶ DropPlanner.plan: units, kept or dropped ──▶ ledger/N
                                                   ▲
    driver state: latest times, watermarks ────────┘

The plan of an epoch (`store.records.DropPlan`) holds all drops that are still needed, so the next plan follows from it
alone. After a restart it is read and not made again. `runtime.shedding.filters` drops the rows and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.control.shed import LEAST_HEADROOM, NO_SHEDDING, PATIENCE, ShedController
from anabranch.errors import CheckpointError, InvalidArgumentError, OverloadError
from anabranch.observe.progress import EpochProgress
from anabranch.operators.numbering import SHED, WindowDrops
from anabranch.query.graph import Network, Step
from anabranch.query.origins import Origin, Output, Source
from anabranch.query.settings import QoS
from anabranch.query.windowed import Query
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.driver.state import DriverState
from anabranch.runtime.shedding.columns import bucket_keys, source_name, unresolved
from anabranch.shedding.points import Box, DropPoint, Terms, cuts, drop_points
from anabranch.shedding.windrop import KEY_BUCKETS, DropState, Tally
from anabranch.spark.columns import TimeKind
from anabranch.store.records import DropPlan, PointDrops
from anabranch.windows.durations import MICROS
from anabranch.windows.spans import Span

MOST_UNITS = 20_000
"""How many units are decided ahead at most, over all buckets."""
AHEAD = 3
"""How far ahead is decided, in multiples of the event time of the last epoch. Rows beyond that are kept."""
_BEFORE_ALL_UNITS = -(1 << 62)


class DropPlanner:
    """Decides what is dropped. A query that may drop nothing has no planner: see `planner_of`."""

    def __init__(self, network: Network, settings: Settings) -> None:
        qos = settings.qos
        self.network = network
        self.boxes = boxes_of(network, qos)
        self.points = tuple(_resolved(network, point) for point in drop_points(self.boxes))
        self.named = {point.name: point for point in self.points}
        self.cuts = _cuts(self.points, qos)
        self.keys = {
            point.name: bucket_keys(network, point) for point in self.points if point.emits and not point.counts_rows
        }
        self.halts = qos.overflow == "halt"
        self.seed = qos.seed
        self._latency = qos.latency_seconds
        weights = {step.name: step.weight for step in network.steps}
        trigger = settings.trigger_seconds
        self.controller = ShedController(self.boxes, self.cuts, qos.latency_seconds, trigger, qos.drop_share, weights)

    def buckets(self, point: DropPoint) -> int:
        """Coins per batch. One is enough if batches are too short to affect latency, or if no tuple can be dropped."""
        short = (self._latency or 8.0) / 8
        if not self.keys[point.name] or point.bound * point.span.slide / 1e6 < short:
            return 1
        if point.kind != "results" and point.span.spared(point.bound) <= 0:
            return 1
        return max(1, min(KEY_BUCKETS, MOST_UNITS // self._open_units(point)))

    def _open_units(self, point: DropPoint) -> int:
        """About how many units are open at a time: the watermark has not passed them, so rows may still come."""
        inputs = [input_ for step in self._readers(point) for input_ in step.node.inputs]
        delay = max(input_.branch.origin.delay for input_ in inputs)
        return (point.span.size + delay) // point.span.slide + 2 * point.bound + 1

    def plan(self, state: DriverState, history: Sequence[EpochProgress], before: DropPlan) -> DropPlan:
        """The drop plan of the next epoch; `before` is the plan of the last one."""
        fault = self.fault(before)
        if fault is not None:
            raise CheckpointError(
                f"{fault}: open windows have lost rows, and their results would be wrong",
                hint="run the query as it was until these windows have ended, or use a new checkpoint",
            )
        late = self._late(history, before) if self.halts else 0
        decided = {} if self.halts else self.controller.decide(history, before.decisions)
        decisions = {**NO_SHEDDING, **decided}
        latest = max((t for t in state.latest if t is not None), default=None)
        advance = 0 if latest is None or before.latest is None else latest - before.latest
        advance = max(advance, int(0.7 * before.advance))
        states: dict[str, DropState] = {}
        points: dict[str, PointDrops] = {}
        in_force = set(decisions["cut"])
        # First the points that are no longer used: the others start only after the units that these have dropped.
        for point in sorted(self.points, key=lambda p: p.name in in_force):
            known = before.points.get(point.name)
            p = decisions["p"].get(point.name, 0.0) if point.name in in_force else 0.0
            if known is None and (p == 0 or point.refused is not None):
                continue
            bound = None if point.name in decisions["shut"] else point.bound
            cause = decisions["cause"] if p else "dropped earlier"
            drops = PointDrops(p, bound, cause, self._units_of(point))
            if point.counts_rows:
                # A key in the middle of a dropped window still drops its rows, and these are counted.
                points[point.name] = drops
                continue
            units = self._decided(point, state, None if known is None else known.state, states, p, bound, advance)
            if units is None or (units.empty and p == 0):
                continue
            states[point.name] = units
            points[point.name] = replace(drops, state=units)
        return DropPlan(decisions, latest, advance, points, late if self.halts else None)

    def fault(self, plan: DropPlan) -> str | None:
        """Why a drop plan cannot be carried out, or the next plan cannot follow from it; None: it can."""
        for name, entry in plan.points.items():
            point = self.named.get(name)
            if point is None:
                return f"the plan drops windows at {name!r}, which is not a drop point of this query"
            if not point.emits:
                return f"the plan drops windows at {name}, where this is not possible: {point.refused}"
            if list(entry.units) != self._units_of(point):
                return f"the plan drops windows at {name} for a query with other outputs or other keys"
            if not 0 <= entry.p <= 1 or (entry.bound is not None and entry.bound < 0):
                return f"the plan drops a share p of {entry.p!r} at {name}, in gaps of up to {entry.bound!r}"
            if point.counts_rows:
                continue
            state = entry.state
            if state is None:
                return f"the plan drops windows at {name}, but does not say which"
            if len(state.dropped) != state.buckets or (state.buckets > 1 and not self.keys[name]):
                return f"the plan has {len(state.dropped)} buckets of keys at {name}, which do not fit the query"
        return None

    def drop_setting(self, step: Step, plan: DropPlan) -> dict[str, Any]:
        """The drop setting of an operator that numbers rows for count windows; `plan` is the epoch's plan."""
        for name, entry in plan.points.items():
            point = self.named[name]
            if point.counts_rows and step.name in self.numbering_operators(point):
                # The operator counts windows, not units.
                gap = None if entry.bound is None else self._gap(point)
                return {SHED: WindowDrops(entry.p, gap, self._seed(point)).to_json()}
        return {}

    def numbering_operators(self, point: DropPoint) -> list[str]:
        """The operators that number the rows for a point."""
        return [
            self.network.name_of(input_.branch.origin.node)
            for step in self.network.steps
            if step.name in point.at
            for input_ in step.node.inputs
            if isinstance(input_.branch.origin, Output)
        ]

    def _gap(self, point: DropPoint) -> int:
        return min(box.terms.max_gap for box in self.boxes if box.name in point.at and box.terms is not None)

    def _late(self, history: Sequence[EpochProgress], before: DropPlan) -> int:
        """For a query that must not shed: how many epochs in a row were overloaded. Too many are an error."""
        overload = self.controller.overloaded(history)
        late = 0 if overload is None else (before.late or 0) + 1
        if overload is not None and late >= PATIENCE:
            raise OverloadError(
                f"{overload}, {late} epochs in a row: results would come later and later",
                hint="use more cores or a higher max_latency, or let the query drop whole windows: QoS(max_gap=...)",
            )
        return late

    def _decided(
        self,
        point: DropPoint,
        driver: DriverState,
        known: DropState | None,
        others: Mapping[str, DropState],
        p: float,
        bound: int | None,
        advance: int,
    ) -> DropState | None:
        latest = self._latest_time(point, driver)
        if latest is None:
            return None
        span, after = point.span, self._after(point, others)
        opens = max(self._opens(point, driver), after)
        first_unseen = opens if point.kind == "results" else span.first_after(latest)
        if known is not None and point.refused is not None:
            # The drops are from an earlier run, and how far the rows have come is unknown: they all stay dropped.
            first_unseen = max([first_unseen, *(last + 1 for ranges in known.dropped for _, last in ranges)])
        opens = first_unseen if opens == _BEFORE_ALL_UNITS else opens
        state = DropState.new(opens, self.buckets(point)) if known is None else known
        if known is None or after > state.unit:
            # How many units before are missing is unknown, or another point has dropped them: so keep the first one.
            state = replace(state, unit=opens, tallies=(Tally(run=point.bound),) * state.buckets)
        ahead = max(AHEAD * advance, (point.bound + 1) * span.slide, span.size)
        first_unseen = max(first_unseen, opens)
        # The watermark may be years behind a row of another source, so limit the units decided from the watermark on.
        most_units = self._open_units(point) + MOST_UNITS // state.buckets
        through = min(span.first_after(latest + ahead), opens + most_units)
        needed = self._needed(point, driver)
        return state.decided(
            opens=opens, unseen=first_unseen, through=through, p=p, bound=bound, seed=self._seed(point), needed=needed
        )

    def _units_of(self, point: DropPoint) -> list[Any]:
        """What units and buckets mean at a point. A decision holds only for a query in which they mean the same."""
        spans = [point.span, *(span for name in point.domain for span in point.emits[name])]
        return [list(self.keys.get(point.name, ())), *([s.slide, s.origin, s.lo, s.hi] for s in spans)]

    def _seed(self, point: DropPoint) -> int:
        return self.seed * 1_000_003 + self.points.index(point)

    def _latest_time(self, point: DropPoint, driver: DriverState) -> int | None:
        """The latest time of the rows that have reached a point."""
        times: list[int | None] = []
        for step in self._readers(point):
            for input_ in step.node.inputs:
                origin = input_.branch.origin
                if isinstance(origin, Source):
                    times.append(driver.latest[self.network.index_of(origin)])
                else:
                    reached = driver.operators[self.network.name_of(origin.node)].watermark
                    times.append(None if reached is None else reached - 1)
        return max((t for t in times if t is not None), default=None)

    def _readers(self, point: DropPoint) -> list[Step]:
        """The operators directly below a point."""
        if point.kind != "source":
            return [step for step in self.network.steps if step.name in point.at]
        return [
            step
            for step in self.network.steps
            if any(
                isinstance(input_.branch.origin, Source) and source_name(self.network, input_.branch.origin) in point.at
                for input_ in step.node.inputs
            )
        ]

    def _opens(self, point: DropPoint, driver: DriverState) -> int:
        """The first unit from which no result has been delivered."""
        units = [_BEFORE_ALL_UNITS]
        for name, span in _spans(point, point.outputs):
            reached = driver.operators[name].watermark
            if reached is not None:
                units.append(-((span.origin + span.lo - reached) // span.slide))
        return max(units)

    def _needed(self, point: DropPoint, driver: DriverState) -> int:
        """The first unit that may still be looked up."""
        units = []
        for name, span in _spans(point, point.domain):
            state = driver.operators[name]
            query = next(step.node.aggregate for step in self.network.steps if step.name == name)
            if state.watermark is None or query is None:
                return _BEFORE_ALL_UNITS
            # Complete windows may wait for the others of their batch.
            hold = int(state.settings.get("batch", 1)) * max(window.slide for window in query.panes.windows)
            units.append((state.watermark - hold - span.origin - span.hi) // span.slide)
        return min(units, default=_BEFORE_ALL_UNITS)

    def _after(self, point: DropPoint, others: Mapping[str, DropState]) -> int:
        """The first unit after everything that other points dropped for the same outputs, so that gaps do not join."""
        first = _BEFORE_ALL_UNITS
        for name, state in others.items():
            other = self.named[name]
            for output in set(point.outputs) & set(other.outputs):
                for mine, theirs in zip(point.emits[output], other.emits[output], strict=True):
                    ends = [gap[1] for ranges in state.dropped for each in ranges if (gap := theirs.gap(*each))]
                    if ends:
                        first = max(first, -((mine.origin + mine.lo - max(ends)) // mine.slide))
        return first


def planner_of(network: Network, settings: Settings) -> DropPlanner | None:
    """The planner of a query; None if it never drops anything."""
    qos = settings.qos
    gaps = [qos.max_gap, *(step.max_gap for step in network.steps)]
    if qos.overflow != "halt" and not any(gaps):
        return None
    trigger = settings.trigger_seconds
    if qos.drop_share is None and qos.latency_seconds is None:
        raise InvalidArgumentError(
            "max_gap needs max_latency, which says when to drop", hint="give QoS(max_latency=..., max_gap=...)"
        )
    bound = qos.latency_seconds
    if bound is not None and trigger is not None and trigger >= (1 - LEAST_HEADROOM) * bound:
        raise InvalidArgumentError(
            f"max_latency is {qos.max_latency}, but an epoch starts only every {settings.trigger}: rows would wait "
            "about that long or longer, and dropping would not help",
            hint="give a shorter trigger, or a higher max_latency",
        )
    planner = DropPlanner(network, settings)
    if not planner.cuts and not planner.halts:
        reasons = "; ".join(point.describe() for point in planner.points)
        raise InvalidArgumentError(
            f"with drop_at={qos.drop_at!r} there is no place where windows can be dropped: {reasons}",
            hint=f"use {_alternatives(planner.points)}; see docs/shedding.md for what can be dropped",
        )
    return planner


def _alternatives(points: Sequence[DropPoint]) -> str:
    """What a user can do if no point can be used."""
    others = "a higher max_gap, or overflow='halt'"
    results = any(point.kind == "results" and point.refused is None for point in points)
    return f"drop_at='results', which saves only the work after the aggregates; {others}" if results else others


def boxes_of(network: Network, qos: QoS) -> tuple[Box, ...]:
    """The network as `shedding.points` sees it."""
    boxes = []
    for step in network.steps:
        node = step.node
        if node.numbers_rows:
            continue  # it belongs to the box of the count windows, which are its only reader
        reads = tuple(dict.fromkeys(name for input_ in node.inputs for name in _origins(network, input_.branch.origin)))
        query = node.aggregate
        windows = query.panes.windows if query is not None and _exactly_timed(query) else ()
        gap = step.max_gap if step.max_gap is not None else qos.max_gap or 0
        counts_rows = query is not None and query.counts_rows
        terms = Terms(gap, step.weight) if step.sinks else None
        boxes.append(Box(step.name, windows, reads, terms, counts_rows))
    return tuple(boxes)


def _origins(network: Network, origin: Origin) -> list[str]:
    """What a box reads: sources and other boxes."""
    if isinstance(origin, Source):
        return [source_name(network, origin)]
    if origin.node.numbers_rows:
        return [name for input_ in origin.node.inputs for name in _origins(network, input_.branch.origin)]
    return [network.name_of(origin.node)]


def _exactly_timed(query: Query) -> bool:
    """Whether a result's time is the last microsecond of its window, or falls into the same windows as that."""
    panes = query.panes
    if query.time.kind is not TimeKind.SECONDS or query.counts_rows:
        return True
    return panes.size % MICROS == 0 and panes.origin % MICROS == 0


def _cuts(points: Sequence[DropPoint], qos: QoS) -> tuple[tuple[DropPoint, ...], ...]:
    """The combinations of points that the user allows."""
    usable = [point for point in points if point.refused is None]
    if qos.drop_at == "auto":
        return cuts(usable)
    if qos.drop_at == "operators":
        # Directly before each delivered aggregate that no other follows: the point with the fewest operators below it.
        early = [point for point in usable if point.kind != "results"]
        lasts = [point.at[0] for point in usable if point.kind == "results" or point.counts_rows]
        found = [[p for p in early if p.outputs == (last,)] for last in lasts]
        chosen = [min(points, key=lambda p: len(p.domain)) for points in found if points]
    else:
        chosen = [point for point in usable if point.kind == qos.drop_at]
    return (tuple(chosen),) if chosen else ()


def _resolved(network: Network, point: DropPoint) -> DropPoint:
    """The point; marked as refused if Spark could not drop rows there."""
    fault = unresolved(network, point) if point.refused is None and not point.counts_rows else None
    return point if fault is None else replace(point, refused=f"Spark cannot resolve its columns: {fault}")


def _spans(point: DropPoint, boxes: Iterable[str]) -> list[tuple[str, Span]]:
    return [(name, span) for name in boxes for span in point.emits[name]]
