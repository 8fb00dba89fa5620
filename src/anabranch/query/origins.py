"""Where a stream comes from: sources, operators' outputs, and the steps since.

`to_df()` needs none of this: Spark's own plan says it all. The epoch runtime does: it gets the rows of a source epoch
by epoch, as a
DataFrame of their own, and takes the same steps again (filter, select, ...) from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from anabranch.io.blocks import Packed
from anabranch.spark.columns import TimeColumn
from anabranch.spark.order import order_may_change

if TYPE_CHECKING:
    from anabranch.query.nodes import Node

Step = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, eq=False)
class Source:
    """A streaming DataFrame as the user gave it, and how late its rows may come, in microseconds."""

    frame: DataFrame
    time: TimeColumn
    delay: int
    packed: Packed | None = None

    @cached_property
    def order_may_change(self) -> bool:
        """Whether an epoch that runs again may bring the rows of a task in another order."""
        return order_may_change(self.frame)


@dataclass(frozen=True, eq=False)
class Output:
    """One output of an operator, as a stream: which, the column of its time, and how late it may be."""

    node: Node
    name: str
    time: TimeColumn
    delay: int = 0


Origin = Source | Output


@dataclass(frozen=True)
class Part:
    """An origin and the steps since. A stream has several after a union."""

    origin: Origin
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Part:
        return replace(self, steps=(*self.steps, step))

    def apply(self, rows: DataFrame) -> DataFrame:
        """The part's rows, from those of its origin."""
        for step in self.steps:
            rows = step(rows)
        return rows
