"""`python -m benchmarks`: one command per benchmark."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from anabranch.errors import AnabranchError

app = typer.Typer(
    name="python -m benchmarks",
    help="Anabranch beside plain Spark: the same data in the same run, compared by ratios.\n\n"
    "Every benchmark checks that both sides give the same results before it measures. It prints tables, and with "
    "[bold]--json[/] one JSON object as its last line. Start with [bold]python -m benchmarks windows --quick[/].\n\n"
    "The measured figures are in benchmarks/README.md.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object on the last line.")]


def main() -> None:
    """Run a benchmark. Errors of Anabranch are shown as a message and a hint, without a traceback."""
    try:
        app()
    except AnabranchError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error.message}\n[bold]hint:[/] {error.hint}", highlight=False)
        raise SystemExit(1) from None


@app.command("windows")
def bench_windows(
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run once on a tenth of the data: checks the results, not the figures.")
    ] = False,
) -> None:
    """Sliding windows: Spark's window(), the window, batch and pane strategies, and a plain tumbling group-by.

    Takes about ten minutes on two cores, one or two with --quick.
    """
    from benchmarks import windows

    windows.run(quick=quick, as_json=json, console=Console())


@app.command("first")
def bench_first(
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run each script once: checks that it runs, not the figures.")
    ] = False,
) -> None:
    """First result: seconds from the start of a new process, with and without compiled kernels in the cache.

    Takes about five minutes on two cores.
    """
    from benchmarks import first

    first.run(quick=quick, as_json=json, console=Console())


@app.command("split")
def bench_split(
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run once on a twentieth of the data: checks the results, not the figures.")
    ] = False,
) -> None:
    """Splitting a stream: over blocks, over rows, and a bare exchange as the ceiling; one splitter or a tuned number.

    Takes about two minutes on two cores.
    """
    from benchmarks import split

    split.run(quick=quick, as_json=json, console=Console())


@app.command("epochs")
def bench_epochs(
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a few epochs: checks the results, not the figures.")
    ] = False,
) -> None:
    """The epoch runtime: the cost of an epoch against a bare micro-batch, and its aggregates against Spark's window().

    Takes about three minutes on two cores.
    """
    from benchmarks import epochs

    epochs.run(quick=quick, as_json=json, console=Console())


@app.command("partitioners")
def bench_partitioners(
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run once on a few small windows: checks the results, not the figures.")
    ] = False,
) -> None:
    """Key partitioners: balance, aggregation cost, CPU time per row, and the latency of windows on Spark.

    Takes about fifteen minutes on two cores, about one with --quick.
    """
    from benchmarks import partitioners

    partitioners.run(quick=quick, as_json=json, console=Console())


@app.command("join")
def bench_join(
    json: Json = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run once with short windows at low rates: checks the results, not the figures."),
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Run only this part: few, paper, tuning, recovery or ticks. May be given several times."),
    ] = None,
) -> None:
    """Windowed joins: the highest rates that Anabranch and Spark sustain, fine tuning, slow workers, trades and quotes.

    Fills windows of ten minutes many times: takes about an hour on two cores, a few minutes with --quick.
    """
    from benchmarks import join

    join.run(quick=quick, as_json=json, console=Console(), parts=part or ())


@app.command("shedding")
def bench_shedding(
    json: Json = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Short runs at twice the capacity only: checks that it runs, not the figures."),
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Run only this part: load, nested or overhead. May be given several times."),
    ] = None,
) -> None:
    """Load shedding: a live stream at up to three times the capacity of a query, where to drop, and the overhead.

    Runs in real time: takes about 40 minutes on two cores, a few minutes with --quick. Nothing else should run.
    """
    from benchmarks import shedding

    shedding.run(quick=quick, as_json=json, console=Console(), parts=part or ())


if __name__ == "__main__":
    main()
