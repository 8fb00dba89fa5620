"""How the driver and the operators follow a repair that set the watermark back (`anabranch repair`).

The ledger says after which epoch the watermark was set back, and to which time t. From the next epoch on, rows at t or
later are no longer late. Rows before t are gone from the state, so a window that starts before t would be incomplete.
Only windows that start at t or later are emitted; each is exact if none of its rows came before the repair. Operators
that read the results of other operators start later still:

    window over rows          [t------)           the first window that can be complete
    its results               complete from t + size on
    window over the results           [------)    the first window that can be complete
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.query.graph import Network
from anabranch.query.origins import Output


@dataclass(frozen=True)
class SetBack:
    """The watermark was set back after an epoch."""

    epoch: int
    watermark: int
    starts: int
    """the time from which on the operator's input is complete"""

    def due(self, reached: int, epoch: int) -> bool:
        """Whether a group that last ran in epoch `reached`, and now runs in `epoch`, must apply it."""
        return reached <= self.epoch < epoch


def complete_from(network: Network, t: int) -> dict[str, int]:
    """For each operator, the time from which on its input is complete, if the sources are complete from t on."""
    starts: dict[str, int] = {}
    for step in network.steps:
        known = [t]
        for input_ in step.node.inputs:
            origin = input_.branch.origin
            if isinstance(origin, Output):
                name = network.name_of(origin.node)
                known.append(starts[name] + origin.node.reach)
        starts[step.name] = max(known)
    return starts
