"""Controllers that decide anew in every epoch, by nothing but a number: the same decisions in every run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from anabranch.control.rebalance import MEMORY, ROUTING, WORKERS, Rebalance
from anabranch.control.shed import ShedController
from anabranch.observe.progress import EpochProgress


class Wandering(Rebalance):
    """Moves half of the groups or more in every epoch; with `live`, takes their live state: as if another machine."""

    live: ClassVar[Path | None] = None

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        turn = current.get(MEMORY, {}).get("turn", 0) + 1
        routing = [(group + turn + group * turn // 3) % self.most_workers for group in range(self.groups)]
        before = current.get(ROUTING) or routing
        for group, worker in enumerate(routing):
            if self.live is not None and worker != before[group]:
                shutil.rmtree(self.live / self.operator / f"{group:05d}", ignore_errors=True)
        return {ROUTING: routing, WORKERS: self.most_workers, MEMORY: {"turn": turn}}


class WanderingShed(ShedController):
    """Sheds another share in every epoch, and elsewhere in every third; sometimes all of it, sometimes nothing."""

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        turn = current.get("turn", 0) + 1
        cut = self.cuts[turn // 3 % len(self.cuts)]
        share = (0.5, 0.9, 0.0, 0.3, 0.7)[turn % 5]
        p = {point.name: min(share, point.bound / (point.bound + 1)) for point in cut}
        shut = [cut[-1].name] if turn % 7 == 0 else []
        p |= dict.fromkeys(shut, 1.0)
        return {"cut": [point.name for point in cut], "p": p, "shut": shut, "cause": f"turn {turn}", "turn": turn}
