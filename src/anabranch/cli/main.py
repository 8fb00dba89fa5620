"""The command `anabranch`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch._version import __version__
from anabranch.errors import AnabranchError, InvalidArgumentError
from anabranch.linearroad.commands.cli import app as linear_road_app

app = typer.Typer(
    name="anabranch",
    help="Parallel windows over data streams, on Spark. Start with [bold]anabranch demo[/].",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(linear_road_app, name="linearroad")


class LogLevel(StrEnum):
    """The levels of Python's `logging`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def main() -> None:
    """Entry point: Anabranch's own errors end with a message and a hint, without a traceback."""
    try:
        app()
    except AnabranchError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error.message}\n[bold]hint:[/] {error.hint}", highlight=False)
        raise SystemExit(1) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anabranch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    expressways: Annotated[int, typer.Option(min=1, max=4, help="Expressways of Linear Road.")] = 2,
    minutes: Annotated[int, typer.Option(min=2, max=60, help="Minutes of simulated time.")] = 24,
    out: Annotated[Path, typer.Option(help="Folder for the page and the picture.")] = Path("out"),
) -> None:
    """Linear Road: tolls, accidents and accounts on busy expressways, live in the terminal, and all answers checked.

    Makes up the traffic, drives it through a Spark inside this process, compares every answer with an independent
    reference, and leaves a page to look at. Takes about two minutes.
    """
    from anabranch.linearroad.demo import run

    result = run(out=out, expressways=expressways, minutes=minutes, console=Console())
    raise typer.Exit(0 if result.right else 1)


@app.command()
def run(
    job: Annotated[Path, typer.Argument(help="Python file with a function build(spark) that returns query.to(sink).")],
    master: Annotated[
        str | None, typer.Option(help='Spark master, e.g. "spark://host:7077". Default: a local Spark.')
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="Spark setting, e.g. spark.executor.memory=4g. May be given several times.")
    ] = None,
    py_files: Annotated[
        list[str] | None,
        typer.Option(help=".py, .zip or .egg file for the workers. May be given several times, or with commas."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder for offsets, decisions and state. The next run continues from there.")
    ] = None,
    live: Annotated[str | None, typer.Option(help="Local folder for the live state, on the workers' machines.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks per operator. Default: as many as the cluster runs at once."),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(help='"1 second", or "available-now" to process what is there and end.'),
    ] = None,
    prometheus: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics and /health on this port; 0 picks a free one."),
    ] = None,
    prometheus_host: Annotated[
        str, typer.Option(help="Address to serve them on; 0.0.0.0 for all networks.")
    ] = "127.0.0.1",
    json_lines: Annotated[Path | None, typer.Option(help="Append one line of JSON per epoch to this file.")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Level of the log.")] = LogLevel.INFO,
) -> None:
    """Run a query in the epoch runtime, and show its progress.

    Ctrl-C or SIGTERM stops it after the current epoch.

    [dim]Example:[/] anabranch run examples/job.py --checkpoint ckpt
    """
    from anabranch.cli.run import run_file

    run_file(
        job, master=master, conf=conf or (), modules=py_files or (), checkpoint=checkpoint, live=live, workers=workers,
        trigger=trigger, prometheus=prometheus, prometheus_host=prometheus_host, json_lines=json_lines,
        log_level=log_level.value, console=Console(),
    )  # fmt: skip


@app.command()
def explain(
    file: Annotated[Path | None, typer.Argument(help="Parquet file or folder. Default: generated events.")] = None,
    time: Annotated[str, typer.Option(help="Column with the time of a row.")] = "t",
    time_unit: Annotated[str | None, typer.Option(help="Unit of a bigint time column: s, ms or us.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help='Window size, e.g. "30 min". May be given several times.')
    ] = None,
    slide: Annotated[str, typer.Option(help='Slide, e.g. "1 s".')] = "1 s",
    by: Annotated[list[str] | None, typer.Option(help="Key column. May be given several times.")] = None,
    agg: Annotated[
        list[str] | None, typer.Option(help='Aggregate, e.g. "count" or "avg:fare". May be given several times.')
    ] = None,
    strategy: Annotated[str, typer.Option(help="auto, window, batch or pane.")] = "auto",
    batch: Annotated[int | None, typer.Option(help="Windows per batch, for the batch strategy.")] = None,
    sample: Annotated[float, typer.Option(help="Share of the panes to sample first, e.g. 0.01.")] = 0.0,
) -> None:
    """Show how a windowed query would run, its cost, and the cost of the other strategies.

    [dim]Example:[/] anabranch explain trips.parquet --time at --size "30 min" --slide "1 s" --by cell --agg avg:fare
    """
    from anabranch.cli.explain import explain_file

    text = explain_file(
        file, time=time, time_unit=time_unit, sizes=size or ["30 min"], slide=slide, keys=by,
        aggregates=agg or ["count"], strategy=strategy, batch=batch, sample=sample,
    )  # fmt: skip
    typer.echo(text)


@app.command()
def repair(
    checkpoint: Annotated[str, typer.Argument(help="The folder given to start(checkpoint=...).")],
    store: Annotated[str | None, typer.Option(help="The folder given to start(store=...), if any.")] = None,
    watermark: Annotated[
        str | None,
        typer.Option(
            help="Move the watermark back to this time (UTC, 2026-11-18T09:30), if a bad timestamp pushed it too far."
        ),
    ] = None,
    to_last_complete: Annotated[
        bool, typer.Option("--to-last-complete", help="Go back to the last complete epoch.")
    ] = False,
    void_decision: Annotated[
        bool,
        typer.Option("--void-decision", help="Void a decision that cannot be carried out."),
    ] = False,
    sinks_cleared: Annotated[
        bool,
        typer.Option("--sinks-cleared", help="Confirm that no sink has the epochs that run again."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
) -> None:
    """Inspect the checkpoint of a query that is not running, and fix what a restart cannot.

    Without an option it only shows the condition of the checkpoint. Files in the way are moved to the folder
    `repaired`, and each repair is a new entry in the ledger. Only files of unfinished attempts at a voided epoch are
    deleted.

    [dim]Example:[/] anabranch repair checkpoint/ --watermark 2026-11-18T09:30
    """
    from anabranch.store.repair import CheckpointRepair, parse_time

    found = CheckpointRepair(checkpoint, store)
    console = Console(highlight=False, soft_wrap=True)
    if sum([watermark is not None, to_last_complete, void_decision]) > 1:
        raise InvalidArgumentError(
            "--watermark, --to-last-complete and --void-decision are separate repairs: only one can run at a time",
            hint="run the command once for each",
        )
    if to_last_complete:
        lines = found.to_last_complete(sinks_cleared=sinks_cleared, dry_run=dry_run)
    elif watermark is not None:
        lines = found.set_watermark(parse_time(watermark), dry_run=dry_run)
    elif void_decision:
        lines = found.void_decision(sinks_cleared=sinks_cleared, dry_run=dry_run)
    else:
        lines = found.condition().describe()
    for line in lines:
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
