"""Operators as nodes of the query network: what the epoch runtime runs.

A node is a plain value: its inputs, its operator, its outputs. `anabranch.runtime` runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Column
from pyspark.sql.types import StructType

from anabranch.keys.policy import KeyPartition
from anabranch.operators.protocol import OperatorFactory
from anabranch.query.origins import Branch, Source
from anabranch.query.refusal import Refusal
from anabranch.query.windowed import Query
from anabranch.spark.columns import TimeColumn
from anabranch.split.key_routes import HashRoute
from anabranch.split.routes import BroadcastFunction, RouteFunction
from anabranch.windows import describe
from anabranch.windows.ids import Stretch

if TYPE_CHECKING:
    from anabranch.query.join import Join, JoinTuning

ONLY = "rows"
"""the name of the output of an operator that has only one"""


@dataclass(frozen=True)
class Input:
    """A stream that feeds an operator, at a port."""

    branch: Branch
    time: TimeColumn
    port: int = 0


@dataclass(frozen=True)
class Routing:
    """Which partition-group a tuple goes to: by key, by Column expressions, or by functions over blocks."""

    groups: int
    keys: tuple[str, ...] = ()
    route: Column | RouteFunction | None = None
    broadcast: Column | BroadcastFunction | None = None
    splitters: int | None = None
    """p; None: tuned while the query runs"""
    window_bytes: int | None = None
    """W; None: tuned while the query runs"""
    partition: KeyPartition | None = None
    """the policy that places keys; None: a key always goes to the group of its hash"""
    stretch: Stretch | None = None
    """the windows of that policy; None: each epoch is one"""

    @property
    def by_function(self) -> bool:
        """Whether blocks need not become rows, since Spark has no Column to compute."""
        by_spark = self.keys and self.partition is None
        return not by_spark and not isinstance(self.route, Column) and not isinstance(self.broadcast, Column)

    def reads_blocks(self, branch: Branch) -> bool:
        """Whether the blocks of an input are read where they are split, since nothing needs them as rows."""
        packed = isinstance(branch.origin, Source) and branch.origin.packed is not None
        return packed and self.by_function and not branch.transforms

    def moves_windows(self, branches: Iterable[Branch]) -> bool:
        """Whether physical windows are sent to p splitters; otherwise the tasks that read rows split them.

        Moving rows first costs more than it gains, so it is done only on request.
        """
        return self.splitters is not None or all(self.reads_blocks(branch) for branch in branches)


class Node(ABC):
    """An operator of the query network. What only some operators have is None, or zero, in the others."""

    kind: ClassVar[str]
    inputs: tuple[Input, ...]
    batch: int | None = None
    """windows that are evaluated together, if the user has said how many"""
    refusal: Refusal | None = None
    """why the epoch runtime cannot run this operator as requested"""

    @property
    def outputs(self) -> tuple[str, ...]:
        return (ONLY,)

    @abstractmethod
    def describe(self) -> list[str]:
        """Readable lines that differ for different operators: the checkpoint keeps them."""

    @property
    def aggregate(self) -> Query | None:
        """The windowed aggregate, if this operator is one."""
        return None

    @property
    def reach(self) -> int:
        """The longest time, in microseconds, from a row to the end of a window or join that contains it."""
        return 0

    @property
    def routes(self) -> Routing | None:
        """How rows are routed to groups; None if the input is not split."""
        return None

    @property
    def slots(self) -> int:
        """The epochs in which each worker has one turn."""
        return 1

    @property
    def numbers_rows(self) -> bool:
        """Whether it numbers rows for count windows, and so is part of the operator that follows."""
        return False

    @property
    def read_in_one_pass(self) -> bool:
        """Whether one pass over a micro-batch gives all inputs: Spark has nothing else to do with them."""
        return False


class Stateful(Node):
    """An operator with partition-groups, whose state is kept from epoch to epoch."""

    groups: int


@dataclass(frozen=True, eq=False)
class WindowNode(Stateful):
    """A windowed aggregate."""

    inputs: tuple[Input, ...]
    query: Query
    groups: int
    batch: int | None = None
    """B; None: set by the controller"""
    refusal: Refusal | None = None
    """why the epoch runtime cannot run it"""
    kind = "window"

    @property
    def aggregate(self) -> Query:
        return self.query

    @property
    def reach(self) -> int:
        return 0 if self.query.counts_rows else max(window.size for window in self.query.panes.windows)

    def describe(self) -> list[str]:
        query = self.query
        aggregates = ", ".join(f"{name} = {a.describe()}" for name, a in query.aggregates.items())
        return [
            f"windows {', '.join(w.label for w in query.panes.windows)}, origin {query.panes.origin}",
            f"by {', '.join(query.keys) or 'nothing'}, in {self.groups} groups",
            aggregates,
            # Panes then hold other states: a checkpoint is valid for one of the two.
            *(["evaluated in parts"] if query.evaluated_in_parts and not query.counts_rows else []),
        ]


@dataclass(frozen=True, eq=False)
class ProcessNode(Stateful):
    """A user's operator over the groups of one or more streams."""

    inputs: tuple[Input, ...]
    routing: Routing
    factory: OperatorFactory
    schemas: Mapping[str, StructType]
    kind = "process"

    @property
    def groups(self) -> int:  # type: ignore[override]  # of the routing
        return self.routing.groups

    @property
    def routes(self) -> Routing:
        return self.routing

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.schemas)

    def describe(self) -> list[str]:
        by = f"by {', '.join(self.routing.keys)}" if self.routing.keys else "by route"
        by += "" if self.routing.partition is None else ", keys placed by a policy"
        # With other settings a factory makes another operator: a checkpoint is valid for one of them.
        plain = getattr(self.factory, "__qualname__", type(self.factory).__qualname__)
        label = repr(self.factory) if is_dataclass(self.factory) and not isinstance(self.factory, type) else plain
        columns = [f"output {name}: {schema.simpleString()}" for name, schema in self.schemas.items()]
        return [f"operator {label}, {by}, in {self.groups} groups", *columns]


@dataclass(frozen=True, eq=False)
class PositionsNode(ProcessNode):
    """Numbers the rows of a stream in time order, for the count windows that follow."""

    kind = "positions"

    @property
    def numbers_rows(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class CombineNode(Node):
    """The aggregation tree: combines the partial answers of all substreams into one answer per query.

    It keeps no state: the partial answers to a query all come in the epoch in which it was broadcast.
    """

    inputs: tuple[Input, ...]
    by: tuple[str, ...]
    sums: tuple[str, ...]
    maxima: tuple[str, ...]
    fan_in: int | None
    schema: StructType
    kind = "combine"

    @property
    def schemas(self) -> Mapping[str, StructType]:
        return {ONLY: self.schema}

    def describe(self) -> list[str]:
        what = [f"sum of {name}" for name in self.sums] + [f"max of {name}" for name in self.maxima]
        return [f"{', '.join(what)} by {', '.join(self.by)}"]


@dataclass(frozen=True, eq=False)
class JoinNode(Stateful):
    """A windowed join; each port is one of its streams."""

    inputs: tuple[Input, ...]
    join: Join
    groups: int
    tuning: JoinTuning
    kind = "join"

    @property
    def reach(self) -> int:
        return max(self.join.within)

    @property
    def slots(self) -> int:
        return self.tuning.slots

    @property
    def read_in_one_pass(self) -> bool:
        origins = [each.branch.origin for each in self.inputs]
        plain = all(isinstance(each.branch.origin, Source) and not each.branch.transforms for each in self.inputs)
        return plain and len({id(origin) for origin in origins}) == len(origins)

    @property
    def schemas(self) -> Mapping[str, StructType]:
        return {ONLY: self.join.schema}

    @property
    def routing(self) -> Routing:
        """By the hash of the key. In an inner join, rows with a null key go nowhere: they match nothing."""
        return Routing(self.groups, route=HashRoute(self.join.on, nulls=bool(self.preserved)))

    @property
    def routes(self) -> Routing:
        return self.routing

    @property
    def preserved(self) -> tuple[int, ...]:
        """The ports whose rows are results even if unmatched."""
        return self.join.preserved

    def describe(self) -> list[str]:
        join, tuning = self.join, self.tuning
        columns = [
            f"stream {port}: {', '.join(name if name == to else f'{name} as {to}' for name, to in named)}"
            for port, named in enumerate(join.columns)
        ]
        return [
            f"{join.how} join on {', '.join(join.on)}, in {self.groups} groups",
            f"within {', '.join(describe(window) for window in join.within)}",
            *([] if join.where_label is None else [f"where {join.where_label}"]),
            *columns,
            f"result: {join.schema.simpleString()}",
            # The layout of the state depends on these: a checkpoint is valid for one choice.
            f"{tuning.probe} probe, blocks of {tuning.block} tuples, theta {tuning.theta} blocks, "
            f"{'fine-tuned' if tuning.fine_tuning else 'not fine-tuned'}",
        ]
