"""Strategies: how the windows of a query are divided among the workers.

| strategy | what is sent to workers | which aggregates can use it |
|---|---|---|
| `window` | each row once per window | every aggregate |
| `batch`  | each row once per batch of B windows | every aggregate |
| `pane`   | each row once; pane states are sent in batches, over a ring where there is no key | mergeable aggregates |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.errors import InvalidArgumentError

Kind = Literal["window", "batch", "pane"]
KINDS: tuple[Kind, ...] = ("window", "batch", "pane")


@dataclass(frozen=True)
class Strategy:
    """A way to run a query."""

    kind: Kind
    batch: int | None = None
    """B, the number of windows evaluated together; None: one, or for panes over a table as many as are fast"""
    nodes: int | None = None
    """the size of the ring; None: the planner's choice"""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgumentError(
                f"there is no strategy {self.kind!r}", hint='use "auto", "window", "batch" or "pane"'
            )
        if self.batch is not None and (not isinstance(self.batch, int) or self.batch < 1):
            raise InvalidArgumentError(
                f"batch={self.batch!r}: a batch needs at least one window", hint="write, for example, batch=10"
            )
        if self.nodes is not None and (not isinstance(self.nodes, int) or self.nodes < 1):
            raise InvalidArgumentError(
                f"nodes={self.nodes!r}: a ring needs at least one node", hint="write, for example, nodes=4"
            )

    @property
    def label(self) -> str:
        return f"batch, B = {self.windows_at_once}" if self.kind == "batch" else self.kind

    @property
    def windows_at_once(self) -> int:
        """B as a number."""
        return 1 if self.batch is None else self.batch


def asked_strategy(kind: str, batch: int | None, nodes: int | None, *, on_stream: bool, keyed: bool) -> Strategy | None:
    """The strategy that the user asked for; None for "auto". Settings that it does not use are refused."""
    asked = None if kind == "auto" else Strategy(kind, batch, nodes)  # type: ignore[arg-type]
    reason = None
    if batch is not None and asked is None:
        reason = f'batch={batch} has no effect with the strategy "auto", which chooses the batch itself'
    elif batch is not None and batch > 1 and kind == "window":
        reason = f'batch={batch} has no effect with the strategy "window", which evaluates one window at a time'
    elif nodes is not None and kind != "pane":
        reason = f"nodes={nodes} has no effect with the strategy {kind!r}: only panes use a ring"
    elif nodes is not None and keyed:
        reason = f"nodes={nodes} has no effect on a query with keys, which needs no ring"
    elif nodes is not None and on_stream:
        reason = f"nodes={nodes} has no effect on a stream, which has no ring"
    if reason is not None:
        raise InvalidArgumentError(
            reason, hint='leave it out, or use a strategy that has it: "batch" (batch=), "pane" (batch= and nodes=)'
        )
    return asked
