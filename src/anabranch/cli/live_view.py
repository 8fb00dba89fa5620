"""A running query in a terminal: a table that is redrawn after each epoch, or one line per epoch.

`LiveView` is a listener, so it sees exactly what Prometheus and the JSON lines see. In a terminal it draws with
`rich.live`; to a file or a pipe it writes one line per epoch, for `grep` and logs.

Rates are in rows per second. A worker's bar is its load: busy seconds over the epoch's interval, full at 100 %; above
that the worker ran several tasks at the same time.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.text import NO_VALUE, amount, moment, size

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN_WORKERS = 32
"""bars in one line; further workers are only counted"""


@dataclass(frozen=True)
class Totals:
    """Sums over all epochs that a view has seen."""

    epochs: int = 0
    rows: int = 0
    emitted: int = 0
    late: int = 0
    bad: int = 0
    seconds: float = 0.0
    """total duration of the epochs"""
    replayed: int = 0

    def after(self, epoch: EpochProgress) -> Totals:
        return Totals(
            self.epochs + 1,
            self.rows + epoch.rows,
            self.emitted + sum(operator.emitted for operator in epoch.operators),
            self.late + epoch.late,
            self.bad + epoch.bad,
            self.seconds + epoch.seconds,
            self.replayed + epoch.replayed,
        )

    def describe(self) -> str:
        rate = self.rows / self.seconds if self.seconds > 0 else 0.0
        parts = [f"{self.epochs:,} epochs", f"{self.rows:,} rows", f"{self.emitted:,} emitted"]
        parts += [f"{n:,} {what}" for what, n in (("late", self.late), ("bad", self.bad)) if n]
        parts += [f"{self.replayed:,} epochs run again"] if self.replayed else []
        return f"{', '.join(parts)}; {self.seconds:,.1f} s at {amount(rate)} rows/s"


class LiveView:
    """Shows each epoch of a query: pass it to `start(listeners=...)`, and run the query inside `with view.shown():`."""

    def __init__(self, console: Console) -> None:
        self.totals = Totals()
        self._console = console
        self._lock = threading.Lock()
        self._last: EpochProgress | None = None
        self._note = "waiting for the first epoch"
        self._live: Live | None = None

    def shown(self) -> AbstractContextManager[object]:
        """A context in which the table is on the screen; it does nothing where there is no terminal."""
        if not self._console.is_terminal:
            return nullcontext()
        self._live = Live(self, console=self._console, refresh_per_second=4)
        return self._live

    def show_note(self, note: str) -> None:
        """Show a line of text, below the table or between the lines."""
        with self._lock:
            self._note = note
        if self._live is None:
            self._console.print(note, highlight=False, markup=False, soft_wrap=True)

    def on_started(self, query: str, run: str) -> None:
        self.show_note(f"query {query} is running; Ctrl-C stops it after the current epoch")

    def on_progress(self, progress: EpochProgress) -> None:
        with self._lock:
            self._last = progress
            self.totals = self.totals.after(progress)
        if self._live is None:
            self._console.print(plain_line(progress), highlight=False, markup=False, soft_wrap=True)

    def on_terminated(self, query: str, error: str | None) -> None:
        self.show_note(f"query {query} {'ended' if error is None else 'failed'}")

    def __rich__(self) -> RenderableType:
        with self._lock:
            last, note, totals = self._last, self._note, self.totals
        below = Text(note, style="dim")
        if last is None:
            return below
        return Group(epoch_table(last), operator_table(last), Text(totals.describe(), style="dim"), below)


def plain_line(epoch: EpochProgress) -> str:
    """An epoch in one line."""
    parts = [
        f"epoch {epoch.epoch}",
        f"rows {epoch.rows}",
        f"seconds {epoch.seconds:.2f}",
        f"input/s {epoch.input_rate:.0f}",
        f"processed/s {epoch.processed_rate:.0f}",
        f"backlog {NO_VALUE if epoch.backlog is None else epoch.backlog}",
    ]
    if epoch.event_latency is not None:
        parts.append(f"latency {epoch.event_latency:.1f}")
    for each in epoch.operators:
        lost = f" late {each.late} bad {each.bad}" if each.late or each.bad else ""
        parts.append(f"{each.name}: emitted {each.emitted}{lost} watermark {moment(each.watermark)}")
    return " | ".join(parts)


def epoch_table(epoch: EpochProgress) -> Table:
    """The figures of the whole query."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("epoch", "rows", "seconds", "input/s", "processed/s", "backlog", "latency", "state"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{epoch.epoch:,}" + (" again" if epoch.replayed else ""),
        f"{epoch.rows:,}",
        f"{epoch.seconds:.2f}",
        amount(epoch.input_rate),
        amount(epoch.processed_rate),
        NO_VALUE if epoch.backlog is None else amount(epoch.backlog),
        NO_VALUE if epoch.event_latency is None else f"{epoch.event_latency:.1f} s",
        size(epoch.state_bytes),
    )
    return table


def operator_table(epoch: EpochProgress) -> Table:
    """One line per operator."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("operator", "emitted", "late", "bad", "watermark", "state", "imbalance", "load of workers"):
        table.add_column(heading, justify="left" if heading in ("operator", "load of workers") else "right")
    for each in epoch.operators:
        table.add_row(
            each.name,
            f"{each.emitted:,}",
            _alarm(each.late),
            _alarm(each.bad),
            moment(each.watermark),
            size(each.state_bytes),
            f"{each.imbalance:.2f}" if each.workers else NO_VALUE,
            _loads(epoch, each),
        )
    return table


def _alarm(rows: int) -> Text:
    return Text(f"{rows:,}", style="yellow" if rows else "")


def _loads(epoch: EpochProgress, operator: OperatorProgress) -> Text:
    loads = [load for _, load in sorted(epoch.loads(operator.name).items())]
    if not loads:
        return Text(NO_VALUE)
    more = f" and {len(loads) - _SHOWN_WORKERS} more" if len(loads) > _SHOWN_WORKERS else ""
    return Text.assemble((bars(loads[:_SHOWN_WORKERS]), "cyan"), f"{more} at most {max(loads):.0%}")


def bars(loads: list[float]) -> str:
    """One bar per worker, from empty at 0 to full at 100 % or more."""
    top = len(_BARS) - 1
    return "".join(_BARS[min(top, max(0, round(load * top)))] for load in loads)
