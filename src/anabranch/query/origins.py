"""Where a stream comes from: sources, operators' outputs, and the transforms since.

`to_df()` does not need this: Spark's own plan has it all. The epoch runtime does: it gets the rows of a source epoch by
epoch, each as a DataFrame, and applies the same transforms (filter, select, ...) to them.
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

Transform = Callable[[DataFrame], DataFrame]
"""A step of a stream that keeps no state, such as a filter or a selection."""


@dataclass(frozen=True, eq=False)
class Source:
    """A streaming DataFrame as the user gave it, and how late its rows may arrive, in microseconds."""

    frame: DataFrame
    time: TimeColumn
    delay: int
    packed: Packed | None = None

    @cached_property
    def order_may_change(self) -> bool:
        """Whether the rows of a task may come in another order when an epoch runs again."""
        return order_may_change(self.frame)


@dataclass(frozen=True, eq=False)
class Output:
    """One output of an operator as a stream, with its time column and how late its rows may be."""

    node: Node
    name: str
    time: TimeColumn
    delay: int = 0


Origin = Source | Output


@dataclass(frozen=True)
class Branch:
    """An origin and the transforms since then. After a union a stream has several branches."""

    origin: Origin
    transforms: tuple[Transform, ...] = ()

    def then(self, transform: Transform) -> Branch:
        return replace(self, transforms=(*self.transforms, transform))

    def apply(self, rows: DataFrame) -> DataFrame:
        """The branch's rows, from those of its origin."""
        for transform in self.transforms:
            rows = transform(rows)
        return rows
