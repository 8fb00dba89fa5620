"""Void the decisions for an epoch that has not been published, so that the epoch is decided again.

A decision in the ledger is followed whenever its epoch runs again. If it cannot be carried out (`runtime.decisions`),
the query would fail at every start. The epoch can be decided again as long as no sink has results that depend on the
decision:

| what the ledger says | may the decision be voided? |
|---|---|
| the epoch is `done` | no: it is published |
| `publishing` names the epoch | no: some sinks may have it, and would keep those results under its number |
| neither, and the decision says that publishing is marked | yes: no sink was called |
| neither, and the decision does not say so (an older release wrote it) | only if the sinks have been checked |

The old decision stays in the ledger, marked as void. Files left by attempts to run the epoch are removed: the next
attempt may have other workers, and may drop other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.errors import CheckpointError
from anabranch.io.folder import Folder
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import identity_of


@dataclass(frozen=True)
class Voided:
    """Decisions that are no longer valid."""

    epoch: int
    decision: Mapping[str, Any]
    """what was decided"""

    def describe(self) -> str:
        """One line of text."""
        return (
            f"the decisions for epoch {self.epoch} are void; it is decided again at the next start, for the same rows. "
            f"They were: {json.dumps(self.decision)}"
        )


def void_decision(
    checkpoint: Folder, *, checked_sinks: bool = False, reason: str = "", dry_run: bool = False
) -> Voided:
    """Void the decision for the last epoch if it is not published. No query may run on the checkpoint.

    `checkpoint` is the folder with the ledger: the `store` of the query, if it has one. `checked_sinks` confirms that
    no sink has that epoch; it is needed only where the ledger does not record it.
    """
    query = Checkpoint(checkpoint, identity_of(checkpoint))
    ledger = query.ledger()
    last = ledger.last_outcome()
    epoch = 0 if last is None else last[0] + 1
    decision = ledger.decision_to_repair(epoch)
    if decision is None:
        raise CheckpointError(
            f"{checkpoint} has no decision to void: epoch {epoch} has not been decided yet",
            hint="start the query; there is nothing to void",
        )
    if ledger.publishing() == epoch:
        raise CheckpointError(
            f"the results of epoch {epoch} may be at the sinks: the query stopped while publishing them. Decided "
            "again, the epoch would have other results under the same number, and the sinks would keep the old ones",
            hint="start the query unchanged, with the same release: it completes the epoch as it was decided",
        )
    if not decision.marks_publishing and not checked_sinks:
        raise CheckpointError(
            f"the ledger of {checkpoint} does not say whether epoch {epoch} is at the sinks: the release that decided "
            "it did not record that",
            hint=f"look at every sink (a FileSink has a folder epoch={epoch}). If none has the epoch, run this again "
            "with --sinks-cleared",
        )
    voided = Voided(epoch, ledger.decision_json(epoch))
    if dry_run:
        return voided
    # First remove what attempts left. If this is interrupted, the decision still counts, and the epoch writes it again.
    for node in query.state.folders():
        EpochStore(query.state, query.query, node).forget_epoch(epoch)
    for side in query.side.folders():
        query.side.sub(side, f"epoch={epoch}").remove()
    ledger.void_decision(epoch, reason)
    return voided
