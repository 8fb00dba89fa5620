"""Strategies: how the windows of a query are divided among the workers (paper 1).

| strategy | what leaves the split | who may use it |
|---|---|---|
| `window` | each row once per window | every aggregate |
| `batch`  | each row once per batch of B windows | every aggregate |
| `pane`   | each row once; pane states travel in batches, over a ring where there is no key | mergeable aggregates |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.errors import InvalidArgumentError

Kind = Literal["window", "batch", "pane"]
KINDS: tuple[Kind, ...] = ("window", "batch", "pane")


@dataclass(frozen=True)
class Strategy:
    """A way to run a query. `batch` is B, the windows that are evaluated together; `nodes` is the size of the ring."""

    kind: Kind
    batch: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgumentError(
                f"there is no strategy {self.kind!r}", hint='take "auto", "window", "batch" or "pane"'
            )
        if not isinstance(self.batch, int) or self.batch < 1:
            raise InvalidArgumentError(f"a batch of {self.batch!r} windows", hint="a batch has at least one window")
        if self.nodes is not None and (not isinstance(self.nodes, int) or self.nodes < 1):
            raise InvalidArgumentError(f"a ring of {self.nodes!r} nodes", hint="a ring has at least one node")

    @property
    def label(self) -> str:
        return f"batch, B = {self.batch}" if self.kind == "batch" else self.kind


def asked_strategy(kind: str, batch: int | None, nodes: int | None, *, on_stream: bool, keyed: bool) -> Strategy | None:
    """What a user asks for; None: "auto". What the strategy would not use is refused."""
    asked = None if kind == "auto" else Strategy(kind, 1 if batch is None else batch, nodes)  # type: ignore[arg-type]
    reason = None
    if batch is not None and asked is None:
        reason = f'batch={batch} with the strategy "auto", which chooses its own'
    elif batch is not None and batch > 1 and kind == "window":
        reason = f'batch={batch} with the strategy "window", which takes one window at a time'
    elif nodes is not None and kind != "pane":
        reason = f"nodes={nodes} with the strategy {kind!r}: only panes go round a ring"
    elif nodes is not None and keyed:
        reason = f"nodes={nodes} for a query with keys, which are spread without a ring"
    elif nodes is not None and on_stream:
        reason = f"nodes={nodes} on a stream, where there is no ring"
    if reason is not None:
        raise InvalidArgumentError(reason, hint='leave it out, or take the strategy that has it: "batch" or "pane"')
    return asked
