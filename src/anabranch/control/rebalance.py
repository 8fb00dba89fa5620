"""Which worker has which partition-group, and how many workers there are.

Rows are hashed to partition-groups, of which there are many more than workers, and a table says which worker has which
group: `routing[group] = worker`. After every `reorganise_every` epochs, which form one *reorganisation epoch*,
`Rebalance` changes the table; the state of a group moves with it.

A worker's load f is its mean buffer occupancy over the reorganisation epoch. It determines the worker's role:

| f | the worker is a |
|---|---|
| above `supplier` | supplier |
| below `consumer` | consumer |
| between | neutral |

The first line that applies decides:

| situation | decision |
|---|---|
| suppliers > `beta` * consumers, and fewer than `most_workers` | one more worker; each supplier yields groups to it |
| suppliers | each yields groups to a consumer of its own: the heaviest supplier to the lightest consumer |
| no supplier in `QUIET` reorganisation epochs in a row, and the others can take the load | one worker fewer |
| anything else | nothing |

**Which group.** The group whose move brings the busy seconds of the two workers closest together. It must leave the
consumer with less than the supplier had, or the two would only trade places. With `moves` above 1 a supplier yields
several groups at once, as long as it stays the heavier of the two.

**Hysteresis.** A group that has just moved stays for one reorganisation epoch, and does not return to its previous
worker for `HOLD` of them. After a worker was added, none is removed for `HOLD` reorganisation epochs, nor until the
load is lower by `SLACK` than it was then: a degree that was too small once is not tried over and over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from anabranch.control.base import HISTORY, SLACK
from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import EpochProgress, OperatorProgress

ROUTING, WORKERS, MEMORY = "routing", "workers", "rebalancing"
"""the settings of `Rebalance`; the last is what it remembers"""
HOLD = 3
"""reorganisation epochs during which a moved group does not return, and a raised degree is not lowered"""
QUIET = 2
"""reorganisation epochs without a supplier before a worker is removed"""
SAFE = 0.6
"""share of their time that workers may be busy after one of them was removed"""
ENOUGH = 0.5
"""share of a reorganisation epoch that must have been measured: after a restart the history is empty"""


@dataclass(frozen=True)
class Memory:
    """What `Rebalance` remembers in its setting `rebalancing`."""

    epoch: int | None = None
    """the last epoch of the last reorganisation epoch; None before any epoch was seen"""
    turn: int = 0
    """reorganisation epochs so far"""
    quiet: int = 0
    """reorganisation epochs in a row, up to the last, without a supplier"""
    raised: tuple[int, float] | None = None
    """the reorganisation epoch in which the degree was last raised, and the load at that time"""
    moves: tuple[tuple[int, int, int], ...] = ()
    """moves of the last `HOLD` turns: (group, worker it came from, turn)"""

    @classmethod
    def of(cls, setting: Mapping[str, Any] | None) -> Memory:
        known = dict(setting or {})
        raised = known.get("raised")
        moves = tuple((int(group), int(source), int(turn)) for group, source, turn in known.get("moves", ()))
        return cls(
            known.get("epoch"),
            int(known.get("turn", 0)),
            int(known.get("quiet", 0)),
            (int(raised[0]), float(raised[1])) if raised else None,
            moves,
        )

    def to_json(self) -> dict[str, Any]:
        raised = list(self.raised) if self.raised else None
        return asdict(self) | {"raised": raised, "moves": [list(move) for move in self.moves]}


@dataclass(frozen=True)
class _Loads:
    """What a reorganisation epoch measured."""

    occupancy: tuple[float, ...]
    """f of each worker"""
    weights: tuple[float, ...]
    """busy seconds of each group, per second"""
    busy: float
    """busy seconds of all workers, per second"""


@dataclass
class _Table:
    """A routing table that is being changed: the owner and weight of each group, and where it may go."""

    routing: list[int]
    weights: Sequence[float]
    memory: Memory
    moved: list[tuple[int, int]] = field(default_factory=list)
    """moves of this turn: (group, worker it came from)"""

    def groups(self, worker: int) -> list[int]:
        return [group for group, owner in enumerate(self.routing) if owner == worker]

    def load(self, worker: int) -> float:
        return sum(self.weights[group] for group in self.groups(worker))

    def may_go(self, group: int, worker: int) -> bool:
        past = [(source, self.memory.turn - turn) for moved, source, turn in self.memory.moves if moved == group]
        return all(age > 1 and (age > HOLD or source != worker) for source, age in past)

    def move(self, group: int, worker: int) -> None:
        self.moved.append((group, self.routing[group]))
        self.routing[group] = worker

    def relieve(self, supplier: int, consumer: int, most: int) -> list[int]:
        """Move up to `most` groups from a supplier to a consumer; returns the groups moved."""
        done: list[int] = []
        while len(done) < most:
            group = self._best(supplier, consumer, ordered=bool(done))
            if group is None:
                break
            self.move(group, consumer)
            done.append(group)
        return done

    def _best(self, supplier: int, consumer: int, *, ordered: bool) -> int | None:
        """The group whose move brings the two closest together; with `ordered`, the supplier stays the heavier."""
        own, gap = self.groups(supplier), self.load(supplier) - self.load(consumer)
        if len(own) < 2:
            return None
        most = gap / 2 if ordered else gap
        fitting = [g for g in own if 0 < self.weights[g] < most and self.may_go(g, consumer)]
        return min(fitting, key=lambda g: (abs(gap - 2 * self.weights[g]), g), default=None)


@dataclass(frozen=True)
class Rebalance:
    """Settings `routing` and `workers` (the degree of declustering); `rebalancing` is what it remembers."""

    operator: str
    groups: int
    """partition-groups"""
    most_workers: int
    supplier: float = 0.5
    """mean occupancy above which a worker yields groups"""
    consumer: float = 0.01
    """mean occupancy below which a worker takes groups"""
    beta: float = 0.5
    """suppliers per consumer above which a worker is added"""
    reorganise_every: int = 10
    """epochs"""
    moves: int = 1
    """groups that a supplier yields at once, at most"""
    rebalance: bool = True
    """if False, groups move only when the degree changes"""
    decluster: bool = True
    """if False, the degree is always `most_workers`"""
    slots: int = 1
    """n_g: each worker runs in one of this many epochs, and then does the work of all of them"""
    name: ClassVar[str] = "rebalance"
    settings: ClassVar[tuple[str, ...]] = (ROUTING, WORKERS, MEMORY)

    def __post_init__(self) -> None:
        if min(self.groups, self.most_workers, self.reorganise_every, self.moves) < 1:
            raise InvalidArgumentError(
                f"groups {self.groups}, most_workers {self.most_workers}, reorganise_every {self.reorganise_every} and "
                f"moves {self.moves}: below 1, no row could be placed or no group could ever move",
                hint="set each of them to 1 or more",
            )
        if not (0 <= self.consumer < self.supplier and self.beta > 0):
            raise InvalidArgumentError(
                f"supplier {self.supplier}, consumer {self.consumer}, beta {self.beta}: a worker could be supplier and "
                "consumer at once, and groups would move in circles",
                hint="use 0 <= consumer < supplier, and beta above 0; the defaults are 0.5, 0.01 and 0.5",
            )

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        workers, routing, memory, why = self._in_force(current)
        if memory.epoch is None and history:
            memory = replace(memory, epoch=history[0].epoch - 1)
        loads = self._loads(history, memory, workers, routing)
        if loads is None:
            return _settings(workers, routing, memory, why)
        turn = memory.turn + 1
        recent = tuple(move for move in memory.moves if turn - move[2] <= HOLD)
        memory = replace(memory, epoch=history[-1].epoch, turn=turn, moves=recent)
        return self._reorganise(workers, routing, memory, loads)

    def _in_force(self, current: Mapping[str, Any]) -> tuple[int, list[int], Memory, dict[str, str]]:
        """Degree, table and memory of the last decision, adapted if the query was changed since."""
        before = max(1, int(current.get(WORKERS) or self.most_workers))
        workers = min(before, self.most_workers) if self.decluster else self.most_workers
        known = current.get(ROUTING)
        if known is None or len(known) != self.groups:
            # With another number of groups rows are hashed differently: the old table does not apply to the new groups.
            routing = [group % workers for group in range(self.groups)]
            why = {} if known is None else {"why:routing": f"{len(known)} -> {self.groups} groups: dealt out again"}
            return workers, routing, Memory(), why
        routing, memory = [int(worker) for worker in known], Memory.of(current.get(MEMORY))
        if workers == before and all(0 <= worker < workers for worker in routing):
            return workers, routing, memory, {}
        adapted = _adapted(routing, before, workers)
        # Past moves and the past load belong to workers that no longer exist.
        memory = replace(memory, quiet=0, raised=None, moves=())
        why = {"why:routing": f"{before} -> {workers} workers since the last run: dealt out again"}
        return workers, adapted, memory, why

    def _loads(
        self, history: Sequence[EpochProgress], memory: Memory, workers: int, routing: Sequence[int]
    ) -> _Loads | None:
        """The loads of the reorganisation epoch, or None until it has ended."""
        if not history or memory.epoch is None or history[-1].epoch - memory.epoch < self.reorganise_every:
            return None
        measured = [
            (epoch, operator)
            for epoch in history
            if epoch.epoch > memory.epoch
            and not epoch.replayed  # the duration of a replay does not predict that of a first run
            and (operator := epoch.operator(self.operator)) is not None
        ]
        seconds = sum(epoch.interval for epoch, _ in measured)
        if len(measured) < ENOUGH * min(self.reorganise_every, HISTORY) or seconds <= 0:
            return None
        occupancies: list[list[float]] = [[] for _ in range(workers)]
        weights, busy = [0.0] * self.groups, 0.0
        for _, operator in measured:
            for worker in operator.workers:
                if worker.worker < workers and worker.occupancy is not None:
                    occupancies[worker.worker].append(worker.occupancy)
                busy += worker.seconds / seconds
            for group, spent in _group_seconds(operator, routing):
                weights[group] += spent / seconds
        occupancy = tuple(sum(each) / len(each) if each else 0.0 for each in occupancies)
        return _Loads(occupancy, tuple(weights), busy)

    def _reorganise(self, workers: int, routing: list[int], memory: Memory, loads: _Loads) -> dict[str, Any]:
        f = loads.occupancy
        # Without any busy seconds all groups weigh the same.
        weights = loads.weights if any(loads.weights) else (1.0,) * self.groups
        table = _Table(list(routing), weights, memory)
        suppliers = sorted(
            (w for w in range(workers) if f[w] > self.supplier), key=lambda w: (-f[w], -table.load(w), w)
        )
        consumers = sorted((w for w in range(workers) if f[w] < self.consumer), key=lambda w: (f[w], table.load(w), w))
        memory = replace(memory, quiet=0 if suppliers else memory.quiet + 1)
        why: dict[str, str] = {}
        degree = workers
        if suppliers:
            counts = f"{len(suppliers)} suppliers, {len(consumers)} consumers"
            if self.decluster and workers < self.most_workers and len(suppliers) > self.beta * len(consumers):
                why = self._yield(table, suppliers, [workers] * len(suppliers))
                if table.moved:  # without a group the new worker would be useless
                    degree = workers + 1
                    memory = replace(memory, raised=(memory.turn, loads.busy))
                    why["why:workers"] = f"{counts}: {workers} -> {degree}"
            if degree == workers and self.rebalance:
                why = self._yield(table, suppliers, consumers)
        elif self.decluster and (fewer := self._without_last(workers, routing, memory, loads)) is not None:
            table, degree = fewer, workers - 1
            memory = replace(memory, quiet=0)
            why["why:workers"] = f"no supplier, busy {loads.busy:.2f} of {workers} workers: {workers} -> {degree}"
            why["why:routing"] = _described(table.moved, table.routing)
        moves = (*memory.moves, *((group, source, memory.turn) for group, source in table.moved))
        return _settings(degree, table.routing, replace(memory, moves=moves), why)

    def _yield(self, table: _Table, suppliers: Iterable[int], takers: Iterable[int]) -> dict[str, str]:
        """Move groups from each supplier to one taker, each taker once; returns the reason."""
        free, reasons = list(takers), []
        for supplier in suppliers:
            taker = next((taker for taker in free if table.relieve(supplier, taker, self.moves)), None)
            if taker is not None:
                free.remove(taker)
            elif len(table.groups(supplier)) < 2:
                reasons.append(f"worker {supplier} keeps its only group")
            elif not free:
                reasons.append(f"worker {supplier} finds no consumer")
            else:
                reasons.append(f"worker {supplier} has no group that would help a consumer")
        moves = [_described(table.moved, table.routing)] if table.moved else []
        return {"why:routing": "; ".join([*moves, *reasons])}

    @property
    def _safe(self) -> float:
        """Busy seconds per second that leave a worker room: it runs only a part of the time."""
        return SAFE / self.slots

    def _without_last(self, workers: int, routing: Sequence[int], memory: Memory, loads: _Loads) -> _Table | None:
        """The table with the last worker's groups dealt to the others; None if it is too early or they have no room.

        The last worker is the one that goes, since workers are numbered without gaps.
        """
        others = range(workers - 1)
        if not others or memory.quiet < QUIET or loads.busy > self._safe * len(others):
            return None
        if memory.raised is not None:
            turn, load = memory.raised
            if memory.turn - turn <= HOLD or loads.busy > load * (1.0 - SLACK):
                return None
        table = _Table(list(routing), loads.weights, memory)
        for group in sorted(table.groups(workers - 1), key=lambda g: (-loads.weights[g], g)):
            takers = [worker for worker in others if table.may_go(group, worker)]
            if not takers:
                return None
            taker = min(takers, key=lambda worker: (table.load(worker), len(table.groups(worker)), worker))
            table.move(group, taker)
            if loads.weights[group] > 0 and table.load(taker) > SAFE:
                return None
        return table


def _settings(workers: int, routing: list[int], memory: Memory, why: Mapping[str, str]) -> dict[str, Any]:
    return {ROUTING: routing, WORKERS: workers, MEMORY: memory.to_json(), **why}


def _group_seconds(operator: OperatorProgress, routing: Sequence[int]) -> Iterable[tuple[int, float]]:
    """Busy seconds of each group; time spent on no particular group is split equally between a worker's groups."""
    for worker in operator.workers:
        known = [(group, spent) for group, spent in worker.group_seconds if 0 <= group < len(routing)]
        yield from known
        own = [group for group, owner in enumerate(routing) if owner == worker.worker]
        rest = max(0.0, worker.seconds - sum(spent for _, spent in known))
        yield from ((group, rest / len(own)) for group in own)


def _adapted(routing: Sequence[int], before: int, workers: int) -> list[int]:
    """The table for another number of workers, balanced by numbers of groups: after a restart loads are unknown."""
    adapted = [worker if 0 <= worker < workers else -1 for worker in routing]
    held = [adapted.count(worker) for worker in range(workers)]

    def deal(group: int, worker: int) -> None:
        adapted[group] = worker
        held[worker] += 1

    for group in (group for group, worker in enumerate(routing) if not 0 <= worker < workers):
        deal(group, held.index(min(held)))
    for new in range(before, workers):
        while held[new] < len(routing) // workers:
            fullest = held.index(max(held))
            held[fullest] -= 1
            deal(adapted.index(fullest), new)
    return adapted


def _described(moved: Sequence[tuple[int, int]], routing: Sequence[int]) -> str:
    shown = [f"{group}: {source} -> {routing[group]}" for group, source in moved]
    return f"group {', '.join(shown)}"
