"""Where windows can be dropped: the drop points of a query network, what each may drop, and how much.

A drop *point* is a place where tuples are dropped before any work is done on them:

    source      before everything that reads it: one decision for all readers
    operator    before one windowed aggregate (and so before everything that follows it)
    results     after a windowed aggregate: its work is done, and only what follows is spared. Kept for comparison

Everything below a point shares its decisions. They are made for *units* (`windows.spans`), and a unit is kept or
dropped as a whole. The span of a point says which tuples no kept unit needs. The spans of the operators below say which
results may leave: the complete ones that belong to a kept unit, and no others.

Operators of other kinds (a user's, a join) are a barrier. There is no point above them: it is not known which rows they
need for an exact answer. There is none right below them either: what they emit may be ahead of their watermark, so a
dropped window could open again without the rows it lost. An aggregate below them can still drop its results, and
aggregates over those results can drop as usual. Count windows can be dropped only after rows have been counted: before
that, dropping a row would change the position of all rows after it. Independent of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from anabranch.windows import Window
from anabranch.windows.spans import Span, fan_out, pipeline, results_of, scaled

Kind = Literal["source", "operator", "results"]
MOST_POINTS = 10
"""With more points than this, only simple combinations are tried."""


@dataclass(frozen=True)
class Terms:
    """What the user allows for one output: how many windows in a row may be missing, and its weight."""

    max_gap: int
    weight: float = 1.0


@dataclass(frozen=True)
class Box:
    """An operator as shedding sees it. Without windows it is opaque."""

    name: str
    windows: tuple[Window, ...]
    reads: tuple[str, ...]
    """sources and boxes"""
    terms: Terms | None = None
    """for its results, if they are delivered; None if only other boxes read them"""
    counts_rows: bool = False
    """whether its windows count rows: units are made of rows, and each key has its own"""


@dataclass(frozen=True, eq=False)
class DropPoint:
    """A place to drop; `span` gives its WinDrop(size, slide)."""

    name: str
    kind: Kind
    at: tuple[str, ...]
    """the sources, or the operator"""
    span: Span
    """what a unit needs from the stream there"""
    bound: int
    """B, in units; 0: the outputs' max_gap allows no drop here"""
    domain: tuple[str, ...]
    """the boxes below, in the order of the network"""
    outputs: tuple[str, ...]
    """those of them whose results are delivered"""
    emits: Mapping[str, tuple[Span, ...]]
    """by box and window: the results, by their time, that belong to a unit"""
    span_without_slides: Span
    """the bound of `span` that does not use the slides"""
    refused: str | None = None
    """why nothing new is dropped here; what an earlier run dropped stays dropped if `emits` says what that is"""
    counts_rows: bool = False
    """whether units are made of rows: decided where rows are counted, separately for each key"""

    def describe(self) -> str:
        if self.refused is not None:
            return f"{self.name}: not here, {self.refused}"
        return f"{self.name}: WinDrop({self.span.size}, {self.span.slide}), B = {self.bound}"


def drop_points(boxes: Sequence[Box], *, tight: bool = True) -> tuple[DropPoint, ...]:
    """All points of a network, earliest first; points where nothing may be dropped say why. Boxes are in order."""
    return _Points(boxes, tight).all()


def cuts(points: Sequence[DropPoint]) -> tuple[tuple[DropPoint, ...], ...]:
    """The maximal combinations of points in which no operator is below two of them.

    Those that drop earlier come first.
    """
    usable = [p for p in points if p.refused is None and p.kind != "results"]
    if len(usable) > MOST_POINTS:
        first = [p for p in usable if p.kind == "source"]
        last = [p for p in usable if p.kind == "operator" and p.outputs == p.domain]
        return tuple({tuple(_disjoint(each)): None for each in (first + last, last + first)})
    found: list[tuple[DropPoint, ...]] = []
    for count in range(len(usable), 0, -1):
        for chosen in combinations(usable, count):
            if len(_disjoint(chosen)) == count and not any(set(chosen) <= set(each) for each in found):
                found.append(chosen)
    return tuple(sorted(found, key=lambda cut: (-sum(len(point.domain) for point in cut), len(cut))))


def _disjoint(points: Iterable[DropPoint]) -> list[DropPoint]:
    taken: set[str] = set()
    chosen = []
    for point in points:
        if not taken & set(point.domain):
            chosen.append(point)
            taken |= set(point.domain)
    return chosen


class _Points:
    def __init__(self, boxes: Sequence[Box], tight: bool) -> None:
        wanted: set[str] = set()
        for box in reversed(boxes):
            if box.terms is not None or box.name in wanted or not box.windows:
                wanted |= {box.name, *box.reads}
        boxes = [box for box in boxes if box.name in wanted]  # results of the others are neither delivered nor read
        self.boxes = {box.name: box for box in boxes}
        self.tight = tight
        self.readers: dict[str, list[Box]] = {}
        for box in boxes:
            for origin in dict.fromkeys(box.reads):
                self.readers.setdefault(origin, []).append(box)

    def all(self) -> tuple[DropPoint, ...]:
        sources = [origin for origin in self.readers if origin not in self.boxes]
        points = [self._point("source", together) for together in self._components(sources)]
        same = {point.domain for point in points if len(self._read(point.at)) == 1 and point.refused is None}
        for name, box in self.boxes.items():
            point = self._point("operator", (name,))
            # A point before the only reader of a source is the point of the source.
            if box.windows and not (point.domain in same and set(box.reads) <= set(sources)):
                points.append(point)
        points += [
            self._point("results", (name,))
            for name, box in self.boxes.items()
            if box.windows and box.terms is not None and name not in self.readers and not box.counts_rows
        ]
        return tuple(points)

    def _read(self, origins: Sequence[str]) -> list[Box]:
        return list(dict.fromkeys(box for origin in origins for box in self.readers.get(origin, ())))

    def _components(self, sources: Sequence[str]) -> list[tuple[str, ...]]:
        """Sources whose rows meet share their decisions."""
        groups: list[tuple[set[str], set[str]]] = []
        for source in sources:
            names, below = {source}, set(self._below(self._read([source])))
            apart = []
            for other, others in groups:
                if below & others:
                    names, below = names | other, below | others
                else:
                    apart.append((other, others))
            groups = [*apart, (names, below)]
        return [tuple(source for source in sources if source in names) for names, _ in groups]

    def _below(self, boxes: Iterable[Box]) -> tuple[str, ...]:
        found = {box.name for box in boxes}
        for name, box in self.boxes.items():
            if found & set(box.reads):
                found.add(name)
        return tuple(name for name in self.boxes if name in found)

    def _point(self, kind: Kind, at: tuple[str, ...]) -> DropPoint:
        starts = self._read(at) if kind == "source" else [self.boxes[at[0]]]
        domain = self._below(starts)
        outputs = tuple(name for name in domain if self.boxes[name].terms is not None)
        label = {"source": "source", "operator": "before", "results": "results of"}[kind]
        name = f"{label} {' and '.join(at)}" if kind != "source" else " and ".join(at)
        closed = [name for name in domain if not self.boxes[name].windows]
        counting = [name for name in domain if self.boxes[name].counts_rows]
        if closed or (counting and counting != list(at)):
            nothing = Span(1, 0, 0, 1)
            why = f"it is not known which rows {closed[0]} needs for an exact answer" if closed else ""
            why = why or f"{counting[0]} counts all rows, so drops before it would change its windows"
            return DropPoint(name, kind, at, nothing, 0, domain, outputs, {}, nothing, why)
        # All units of a point have one origin: otherwise a window could be in different units at different operators.
        delivered = [window for name in outputs for window in self.boxes[name].windows]
        origin = (delivered or starts[0].windows)[0].origin
        span = self._span(kind, starts, origin, self.tight)
        emits = {name: self._emits(name, span) for name in domain}
        bound = min((self._bound(name, span.slide) for name in outputs), default=0)
        why_not = self._opaque_input(kind, at, bool(counting))
        why_not = why_not or (None if bound > 0 else self._no_bound(outputs, span.slide))
        loose = self._span(kind, starts, origin, tight=False)
        return DropPoint(name, kind, at, span, bound, domain, outputs, emits, loose, why_not, bool(counting))

    def _span(self, kind: Kind, starts: Sequence[Box], origin: int, tight: bool) -> Span:
        if kind == "results":
            return self._results(starts[0], origin, tight)
        return fan_out([self._needs(box, origin, tight) for box in starts], origin)

    def _needs(self, box: Box, origin: int, tight: bool) -> Span:
        """The span at the input of a box."""
        results = self._results(box, origin, tight)
        return fan_out([pipeline(window, results, tight=tight) for window in box.windows], origin)

    def _results(self, box: Box, origin: int, tight: bool) -> Span:
        """The span at the output of a box."""
        own = [results_of(window) for window in box.windows] if box.terms is not None else []
        return fan_out([*own, *(self._needs(reader, origin, tight) for reader in self._read([box.name]))], origin)

    def _emits(self, name: str, unit: Span) -> tuple[Span, ...]:
        box = self.boxes[name]
        read = [self._needs(reader, unit.origin, self.tight) for reader in self._read([name])]
        spans = []
        for window in box.windows:
            wanted = [*([results_of(window)] if box.terms is not None else []), *read]
            wide = [each.over(unit.slide, unit.origin) for each in wanted]
            spans.append(Span(unit.slide, unit.origin, min(s.lo for s in wide), max(s.hi for s in wide)))
        return tuple(spans)

    def _bound(self, name: str, slide: int) -> int:
        box = self.boxes[name]
        assert box.terms is not None
        return min(scaled(box.terms.max_gap, window.slide, slide) for window in box.windows)

    def _opaque_input(self, kind: Kind, at: tuple[str, ...], counts_rows: bool) -> str | None:
        """Why nothing can be dropped before an operator that reads from a join or a user's operator.

        This does not apply to results and counted rows: both leave in the order of the watermark.
        """
        if kind != "operator" or counts_rows:
            return None
        reads = self.boxes[at[0]].reads
        opaque = [name for name in reads if name in self.boxes and not self.boxes[name].windows]
        return (
            f"{at[0]} reads {opaque[0]}, and rows cannot be dropped below joins and user operators" if opaque else None
        )

    def _no_bound(self, outputs: Sequence[str], slide: int) -> str:
        if not outputs:
            return "no results below it are delivered"
        tightest = min(outputs, key=lambda name: self._bound(name, slide))
        terms = self.boxes[tightest].terms
        assert terms is not None
        if terms.max_gap == 0:
            return f"max_gap of {tightest} is 0: it is never shed"
        return f"a unit holds more windows of {tightest} than its max_gap of {terms.max_gap} allows"
