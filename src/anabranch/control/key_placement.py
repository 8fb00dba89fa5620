"""Which policy places keys on workers, and which keys are heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anabranch.keys.partitioner import HeavyKeys, table_of
from anabranch.keys.policy import Partitioning
from anabranch.keys.selection import WindowKeys, select
from anabranch.observe.progress import EpochProgress

HEAVY, PLACING = "heavy_keys", "placing"
"""settings of `KeyPlacement` that readers of progress cannot use: the table of heavy keys, and what it remembers"""
PLACEMENT = ("partition", HEAVY, PLACING)
"""all settings of `KeyPlacement`"""
WINDOWS_REMEMBERED = 8
"""windows on which the choice of a policy is based"""


def remembered_windows(setting: Mapping[str, Any] | None) -> tuple[int, list[tuple[int, float]]]:
    """The last epoch that `KeyPlacement` has measured, and (keys, tuples per worker) of the last windows."""
    known = setting or {"epoch": -1, "seen": []}
    return int(known["epoch"]), [(int(keys), float(tuples)) for keys, tuples in known["seen"]]


@dataclass(frozen=True)
class KeyPlacement:
    """Settings `partition`, the policy that places keys (see `keys.selection`), and `heavy_keys`, the shared table.

    With `fixed`, the user's policy, only the table is decided. The rule sees keys and tuples per worker of an epoch's
    part of a window, since that is what workers evaluate at once.

    Both depend on counts of the data, which a replay finds again, and never on times: a query that was killed decides
    as one that was not. What was measured is remembered in `placing`.
    """

    operator: str
    workers: int
    splitters: int | None = None
    fixed: str | None = None
    before: EpochProgress | None = None
    """the last counts in the ledger, used after a restart, when the history has none"""
    name: ClassVar[str] = "key-placement"
    settings: ClassVar[tuple[str, ...]] = PLACEMENT

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        last, before = remembered_windows(current.get(PLACING))
        news = [
            (epoch.epoch, measured)
            for epoch in (*([self.before] if self.before is not None and not history else []), *history)
            if epoch.epoch > last and (measured := epoch.operator(self.operator)) is not None and measured.partitions
        ]
        parts = [part for _, measured in news for part in measured.partitions]
        windows = [*before, *([part.keys, part.tuples / part.workers] for part in parts)][-WINDOWS_REMEMBERED:]
        settings = self._policy(windows, current) if self.fixed is None else {}
        table = current.get(HEAVY) or HeavyKeys().to_json()
        if Partitioning.of_label(self.fixed or settings["partition"]).policy != "heavy":
            table = HeavyKeys().to_json()
        elif news:
            table = table_of(news[-1][1].heaviest, self.workers).to_json()
        memory = {"epoch": news[-1][0] if news else last, "seen": windows}
        return {**settings, HEAVY: table, PLACING: memory}

    def _policy(self, windows: Sequence[Sequence[float]], current: Mapping[str, Any]) -> dict[str, Any]:
        label = current.get("partition")
        known = WindowKeys([int(keys) for keys, _ in windows], [tuples for _, tuples in windows]) if windows else None
        chosen = select(known, splitters=self.splitters, present=Partitioning.of_label(label) if label else None)
        if chosen.partitioning.label == label:
            return {"partition": label}
        return {"partition": chosen.partitioning.label, "why:partition": chosen.why}
