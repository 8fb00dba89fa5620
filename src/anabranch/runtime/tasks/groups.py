"""The groups of a worker: their live state, reused or rebuilt, and their operators.

A group's durable state is a snapshot every few epochs, plus the input blocks since then. For an operator whose state
*is* the input that its windows still hold (a join: `JoinOperator.horizon`), it is the blocks alone. Live state is a
folder on the local disk, stamped with the epoch after which it was saved. If the stamp is not the expected one (another
host had the group, a task died, an epoch runs again), or the files do not match the stamp, the state is rebuilt. So a
group moves by a new entry in the routing table: its new worker finds no state, or an old one, and rebuilds it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from anabranch.errors import AnabranchError, OperatorError, StateError
from anabranch.operators.protocol import Emitted, Operator
from anabranch.runtime.tasks.set_back import SetBack
from anabranch.runtime.tasks.task import EpochTask
from anabranch.store.live import cleanup
from anabranch.store.live.own_folder import OwnFolder
from anabranch.store.live.state import LiveState
from anabranch.store.records import OperatorDecision, OperatorOutcome

Blocks = Sequence[tuple[int, pa.RecordBatch]]
"""(port, block) of one group in one epoch"""

_cache: OrderedDict[OwnFolder, tuple[str, LiveState, Operator]] = OrderedDict()
"""Open states and operators of this process, by folder, so that the next epoch need not open them again."""

MOST_OPEN = 1_024
"""How many groups a process keeps open: groups of ended queries must not pile up in a long-lived worker."""


class Groups:
    """Opens the groups of a worker in an epoch."""

    def __init__(self, task: EpochTask) -> None:
        self.task = task
        self.rebuilt: Counter[str] = Counter()
        """how many groups were rebuilt, by reason"""
        if cleanup.mark_used(task.live):
            _close_removed()
        self._records: dict[int, tuple[OperatorDecision, OperatorOutcome]] = {}

    def folder(self, group: int) -> OwnFolder:
        """The folder of a group's live state."""
        return self.task.live.sub(self.task.node, f"{group:05d}")

    def reached(self, group: int) -> int:
        """The epoch in which the group last ran: the previous one, unless the groups take turns."""
        return self.task.behind[group][0] if group in self.task.behind else self.task.epoch - 1

    def token(self, group: int) -> str:
        """The token for the stamp of the group's state: the decision's token, with the operator and the group."""
        return self._bound(self.task.token, group) or ""

    def _bound(self, token: str | None, group: int) -> str | None:
        """The token with the operator and the group, so that a folder moved from another group is not accepted."""
        return f"{token} {self.task.node}/{group}" if token else None

    def repairs(self, group: int) -> Iterator[SetBack]:
        """Repairs that the group has not applied yet. A group without rows so far has applied none."""
        reached = self.reached(group) if group in self.task.active else -1
        return (repair for repair in self.task.set_back if repair.due(reached, self.task.epoch))

    def open(self, group: int) -> tuple[LiveState, Operator]:
        """The group's state after the epoch in which it last ran, and its operator."""
        task, reached, key = self.task, self.reached(group), self.folder(group)
        token = self._bound(task.tokens.get(reached), group)
        cached = _cache.pop(key, None)
        if cached is None:
            state = LiveState(key, task.run)
        else:
            run, state, operator = cached
            known = run == task.run and token is not None and state.shows(reached, token)
            if known and state.current() and state.intact():
                _cache[key] = cached
                return state, operator
            state.refresh(task.run)
        if token is not None and state.shows(reached, token):
            operator = self._instance(group)
            operator.open(state)
        else:
            operator = self._restore(group, state, reached)
        _cache[key] = (task.run, state, operator)
        while len(_cache) > MOST_OPEN:
            _cache.popitem(last=False)[1][1].close()
        return state, operator

    def waiting(self, group: int) -> Iterator[Blocks]:
        """The blocks of the epochs in which the group did not run, oldest first."""
        if group in self.task.active:
            for epoch in range(self.reached(group) + 1, self.task.epoch):
                yield self._logged(group, epoch)

    def _restore(self, group: int, state: LiveState, reached: int) -> Operator:
        """Load the last snapshot, if there is one, and fold in the blocks since then."""
        task, operator = self.task, self._instance(group)
        why = "no usable live state on this host" if state.stamp() is None else "live state of another epoch"
        state.clear()
        known = group in task.active
        at = None
        if known and task.since is None:
            at = task.store.snapshot_before(group, reached)
        if at is not None:
            task.store.load_snapshot(group, at, state)
        operator.open(state)
        if known:
            self.rebuilt[why] += 1
            first = (0 if at is None else at + 1) if task.since is None else task.since
            for epoch in range(first, reached + 1):
                for repair in task.set_back:
                    if repair.due(epoch - 1, epoch):
                        operator.on_set_back(repair.watermark, repair.starts)
                self._fold_again(group, epoch, operator)
        return operator

    def _fold_again(self, group: int, epoch: int, operator: Operator) -> None:
        decision, outcome = self._record(epoch)
        if group not in outcome.active:
            return
        operator.decisions = decision.settings
        for _ in fold(operator, self._logged(group, epoch), outcome.watermark, again=True):
            pass

    def _logged(self, group: int, epoch: int) -> Blocks:
        """The group's blocks in the log of an epoch, whichever worker had the group then."""
        decision, outcome = self._record(epoch)
        if group not in outcome.block_groups:
            return ()
        return self.task.store.read_blocks(epoch, decision.routing[group], group)

    def _record(self, epoch: int) -> tuple[OperatorDecision, OperatorOutcome]:
        """The operator's decision and outcome in an earlier epoch."""
        if epoch not in self._records:
            decision, outcome = self.task.ledger.decision(epoch), self.task.ledger.outcome(epoch)
            if decision is None or outcome is None:
                raise StateError(
                    f"epoch {epoch} is missing from the ledger, and restoring the state of {self.task.node} needs it",
                    hint="restore the checkpoint folder from a copy, or start with a new one",
                )
            self._records[epoch] = decision.operators[self.task.node], outcome.operators[self.task.node]
        return self._records[epoch]

    def _instance(self, group: int) -> Operator:
        made = self.task.factory()
        if not isinstance(made, Operator):
            raise OperatorError(
                f"the factory of {self.task.node} returned {type(made).__name__}, which is not an Operator",
                hint="derive your class from anabranch.Operator",
            )
        made.group = group
        made.metrics = Counter()
        return made


def _close_removed() -> None:
    """Close states whose folders were removed: deleted files take up room as long as a process has them mapped."""
    for folder, (_, state, _) in list(_cache.items()):
        if not state.exists():
            _cache.pop(folder)
            state.close()


def fold(
    operator: Operator, blocks: Iterable[tuple[int, pa.RecordBatch]], watermark: int | None, *, again: bool = False
) -> Iterator[Emitted]:
    """Run an epoch of one group. `again`: the epoch ran before, so its output is not needed.

    `process` and `on_watermark` may be generators, or return an iterable.
    """
    try:
        for port, block in blocks:
            if again:
                operator.absorb(block, port)
            else:
                yield from operator.process(block, port) or ()
        if watermark is not None:
            yield from operator.on_watermark(watermark) or ()
    except (AnabranchError, GeneratorExit, MemoryError):
        raise
    except Exception as error:
        raise OperatorError(
            f"{type(operator).__name__} failed in group {operator.group}: {type(error).__name__}: {error}",
            hint="fix the operator and start again from the same checkpoint: no result of this epoch was published",
        ) from error
