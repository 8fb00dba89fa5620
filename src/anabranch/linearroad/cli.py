"""The commands `anabranch linearroad ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from anabranch.linearroad.schema import SECONDS, Mode

app = typer.Typer(
    help="Linear Road: variable tolls on congested expressways, the benchmark of stream systems.",
    no_args_is_help=True,
)

_MODE = typer.Option(help="Whose rules: those of the paper's validator, or those of the one with a flat LAV.")


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder for the trace; new or empty.")],
    expressways: Annotated[int, typer.Option(min=1, help="Expressways to simulate, each different.")] = 1,
    copies: Annotated[int, typer.Option(min=1, help="Copies of all of them, with cars of their own.")] = 1,
    seconds: Annotated[int, typer.Option(min=60, max=SECONDS, help="Length; the rate rises over all of it.")] = SECONDS,
    seed: Annotated[int, typer.Option(help="Another seed, other traffic; the same seed, the same bytes.")] = 1,
    peak_rate: Annotated[float, typer.Option(help="Tuples per second and expressway at the end.")] = 1_700.0,
) -> None:
    """Make up traffic by the benchmark's rules, with queries and history.

    Writes OUT/input (Parquet), OUT/blocks (the same, packed), OUT/history.parquet and OUT/segment-history.parquet.
    An hour of one expressway takes some seconds. [dim]Example:[/] anabranch linearroad generate --out trace
    --seconds 3600
    """
    from anabranch.linearroad.generate import Traffic, write_trace
    from anabranch.linearroad.job import progress_bar

    console = Console()
    with progress_bar(console, "seconds") as progress:
        task = progress.add_task("Simulating", total=seconds)
        trace = write_trace(
            out,
            Traffic(expressways, seconds, seed, peak_rate),
            copies,
            progress=lambda done, _: progress.update(task, completed=done),
        )
    console.print(f"{trace.tuples:,} tuples of {trace.expressways} expressways in {out}", highlight=False)


@app.command()
def run(
    input: Annotated[
        Path, typer.Option(help="Parquet or Arrow file, or a folder of them: the tuples, sorted by Time.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the answers, a data set for each kind.")],
    history: Annotated[Path | None, typer.Option(help="Parquet: VID, Day, XWay, Toll; for queries of type 3.")] = None,
    segment_history: Annotated[
        Path | None,
        typer.Option(
            help="Parquet: XWay, Dir, Seg, DOW, TOD, Speed, Toll; for type 4. Default: beside HISTORY, if there."
        ),
    ] = None,
    mode: Annotated[Mode, _MODE] = Mode.PAPER,
    master: Annotated[
        str | None, typer.Option(help='Spark master, e.g. "spark://host:7077"; else a local Spark.')
    ] = None,
) -> None:
    """Answer everything in a recorded input: tolls, accidents, balances, expenditures, travel times.

    OUTPUT/toll, /accident, /balance, /expenditure, /traveltime are Parquet data sets; OUTPUT/rejected has the tuples
    that are neither reports nor queries. A run that was cut short goes on when the same command is given again.
    """
    from anabranch.linearroad import job

    console = Console()
    beside = history.parent / "segment-history.parquet" if history is not None else None
    if segment_history is None and beside is not None and beside.exists():
        segment_history = beside
    done = job.run(
        input=input, history=history, segment_history=segment_history, output=output, mode=mode, master=master,
        console=console,
    )  # fmt: skip
    table = Table("answers", "", box=None, header_style="bold")
    for kind, count in done.answers.items():
        table.add_row(kind, f"{count:,}")
    console.print(table)
    console.print(f"{done.tuples:,} tuples in {done.seconds:.1f} s, {done.rate:,.0f} a second", highlight=False)
