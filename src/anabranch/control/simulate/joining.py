"""A windowed join on a simulated cluster: a master hands out tuples, workers join them.

One epoch is a distribution epoch of `t_d` seconds:

    master   | sends to worker 0 | to 1 | to 2 |          the next epoch's tuples come in
    worker 0 |     receives      |        joins                      | idle |
    worker 1 |  waits            | rec. |        joins               | idle |
    worker 2 |  waits                   | rec. |  joins, and is not done in time: tuples are pending

The master sends serially, so worker i waits for those before it. With `subgroups` the epoch is divided into that many
slots, and a worker waits only for those of its own slot. Tuples that a worker has not joined when its next tuples come
are *pending*: they wait in its buffer, first in first out, and move with their partition-group to another worker. The
mean share of the buffer that pending tuples take is the worker's `occupancy`.

The work is counted from its definition. Inserting a tuple into its group's window costs `insert`; comparing it with the
other stream's tuples there costs `scan` each (nested loop) or `probe` once (hashed); each pair costs `pair`. With fine
tuning a group is halved until no part has more than 2 * theta bytes, and only one part is scanned. Halves are assumed
to be equal. Windows start empty.

Give `simulate` `trigger_seconds=t_d` and a cluster with `overhead=0`, so that epochs are distribution epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anabranch.control.simulate.cluster import Cluster
from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import OperatorProgress, WorkerMeasure

MICROSECONDS = 1e6
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class JoinCosts:
    """Costs in seconds, on a slot of speed 1 and a shared network."""

    insert: float = 2e-6
    """inserting a tuple into its window and removing it later"""
    scan: float = 2e-9
    """one comparison in a nested loop"""
    probe: float = 2e-6
    """one lookup where tuples are hashed"""
    pair: float = 1e-6
    """one result"""
    message: float = 1e-3
    """fixed cost of the master for each worker"""
    byte: float = 1e-8
    """one byte over the network: about 100 MB a second"""


@dataclass
class JoinWork:
    """A join of two streams with equal windows and rates; reads the settings `routing` and `workers`.

    It keeps its windows and pending tuples, so use an instance for one run only. `metrics` of its progress has, in
    integers: `delay_us`, the mean time from the arrival of a pair's later tuple, over the pairs of this epoch;
    `communication_us` and `idle_us`, summed over the workers; `communication_least_us` and `communication_most_us` of
    a single worker; `pending` tuples; `moved_bytes` of state.
    """

    costs: JoinCosts = JoinCosts()
    groups: int = 60
    """partition-groups"""
    skew: float = 0.0
    """the share of group g is proportional to (g + 1) ** -skew"""
    weights: Sequence[float] | None = None
    """shares of the groups, instead of `skew`"""
    window: float = 600.0
    """seconds"""
    t_d: float = 2.0
    """seconds of a distribution epoch"""
    probe: Literal["nested", "hashed"] = "nested"
    fine_tuning: bool = True
    theta: float = 1.5e6
    """bytes: a part of a group has at most twice this size"""
    tuple_bytes: int = 64
    buffer_bytes: float = 1e6
    """a worker's memory for pending tuples"""
    selectivity: float = 3.6e-6
    """share of the other stream's window that a tuple matches: 3 pairs at 1,500 tuples a second in 600 s"""
    subgroups: int = 1
    """n_g"""
    name: str = "join"
    _now: float = field(default=0.0, init=False)
    _windows: deque[Floats] = field(default_factory=deque, init=False)
    """for each epoch still in the window, its tuples per group"""
    _content: Floats = field(init=False)
    """tuples per group in the windows of both streams"""
    _pending: Floats = field(init=False)
    """waiting tuples, by the epoch in which they were handed over, and by group"""
    _arrived: Floats = field(init=False)
    """mean arrival times of the pending tuples, in seconds"""
    _routing: npt.NDArray[np.int64] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        shares = self.weights if self.weights is not None else (np.arange(self.groups) + 1.0) ** -self.skew
        if len(shares) != self.groups or self.groups < 1 or self.subgroups < 1 or not 0 < self.t_d <= self.window:
            raise InvalidArgumentError(
                f"{len(shares)} weights for {self.groups} groups, {self.subgroups} sub-groups, epochs of {self.t_d} s "
                f"in a window of {self.window} s: such a join cannot run",
                hint="give one weight per group, at least one group and sub-group, and an epoch within the window",
            )
        self._shares = np.asarray(shares, dtype=np.float64) / np.sum(shares)
        self._content = np.zeros(self.groups)
        self._pending = np.zeros((0, self.groups))
        self._arrived = np.zeros((0, self.groups))

    def epoch(
        self, rows: int, span: float, settings: Mapping[str, Any], cluster: Cluster, rng: np.random.Generator
    ) -> OperatorProgress:
        workers = int(settings.get("workers", len(cluster.speeds)))
        routing = np.array(settings.get("routing") or [group % workers for group in range(self.groups)])
        self._now += self.t_d
        new_tuples = rng.multinomial(rows, self._shares).astype(np.float64)
        moved, moving = self._moved(routing, workers)
        begin, received = self._distribute(
            np.bincount(routing, new_tuples, workers).astype(np.float64) * self.tuple_bytes
        )
        received = received + moving
        communication = np.minimum(received - begin, self.t_d)
        self._routing = routing
        self._hand_over(new_tuples, begin[routing])

        waiting = float(self._pending.sum())
        costs, pairs = self._per_tuple()
        joined = []
        for worker in range(workers):
            # Workers on the same slot share its time.
            sharing = sum((worker - other) % len(cluster.speeds) == 0 for other in range(workers))
            factor = cluster.busy(worker, 1.0, rng) * sharing
            time = self.t_d - float(communication[worker])
            joined.append(self._worker(worker, new_tuples, costs, time, factor, self._now + float(received[worker])))
        measures = tuple(measure for measure, _ in joined)
        done = waiting - float(self._pending.sum())
        delay = sum(delays for _, delays in joined) / done if done > 0 else 0.0
        busy = np.array([measure.seconds for measure in measures])
        seconds = {
            "delay": delay,
            "communication": communication.sum(),
            "communication_least": communication.min(),
            "communication_most": communication.max(),
            "idle": (self.t_d - communication - busy).sum(),
        }
        return OperatorProgress(
            self.name,
            rows,
            emitted=round(done * pairs),
            state_bytes=int(self._content.sum() * self.tuple_bytes),
            seconds=float((communication + busy).max()),
            workers=measures,
            decisions=settings,
            metrics={
                **{f"{name}_us": round(float(value) * MICROSECONDS) for name, value in seconds.items()},
                "pending": round(waiting - done),
                "moved_bytes": round(moved),
            },
        )

    def _worker(
        self, worker: int, new_tuples: Floats, costs: Floats, time: float, factor: float, start: float
    ) -> tuple[WorkerMeasure, float]:
        """A worker's work in `time` seconds, each worth 1 / `factor` of costs; and the sum of its tuples' delays."""
        own = np.flatnonzero(self._routing == worker)
        done, finished = self._join(own, costs[own], time / factor)
        delays = float((done * (start + finished * factor - self._arrived[:, own])).sum())
        self._pending[:, own] -= done
        waiting = float(self._pending[:, own].sum())
        busy = done.sum(axis=0) * costs[own] * factor
        measure = WorkerMeasure(
            worker,
            int(new_tuples[own].sum()),
            float(busy.sum()),
            groups=len(own),
            buffered=round(waiting),
            state_bytes=int(self._content[own].sum() * self.tuple_bytes),
            query_seconds=float(busy.sum()),
            occupancy=min(1.0, waiting * self.tuple_bytes / self.buffer_bytes),
            group_seconds=tuple((int(group), float(spent)) for group, spent in zip(own, busy, strict=True)),
        )
        return measure, delays

    def _moved(self, routing: npt.NDArray[np.int64], workers: int) -> tuple[float, Floats]:
        """Bytes of the groups that change workers, and the seconds that each worker spends on them."""
        seconds = np.zeros(workers)
        if self._routing is None:
            return 0.0, seconds
        bytes_of = (self._content + self._pending.sum(axis=0)) * self.tuple_bytes
        changed = np.flatnonzero(self._routing != routing)
        for group in changed:
            for worker in {int(self._routing[group]), int(routing[group])}:
                if worker < workers:  # removed workers do not wait
                    seconds[worker] += bytes_of[group] * self.costs.byte
        return float(bytes_of[changed].sum()), seconds

    def _distribute(self, sent: Floats) -> tuple[Floats, Floats]:
        """For each worker the start of its slot and the end of its transfer, in seconds since the epoch began."""
        workers = len(sent)
        slots = min(self.subgroups, workers)
        begin, received, clock = np.zeros(workers), np.zeros(workers), 0.0
        for slot in range(slots):
            clock = max(clock, slot * self.t_d / slots)
            for worker in range(slot, workers, slots):
                clock += self.costs.message + sent[worker] * self.costs.byte
                begin[worker], received[worker] = slot * self.t_d / slots, clock
        return begin, received

    def _hand_over(self, new_tuples: Floats, slot_begin: Floats) -> None:
        """Put new tuples into the buffers and the windows; they arrived in the `t_d` seconds before their slot."""
        kept = self._pending.sum(axis=1) > 1e-6
        self._pending = np.vstack([self._pending[kept], new_tuples])
        self._arrived = np.vstack([self._arrived[kept], self._now + slot_begin - self.t_d / 2])
        self._windows.append(new_tuples)
        self._content += new_tuples
        if len(self._windows) * self.t_d > self.window:
            self._content -= self._windows.popleft()

    def _per_tuple(self) -> tuple[Floats, float]:
        """The cost of a tuple of each group, in seconds, and the pairs that it finds."""
        other = self._content / 2
        pairs = self.selectivity * float(other.sum())
        fixed = self.costs.insert + pairs * self.costs.pair
        if self.probe == "hashed":
            return np.full(self.groups, fixed + self.costs.probe), pairs
        scanned = other.copy()
        if self.fine_tuning:
            while (large := scanned * 2 * self.tuple_bytes > 2 * self.theta).any():
                scanned[large] /= 2
        return fixed + scanned * self.costs.scan, pairs

    def _join(self, own: npt.NDArray[np.int64], costs: Floats, budget: float) -> tuple[Floats, Floats]:
        """The tuples joined within a cost budget, by epoch and group, and the mean cost up to each of them.

        Oldest epochs first; within an epoch all groups at the same pace.
        """
        waiting = self._pending[:, own]
        cost = waiting @ costs
        before = np.cumsum(cost) - cost
        share = np.clip((budget - before) / np.where(cost > 0, cost, 1.0), 0.0, 1.0)
        return waiting * share[:, None], (before + share * cost / 2)[:, None]


def master_buffer_peak(rate: float, t_d: float, n_g: int, *, epochs: int = 3) -> float:
    """The most tuples of a stream that wait at the master when its workers form `n_g` sub-groups with a slot each.

    Simulated slot by slot, from empty buffers: the buffer of each sub-group grows by its share of the rate, and is
    drained in its slot. The closed form is r * t_d / 2 * (1 + 1 / n_g).
    """
    buffers, peak = [0.0] * n_g, 0.0
    for slot in range(epochs * n_g):
        buffers = [held + rate / n_g * t_d / n_g for held in buffers]
        peak = max(peak, sum(buffers))
        buffers[slot % n_g] = 0.0
    return peak
