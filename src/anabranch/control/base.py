"""Controllers: pure functions from measured history to the settings of the next epoch.

A controller owns a few settings of one operator. `decide` gets the epochs so far, oldest first, and the settings in
force, and returns the values its settings shall have; with `why:<setting>` for each that it changed. It has no clock,
no randomness and no Spark, so a replay decides the same, and the simulator runs the very same code.

What a controller must remember it returns as a setting too (`window_search` of `SplitTuning`), because then the ledger
keeps it, and a history that was cut short does no harm.

| controller | settings | raises them | lowers them |
|---|---|---|---|
| batch-size | batch | at once, when B breaks the latency bound | when a smaller B would do at a rate `SLACK` higher |
| split-tuning | splitters | at once, when p is too small | when fewer would do at a rate `SLACK` higher |
| split-tuning | window_bytes | by doubling, see `split.window_size` | when the rate falls by `REOPEN` of it |
| key-placement | partition | to SH, when keys are few | away from SH, `keys.selection.HYSTERESIS` later |
| key-placement | heavy_keys | a new table after every epoch | |
| rebalance | routing | one group per overloaded worker, see `rebalancing` | |
| shed | p, cut, shut | see `overload` | |
| rebalance | workers | when there are more than `beta` suppliers per consumer | when none is left, and they can |

The gap between raising and lowering is the hysteresis: a rate that trembles by less than `SLACK` changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from anabranch.errors import ControllerError
from anabranch.keys.partitioner import HeavyKeys, table_of
from anabranch.keys.policy import Partitioning
from anabranch.keys.selection import WindowKeys, select
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.plan.prices import batch_cost, batch_rate, choose_batch
from anabranch.split.cost import MOST_SPLITTERS, SplitCosts
from anabranch.split.window_size import SEARCH_LIMIT, SEARCH_START, WindowSearch
from anabranch.windows import Window
from anabranch.windows.ids import replication

SLACK = 0.25
"""hysteresis: a setting is lowered only to what a rate higher by this would need"""
HISTORY = 50
"""epochs that controllers see"""
RECENT = 8
"""epochs that costs and rates are taken from"""
HEADROOM = 0.1
"""share of a worker's time that is left for what the model does not know (H of paper 1)"""
HEAVY, PLACING = "heavy_keys", "placing"
"""settings of `KeyPlacement` that no reader can use: the shared table, and what was seen"""
PLACEMENT = ("partition", HEAVY, PLACING)
"""all settings of `KeyPlacement`"""
SEARCH = "window_search"
"""setting of `SplitTuning`: where its search for W stands"""
WINDOWS_SEEN = 8
"""windows that the choice of a policy goes by"""
FULL_WINDOWS = 4
"""physical windows that an epoch must fill before its rate says anything of their size"""


class Controller(Protocol):
    """Decides about one operator; pure."""

    @property
    def name(self) -> str: ...

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]: ...


C = TypeVar("C", bound=Controller)
_REGISTRY: dict[str, type[Controller]] = {}


def register(cls: type[C]) -> type[C]:
    """Class decorator: make a controller known under its `name`."""
    name = str(cls.name)
    if _REGISTRY.setdefault(name, cls) is not cls:
        raise ControllerError(
            f"there is a controller {name!r} already: a query that names it would get either of the two",
            hint="give the new one another name",
        )
    return cls


def get(name: str) -> type[Controller]:
    """The controller class of that name."""
    if name not in _REGISTRY:
        raise ControllerError(
            f"there is no controller {name!r}, so nothing would decide",
            hint=f"the controllers are {', '.join(names())}",
        )
    return _REGISTRY[name]


def names() -> tuple[str, ...]:
    """All that are registered, sorted."""
    return tuple(sorted(_REGISTRY))


def decide_all(
    controllers: Iterable[Controller], history: Sequence[EpochProgress], current: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of one operator after all its controllers decided, all on the same `current`.

    The reasons of the last change are dropped first: `why:` keys speak of this decision only.
    """
    settings = {key: value for key, value in current.items() if not key.startswith("why:")}
    owner: dict[str, str] = {}
    for controller in controllers:
        for key, value in controller.decide(history, current).items():
            if owner.setdefault(key, controller.name) != controller.name:
                raise ControllerError(
                    f"{owner[key]!r} and {controller.name!r} both decide {key!r}: the order would choose the winner",
                    hint="give the operator one of them only",
                )
            settings[key] = value
    return settings


def arrival_rate(history: Sequence[EpochProgress]) -> float:
    """Rows per second that come to the sources: of the last epoch or the mean of the recent ones, whichever is higher.

    What came in is what was read and by how much the backlog grew. Where a source cannot tell its backlog, an epoch is
    taken to have read all that came since the one before began.
    """
    recent = history[-RECENT - 1 :]
    return max(mean_arrival_rate(recent[-2:]), mean_arrival_rate(recent))


def mean_arrival_rate(history: Sequence[EpochProgress]) -> float:
    """Rows per second that came to the sources after the first of these epochs."""
    pairs = list(pairwise(history))
    if not pairs:
        return history[-1].input_rate if history else 0.0
    came, seconds = zip(*(_came(before, now) for before, now in pairs), strict=True)
    return max(0.0, sum(came) / sum(seconds)) if sum(seconds) > 0 else 0.0


def _came(before: EpochProgress, now: EpochProgress) -> tuple[float, float]:
    if before.backlog is not None and now.backlog is not None:
        return now.rows + now.backlog - before.backlog, now.interval
    between = now.started - before.started
    return now.rows, between if between > 0 else now.interval


def operator_rate(history: Sequence[EpochProgress], operator: str) -> float:
    """Rows per second that come to an operator, as `arrival_rate`: its share of what the sources send.

    It may read some of the sources only, or what filters let pass.
    """
    recent, rates = history[-RECENT - 1 :], []
    for epochs in (recent[-2:], recent):
        told = epochs[1:] or epochs  # the rate of several epochs is of what came after the first
        sent = sum(epoch.rows for epoch in told)
        read = sum(measured.rows for epoch in told if (measured := epoch.operator(operator)) is not None)
        rates.append(mean_arrival_rate(epochs) * read / sent if sent else 0.0)
    return max(rates)


def excess_backlog(epoch: EpochProgress, rate: float) -> float:
    """Rows that wait beyond those that one interval brings anyway."""
    return max(0.0, (epoch.backlog or 0) - rate * epoch.interval)


@dataclass(frozen=True)
class BatchCosts:
    """Paper 1's costs, in seconds, as measured. A row is what workers get: a row, or the pane of a key."""

    update: float
    """one row into one window"""
    open_close: float
    """one result"""
    other: float
    """one copy of a row"""


def measured_costs(
    history: Sequence[EpochProgress], operator: str, window: Window
) -> tuple[BatchCosts, OperatorProgress] | None:
    """The costs that explain the workers' busy seconds best, none negative; and the last epoch they were taken from.

    Busy seconds = updates * update + results * open_close + copies * other: least squares over the recent epochs, each
    per copy of a row. While B has not changed yet, updates and copies cannot be told apart; least squares of least norm
    then shares the time between them, and the first change of B corrects it.
    """
    rows_of: list[list[float]] = []
    seconds: list[float] = []
    last: OperatorProgress | None = None
    for epoch in history[-RECENT:]:
        measured = epoch.operator(operator)
        copies = sum(worker.rows for worker in measured.workers) if measured else 0
        if measured is None or copies <= 0 or epoch.replayed:
            continue
        batch = max(1, int(measured.decisions.get("batch", 1)))
        rows_of.append([batch_cost(batch, window, 1.0, 0.0, 0.0), measured.emitted / copies, 1.0])
        busy = sum(max(w.seconds, w.read_seconds + w.merge_seconds + w.query_seconds) for w in measured.workers)
        seconds.append(busy / copies)
        last = measured
    if last is None or max(seconds) <= 0:
        return None
    return BatchCosts(*fit_nonnegative(np.array(rows_of), np.array(seconds))), last


def fit_nonnegative(features: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Least squares without negative coefficients: with three of them all seven choices can be tried."""
    best, least = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for columns in combinations(range(3), size):
            found = np.linalg.lstsq(features[:, columns], target, rcond=1e-6)[0]
            residual = float(np.sum((features[:, columns] @ found - target) ** 2))
            if (found >= 0).all() and residual < least * (1 - 1e-9) - 1e-24:
                best, least = np.zeros(3), residual
                best[list(columns)] = found
    return float(best[0]), float(best[1]), float(best[2])


@register
@dataclass(frozen=True)
class BatchSize:
    """Setting `batch`: the smallest B that keeps the latency bound (paper 1, equations 1 to 3).

    `window` is in panes. Where no B keeps the bound, the one that comes nearest is taken, and then kept until another
    is better by `SLACK`.
    """

    operator: str
    window: Window
    workers: int
    max_latency: float
    """seconds"""
    period: float = 1.0
    """T, seconds between two decisions"""
    largest: int = 1_000
    """see `largest_batch`"""
    name: ClassVar[str] = "batch-size"

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        batch = min(max(1, int(current.get("batch", 1))), self.largest)
        found = measured_costs(history, self.operator, self.window)
        if found is None:
            return {"batch": batch}
        costs, measured = found
        rate = self._rate(history)
        # The fit has the price of one result; the model asks for it per window and row of a window.
        copies = sum(worker.rows for worker in measured.workers)
        in_force = max(1, int(measured.decisions.get("batch", 1)))
        per_row = batch_cost(in_force, self.window, 0.0, 1.0, 0.0)
        unit = (costs.update, costs.open_close * measured.emitted / copies / per_row, costs.other)
        chosen = self._after_hysteresis(batch, rate, unit)
        if chosen == batch:
            return {"batch": batch}
        what = f"{rate:,.0f} rows or panes/s on {self.workers} workers"
        return {"batch": chosen, "why:batch": f"{what}, {sum(unit[::2]) * 1e6:.2f} us each: B {batch} -> {chosen}"}

    def _rate(self, history: Sequence[EpochProgress]) -> float:
        """What comes to the workers, before copies, in the unit of the costs: panes where they get panes.

        What waits at the sources beyond one interval is to be worked off as well.
        """
        arriving = arrival_rate(history)
        drain = excess_backlog(history[-1], arriving) / max(self.max_latency, self.period)
        for epoch in reversed(history):
            measured = epoch.operator(self.operator)
            if measured is not None and epoch.rows and not epoch.replayed:
                in_force = max(1, int(measured.decisions.get("batch", 1)))
                given = sum(worker.rows for worker in measured.workers) / replication(self.window, in_force)
                return (arriving + drain) * given / epoch.rows
        return 0.0

    def _after_hysteresis(self, batch: int, rate: float, unit: tuple[float, float, float]) -> int:
        wanted = self._choose(rate, unit)
        if self._excess(wanted, rate, unit) * self.period >= self.max_latency:  # none keeps the bound
            gain = self._excess(batch, rate, unit) - self._excess(wanted, rate, unit)
            return wanted if gain > SLACK * self._excess(batch, rate, unit) else batch
        if wanted >= batch:
            return wanted
        return min(batch, self._choose(rate * (1.0 + SLACK), unit))

    def _choose(self, rate: float, unit: tuple[float, float, float]) -> int:
        update, open_close, other = unit
        return choose_batch(
            self.window,
            rate=rate,
            workers=self.workers,
            update=update,
            open_close=open_close,
            other=other,
            max_latency=self.max_latency,
            period=self.period,
            headroom=HEADROOM,
            largest=self.largest,
        )

    def _excess(self, batch: int, rate: float, unit: tuple[float, float, float]) -> float:
        return batch_rate(batch, self.window, rate, self.workers) - (1.0 - HEADROOM) / batch_cost(
            batch, self.window, *unit
        )


def largest_batch(slide: float, max_latency: float, largest: int = 1_000) -> int:
    """The largest B whose first window waits for the last one no longer than half the latency bound, in seconds.

    The other half is for the work.
    """
    return min(largest, 1 + int(max_latency / 2 / slide))


def window_search(setting: Mapping[str, Any] | None) -> tuple[WindowSearch, int | None] | None:
    """Where the search for W stands, and the last epoch that it has seen; None before the first."""
    if not setting:
        return None
    known = {name: value for name, value in setting.items() if name != "epoch"}
    return WindowSearch(**known | {"rates": tuple(map(float, known["rates"]))}), setting["epoch"]


@register
@dataclass(frozen=True)
class SplitTuning:
    """Settings `splitters` (p) and `window_bytes` (W); `window_search` is where W's search stands.

    p is by equation (3) of paper 5, with costs and shares as measured. Equation (6), the paper's short form of it, is
    for a share b that is known beforehand.
    """

    operator: str
    q: int
    """substreams"""
    most_splitters: int = MOST_SPLITTERS
    smallest_window: int = SEARCH_START
    largest_window: int = SEARCH_LIMIT
    name: ClassVar[str] = "split-tuning"

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**self._splitters(history, current), **self._window(history, current)}

    def _splitters(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> dict[str, Any]:
        present = max(1, int(current.get("splitters", 1)))
        recent = [op for epoch in history[-RECENT:] if (op := epoch.operator(self.operator)) and not epoch.replayed]
        measured = [splitter for op in recent for splitter in op.splitters]
        costs = SplitCosts.from_measures(measured, (), self.q)
        if costs is None or not 0 < costs.splitter(self.q) < float("inf"):
            return {"splitters": present}
        rate = operator_rate(history, self.operator)
        needed = costs.splitters(rate, self.q, limit=self.most_splitters)
        with_slack = costs.splitters(rate * (1.0 + SLACK), self.q, limit=self.most_splitters)
        wanted = max(needed, min(present, with_slack))
        if wanted == present:
            return {"splitters": present}
        one = f"one splitter takes {1 / costs.splitter(self.q):,.0f} with q = {self.q} and {costs.b:.1%} broadcast"
        return {"splitters": wanted, "why:splitters": f"{rate:,.0f} rows/s, {one}: p {present} -> {wanted}"}

    def _window(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> dict[str, Any]:
        known = window_search(current.get(SEARCH))
        search, seen = known if known is not None else (WindowSearch(self.smallest_window), None)
        for epoch in history:
            if seen is not None and epoch.epoch <= seen:
                continue
            seen = epoch.epoch
            sample = self._sample(epoch)
            if sample is not None:
                search = search.after(*sample, start=self.smallest_window, limit=self.largest_window)
        settings: dict[str, Any] = {
            "window_bytes": search.size,
            SEARCH: {**asdict(search), "rates": list(search.rates), "epoch": seen},
        }
        present = current.get("window_bytes")
        if present != search.size:
            found = "settled" if search.settled else "doubling while the rate gains"
            settings["why:window_bytes"] = f"W {present} -> {search.size}: {found}"
        return settings

    def _sample(self, epoch: EpochProgress) -> tuple[int, float] | None:
        """(W, rows per busy second), or None where the epoch says nothing of W."""
        measured = epoch.operator(self.operator)
        size = measured.decisions.get("window_bytes") if measured else None
        if measured is None or size is None or epoch.replayed:
            return None
        rows, taken = (sum(getattr(s, what) for s in measured.splitters) for what in ("rows", "bytes_in"))
        # The workers' reading depends on W as the splitters' work does; merging depends on p, which changes by itself.
        busy = sum(s.seconds for s in measured.splitters) + sum(w.read_seconds for w in measured.workers)
        return (int(size), rows / busy) if busy > 0 and taken >= FULL_WINDOWS * size else None


def seen_keys(setting: Mapping[str, Any] | None) -> tuple[int, list[tuple[int, float]]]:
    """The last epoch that `KeyPlacement` has seen, and keys and tuples per worker of the last windows."""
    known = setting or {"epoch": -1, "seen": []}
    return int(known["epoch"]), [(int(keys), float(tuples)) for keys, tuples in known["seen"]]


@register
@dataclass(frozen=True)
class KeyPlacement:
    """Setting `partition`, the policy that places keys, by the selection rule of paper 3; and the shared table.

    With `fixed`, the user's policy, only the table is kept. The rule sees keys and tuples per worker of an epoch's part
    of a window, since that is what workers evaluate at once.

    Both go by counts of the data, which a replay finds again, and never by times: so a query that was killed decides as
    one that was not. What was seen is remembered in `placing`.
    """

    operator: str
    workers: int
    splitters: int | None = None
    fixed: str | None = None
    before: EpochProgress | None = None
    """the last counts that the ledger has: after a restart the history has none"""
    name: ClassVar[str] = "key-placement"

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        last, seen_before = seen_keys(current.get(PLACING))
        news = [
            (epoch.epoch, measured)
            for epoch in (*([self.before] if self.before is not None and not history else []), *history)
            if epoch.epoch > last and (measured := epoch.operator(self.operator)) is not None and measured.partitions
        ]
        parts = [part for _, measured in news for part in measured.partitions]
        seen = [*seen_before, *([part.keys, part.tuples / part.workers] for part in parts)][-WINDOWS_SEEN:]
        settings = self._policy(seen, current) if self.fixed is None else {}
        table = current.get(HEAVY) or HeavyKeys().as_json()
        if Partitioning.of_label(self.fixed or settings["partition"]).policy != "heavy":
            table = HeavyKeys().as_json()
        elif news:
            table = table_of(news[-1][1].heaviest, self.workers).as_json()
        memory = {"epoch": news[-1][0] if news else last, "seen": seen}
        return {**settings, HEAVY: table, PLACING: memory}

    def _policy(self, seen: Sequence[Sequence[float]], current: Mapping[str, Any]) -> dict[str, Any]:
        label = current.get("partition")
        known = WindowKeys([int(keys) for keys, _ in seen], [tuples for _, tuples in seen]) if seen else None
        chosen = select(known, splitters=self.splitters, present=Partitioning.of_label(label) if label else None)
        if chosen.partitioning.label == label:
            return {"partition": label}
        return {"partition": chosen.partitioning.label, "why:partition": chosen.why}
