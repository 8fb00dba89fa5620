"""The log of a query, through `logging`; all loggers are below `anabranch`.

| event | level |
|---|---|
| the query starts, or continues from a checkpoint | INFO |
| an epoch is run again | INFO |
| groups were restored from the epoch store, where and why | INFO |
| a controller changed a setting, and why | INFO |
| the query ended or was stopped | INFO |
| rows were late or bad: the first time, then at most once a minute per operator, with the sum since | WARNING |
| windows are dropped, at another rate than before, or no longer | WARNING |
| a listener failed | ERROR |
| the query failed | ERROR |

The library installs no handler: `logging.basicConfig(level="INFO")` shows the lines, and so does `anabranch run`.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.observe.progress_text import changed
from anabranch.text import moment, with_noun

LOG = logging.getLogger(__name__)

REPORT_EVERY = 60.0
"""seconds between two lines about late or bad rows of one operator"""


@dataclass
class _Lost:
    """Late and bad rows of an operator that are not in the log yet."""

    rows: Counter[str] = field(default_factory=Counter)
    reported: float | None = None
    """when they were last logged, in epoch time"""


class QueryLog:
    """A listener that writes the log of a query."""

    def __init__(self, name: str | None, checkpoint: str, last: int | None, settings: str) -> None:
        self._name = name
        self._checkpoint = checkpoint
        self._last = last
        """the last epoch of earlier runs"""
        self._settings = settings
        """a description of how it runs"""
        self._lost: dict[str, _Lost] = {}
        self._dropping: dict[str, tuple[float, int | None]] = {}

    def on_started(self, query: str, run: str) -> None:
        if self._last is None:
            begins = "starts with epoch 0"
        else:
            begins = f"continues after epoch {self._last}, with epoch {self._last + 1}"
        LOG.info(
            "query %s %s: checkpoint %s, %s, run %s",
            self._of(query), begins, self._checkpoint, self._settings, run,
        )  # fmt: skip

    def on_progress(self, progress: EpochProgress) -> None:
        at = f"query {self._of(progress.query)}, epoch {progress.epoch}"
        self._last = progress.epoch
        if progress.replayed:
            LOG.info("%s: ran again, with the decisions of the first run", at)
        for operator in progress.operators:
            self._restored(at, operator)
            for change in changed(operator):
                LOG.info("%s, %s: %s", at, operator.name, change)
            self._rows_lost(at, operator, progress.started)
        self._dropped(at, progress)

    def on_terminated(self, query: str, error: str | None) -> None:
        for name, lost in self._lost.items():
            if lost.rows:
                _log_lost(f"query {self._of(query)}", name, lost.rows)
        after = "before its first epoch" if self._last is None else f"after epoch {self._last}"
        if error is None:
            LOG.info("query %s ended %s", self._of(query), after)
        else:
            LOG.error("query %s failed %s: %s", self._of(query), after, error)

    def _of(self, query: str) -> str:
        return query if self._name is None else f"{self._name} ({query})"

    def _restored(self, at: str, operator: OperatorProgress) -> None:
        reasons: Counter[str] = Counter()
        for worker in operator.workers:
            reasons.update(worker.rebuilt_why)
        groups = sum(worker.rebuilt for worker in operator.workers)
        if groups:
            why = ", ".join(f"{n:,} for {each}" for each, n in sorted(reasons.items()))
            reason = f" ({why})" if why else ""
            LOG.info(
                "%s, %s: restored %s from the epoch store%s", at, operator.name, with_noun(groups, "group"), reason
            )

    def _rows_lost(self, at: str, operator: OperatorProgress, now: float) -> None:
        if operator.late or operator.bad:
            self._lost.setdefault(operator.name, _Lost()).rows.update(late=operator.late, bad=operator.bad)
        lost = self._lost.get(operator.name)
        if lost is not None and lost.rows.total() and (lost.reported is None or now - lost.reported >= REPORT_EVERY):
            _log_lost(at, f"{operator.name} with its watermark at {moment(operator.watermark)}", lost.rows)
            self._lost[operator.name] = _Lost(reported=now)

    def _dropped(self, at: str, progress: EpochProgress) -> None:
        now = {drop.point: (drop.p, drop.bound) for drop in progress.drops if drop.p or drop.bound is None}
        for drop in progress.drops:
            if drop.point in now and now[drop.point] != self._dropping.get(drop.point):
                LOG.warning("%s: windows are dropped at %s", at, drop.describe())
        for point in self._dropping.keys() - now.keys():
            LOG.warning("%s: windows are no longer dropped at %s", at, point)
        self._dropping = now


def _log_lost(at: str, where: str, rows: Counter[str]) -> None:
    lost = " and ".join(f"{n:,} {what}" for what, n in sorted(rows.items()) if n)
    LOG.warning("%s, %s: %s rows, kept in the side output", at, where, lost)
