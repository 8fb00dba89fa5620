"""How a query runs: the arguments of `start`, checked and in one form."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from pyspark.sql import SparkSession

from anabranch.control.base import Controller
from anabranch.io.sinks.base import Sink
from anabranch.query.settings import QoS
from anabranch.query.triggers import trigger_seconds
from anabranch.runtime.driver.ahead import MaxAhead
from anabranch.store.live.own_folder import OwnFolder
from anabranch.text import with_noun
from anabranch.windows import describe

MEMORY_SHARE = 0.75
"""The share of a machine's memory that live state may take by default."""

GROUPS_PER_WORKER = 4
"""Least groups per worker where groups move between workers: a worker with a single group has none to give away."""


@dataclass(frozen=True)
class Settings:
    """How a query runs; see `anabranch.start`."""

    qos: QoS
    trigger: str | None
    """as `trigger_of` returns it"""
    workers: int | None
    """as the user gave it; None: as many as the cluster has slots"""
    snapshot_every: int
    idle: float | None
    live: OwnFolder
    """the query's folder for live state"""
    memory_limit: int | None = None
    """bytes of live state that a worker may hold"""
    report: Sink | None = None
    """the sink for the list of dropped windows"""
    max_ahead: MaxAhead | None = None
    """how far ahead of the clock a row may be; None: no bound"""
    slots: int = 1
    """how many tasks the cluster runs at once"""
    controllers: tuple[Controller, ...] = ()
    """the user's own controllers"""

    @property
    def most_workers(self) -> int:
        """How many workers an operator has if its groups do not limit them."""
        return self.slots if self.workers is None else self.workers

    @property
    def own_settings(self) -> frozenset[str]:
        """Settings that the user's controllers own."""
        return frozenset(name for controller in self.controllers for name in controller.settings)

    def workers_of(self, groups: int, *, moving: bool = False) -> int:
        """How many workers an operator with this many groups has; `moving`: load is balanced by moving groups."""
        most = groups // GROUPS_PER_WORKER if moving and self.workers is None else groups
        return max(1, min(self.most_workers, most))

    @property
    def trigger_seconds(self) -> float | None:
        return trigger_seconds(self.trigger)

    def describe(self) -> str:
        """One line for the log: the main settings, and the others only where the user changed them."""
        trigger = "no trigger" if self.trigger is None else f"trigger {self.trigger}"
        found = [trigger, with_noun(self.most_workers, "worker")]
        found.append(f"a snapshot every {with_noun(self.snapshot_every, 'epoch')}")
        if self.idle is not None:
            found.append(f"sources idle after {describe(round(self.idle * 1e6))}")
        given = ((bound, getattr(self.qos, bound.name)) for bound in fields(self.qos))
        found += [f"{bound.name}={value!r}" for bound, value in given if value != bound.default]
        return ", ".join(found)


def most_memory(session: SparkSession, workers: int) -> int | None:
    """How many bytes a worker's live state may take by default; None if the system does not report its memory."""
    try:
        all_of_it = MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    local = str(session.conf.get("spark.master", "")).startswith("local")
    return round(all_of_it / workers if local else all_of_it)
