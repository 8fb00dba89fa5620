"""A watermark that ran away, set back: what the driver and the operators make of a repair (`anabranch repair`).

The ledger says after which epoch the watermark was set back, and to which time t. From the next epoch on rows from t on
are no longer late. Rows before t are gone from the state, so a window that starts earlier could only be incomplete:
windows leave that start at t or later, each exact if none of its rows came before the repair. Of what is made of the
results of other operators, even less is complete:

    window over rows          [t------)           the first window that can be complete
    its results               complete from t + size on
    window over these                 [------)    the first that can be
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.query.graph import Network
from anabranch.query.origins import Output


@dataclass(frozen=True)
class SetBack:
    """After which epoch the watermark was set back, to which time; and from which time on an operator has all rows."""

    epoch: int
    watermark: int
    starts: int

    def due(self, reached: int, epoch: int) -> bool:
        """Whether a group that was last run in epoch `reached`, and is run in `epoch`, must hear of it."""
        return reached <= self.epoch < epoch


def complete_from(network: Network, t: int) -> dict[str, int]:
    """For each operator the time from which on its input is complete, if that of the sources is from t on."""
    starts: dict[str, int] = {}
    for step in network.steps:
        known = [t]
        for each in step.node.inputs:
            origin = each.part.origin
            if isinstance(origin, Output):
                name = network.name_of(origin.node)
                known.append(starts[name] + origin.node.reach)
        starts[step.name] = max(known)
    return starts
