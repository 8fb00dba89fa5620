"""The query network in order: which operators run in an epoch, one after another, over which sources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks import Sink
from anabranch.query.deliveries import Delivery
from anabranch.query.nodes import Input, Node
from anabranch.query.origins import Output, Source


@dataclass(frozen=True)
class Step:
    """One operator of the network, with the name of its state and metrics."""

    name: str
    node: Node
    sinks: dict[str, Sink]
    feeds: frozenset[str]
    """outputs that other operators read"""
    max_gap: int | None = None
    """windows in a row that may be missing from its results; None: the QoS of the query decides"""
    weight: float = 1.0
    """the value of its results where several outputs compete"""


@dataclass(frozen=True)
class Network:
    """The operators, each after those it reads from, and the sources."""

    steps: tuple[Step, ...]
    sources: tuple[Source, ...]

    def name_of(self, node: Node) -> str:
        return next(step.name for step in self.steps if step.node is node)

    def index_of(self, source: Source) -> int:
        return next(i for i, each in enumerate(self.sources) if each is source)

    def describe(self) -> list[str]:
        """Readable lines that differ for different networks: the checkpoint keeps them."""
        lines = [
            f"source {i}: time {s.time.name}, delay {s.delay} us, columns {s.frame.schema.simpleString()}"
            for i, s in enumerate(self.sources)
        ]
        for step in self.steps:
            reads = ", ".join(self._origin(each) for each in step.node.inputs)
            lines += [f"{step.name}: reads {reads}", *(f"{step.name}: {line}" for line in step.node.describe())]
        return lines

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self.describe()).encode()).hexdigest()[:16]

    def _origin(self, each: Input) -> str:
        origin = each.branch.origin
        if isinstance(origin, Source):
            where = f"source {self.index_of(origin)}"
        else:
            where = f"{self.name_of(origin.node)}.{origin.name}"
        return f"{where} at port {each.port}, after {len(each.branch.transforms)} steps"


def arrange(deliveries: Sequence[Delivery]) -> Network:
    """The network that these deliveries need."""
    order: list[Node] = []
    sources: list[Source] = []
    read: set[tuple[int, str]] = set()

    def visit(node: Node) -> None:
        if any(node is each for each in order):
            return
        for each in node.inputs:
            origin = each.branch.origin
            if isinstance(origin, Output):
                read.add((id(origin.node), origin.name))
                visit(origin.node)
            elif not any(origin is known for known in sources):
                sources.append(origin)
        order.append(node)

    wanted = [sink for delivery in deliveries for sink in delivery.sinks]
    for node, _, _ in wanted:
        visit(node)
    _check_sinks(wanted)
    steps = []
    for number, node in enumerate(order, 1):
        mine = [delivery for delivery in deliveries if any(of is node for of, _, _ in delivery.sinks)]
        sinks = {name: sink for of, name, sink in wanted if of is node}
        gaps = [delivery.max_gap for delivery in mine if delivery.max_gap is not None]
        feeds = frozenset(name for of, name in read if of == id(node))
        weight = sum(delivery.weight for delivery in mine) or 1.0
        steps.append(Step(f"{node.kind}-{number}", node, sinks, feeds, min(gaps, default=None), weight))
    return Network(tuple(steps), tuple(sources))


def _check_sinks(wanted: Sequence[tuple[Node, str, Sink]]) -> None:
    sinks: set[int] = set()
    outputs: set[tuple[int, str]] = set()
    for node, name, sink in wanted:
        if id(sink) in sinks:
            raise InvalidArgumentError(
                f"{sink!r} is the sink of two outputs: their epochs would replace each other", hint="give each its own"
            )
        if (id(node), name) in outputs:
            raise InvalidArgumentError(
                f"{sink!r} is a second sink for one output: only one of the two would get the rows",
                hint="give one and read from there, or a CallSink that passes the rows on to several",
            )
        sinks.add(id(sink))
        outputs.add((id(node), name))
