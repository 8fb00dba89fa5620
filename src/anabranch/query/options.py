"""Settings that a query would not use or could not satisfy. They are refused before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import InvalidArgumentError
from anabranch.query.deliveries import Delivery
from anabranch.query.graph import Network, Step
from anabranch.query.nodes import Node
from anabranch.query.settings import QoS
from anabranch.query.triggers import AVAILABLE_NOW


def check_options(deliveries: Sequence[Delivery], network: Network, qos: QoS, trigger: str | None) -> None:
    """Raise an error for the first such setting."""
    for step in network.steps:
        _check_step(step, qos, trigger)
    _check_drops(deliveries, network, qos)


def holds_no_window_back(step: Step, qos: QoS, trigger: str | None) -> bool:
    """Whether every window must be delivered in the epoch that completes it: then B is 1, and no controller raises it.

    This holds if other operators read the windows and use the watermark; if windows are delivered in order, since one
    group may not wait; and if the query ends with its input, since there is no later epoch.
    """
    return bool(step.feeds) or qos.disorder is not None or trigger == AVAILABLE_NOW


def _check_step(step: Step, qos: QoS, trigger: str | None) -> None:
    node = step.node
    if node.refusal is not None:
        raise InvalidArgumentError(node.refusal.message, hint=node.refusal.hint)
    if node.batch is not None and node.batch > 1:
        _check_batch(step, qos, trigger)
    if node.slots > 1 and trigger in (None, AVAILABLE_NOW):
        raise InvalidArgumentError(
            f"JoinTuning(slots={node.slots}) needs an interval as trigger: workers take turns in epochs of the "
            "trigger, and rows might wait for a turn that never comes",
            hint='give trigger="2 seconds", or leave slots out',
        )
    if qos.disorder is not None and step.sinks and (reason := _unordered(node)) is not None:
        raise InvalidArgumentError(
            f"QoS(disorder={qos.disorder}) is not possible for {step.name}: {reason}",
            hint="leave disorder out, or run this output as a separate query without it",
        )


def _check_batch(step: Step, qos: QoS, trigger: str | None) -> None:
    node, reason = step.node, None
    if node.aggregate is not None and node.aggregate.counts_rows:
        reason = "a count window is delivered with its last row, and waits for no other"
    elif step.feeds:
        reason = f"{step.name} feeds another operator, which would treat windows that waited as late"
    elif qos.disorder is not None:
        reason = "windows that wait for their batch would be delivered out of order (QoS(disorder=...))"
    elif trigger == AVAILABLE_NOW:
        reason = "the query ends with its input, and complete windows that wait for others would not be delivered"
    if reason is not None:
        raise InvalidArgumentError(f"start() cannot use batch={node.batch}: {reason}", hint="leave batch out")


def _unordered(node: Node) -> str | None:
    """Why the results of an operator cannot be delivered in order; None if they can."""
    query = node.aggregate
    if query is None:
        return "it is not a windowed aggregate"
    if query.counts_rows and query.rows_per_key and query.keys:
        return "each key counts its own rows, so positions of different keys cannot be compared"
    return None


def _check_drops(deliveries: Sequence[Delivery], network: Network, qos: QoS) -> None:
    for delivery in deliveries:
        if delivery.max_gap and any(node.aggregate is None for node, _, _ in delivery.sinks):
            raise InvalidArgumentError(
                f"max_gap={delivery.max_gap} has no effect on these results: only windows can be dropped",
                hint="leave max_gap out of .to(...)",
            )
    if qos.overflow == "halt" or any([qos.max_gap, *(step.max_gap for step in network.steps)]):
        return
    given = {
        "drop_share": bool(qos.drop_share),
        "drop_at": qos.drop_at != "auto",
        "seed": qos.seed != 0,
        "weight": any(delivery.weight != 1.0 for delivery in deliveries),
    }
    unused = [name for name, used in given.items() if used]
    if unused:
        raise InvalidArgumentError(
            f"without max_gap, no window may be missing, and these settings have no effect: {', '.join(unused)}",
            hint="add QoS(max_latency=..., max_gap=...), or leave these out",
        )
