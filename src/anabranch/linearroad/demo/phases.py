"""The steps of a demo in the terminal: a spinner while a step runs, one line when it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text


@dataclass
class Phase:
    """A step of a demo while it runs. Set `done` to the line that is shown when the step has ended."""

    doing: str
    done: str = ""
    began: float = field(default_factory=time.perf_counter)
    _spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def note(self, doing: str) -> None:
        """Say what the step is doing now."""
        self.doing = doing

    def __rich__(self) -> Text:
        spin = self._spinner.render(time.monotonic())
        line = Text.assemble(spin if isinstance(spin, Text) else "", " ", Text.from_markup(self.doing))
        return line.append(f"  {self.seconds:.0f} s", style="dim")


@contextmanager
def phase(console: Console, doing: str) -> Iterator[Phase]:
    """Show a spinner while the body runs, and one line when it has succeeded."""
    step = Phase(doing)
    with Live(step, console=console, refresh_per_second=10, transient=True):
        yield step
    finish(console, step)


def finish(console: Console, step: Phase) -> None:
    """Print the line of a step that has ended."""
    console.print(f"[green]✓[/] {step.done or step.doing}  [dim]{step.seconds:.1f} s[/]", highlight=False)
