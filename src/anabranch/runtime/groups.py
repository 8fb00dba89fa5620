"""The groups of a worker: their live state, found or rebuilt, and their operators.

Durable state of a group is a snapshot every few epochs and the input blocks since; or the blocks alone, of an operator
whose state *is* the input that its windows still hold (a join: `JoinOperator.horizon`). Live state is a folder on the
local disk, stamped with the epoch whose end it shows. If the stamp is not the one wanted (another host had the group, a
task died, an epoch runs again), or the files are not what was stamped, the state is rebuilt. So a group moves by a new
entry in the routing table: its new worker finds no state, or an old one, and rebuilds it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from anabranch.errors import AnabranchError, OperatorError, StateError
from anabranch.operators.protocol import Emitted, Operator
from anabranch.runtime.set_back import SetBack
from anabranch.store.live import cleanup
from anabranch.store.live.own_folder import OwnFolder
from anabranch.store.live.state import LiveState
from anabranch.store.records import OperatorDecision, OperatorOutcome

if TYPE_CHECKING:
    from anabranch.runtime.worker import EpochTask

Blocks = Sequence[tuple[int, pa.RecordBatch]]
"""(port, block) of one group in one epoch"""

_cache: OrderedDict[OwnFolder, tuple[str, LiveState, Operator]] = OrderedDict()
"""Open states and operators of this process, by folder: the next epoch need not open them again."""

MOST_OPEN = 1_024
"""Groups that a process keeps open: those of ended queries must not pile up in a worker that lives long."""


class Groups:
    """Opens the groups of a worker in an epoch."""

    def __init__(self, task: EpochTask) -> None:
        self.task = task
        self.rebuilt: Counter[str] = Counter()
        """groups whose state was restored, by the reason"""
        if cleanup.mark_used(task.live):
            _let_go_of_removed()
        self._records: dict[int, tuple[OperatorDecision, OperatorOutcome]] = {}

    def folder(self, group: int) -> OwnFolder:
        """Where the live state of a group is."""
        return self.task.live.sub(self.task.node, f"{group:05d}")

    def reached(self, group: int) -> int:
        """The epoch that the group was last run in: the one before this, unless its turn comes more seldom."""
        return self.task.behind[group][0] if group in self.task.behind else self.task.epoch - 1

    def token(self, group: int) -> str:
        """What the stamp of the group's state says of this epoch: the decision's token, and whose state it is."""
        return self._bound(self.task.token, group) or ""

    def _bound(self, token: str | None, group: int) -> str | None:
        """A folder that came to the place of another group's must not be taken for its own."""
        return f"{token} {self.task.node}/{group}" if token else None

    def repairs(self, group: int) -> Iterator[SetBack]:
        """Repairs that the group has not heard of. One without rows until now has heard of none."""
        reached = self.reached(group) if group in self.task.active else -1
        return (repair for repair in self.task.set_back if repair.due(reached, self.task.epoch))

    def open(self, group: int) -> tuple[LiveState, Operator]:
        """The group's state at the end of the epoch that it was last run in, and its operator."""
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
        """The blocks of the epochs in which it was not the group's turn, oldest first."""
        if group in self.task.active:
            for epoch in range(self.reached(group) + 1, self.task.epoch):
                yield self._logged(group, epoch)

    def _restore(self, group: int, state: LiveState, reached: int) -> Operator:
        """Load the last snapshot, if there are any, and fold in the blocks since."""
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
        """What the log has of the group in an epoch, whichever worker had it then."""
        decision, outcome = self._record(epoch)
        if group not in outcome.block_groups:
            return ()
        return self.task.store.read_blocks(epoch, decision.routing[group], group)

    def _record(self, epoch: int) -> tuple[OperatorDecision, OperatorOutcome]:
        """What was decided for the operator in an earlier epoch, and what came out."""
        if epoch not in self._records:
            decision, outcome = self.task.ledger.decision(epoch), self.task.ledger.outcome(epoch)
            if decision is None or outcome is None:
                raise StateError(
                    f"the ledger has lost epoch {epoch}, which is needed to restore the state of {self.task.node}",
                    hint="restore the checkpoint folder from a copy, or start with a new one",
                )
            self._records[epoch] = decision.operators[self.task.node], outcome.operators[self.task.node]
        return self._records[epoch]

    def _instance(self, group: int) -> Operator:
        made = self.task.factory()
        if not isinstance(made, Operator):
            raise OperatorError(
                f"the factory of {self.task.node} made {type(made).__name__}, which is not an Operator",
                hint="derive your class from anabranch.Operator",
            )
        made.group = group
        made.metrics = Counter()
        return made


def _let_go_of_removed() -> None:
    """Files that were deleted take up room as long as a process has them mapped."""
    for folder, (_, state, _) in list(_cache.items()):
        if not state.exists():
            _cache.pop(folder)
            state.close()


def fold(
    operator: Operator, blocks: Iterable[tuple[int, pa.RecordBatch]], watermark: int | None, *, again: bool = False
) -> Iterator[Emitted]:
    """An epoch of one group; `again`: one that was run before, so nobody wants its output.

    `process` and `on_watermark` may be generators, or return what can be iterated.
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
            hint="fix the operator and start again from the same checkpoint: nothing of this epoch was published",
        ) from error
