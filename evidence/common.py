"""What all scripts of this folder share: where results go, how a claim is judged, how a plot is saved.

Every script imports this module first, because it makes the package `benchmarks` importable: for the script, which
has only its own folder on the path, and for Spark's workers, which have neither.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.session import workers_import_from  # noqa: E402 (found by the line above)

workers_import_from(HERE.parent, HERE)

OUT = HERE.parent / "out" / "evidence"


@dataclass(frozen=True)
class Shape:
    """A claim of a paper, and whether the numbers measured here agree with it."""

    statement: str
    holds: bool
    numbers: str

    def line(self) -> str:
        return f"{'agrees   ' if self.holds else 'DISAGREES'}  {self.statement} ({self.numbers})"


def arguments(description: str) -> argparse.Namespace:
    """The options of a script; its docstring is the text of --help."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="use less data: checks that it runs, not the claims")
    return parser.parse_args()


def report(name: str, shapes: Sequence[Shape], numbers: Mapping[str, Any], plot: Path, as_json: bool) -> None:
    """Print a line for each claim, and with `as_json` everything as one JSON object on the last line."""
    for shape in shapes:
        print(shape.line())
    print(f"plot: {os.path.relpath(plot)}")
    if as_json:
        lines = [{"statement": s.statement, "agrees": s.holds, "numbers": s.numbers} for s in shapes]
        print(json.dumps({"experiment": name, "shapes": lines, **numbers}))
    sys.stdout.flush()


def save_plot(name: str, draw: Callable[[Any], None], size: tuple[float, float] = (8, 5)) -> Path:
    """Draw into a new figure and write it as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    OUT.mkdir(parents=True, exist_ok=True)
    figure = plt.figure(figsize=size, constrained_layout=True)
    draw(figure)
    path = OUT / f"{name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
