"""What the experiments share: where results go, how shapes are judged, how a plot looks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "out" / "experiments"


@dataclass(frozen=True)
class Shape:
    """One statement of the paper, and whether this machine's numbers agree."""

    statement: str
    holds: bool
    numbers: str

    def line(self) -> str:
        return f"{'agrees   ' if self.holds else 'DISAGREES'}  {self.statement} ({self.numbers})"


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data: shows that it runs, not the shape")
    return parser.parse_args()


def report(name: str, shapes: Sequence[Shape], numbers: Mapping[str, Any], plot: Path, as_json: bool) -> None:
    """Print the shape lines, and with `as_json` everything as one object on the last line."""
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
