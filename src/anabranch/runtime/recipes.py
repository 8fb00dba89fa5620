"""What of an operator is the same in all epochs, worked out once: its operator, its columns, its controllers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from anabranch.network.nodes import ONLY, CombineNode, ProcessNode, WindowNode
from anabranch.operators.protocol import Operator, OperatorFactory
from anabranch.runtime.controllers import BatchSize, Controller, KeyPlacement, SplitTuning
from anabranch.runtime.plan import Step
from anabranch.runtime.progress import EpochProgress
from anabranch.runtime.settings import Settings
from anabranch.runtime.windowing import WindowJob
from anabranch.split.partitioning import KeyPartition
from anabranch.windows import Window

SMALLEST_WINDOW, LARGEST_WINDOW = 1 << 16, 1 << 25
"""Bytes between which W is looked for: a smaller block is all overhead, of larger ones a task holds too much."""


@dataclass(frozen=True)
class Recipe:
    """One operator: `fixed` are the settings that the user gave, and no controller touches."""

    step: Step
    groups: int
    fixed: Mapping[str, Any]
    factory: OperatorFactory
    schemas: Mapping[str, pa.Schema]
    """of the outputs"""
    windows: WindowJob | None = None

    def controllers(self, settings: Settings, before: EpochProgress | None = None) -> list[Controller]:
        """`before`: what a restart must know of the last epoch to place keys as if nothing had happened."""
        return [*self._placing(before), *self._tuning(settings)]

    def _placing(self, before: EpochProgress | None) -> list[Controller]:
        node, name, fixed = self.step.node, self.step.name, self.fixed.get("partition")
        if isinstance(node, WindowNode) and self.windows is not None and self.windows.placing is not None:
            alone = node.query.partition.splitters if len(node.inputs) == 1 else None
            return [KeyPlacement(name, self.windows.workers, alone, fixed, before)]
        if isinstance(node, ProcessNode) and node.routing.partition is not None:
            return [KeyPlacement(name, node.groups, node.routing.partition.splitters, fixed, before)]
        return []

    def _tuning(self, settings: Settings) -> list[Controller]:
        node, name = self.step.node, self.step.name
        if isinstance(node, WindowNode) and settings.qos.latency_seconds is not None and "batch" not in self.fixed:
            longest = max(node.query.panes.in_panes(), key=lambda w: w.size)
            window = Window(longest.size, longest.slide)
            return [BatchSize(name, window, settings.workers, settings.qos.latency_seconds)]
        if isinstance(node, ProcessNode) and not node.routing.keys:
            tuning = SplitTuning(name, self.groups, smallest_window=SMALLEST_WINDOW, largest_window=LARGEST_WINDOW)
            return [] if {"splitters", "window_bytes"} <= set(self.fixed) else [tuning]
        return []


def recipe_of(step: Step, settings: Settings) -> Recipe:
    """What of this operator is the same in all epochs."""
    node = step.node
    if isinstance(node, WindowNode):
        job = WindowJob(node, settings.workers)
        fixed: dict[str, Any] = {} if node.batch is None else {"batch": node.batch}
        fixed |= _policy(node.query.partition)
        return Recipe(step, node.groups, fixed, job.factory, {ONLY: job.result}, job)
    if isinstance(node, CombineNode):
        return Recipe(step, 1, {}, Operator, {ONLY: to_arrow_schema(node.schema, timezone="UTC")})
    given = {"splitters": node.routing.splitters, "window_bytes": node.routing.window_bytes}
    fixed = {name: value for name, value in given.items() if value is not None}
    fixed |= {} if node.routing.partition is None else _policy(node.routing.partition)
    schemas = {name: to_arrow_schema(schema, timezone="UTC") for name, schema in node.schemas.items()}
    return Recipe(step, node.groups, fixed, node.factory, schemas)


def _policy(partition: KeyPartition) -> dict[str, Any]:
    return {} if partition.partitioning is None else {"partition": partition.partitioning.label}
