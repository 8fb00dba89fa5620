"""Which worker has which partition-group, and how many workers there are (paper 2, sections IV.C and V.A).

Rows are hashed to partition-groups, far more than there are workers, and a table says which worker has which group:
`routing[group] = worker`. An epoch is the paper's distribution epoch. After every `reorganise_every` of them, which are
one *reorganisation epoch*, `Rebalance` changes the table; the state of a group follows by itself.

A worker's load f is its mean buffer occupancy over the reorganisation epoch, and says what the worker is:

| f | the worker is a |
|---|---|
| above `supplier` | supplier |
| below `consumer` | consumer |
| between | neutral |

What then happens; the first line that fits counts:

| seen | decision |
|---|---|
| suppliers > `beta` * consumers, and fewer than `most_workers` | one worker more; each supplier yields groups to it |
| suppliers | each yields groups to a consumer of its own: the heaviest supplier to the lightest consumer |
| no supplier in `QUIET` reorganisation epochs in a row, and the others can take the load | one worker fewer |
| anything else | nothing |

**Which group.** The paper takes any. Here busy seconds are known, and the group is taken whose move brings the two
workers closest together; it must leave the consumer below what the supplier had, or the two had only changed places.
With `moves` above 1 a supplier yields more at once, as long as it stays the heavier of the two.

**Hysteresis.** A group that has just moved stays for one reorganisation epoch, and does not go back to where it came
from for `HOLD` of them. After a worker was added none is taken away for `HOLD`, nor while the load is not lower by
`SLACK` than it was then: a degree that once was too small is not tried again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from anabranch.control.base import HISTORY, SLACK, register
from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import EpochProgress, OperatorProgress

ROUTING, WORKERS, MEMORY = "routing", "workers", "rebalancing"
"""the settings of `Rebalance`; the last one is what it remembers"""
HOLD = 3
"""reorganisation epochs for which a group does not go back, and the degree does not fall after it rose"""
QUIET = 2
"""reorganisation epochs without a supplier before a worker is taken away"""
SAFE = 0.6
"""share of their time that workers may be busy after one of them was taken away"""
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
    """of these, the last ones that had no supplier"""
    raised: tuple[int, float] | None = None
    """turn of the last increase of the degree, and the load at that time"""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(group, worker it came from, turn) of the last `HOLD` turns"""

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

    def as_json(self) -> dict[str, Any]:
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
    """A routing table in the making: who has which group, what they weigh, and which may go where."""

    routing: list[int]
    weights: Sequence[float]
    memory: Memory
    moved: list[tuple[int, int]] = field(default_factory=list)
    """(group, worker it came from) of this turn"""

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
        """Move up to `most` groups from the one to the other; the groups that were moved."""
        done: list[int] = []
        while len(done) < most:
            group = self._best(supplier, consumer, ordered=bool(done))
            if group is None:
                break
            self.move(group, consumer)
            done.append(group)
        return done

    def _best(self, supplier: int, consumer: int, *, ordered: bool) -> int | None:
        """The group whose move brings the two closest together; with `ordered` the supplier stays the heavier."""
        own, gap = self.groups(supplier), self.load(supplier) - self.load(consumer)
        if len(own) < 2:
            return None
        most = gap / 2 if ordered else gap
        fitting = [g for g in own if 0 < self.weights[g] < most and self.may_go(g, consumer)]
        return min(fitting, key=lambda g: (abs(gap - 2 * self.weights[g]), g), default=None)


@register
@dataclass(frozen=True)
class Rebalance:
    """Settings `routing` and `workers` (the degree of declustering); `rebalancing` is what it remembers."""

    operator: str
    groups: int
    """partition-groups"""
    most_workers: int
    supplier: float = 0.5
    """Th_sup: mean occupancy above which a worker yields groups"""
    consumer: float = 0.01
    """Th_con: mean occupancy below which a worker takes groups"""
    beta: float = 0.5
    reorganise_every: int = 10
    """epochs"""
    moves: int = 1
    """groups that a supplier yields at once, at most; the paper's is 1"""
    rebalance: bool = True
    """without it groups move only when the degree changes"""
    decluster: bool = True
    """without it the degree is always `most_workers`"""
    slots: int = 1
    """n_g: a worker's turn comes in one of so many epochs, in which it does the work of all of them"""
    name: ClassVar[str] = "rebalance"

    def __post_init__(self) -> None:
        if min(self.groups, self.most_workers, self.reorganise_every, self.moves) < 1:
            raise InvalidArgumentError(
                f"groups {self.groups}, most_workers {self.most_workers}, reorganise_every {self.reorganise_every} and "
                f"moves {self.moves}: with none of any of them no row could be placed, or no group could ever move",
                hint="give each of them as 1 or more",
            )
        if not (0 <= self.consumer < self.supplier and self.beta > 0):
            raise InvalidArgumentError(
                f"supplier {self.supplier}, consumer {self.consumer}, beta {self.beta}: a worker could be both, and "
                "groups would go in circles",
                hint="0 <= consumer < supplier, and beta above 0; the paper's are 0.5, 0.01 and 0.5",
            )

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        workers, routing, memory, why = self._standing(current)
        if memory.epoch is None and history:
            memory = replace(memory, epoch=history[0].epoch - 1)
        loads = self._loads(history, memory, workers, routing)
        if loads is None:
            return _settings(workers, routing, memory, why)
        turn = memory.turn + 1
        recent = tuple(move for move in memory.moves if turn - move[2] <= HOLD)
        memory = replace(memory, epoch=history[-1].epoch, turn=turn, moves=recent)
        return self._reorganise(workers, routing, memory, loads)

    def _standing(self, current: Mapping[str, Any]) -> tuple[int, list[int], Memory, dict[str, str]]:
        """Degree, table and memory as the last decision left them, repaired where the query was changed since."""
        before = max(1, int(current.get(WORKERS) or self.most_workers))
        workers = min(before, self.most_workers) if self.decluster else self.most_workers
        known = current.get(ROUTING)
        if known is None or len(known) != self.groups:
            # Another number of groups hashes rows otherwise: the old table says nothing of the new groups.
            routing = [group % workers for group in range(self.groups)]
            why = {} if known is None else {"why:routing": f"{len(known)} -> {self.groups} groups: dealt anew"}
            return workers, routing, Memory(), why
        routing, memory = [int(worker) for worker in known], Memory.of(current.get(MEMORY))
        if workers == before and all(0 <= worker < workers for worker in routing):
            return workers, routing, memory, {}
        repaired = _repaired(routing, before, workers)
        # Where groups came from, and what the load was, speaks of workers that are not there any more.
        memory = replace(memory, quiet=0, raised=None, moves=())
        why = {"why:routing": f"{before} -> {workers} workers since the last run: dealt to those that are there"}
        return workers, repaired, memory, why

    def _loads(
        self, history: Sequence[EpochProgress], memory: Memory, workers: int, routing: Sequence[int]
    ) -> _Loads | None:
        """The loads of the reorganisation epoch, or None as long as it has not ended."""
        if not history or memory.epoch is None or history[-1].epoch - memory.epoch < self.reorganise_every:
            return None
        measured = [
            (epoch, operator)
            for epoch in history
            if epoch.epoch > memory.epoch
            and not epoch.replayed  # how long a second run took says nothing of the next first one
            and (operator := epoch.operator(self.operator)) is not None
        ]
        seconds = sum(epoch.interval for epoch, _ in measured)
        if len(measured) < ENOUGH * min(self.reorganise_every, HISTORY) or seconds <= 0:
            return None
        found: list[list[float]] = [[] for _ in range(workers)]
        weights, busy = [0.0] * self.groups, 0.0
        for _, operator in measured:
            for worker in operator.workers:
                if worker.worker < workers and worker.occupancy is not None:
                    found[worker.worker].append(worker.occupancy)
                busy += worker.seconds / seconds
            for group, spent in _group_seconds(operator, routing):
                weights[group] += spent / seconds
        occupancy = tuple(sum(each) / len(each) if each else 0.0 for each in found)
        return _Loads(occupancy, tuple(weights), busy)

    def _reorganise(self, workers: int, routing: list[int], memory: Memory, loads: _Loads) -> dict[str, Any]:
        f = loads.occupancy
        # Without any busy seconds all groups count alike.
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
            seen = f"{len(suppliers)} suppliers, {len(consumers)} consumers"
            if self.decluster and workers < self.most_workers and len(suppliers) > self.beta * len(consumers):
                why = self._yield(table, suppliers, [workers] * len(suppliers))
                if table.moved:  # a worker with no group would be none
                    degree = workers + 1
                    memory = replace(memory, raised=(memory.turn, loads.busy))
                    why["why:workers"] = f"{seen}: {workers} -> {degree}"
            if degree == workers and self.rebalance:
                why = self._yield(table, suppliers, consumers)
        elif self.decluster and (fewer := self._without_last(workers, routing, memory, loads)) is not None:
            table, degree = fewer, workers - 1
            memory = replace(memory, quiet=0)
            why["why:workers"] = f"no supplier, busy {loads.busy:.2f} of {workers} workers: {workers} -> {degree}"
            why["why:routing"] = _told(table.moved, table.routing)
        moves = (*memory.moves, *((group, source, memory.turn) for group, source in table.moved))
        return _settings(degree, table.routing, replace(memory, moves=moves), why)

    def _yield(self, table: _Table, suppliers: Iterable[int], takers: Iterable[int]) -> dict[str, str]:
        """Each supplier to one taker, and each taker once; the reason."""
        free, kept = list(takers), []
        for supplier in suppliers:
            taker = next((taker for taker in free if table.relieve(supplier, taker, self.moves)), None)
            if taker is not None:
                free.remove(taker)
            elif len(table.groups(supplier)) < 2:
                kept.append(f"worker {supplier} keeps its only group")
            elif not free:
                kept.append(f"worker {supplier} finds no consumer")
            else:
                kept.append(f"worker {supplier} has no group that would help a consumer")
        told = [_told(table.moved, table.routing)] if table.moved else []
        return {"why:routing": "; ".join([*told, *kept])}

    @property
    def _safe(self) -> float:
        """Busy seconds per second and worker that leave room: its turn is a part of the time only."""
        return SAFE / self.slots

    def _without_last(self, workers: int, routing: Sequence[int], memory: Memory, loads: _Loads) -> _Table | None:
        """The table with the last worker's groups dealt to the others; None if they cannot take them, or not yet.

        It is always the last one, since workers are numbered without gaps.
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
    return {ROUTING: routing, WORKERS: workers, MEMORY: memory.as_json(), **why}


def _group_seconds(operator: OperatorProgress, routing: Sequence[int]) -> Iterable[tuple[int, float]]:
    """Busy seconds of each group; what a worker spent on no group in particular, its groups have in equal parts."""
    for worker in operator.workers:
        known = [(group, spent) for group, spent in worker.group_seconds if 0 <= group < len(routing)]
        yield from known
        own = [group for group, owner in enumerate(routing) if owner == worker.worker]
        rest = max(0.0, worker.seconds - sum(spent for _, spent in known))
        yield from ((group, rest / len(own)) for group in own)


def _repaired(routing: Sequence[int], before: int, workers: int) -> list[int]:
    """The table for another number of workers; by numbers of groups, since loads are not known after a restart."""
    repaired = [worker if 0 <= worker < workers else -1 for worker in routing]
    held = [repaired.count(worker) for worker in range(workers)]

    def deal(group: int, worker: int) -> None:
        repaired[group] = worker
        held[worker] += 1

    for group in (group for group, worker in enumerate(routing) if not 0 <= worker < workers):
        deal(group, held.index(min(held)))
    for new in range(before, workers):
        while held[new] < len(routing) // workers:
            fullest = held.index(max(held))
            held[fullest] -= 1
            deal(repaired.index(fullest), new)
    return repaired


def _told(moved: Sequence[tuple[int, int]], routing: Sequence[int]) -> str:
    shown = [f"{group}: {source} -> {routing[group]}" for group, source in moved]
    return f"group {', '.join(shown)}"
