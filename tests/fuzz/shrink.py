"""Make a failing case small: leave parts of it out as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tests.fuzz.cases import Case, Level, Row, Run, Source
from tests.fuzz.refusals import may_refuse

Fails = Callable[[Case], bool]
Epochs = tuple[tuple[Row, ...], ...]


def shrink(case: Case, fails: Fails, seconds: float) -> Case:
    """The smallest case that was found in that time, by trying one change after the other."""
    deadline = time.monotonic() + seconds
    before = None
    while case != before:
        before = case
        for simpler in (_few, _settings, _epochs, _levels, _rows, _columns):
            case = _as_far_as_possible(case, simpler, fails, deadline)
    return case


def _as_far_as_possible(case: Case, simpler: Callable[[Case], Iterator[Case]], fails: Fails, deadline: float) -> Case:
    while True:
        for candidate in simpler(case):
            if time.monotonic() > deadline:
                return case
            if _valid(candidate) and fails(candidate):
                case = candidate
                break
        else:
            return case


def _valid(case: Case) -> bool:
    """Whether it still means something: what is refused for another reason is no smaller failure."""
    known: set[str] = set()
    for source in case.sources:
        known |= set(source.names)
    if case.join is None and not case.levels:
        return False
    if case.join is None and case.levels:
        used = {*case.levels[0].keys, *(each.column for each in case.levels[0].aggregates if each.column)}
        used |= {case.levels[0].where.column} if case.levels[0].where is not None else set()
        if not used <= known:
            return False
    for before, level in zip(case.levels, case.levels[1:], strict=False):
        there = {*before.keys, *(each.name for each in before.aggregates)}
        used = {*level.keys, *(each.column for each in level.aggregates if each.column)}
        used |= {level.where.column} if level.where is not None else set()
        if not used <= there:
            return False
    return bool(all(level.aggregates for level in case.levels) and (may_refuse(case) is None))


def _few(case: Case) -> Iterator[Case]:
    """The first rows of every epoch only: many failures need no more."""
    for most in (1, 3, 8):
        sources = tuple(replace(source, epochs=tuple(each[:most] for each in source.epochs)) for source in case.sources)
        if sources != case.sources:
            yield replace(case, sources=sources)


def _settings(case: Case) -> Iterator[Case]:
    changes = (
        replace(case, zone="UTC"),
        replace(case, ansi=True),
        replace(case, settings=()),
        replace(case, policy=None),
        replace(case, strategy=None),
        replace(case, in_order=False),
    )
    yield from (changed for changed in changes if changed != case)
    if len(case.runs) > 1:
        yield replace(case, runs=case.runs[-1:])
        for i in range(len(case.runs) - 1):
            yield replace(case, runs=(*case.runs[:i], *case.runs[i + 1 :]))
    if case.runs and case.runs != (ordinary := tuple(Run(each.until) for each in case.runs)):
        yield replace(case, runs=ordinary)
    if case.watermark and case.mode == "start":
        yield replace(case, watermark=0)
    if case.policy is not None and case.policy != (bare := type(case.policy)(case.policy.partition)):
        yield replace(case, policy=bare)


def _epochs(case: Case) -> Iterator[Case]:
    """Without one epoch, or with two that come as one."""
    for i in range(case.epochs - case.flush):
        if case.epochs - case.flush > 1:
            yield _with_epochs(case, partial(_without, i), i)
            if i:
                yield _with_epochs(case, partial(_together, i), i)


def _without(i: int, source: Source) -> Epochs:
    return (*source.epochs[:i], *source.epochs[i + 1 :])


def _together(i: int, source: Source) -> Epochs:
    return (*source.epochs[: i - 1], source.epochs[i - 1] + source.epochs[i], *source.epochs[i + 1 :])


def _with_epochs(case: Case, change: Callable[[Source], Epochs], gone: int) -> Case:
    sources = tuple(replace(source, epochs=change(source)) for source in case.sources)
    runs = [replace(run, until=run.until - (run.until > gone)) for run in case.runs]
    kept = tuple(run for i, run in enumerate(runs) if run.until > (runs[i - 1].until if i else 0))
    return replace(case, sources=sources, runs=kept)


def _levels(case: Case) -> Iterator[Case]:
    if len(case.levels) > 1 or (case.levels and case.join is not None):
        yield replace(case, levels=case.levels[:-1])
    if len(case.sources) > 1 and case.join is None:
        yield replace(case, sources=case.sources[:1])
    for number, level in enumerate(case.levels):
        for simpler in _level(level):
            yield replace(case, levels=(*case.levels[:number], simpler, *case.levels[number + 1 :]))
    if case.join is not None and case.join.where is not None:
        yield replace(case, join=replace(case.join, where=None))


def _level(level: Level) -> Iterator[Level]:
    for i in range(len(level.aggregates)):
        if len(level.aggregates) > 1:
            yield replace(level, aggregates=(*level.aggregates[:i], *level.aggregates[i + 1 :]))
    if level.where is not None:
        yield replace(level, where=None)
    for key in level.keys:
        yield replace(level, keys=tuple(each for each in level.keys if each != key))
    for i in range(len(level.windows)):
        if len(level.windows) > 1:
            yield replace(level, windows=(*level.windows[:i], *level.windows[i + 1 :]))
    if any(window.origin for window in level.windows):
        yield replace(level, windows=tuple(replace(window, origin=0) for window in level.windows))
    if len(level.windows) == 1 and level.windows[0].slide < level.windows[0].size:
        yield replace(level, windows=(replace(level.windows[0], slide=level.windows[0].size),))


def _rows(case: Case) -> Iterator[Case]:
    """Without a half, a quarter, ... of the rows of an epoch; those that only move the watermark stay."""
    for number, source in enumerate(case.sources):
        for i, epoch in enumerate(source.epochs[: case.epochs - case.flush]):
            size = len(epoch)
            while size:
                size = size // 2 if size > 1 else 0
                for begin in range(0, len(epoch), max(size, 1)):
                    rest = (*epoch[:begin], *epoch[begin + max(size, 1) :])
                    if len(rest) < len(epoch):
                        yield _with_rows(case, number, i, rest)


def _with_rows(case: Case, number: int, epoch: int, rows: tuple[Row, ...]) -> Case:
    source = case.sources[number]
    epochs = (*source.epochs[:epoch], rows, *source.epochs[epoch + 1 :])
    changed = replace(source, epochs=epochs)
    return replace(case, sources=(*case.sources[:number], changed, *case.sources[number + 1 :]))


def _columns(case: Case) -> Iterator[Case]:
    """Without a column that nothing uses."""
    if case.join is not None:
        return
    for name in case.sources[0].names[1:]:
        at = case.sources[0].names.index(name)
        sources = tuple(
            replace(
                source,
                columns=tuple(each for each in source.columns if each.name != name),
                epochs=tuple(tuple((*row[:at], *row[at + 1 :]) for row in epoch) for epoch in source.epochs),
            )
            for source in case.sources
        )
        yield replace(case, sources=sources)
