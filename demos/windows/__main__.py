"""`python -m demos.windows`: the race of sliding windows, from the top of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.errors import AnabranchError
from demos.windows import run

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command()
def demo_windows(
    rows: Annotated[int, typer.Option(min=10_000, help="Position reports to generate.")] = 2_000_000,
    out: Annotated[Path, typer.Option(help="Folder for the page and the picture.")] = Path("out"),
) -> None:
    """Traffic on an expressway: mean speeds over three sliding windows at once, beside Spark's window().

    Generates position reports, runs the query on a local Spark, compares the results, and writes a page and a picture
    into the output folder. Takes one to three minutes. A quick look: [bold]python -m demos.windows --rows 100000[/].
    """
    run(rows=rows, out=out, console=Console())


def main() -> None:
    """Run the demo. Errors of Anabranch are shown as a message and a hint, without a traceback."""
    try:
        app()
    except AnabranchError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error.message}\n[bold]hint:[/] {error.hint}", highlight=False)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
