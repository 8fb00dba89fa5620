"""Paper 4's window drop by the book: specifications inside tuples, decoded by table 3. And the ledger rule beside it.

A WinDrop marks the first tuple of each unit (its *starter*) with a window specification, and every aggregate below
decodes it (sections 3.1, 3.3 and 3.4):

    don't care   -1 in the paper, None here
    DROP         0: no window may open here
    tau          windows may open here, and the stream is whole for all times < tau

**Time runs backwards here.** The paper dates a result with the first instant of its window, Anabranch with the last
(window end - 1). Turned round, t -> -t, last becomes first, and ours is exactly the paper's: the window [a, a+w)
becomes [-a-w+1, -a+1), and its result, which we date a+w-1, gets the first instant of that, -(a+w-1). So `turned` turns
a window, and `table_3` turns tuples, windows and units, runs the paper's operators, and turns the results back:

    ours       -2  -1   0   1   2   3           paper      -3  -2  -1   0   1   2
    window              [-----------)                      [-----------)
    result                      ↑ 2                            ↑ -2    (of [-2, 1), which is [0, 3) turned)

**What the paper leaves open, or has wrong, and what is done here.**

1.  *keep_until = t + w, if >* (rows "yes, 0 or -1, within" of table 3). keep_until says up to where windows may open:
    it begins as tau - (w-1), where the last whole window starts. But t + w is the end of a window, not a start. Taken
    as one, it lets windows open that start within another, reach beyond tau, and find no tuples there. In a pipeline
    that is only waste: what such a window gives, no output needs. In a fan-out it gives wrong *outputs*, in the paper's
    own figure 5: A1(3,2) below WinDrop(7,6) opens [4,7), then keep_until is 7, then the dropped unit's [6,9) opens,
    with the tuple 6 only. So keep_until is left alone here; `literal=True` does as the table says, for the tests that
    show it.
2.  *A starter that does not exist* (no tuple has that time, or a filter took it): WinDrop makes a fake tuple there.
3.  *A window whose first instant has no tuple*, marked or not: it opens all the same, as if a tuple of -1 had come.
    The paper opens windows when tuples come; ours are aligned to the origin, whether a tuple is there or not.
4.  *Several tuples of one time*: they share the specification. An `Instant` is all tuples of one time.
5.  *A window that opened with a specification, but has no tuples when it closes* (fake ones do not count): no result,
    but a fake tuple that carries the specification on.
6.  *A starter in a dropped unit, beyond tau*: only its mark is needed, so it is made fake (section 3.6 says so, 3.4
    not). Within tau it stays whole: other units need it.
7.  *0 and beyond, where a window would start*: "skip window" lets the 0 get lost, while "not a start" passes it on as a
    fake tuple. It makes no difference: 0 and -1 lead to the same action in every row.
8.  *Two windows in one box, or a box that reads two*: all streams carry their marks at the same times, but with
    different tau, since windows differ in size. Together they are whole up to the smallest.
9.  *tau as a positive number*: times may be negative here, so the kinds of specification are told apart by type.
10. *Units that start where no window does* (windows of different origins): "no, tau" then sets keep_until, and the
    windows that start later, within, open. Nothing else is needed.

In a fan-out, keep_until lets through all windows that lie in a kept unit's span, also those that count as the next
unit's: of WinDrop(12,6) for A1(3,2) and A2(9,3), A1 may open at 0, 2, 4, 6 and 8, though only three of these are the
unit's. They are exact, so table 3 delivers a superset of what the ledger does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.shedding.points import Box, DropPoint
from anabranch.windows import Window
from anabranch.windows.spans import Span

DROP = "drop"
Spec = int | str | None
"""A window specification: don't care (None), DROP, or the time tau up to which the stream is whole."""

Values = dict[int, list[int]]
"""A stream without marks: values by time."""
Fold = Callable[[list[int]], int]
Filters = Mapping[tuple[str, str], Callable[[int], bool]]
"""By arc (from, to): which values pass. None: all."""
Results = dict[tuple[str, int, int], int]
"""By box, window of the box, and id."""
Runs = Sequence[tuple[int, int]]
"""Dropped units: (first, last) of each run, with kept ones between."""


@dataclass(frozen=True)
class Instant:
    """All tuples of one time, and what they are marked with. Without values: a fake tuple."""

    spec: Spec
    values: tuple[int, ...] = ()


Stream = dict[int, Instant]


# --- the paper's operators; time as the paper has it ---


def win_drop(values: Values, units: Iterable[tuple[int, int, bool]]) -> Stream:
    """WinDrop: mark the starters of `units` (start, tau, dropped), and drop what no kept unit needs."""
    marks: dict[int, Spec] = {start: DROP if dropped else tau for start, tau, dropped in units}
    marked, whole_until = {}, float("-inf")
    for t in sorted(values.keys() | marks.keys()):
        spec = marks.get(t)
        if isinstance(spec, int):
            whole_until = max(whole_until, spec)
        kept = tuple(values.get(t, ())) if t < whole_until else ()  # else: early drop
        if kept or spec is not None:
            marked[t] = Instant(spec, kept)
    return marked


def filtered(stream: Stream, passes: Callable[[int], bool] | None) -> Stream:
    """Filter: a tuple that does not pass, but carries a message, goes on as a fake one."""
    kept = {t: Instant(at.spec, tuple(v for v in at.values if passes is None or passes(v))) for t, at in stream.items()}
    return {t: at for t, at in kept.items() if at.values or at.spec is not None}


def union(streams: Sequence[Stream]) -> Stream:
    """Streams with marks of the same units: whole up to the smallest tau."""
    merged: Stream = {}
    for t in sorted({t for stream in streams for t in stream}):
        instants = [stream[t] for stream in streams if t in stream]
        taus = [at.spec for at in instants if isinstance(at.spec, int)]
        spec: Spec = min(taus) if taus else DROP if any(at.spec == DROP for at in instants) else None
        merged[t] = Instant(spec, tuple(v for at in instants for v in at.values))
    return merged


def aggregate(stream: Stream, window: Window, fold: Fold, *, literal: bool = False) -> Stream:
    """Aggregate(F, w, s), row by row of table 3. Results carry the first instant of their window."""
    results: Stream = {}
    keep_until = float("-inf")
    for t in range(min(stream, default=0), max(stream, default=-1) + 1):
        spec = stream[t].spec if t in stream else None
        win_start = (t - window.origin) % window.slide == 0
        opens = False
        if isinstance(spec, int):  # rows 1 and 2, 7 and 8
            spec -= window.size - 1
            keep_until, opens = spec, win_start
        elif win_start and t < keep_until:  # rows 3 and 5
            opens = True
            if literal:
                keep_until = max(keep_until, t + window.size)
        elif win_start:  # rows 4 and 6
            continue
        held = [v for at in range(t, t + window.size) if at in stream for v in stream[at].values] if opens else []
        if held:
            results[t] = Instant(spec, (fold(held),))
        elif spec is not None:  # rows 7 to 10, or nothing but fake tuples in the window
            results[t] = Instant(spec)
    return results


def turned(window: Window) -> Window:
    """The same windows on the reversed time line; window j is window -j there."""
    return Window(window.size, window.slide, -(window.origin + window.size - 1))


def table_3(
    point: DropPoint,
    boxes: Sequence[Box],
    sources: Mapping[str, Values],
    filters: Filters,
    fold: Fold,
    dropped: Callable[[int], bool],
    units: Iterable[int],
    *,
    literal: bool = False,
) -> Results:
    """The results of all boxes below a point, with a WinDrop there that takes the paper's size of the span."""
    span = point.span_without_slides
    # The unit [start, end), turned.
    marks = [(1 - span.end(unit), 1 - span.start(unit), dropped(unit)) for unit in units]
    around = evaluate(boxes, sources, filters, fold)[1]
    streams: dict[str, Stream] = {}
    results: Results = {}
    for name, values in around.items():  # what is not below the point has no marks
        back = {-t: at for t, at in values.items()}
        streams[name] = win_drop(back, marks) if name in point.at and point.kind == "source" else unmarked(back)
    for box in boxes:
        if box.name not in point.domain:
            continue
        arcs = [filtered(streams[origin], filters.get((origin, box.name))) for origin in dict.fromkeys(box.reads)]
        if point.kind == "operator" and box.name in point.at:
            arcs = [win_drop({t: list(at.values) for t, at in arc.items()}, marks) for arc in arcs]
        outs = []
        for i, window in enumerate(map(turned, box.windows)):
            out = aggregate(union(arcs), window, lambda held, i=i: fold([i, *held]), literal=literal)
            outs.append(out)
            for t, at in out.items():
                for value in at.values:
                    results[box.name, i, -((t - window.origin) // window.slide)] = value
        streams[box.name] = union(outs)
    return results


def unmarked(values: Values) -> Stream:
    return {t: Instant(None, tuple(at)) for t, at in values.items()}


# --- the same network on our time line: exact, or as the ledger rule drops ---


def evaluate(
    boxes: Sequence[Box],
    sources: Mapping[str, Values],
    filters: Filters,
    fold: Fold,
    *,
    reads: Callable[[str, str, int], bool] = lambda origin, box, t: True,
    leaves: Callable[[str, int, int], bool] = lambda box, i, t: True,
) -> tuple[Results, dict[str, Values]]:
    """All results of a network, and its streams; `reads` and `leaves` say what is left out. Without them: exact."""
    streams = dict(sources)
    results: Results = {}
    for box in boxes:
        streams[box.name] = {}
        for i, window in enumerate(box.windows):
            held: dict[int, list[int]] = {}
            for origin in dict.fromkeys(box.reads):
                passes = filters.get((origin, box.name))
                for t, values in streams[origin].items():
                    kept = [v for v in values if passes is None or passes(v)] if reads(origin, box.name, t) else []
                    after = t - window.origin
                    for j in range((after - window.size) // window.slide + 1, after // window.slide + 1):
                        held.setdefault(j, []).extend(kept)
            for j, inside in held.items():
                dated = window.origin + j * window.slide + window.size - 1
                if inside and leaves(box.name, i, dated):
                    results[box.name, i, j] = fold([i, *inside])
                    streams[box.name].setdefault(dated, []).append(results[box.name, i, j])
    return results, streams


def in_gap(span: Span, runs: Runs, t: int) -> bool:
    """Whether nobody needs t while these units are dropped."""
    gaps = (span.gap(first, last) for first, last in runs)
    return any(gap is not None and gap[0] <= t < gap[1] for gap in gaps)


def ledger(
    point: DropPoint,
    boxes: Sequence[Box],
    sources: Mapping[str, Values],
    filters: Filters,
    fold: Fold,
    runs: Runs,
) -> Results:
    """The ledger rule, as every operator applies it by itself.

    A tuple at the point is left out iff its time is in a gap of the point's span. A result of a box below, of its
    window i, leaves iff its time is in no gap of `emits[box][i]`.
    """

    def reads(origin: str, box: str, t: int) -> bool:
        here = {"source": origin in point.at, "operator": box in point.at, "results": False}[point.kind]
        return not here or not in_gap(point.span, runs, t)

    def leaves(box: str, i: int, t: int) -> bool:
        return box not in point.domain or not in_gap(point.emits[box][i], runs, t)

    results, _ = evaluate(boxes, sources, filters, fold, reads=reads, leaves=leaves)
    return {key: value for key, value in results.items() if key[0] in point.domain}
