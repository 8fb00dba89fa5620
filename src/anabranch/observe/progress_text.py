"""An epoch's progress in a few readable lines; `EpochProgress.json` is complete.

epoch 12 of busy: 20,000 rows in 0.84 s, began 2024-01-31 09:30:05Z
  rates      23.8 k rows/s in, 23.8 k rows/s processed, backlog 1,200 rows
  latency    1.9 s from the oldest row to publishing; the newest event is 0.4 s old
  window-1   20,000 rows -> 140 rows in 0.61 s; watermark 2024-01-31 09:29:50Z; 3 late; 4 workers, imbalance 0.12
             batch = 8: 24,000 rows/s on 4 workers ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anabranch.text import amount, clock, moment, size, with_noun

if TYPE_CHECKING:
    from anabranch.observe.progress import EpochProgress, OperatorProgress

WHY = "why:"
"""prefix of the reasons in an operator's decisions: `why:batch` explains `batch`"""
_LONGEST_TEXT = 60
"""characters shown of a setting's value; a routing table has hundreds"""


def headline(epoch: EpochProgress) -> str:
    """The epoch in one line."""
    of = f" of {epoch.name}" if epoch.name else ""
    return f"epoch {epoch.epoch}{of}: {with_noun(epoch.rows, 'row')} in {epoch.seconds:.2f} s"


def describe(epoch: EpochProgress) -> str:
    """The epoch in a few lines."""
    again = ", run again after a crash" if epoch.replayed else ""
    lines = [f"{headline(epoch)}, began {clock(epoch.started)}{again}"]
    waiting = "" if epoch.backlog is None else f", backlog {with_noun(epoch.backlog, 'row')}"
    rates = f"{amount(epoch.input_rate)} rows/s in, {amount(epoch.processed_rate)} rows/s processed{waiting}"
    entries: list[tuple[str, str]] = [("rates", rates)]
    if latency := "; ".join(_latency(epoch)):
        entries.append(("latency", latency))
    if epoch.restored:
        entries.append(("restored", f"the state of {with_noun(epoch.restored, 'group')}, from the epoch store"))
    for operator in epoch.operators:
        entries.append((operator.name, "; ".join(_operator(operator))))
        entries += [("", reason) for reason in changed(operator)]
    entries += [("dropping", drop.describe()) for drop in epoch.drops]
    width = max(len(name) for name, _ in entries)
    return "\n".join([*lines, *(f"  {name:<{width}}   {text}".rstrip() for name, text in entries)])


def changed(operator: OperatorProgress) -> Iterator[str]:
    """The settings that controllers changed for this epoch, each with the reason."""
    for key, reason in operator.decisions.items():
        if key.startswith(WHY):
            name = key.removeprefix(WHY)
            value = str(operator.decisions.get(name, "as before"))
            shown = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}..."
            yield f"{name} = {shown}: {reason}"


def _latency(epoch: EpochProgress) -> Iterator[str]:
    if epoch.latency is not None:
        yield f"{epoch.latency:.1f} s from the oldest row to publishing"
    if epoch.event_latency is not None:
        yield f"the newest event is {epoch.event_latency:.1f} s old"


def _operator(operator: OperatorProgress) -> Iterator[str]:
    read = f"{with_noun(operator.rows, 'row')} -> " if operator.workers else ""
    yield f"{read}{with_noun(operator.emitted, 'row')} in {operator.seconds:.2f} s"
    if operator.watermark is not None:
        yield f"watermark {moment(operator.watermark)}"
    losses = (("late", operator.late), ("bad", operator.bad), ("shed", operator.shed))
    if lost := ", ".join(f"{rows:,} {what}" for what, rows in losses if rows):
        yield lost
    if operator.workers:
        yield f"{size(operator.state_bytes)} of state"
        yield f"{with_noun(len(operator.workers), 'worker')}, imbalance {operator.imbalance:.2f}"
