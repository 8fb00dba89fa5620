"""Names for the answers, and the table of the verdict in the terminal."""

from __future__ import annotations

from rich.table import Table

from anabranch.linearroad.demo.result import DemoResult
from anabranch.linearroad.schema import LIMITS

KINDS = {
    "toll": ("toll", "a car has entered a segment: how fast it is, what it costs"),
    "accident": ("accident", "and an accident is at most four segments ahead"),
    "balance": ("balance", "what has this car been charged, on all expressways?"),
    "expenditure": ("expenditure", "what did it pay on one of the last 69 days?"),
    "traveltime": ("travel time", "how long from here to there, at what toll?"),
}
"""The kinds of answers: their names, and what they say."""
WAYS = ("east", "west")
HEADINGS = ("given", "right", "missing", "wrong", "unexpected", "twice", "limit", "median", "longest", "late")
DIFFERENCES = slice(2, 6)
"""The headings whose figures must be 0."""


def figures(result: DemoResult, kind: str) -> list[str]:
    """The figures of a kind of answers, in the order of `HEADINGS`.

    The counts are the validator's. The times are measured in seconds of the wall clock: the validator's own times are
    simulated, and the simulation's clock runs faster here.
    """
    report, response = result.report.by_kind[kind], result.driven.response(result.epochs, [kind])
    counts = (report.given, report.equal, report.missing, report.wrong, report.unexpected, report.duplicates)
    times = ["–"] * 3
    if response is not None:
        times = [f"{response.median:.2f} s", f"{response.worst:.2f} s", f"{response.late:,}"]
    return [*(f"{count:,}" for count in counts), f"{LIMITS[kind]} s", *times]


def verdict_table(result: DemoResult) -> Table:
    """The table, with a row for each kind of answers."""
    # It must fit into 80 columns, with seven digits in the first two: no lines, and the limits are on the page only.
    caption = f"extra: unexpected; median, longest: {result.response_name}"
    table = Table(box=None, caption=caption, caption_justify="left", header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("answers", no_wrap=True)
    shown = [i for i, heading in enumerate(HEADINGS) if heading != "limit"]
    for i in shown:
        table.add_column({"unexpected": "extra"}.get(HEADINGS[i], HEADINGS[i]), justify="right", no_wrap=True)
    for kind, (name, _) in KINDS.items():
        cells = figures(result, kind)
        cells[DIFFERENCES] = [cell if cell == "0" else f"[bold red]{cell}[/]" for cell in cells[DIFFERENCES]]
        table.add_row(name, *(cells[i] for i in shown))
    return table


def count(number: int, what: str) -> str:
    """A number with its noun: 1 core, 2 cores."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def large(number: float) -> str:
    """A sum with three digits and a word, such as 1.23 million."""
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:,.0f}"
