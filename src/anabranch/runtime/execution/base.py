"""How an operator runs, epoch after epoch: one class per kind of operator.

Everything that is the same in all epochs (the operator, its columns, its controllers) is built when the query starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from anabranch.control.base import Controller
from anabranch.keys.policy import KeyPartition
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.query.graph import Step
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch, OperatorResult


class Execution(ABC):
    """One operator of a running query."""

    def __init__(
        self, step: Step, settings: Settings, groups: int, fixed: Mapping[str, Any], schemas: Mapping[str, pa.Schema]
    ) -> None:
        self.step = step
        self.settings = settings
        self.groups = groups
        self.fixed = fixed
        """settings that the user gave and no controller changes"""
        self.schemas = schemas
        """the schema of each output"""

    @abstractmethod
    def run(self, epoch: Epoch) -> OperatorResult:
        """Run the operator's job in an epoch."""

    def controllers(self, before: EpochProgress | None = None) -> list[Controller]:
        """The controllers that decide its settings.

        `before`: the progress of the last epoch, so that key placement continues after a restart.
        """
        return []

    @property
    def logged(self) -> bool:
        """Whether the log of its input is its state; then it has no snapshots."""
        return False

    def horizon(self, watermark: int) -> int:
        """The time from which on a logged operator needs its rows, if everything up to `watermark` is delivered."""
        return watermark

    def explain(self, measured: OperatorProgress | None) -> list[str]:
        """Where its groups are and how its input is split, for `EpochQuery.explain()`; `measured`: the last epoch."""
        return []

    def explain_costs(self, measured: OperatorProgress, history: Sequence[EpochProgress]) -> list[str]:
        """What the last epochs say about its costs."""
        return []


def policy_setting(partition: KeyPartition) -> dict[str, Any]:
    """The user's key policy, as a fixed setting."""
    return {} if partition.partitioning is None else {"partition": partition.partitioning.label}
