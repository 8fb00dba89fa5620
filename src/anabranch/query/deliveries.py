"""Which output goes to which sink."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks import Sink
from anabranch.query.nodes import Node


@dataclass(frozen=True)
class Delivery:
    """Outputs of one operator and their sinks; with `max_gap` None, the query's QoS decides."""

    sinks: tuple[tuple[Node, str, Sink], ...]
    max_gap: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.max_gap is not None and (type(self.max_gap) is not int or self.max_gap < 0):
            raise InvalidArgumentError(
                f"max_gap={self.max_gap!r} is not a number of windows", hint="give a whole number; 0 drops none"
            )
        if not isinstance(self.weight, (int, float)) or not 0 < self.weight < math.inf:
            raise InvalidArgumentError(
                f"weight must be above zero and finite, not {self.weight!r}", hint="leave it out for the default, 1"
            )


def deliver(
    emissions: Sequence[tuple[Node, str]],
    sink: Sink | Mapping[str, Sink],
    max_gap: int | None = None,
    weight: float = 1.0,
) -> Delivery:
    """A delivery with one sink for the only output, or a dictionary of sinks for several."""
    names = [name for _, name in emissions]
    if isinstance(sink, Sink):
        if len(emissions) != 1:
            raise InvalidArgumentError(
                f"one sink cannot take the outputs {', '.join(names)}: their rows have different columns",
                hint="give a dictionary: {" + ", ".join(f'"{name}": FileSink(...)' for name in names) + "}",
            )
        sink = {names[0]: sink}
    if not isinstance(sink, Mapping) or not all(isinstance(each, Sink) for each in sink.values()):
        raise InvalidArgumentError(f"{sink!r} is not a Sink", hint='write, for example, anabranch.FileSink("results/")')
    if not sink:
        raise InvalidArgumentError(
            "the dictionary of sinks is empty: nothing would be delivered", hint=f"the outputs are {', '.join(names)}"
        )
    unknown = set(sink) - set(names)
    if unknown:
        raise InvalidArgumentError(
            f"there is no output {', '.join(sorted(unknown))}", hint=f"the outputs are {', '.join(names)}"
        )
    return Delivery(tuple((node, name, sink[name]) for node, name in emissions if name in sink), max_gap, weight)
