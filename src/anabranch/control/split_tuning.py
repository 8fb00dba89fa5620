"""Tuning a parallel split: how many splitters read the stream, and how large the blocks are that they work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from anabranch.control.base import RECENT_EPOCHS, SLACK, operator_rate
from anabranch.observe.progress import EpochProgress
from anabranch.split.cost import MOST_SPLITTERS as MOST_SPLITTERS
from anabranch.split.cost import SplitCosts
from anabranch.split.window_size import WindowSearch

SMALLEST_WINDOW, LARGEST_WINDOW = 1 << 16, 1 << 25
"""bytes between which W is searched: smaller blocks are mostly overhead, larger ones need too much memory in a task"""
FULL_WINDOWS = 4
"""physical windows that an epoch must fill before its rate says anything about their size"""
SEARCH = "window_search"
"""setting that holds the state of the search for W"""


def window_search(setting: Mapping[str, Any] | None) -> tuple[WindowSearch, int | None] | None:
    """The state of the search for W, and the last epoch that it has seen; None before the first."""
    if not setting:
        return None
    known = {name: value for name, value in setting.items() if name != "epoch"}
    return WindowSearch(**known | {"rates": tuple(map(float, known["rates"]))}), setting["epoch"]


@dataclass(frozen=True)
class SplitTuning:
    """Settings `splitters` (p), `window_bytes` (W), and `window_search`, the state of the search for W.

    p follows from the cost model of `split.cost`, with costs and shares as measured.
    """

    operator: str
    q: int
    """substreams"""
    most_splitters: int = MOST_SPLITTERS
    smallest_window: int = SMALLEST_WINDOW
    largest_window: int = LARGEST_WINDOW
    name: ClassVar[str] = "split-tuning"
    settings: ClassVar[tuple[str, ...]] = ("splitters", "window_bytes", SEARCH)

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**self._splitters(history, current), **self._window(history, current)}

    def _splitters(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> dict[str, Any]:
        present = max(1, int(current.get("splitters", 1)))
        recent = [
            op for epoch in history[-RECENT_EPOCHS:] if (op := epoch.operator(self.operator)) and not epoch.replayed
        ]
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
        search, last_epoch = known if known is not None else (WindowSearch(self.smallest_window), None)
        for epoch in history:
            if last_epoch is not None and epoch.epoch <= last_epoch:
                continue
            last_epoch = epoch.epoch
            sample = self._sample(epoch)
            if sample is not None:
                search = search.after(*sample, start=self.smallest_window, limit=self.largest_window)
        settings: dict[str, Any] = {
            "window_bytes": search.size,
            SEARCH: {**asdict(search), "rates": list(search.rates), "epoch": last_epoch},
        }
        present = current.get("window_bytes")
        if present != search.size:
            found = "settled" if search.settled else "doubling while the rate gains"
            settings["why:window_bytes"] = f"W {present} -> {search.size}: {found}"
        return settings

    def _sample(self, epoch: EpochProgress) -> tuple[int, float] | None:
        """(W, rows per busy second), or None where the epoch says nothing about W."""
        measured = epoch.operator(self.operator)
        size = measured.decisions.get("window_bytes") if measured else None
        if measured is None or size is None or epoch.replayed:
            return None
        rows, bytes_in = (sum(getattr(s, what) for s in measured.splitters) for what in ("rows", "bytes_in"))
        # Reading in the workers depends on W, as splitting does; merging depends on p, which changes independently.
        busy = sum(s.seconds for s in measured.splitters) + sum(w.read_seconds for w in measured.workers)
        return (int(size), rows / busy) if busy > 0 and bytes_in >= FULL_WINDOWS * size else None
