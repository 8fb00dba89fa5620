"""The commands `anabranch linearroad ...`."""

from __future__ import annotations

from json import dumps
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

_MODE = typer.Option(help="Which rules: those of the benchmark's paper and validator, or the variant with a flat LAV.")


def beside(history: Path | None, segment_history: Path | None) -> Path | None:
    """The segment history: the given file, or the one that `generate` writes beside the history."""
    default = history.parent / "segment-history.parquet" if history is not None else None
    return default if segment_history is None and default is not None and default.exists() else segment_history


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder for the trace; new or empty.")],
    expressways: Annotated[int, typer.Option(min=1, help="Expressways to simulate, each different.")] = 1,
    copies: Annotated[int, typer.Option(min=1, help="Copies of all of them, with their own cars.")] = 1,
    seconds: Annotated[
        int, typer.Option(min=60, max=SECONDS, help="Length of the trace; the rate rises throughout.")
    ] = SECONDS,
    seed: Annotated[int, typer.Option(help="The same seed gives the same traffic, byte for byte.")] = 1,
    peak_rate: Annotated[float, typer.Option(help="Tuples per second and expressway at the end.")] = 1_700.0,
) -> None:
    """Generate traffic by the benchmark's rules, with queries and history.

    Writes OUT/input (Parquet), OUT/blocks (the same, packed), OUT/history.parquet and OUT/segment-history.parquet.
    An hour of one expressway takes a few seconds. [dim]Example:[/] anabranch linearroad generate --out trace
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
    output: Annotated[Path, typer.Option(help="Folder for the answers, with a data set for each kind.")],
    history: Annotated[Path | None, typer.Option(help="Parquet: VID, Day, XWay, Toll; for queries of type 3.")] = None,
    segment_history: Annotated[
        Path | None,
        typer.Option(
            help="Parquet: XWay, Dir, Seg, DOW, TOD, Speed, Toll; for type 4. Default: the file beside HISTORY, if any."
        ),
    ] = None,
    mode: Annotated[Mode, _MODE] = Mode.PAPER,
    master: Annotated[
        str | None, typer.Option(help='Spark master, e.g. "spark://host:7077". Default: a local Spark.')
    ] = None,
    paced_from: Annotated[
        int | None, typer.Option(min=1, help="Replay in real time from this second on, and measure response times.")
    ] = None,
) -> None:
    """Answer everything in a recorded input: tolls, accidents, balances, expenditures, travel times.

    OUTPUT/toll, /accident, /balance, /expenditure, /traveltime are Parquet data sets; OUTPUT/rejected has the tuples
    that are neither reports nor queries. To continue an interrupted run, give the same command again.

    By default it runs as fast as it can, and measures no response times. With --paced-from, OUTPUT/emitted.jsonl says
    when the answers of each epoch were published, and `validate` finds those that were late.
    """
    from anabranch.linearroad import job

    console = Console()
    done = job.run(
        input=input, history=history, segment_history=beside(history, segment_history), output=output, mode=mode,
        master=master, paced_from=paced_from, console=console,
    )  # fmt: skip
    table = Table("answers", "", box=None, header_style="bold")
    for kind, count in done.answers.items():
        table.add_row(kind, f"{count:,}")
    console.print(table)
    console.print(f"{done.tuples:,} tuples in {done.seconds:.1f} s, {done.rate:,.0f} per second", highlight=False)
    warnings = {
        f"{done.late:,} tuples came out of order": done.late,
        f"{done.bad:,} tuples have no time": done.bad,
        f"{done.rejected:,} tuples are neither reports nor queries: see {output / 'rejected'}": done.rejected,
        f"{done.left:,} tuples are left: run the same command again to continue": done.left,
    }
    for text, count in warnings.items():
        if count:
            console.print(f"[yellow]{text}[/]", highlight=False)


@app.command()
def validate(
    input: Annotated[Path, typer.Option(help="The Parquet input that was answered: a file, or a folder of them.")],
    output: Annotated[Path, typer.Option(help="The answers: what `run` wrote.")],
    history: Annotated[Path | None, typer.Option(help="As for `run`.")] = None,
    segment_history: Annotated[Path | None, typer.Option(help="As for `run`.")] = None,
    mode: Annotated[Mode, _MODE] = Mode.PAPER,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Compare all answers of a run with an independent reference: slow, plain SQL, one view per rule.

    Prints the differences by kind, with examples, and fails if there are any. Whether answers were in time is known
    only for a run in real time (`run --paced-from`). Needs DuckDB: pip install "anabranch\\[linearroad]".
    """
    from anabranch.linearroad.check.validate import validate as compare
    from anabranch.linearroad.watch import read_emitted

    console = Console()
    published = read_emitted(output)
    report = compare(input, history, beside(history, segment_history), output, mode, published=published)
    console.print(report.table())
    for example in report.examples():
        console.print(example, markup=False, highlight=False)
    if json:
        typer.echo(dumps(report.to_json()))
    raise typer.Exit(1 if report.differences else 0)


@app.command()
def rate(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Skip real time: measure only the sustained rate, and check all answers.")
    ] = False,
    expressways: Annotated[int | None, typer.Option(min=2, help="The first L to try. Default: 64 per core.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Maximum number of trials; each takes some minutes.")] = 3,
    seconds: Annotated[
        int, typer.Option(min=120, max=SECONDS, help="Length of the trace; the rate rises over it.")
    ] = 900,
    paced: Annotated[int, typer.Option(min=60, help="Seconds at its end that are replayed in real time.")] = 180,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 1,
    mode: Annotated[Mode, _MODE] = Mode.PAPER,
    work: Annotated[Path, typer.Option(help="Folder for traces and answers; needs about ten GB.")] = Path("out/rate"),
) -> None:
    """Find the largest L, the number of expressways, that this machine can handle.

    The end of the trace is replayed in real time at the benchmark's rate (1,700 tuples per second and expressway at the
    peak). What comes before warms up the state, as fast as possible. L holds if every answer equals the reference's and
    is published in time: within 5 s, 10 s for expenditures, 30 s for travel times.
    """
    from anabranch.linearroad.commands.rate import Course, rate_machine

    console = Console(stderr=json)
    course = Course(seconds=seconds, paced=0 if fast else paced, seed=seed, mode=mode)
    found = rate_machine(course, work, first=expressways, trials=1 if fast else trials, console=console)
    if json:
        typer.echo(dumps(found))
    raise typer.Exit(1 if any(trial["wrong"] for trial in found["trials"]) else 0)
