"""What of an operator is the same in all epochs, worked out once: its operator, its columns, its controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column

from anabranch.control.base import BatchSize, Controller, KeyPlacement, SplitTuning, largest_batch
from anabranch.control.rebalance import Rebalance
from anabranch.errors import InvalidArgumentError
from anabranch.keys.policy import KeyPartition
from anabranch.names import EVENT
from anabranch.observe.progress import EpochProgress
from anabranch.operators.join import JoinOperator, JoinSettings
from anabranch.operators.protocol import Operator, OperatorFactory
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, CombineNode, JoinNode, ProcessNode, WindowNode
from anabranch.query.options import holds_no_window_back
from anabranch.runtime.execution.window import WindowJob
from anabranch.runtime.settings import Settings
from anabranch.spark.arrow import arrow_schema
from anabranch.spark.columns import MICROS
from anabranch.windows import Window

SMALLEST_WINDOW, LARGEST_WINDOW = 1 << 16, 1 << 25
"""Bytes between which W is looked for: a smaller block is all overhead, of larger ones a task holds too much."""

SLOTS = "slots"
"""setting of a join: n_g, the sub-groups of workers that take turns"""
NULL_KEYS = "null_keys"
"""metric of a join: rows with a null key"""


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
    horizon: Callable[[int], int] | None = None
    """of an operator whose log is its state: from which time on it needs the rows; None: it has snapshots"""
    where: Column | None = None
    """what Spark must compute on the results before they are written"""

    @property
    def yields(self) -> pa.Schema | None:
        """What workers hand to Spark, where they do not write the results themselves."""
        if self.windows is not None:
            return self.windows.yields
        return None if self.where is None else self.schemas[ONLY]

    def controllers(self, settings: Settings, before: EpochProgress | None = None) -> list[Controller]:
        """`before`: what a restart must know of the last epoch to place keys as if nothing had happened."""
        return [*self._placing(before), *self._rebalancing(settings), *self._tuning(settings)]

    def _rebalancing(self, settings: Settings) -> list[Controller]:
        node = self.step.node
        if not isinstance(node, JoinNode):
            return []
        tuning = node.tuning
        # Where epoch follows epoch, all workers that there are make each of them shorter: none is too many.
        decluster = tuning.decluster and settings.trigger_seconds is not None
        return [
            Rebalance(
                self.step.name,
                node.groups,
                settings.workers_of(node.groups, moving=True),
                supplier=tuning.supplier,
                consumer=tuning.consumer,
                beta=tuning.beta,
                reorganise_every=tuning.reorganise_every,
                moves=tuning.moves,
                rebalance=tuning.rebalance,
                decluster=decluster,
                slots=self.fixed[SLOTS],
            )
        ]

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
        if isinstance(node, WindowNode) and node.query.counts_rows:
            return []  # a count window leaves with its last row, and waits for no other
        if isinstance(node, WindowNode) and settings.qos.latency_seconds is not None and "batch" not in self.fixed:
            longest = max(node.query.panes.in_panes(), key=lambda w: w.size)
            window = Window(longest.size, longest.slide)
            bound = settings.qos.latency_seconds
            slowest = max(window.slide for window in node.query.panes.windows)
            largest = largest_batch(slowest / MICROS, bound)
            at_once = min(settings.workers_of(node.groups), settings.slots)
            return [BatchSize(name, window, at_once, bound, largest=largest)]
        if isinstance(node, ProcessNode) and not node.routing.keys:
            tuning = SplitTuning(
                name,
                self.groups,
                most_splitters=settings.slots,
                smallest_window=SMALLEST_WINDOW,
                largest_window=LARGEST_WINDOW,
            )
            return [] if {"splitters", "window_bytes"} <= set(self.fixed) else [tuning]
        return []


def recipe_of(step: Step, settings: Settings) -> Recipe:
    """What of this operator is the same in all epochs."""
    node = step.node
    if isinstance(node, WindowNode):
        job = WindowJob(node, settings.most_workers)
        batch = 1 if holds_no_window_back(step, settings.qos, settings.trigger) else node.batch
        fixed: dict[str, Any] = {} if batch is None else {"batch": batch}
        fixed |= _policy(node.query.partition)
        return Recipe(step, node.groups, fixed, job.factory, {ONLY: job.result}, job)
    if isinstance(node, CombineNode):
        return Recipe(step, 1, {}, Operator, {ONLY: arrow_schema(node.schema)})
    if isinstance(node, JoinNode):
        return _join(step, node, settings)
    given = {"splitters": node.routing.splitters, "window_bytes": node.routing.window_bytes}
    fixed = {name: value for name, value in given.items() if value is not None}
    fixed |= {} if node.routing.partition is None else _policy(node.routing.partition)
    schemas = {name: arrow_schema(schema) for name, schema in node.schemas.items()}
    return Recipe(step, node.groups, fixed, node.factory, schemas)


def _join(step: Step, node: JoinNode, settings: Settings) -> Recipe:
    join, tuning = node.join, node.tuning
    if join.condition is not None and join.preserved:
        raise InvalidArgumentError(
            f"a {join.how} join with a Column as its condition: whether a row has a partner is found out where Python "
            "runs, and Spark would evaluate the condition too late",
            hint="give where=... as a function over record batches: where=lambda rows: pc.less(rows['a'], rows['b'])",
        )
    schema = arrow_schema(join.schema)
    operator = partial(
        JoinOperator,
        JoinSettings(
            within=join.within,
            keys=join.on,
            times=tuple(time.name for time in join.times),
            inputs=tuple(arrow_schema(source.drop(EVENT).schema) for source in join.sources),
            columns=join.columns,
            schema=schema,
            how=join.how,
            where=join.predicate,
            theta=tuning.theta,
            block=tuning.block,
            fine_tuning=tuning.fine_tuning,
            probe=tuning.probe,
        ),
    )
    return Recipe(
        step,
        node.groups,
        {SLOTS: tuning.slots},
        operator,
        {ONLY: schema},
        horizon=operator().horizon,
        where=join.condition,
    )


def _policy(partition: KeyPartition) -> dict[str, Any]:
    return {} if partition.partitioning is None else {"partition": partition.partitioning.label}
