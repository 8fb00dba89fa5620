"""The tables at the end of the demo."""

from __future__ import annotations

from rich import box
from rich.table import Table

from demos.windows.queries import LENGTHS, SLIDE
from demos.windows.race import Timing
from demos.windows.result import DemoResult
from demos.windows.terminal import clock


def rate(timing: Timing) -> str:
    """Reports per second, with three digits."""
    return f"{short(timing.rate)}/s"


def short(number: float) -> str:
    """A number with three digits: 12.3 k, 1.23 M."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{_digits(number / limit)}{unit}"
    return _digits(number)


def times(ratio: float) -> str:
    """A ratio as text: 12.3 ×."""
    return f"{_digits(ratio)} ×"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 99.5 else f"{number:.1f}" if number >= 9.95 else f"{number:.2f}"


def race_table(result: DemoResult) -> Table:
    """The times and rates of both sides, a row per window length."""
    piece = result.race.slice
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Mean speeds in sliding windows, every {SLIDE}",
        title_style="bold",
        title_justify="left",
        caption=(
            f"Anabranch over all {result.rows:,} reports; Spark's window() over {piece.rows:,} of them (all of "
            f"{len(piece.segments)} segments). Over the same {piece.rows:,}: Anabranch "
            f"{result.race.ours_on_slice.seconds:.1f} s, Spark's window() {result.race.together.spark.seconds:.1f} s."
        ),
        caption_justify="left",
    )
    table.add_column("window", no_wrap=True)
    for heading in ("delivered", "Anabranch", "Spark's window()", "faster"):
        table.add_column(heading, justify="right", no_wrap=True)
    for lane in (*result.race.lanes, result.race.together):
        last = lane is result.race.together
        table.add_row(
            lane.label,
            f"{lane.windows:,}",
            f"[dim]{lane.ours.seconds:.1f} s[/]  [bold]{rate(lane.ours)}[/]",
            f"[dim]{lane.spark.seconds:.1f} s[/]  {rate(lane.spark)}",
            f"[bold green]{times(lane.ratio)}[/]",
            style="bold" if last else "",
        )
        if lane is result.race.lanes[-1]:
            table.add_section()
    return table


def slowest_table(result: DemoResult) -> Table:
    """The slowest segments at the end."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Slowest segments at {clock(result.traffic.minutes * 60)}, mean km/h over the last ...",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("segment", justify="right")
    table.add_column("km", justify="right")
    for length in LENGTHS:
        table.add_column(length, justify="right")
    table.add_column("reports/min", justify="right")
    for slow in result.slowest():
        table.add_row(str(slow.segment), f"{slow.km:.2f}", *(f"{s:.0f}" for s in slow.speeds), f"{slow.reports:,}")
    return table
