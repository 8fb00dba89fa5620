"""The folders of a checkpoint: decisions, state, rows between operators, rows kept aside."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.io.folder import Folder
from anabranch.store.ledger import Ledger


@dataclass(frozen=True)
class Checkpoint:
    """Where a query keeps everything that must survive a crash."""

    folder: Folder
    query: str
    """the unique id of this checkpoint, in all its files"""
    spark: str = ""
    """path or URI of Spark's own checkpoint"""

    @property
    def flow(self) -> Folder:
        return self.folder.sub("flow")

    @property
    def side(self) -> Folder:
        return self.folder.sub("side")

    @property
    def state(self) -> Folder:
        return self.folder.sub("state")

    def ledger(self) -> Ledger:
        return Ledger(self.folder.sub("ledger"), self.query)
