"""The health of a query: starting, running, idle, stopped, stalled or failed.

| state | meaning | HTTP |
|---|---|---|
| starting | no epoch has run yet | 200 |
| running | an epoch is running, or rows wait for the next one | 200 |
| idle | no rows were waiting when Spark last looked | 200 |
| stopped | it ended without an error, or was stopped | 200 |
| stalled | an epoch takes far longer than usual, or Spark has not started one for a long time | 503 |
| failed | it ended with an error | 503 |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Literal

State = Literal["starting", "running", "idle", "stopped", "stalled", "failed"]

_WORST: tuple[State, ...] = ("failed", "stalled", "starting", "running", "idle", "stopped")
"""Worst first: the status of several queries is the first of these that one of them has."""
_UNHEALTHY: frozenset[State] = frozenset({"failed", "stalled"})

STALLED_AFTER = 60.0
"""seconds that an epoch may take in any case"""
USUAL_TIMES = 10.0
"""an epoch may take this many times as long as epochs usually do"""
FIRST_EPOCH = 300.0
"""seconds that the first epoch of a run may take, while Spark starts processes and state is restored"""
NO_EPOCH = 300.0
"""seconds that Spark may be busy without an epoch, for example asking a source for its offsets"""


@dataclass(frozen=True)
class Vitals:
    """What is known about a query at one moment. Durations are in seconds."""

    epoch: int | None = None
    """the last epoch that was published"""
    running: float | None = None
    """how long the current epoch has been running; None if none is"""
    usual: float | None = None
    """the usual duration of an epoch of this run; None before the first"""
    busy: float = 0.0
    """seconds since Spark last waited for rows or for the next trigger, or an epoch ended"""
    busy_with: str = ""
    """what Spark says it is doing"""
    idle: bool = False
    """no rows were waiting when Spark last looked"""
    ended: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Health:
    """The state of a query, and the reason in one line."""

    state: State
    why: str
    epoch: int | None = None
    """the last epoch that was published"""

    @property
    def ok(self) -> bool:
        """Neither stalled nor failed."""
        return self.state not in _UNHEALTHY

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(now: Vitals) -> Health:
    """The health of a query."""
    state, why = _judged(now)
    return Health(state, why, now.epoch)


def _judged(now: Vitals) -> tuple[State, str]:
    if now.ended:
        return ("stopped", "the query ended") if now.error is None else ("failed", now.error)
    if now.running is not None:
        allowed = FIRST_EPOCH if now.usual is None else max(STALLED_AFTER, USUAL_TIMES * now.usual)
        took = "" if now.usual is None else f"; epochs usually take {now.usual:.1f} s"
        why = f"an epoch has been running for {now.running:.1f} s{took}"
        return ("stalled" if now.running > allowed else "running"), why
    if now.busy > NO_EPOCH:
        return "stalled", f"no epoch for {now.busy:.0f} s; Spark is busy with: {now.busy_with}"
    if now.idle:
        return "idle", "no rows are waiting"
    if now.usual is None:
        return "starting", "no epoch has run yet"
    return "running", "the next epoch begins"


def report(queries: Iterable[tuple[str, str | None, Health]]) -> tuple[HTTPStatus, dict[str, Any]]:
    """The response of the health path, from (id, name, health) of each query."""
    found = list(queries)
    states = {health.state for _, _, health in found}
    worst = next((state for state in _WORST if state in states), "starting")
    status = HTTPStatus.SERVICE_UNAVAILABLE if worst in _UNHEALTHY else HTTPStatus.OK
    listed = [{"query": query, "name": name, **health.to_json()} for query, name, health in found]
    return status, {"status": worst, "queries": listed}
