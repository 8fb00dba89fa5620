"""Shared by the scripts of paper 4 (docs/papers.md): how much a query must drop, measured and estimated.

The **drop rate** is the share of all windows that are not delivered. It is measured in two ways:

- `Overloaded.missing`: the runtime sheds by itself, as in `python -m benchmarks shedding`, and the settled epochs
  count. For the figures that compare places to drop.
- `Overloaded.needed`: the share that brings an epoch at that load down to half the latency bound, the most that an
  epoch may take. Epochs are measured with fixed shares, and a line through them gives the share. For the figures that
  compare windows, independently of the controller.

The **estimate** is section 3.6 of the paper: `needed_by_formula`.

The paper's rates are those of a system of 2006. Here the load is relative to the capacity of this machine, and the work
is done by the same delays, scaled down.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from common import save_plot

from anabranch.local.session import local_session
from anabranch.query.settings import DropAt
from benchmarks.shedding_loads import early_kept
from benchmarks.shedding_runs import MAX_GAP, Load, Runner, Trial


@dataclass(frozen=True)
class Scale:
    """How long each run is."""

    bound: float
    epochs: int
    seconds: float


FULL = Scale(bound=8.0, epochs=4, seconds=110.0)
EXCESS = (0.25, 0.5, 0.75, 1.0)
"""Load above the capacity, as a share of the capacity."""
QUICK = Scale(bound=6.0, epochs=1, seconds=24.0)


@contextmanager
def runner(quick: bool) -> Iterator[tuple[Runner, Scale]]:
    """A runner with a session and a temporary folder."""
    scale = QUICK if quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="anabranch-evidence-"))
    spark = local_session(app_name="anabranch evidence", shuffle_partitions=2)
    try:
        yield Runner(spark, folder, scale.bound), scale
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def say(line: str) -> None:
    """Print progress, because runs take minutes."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Overloaded:
    """A query, and how much of it must be dropped at a load above its capacity."""

    runner: Runner
    scale: Scale
    load: Load

    @cached_property
    def capacity(self) -> float:
        found = self.runner.costs(self.load, epochs=self.scale.epochs).capacity(self.scale.bound)
        say(f"{self.load.name}: capacity {found:,.0f} rows/s")
        return found

    def missing(self, excess: float, drop_at: DropAt) -> Trial:
        """A run at a load above the capacity (0.25: by a quarter) in which the runtime sheds."""
        rate = (1 + excess) * self.capacity
        ran = self.runner.shed(self.load, rate, seconds=self.scale.seconds, drop_at=drop_at)
        trial = Trial.of(ran, drop_at, f"{excess:.0%}", capacity=self.capacity, bound=self.scale.bound)
        late = f"latency {trial.of_bound(0.95):.2f} of the bound"
        say(f"{self.load.name}, +{excess:.0%}, {drop_at}: {1 - trial.share:.3f} missing, {late}")
        return trial

    def needed(self, excess: float, shares: Sequence[float]) -> float:
        """The share of windows to drop, so that an epoch takes half the bound. Above 1, no share is enough."""
        rate, half = (1 + excess) * self.capacity, self.scale.bound / 2
        points = []
        for share in shares:
            rows, seconds = self.runner.epoch_at(self.load, rate, epochs=self.scale.epochs, drop_share=share)
            # An epoch that took longer than half the bound read more rows than came in that time.
            points.append((share, seconds * rate * half / rows))
            say(f"{self.load.name}, +{excess:.0%}, p = {share:g}: {points[-1][1]:.2f} s of {half:g}")
        return share_for(points, half)


def share_for(points: Sequence[tuple[float, float]], seconds: float) -> float:
    """Where the line through (share dropped, seconds of an epoch) reaches `seconds`; 0 if it begins below."""
    shares, taken = (np.array(each) for each in zip(*points, strict=True))
    slope, fixed = np.polyfit(shares, taken, 1)
    if fixed <= seconds:
        return 0.0
    return float((fixed - seconds) / -slope) if slope < 0 else math.inf


@dataclass(frozen=True)
class ByPlace:
    """Runs at several loads, with drops at several places."""

    excess: tuple[float, ...]
    capacity: float
    trials: dict[str, list[Trial]]

    @classmethod
    def measure(cls, load: Load, places: Mapping[str, DropAt], quick: bool) -> ByPlace:
        excess = (0.5,) if quick else EXCESS
        with runner(quick) as (run, scale):
            query = Overloaded(run, scale, load)
            trials = {name: [query.missing(each, place) for each in excess] for name, place in places.items()}
            return cls(excess, query.capacity, trials)

    @property
    def missing(self) -> dict[str, list[float]]:
        return {name: [1 - trial.share for trial in many] for name, many in self.trials.items()}

    def of_bound(self, name: str) -> list[float]:
        """95th percentile of latency over the bound, at each load."""
        return [trial.of_bound(0.95) for trial in self.trials[name]]

    def held(self, name: str) -> list[bool]:
        return [trial.held for trial in self.trials[name]]

    def more(self, name: str, than: str) -> list[float]:
        """How much more one place loses than another, at each load."""
        return [a - b for a, b in zip(self.missing[name], self.missing[than], strict=True)]

    def plot(self, name: str, title: str) -> Path:
        def draw(figure: Any) -> None:
            axes = figure.subplots()
            percent = [100 * each for each in self.excess]
            late = []
            for place, many in self.missing.items():
                axes.plot(percent, many, marker="o", label=place)
                late += [at for *at, held in zip(percent, many, self.held(place), strict=True) if not held]
            if late:
                axes.scatter(*zip(*late, strict=True), marker="x", s=120, color="black", label="later than the bound")
            axes.set(xlabel="excess rate, %", ylabel="drop rate", ylim=(0, 1.05))
            figure.suptitle(title)
            axes.grid(alpha=0.3)
            axes.legend()

        return save_plot(name, draw)

    def numbers(self) -> dict[str, Any]:
        return {
            "excess": self.excess,
            "capacity": round(self.capacity),
            "missing": self.missing,
            "latency_of_bound": {name: self.of_bound(name) for name in self.trials},
        }


def listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


# --- section 3.6 ----------------------------------------------------------------------------------------------------


def saved_by_formula(size: int, slide: int, after: float = 1.0, bound: int = MAX_GAP) -> float:
    """The share of a query's work that p = 1 saves: S_WinDrop over the load, for delays before and after a count.

    Costs are those of figure 12: `after` is cost_3 / cost_1 per tuple. The costs of the aggregate and of flags are
    negligible, and sel_2 is one result per slide.
    """
    results = after / slide
    spared = 1 - early_kept(1.0, bound, size, slide)
    return (spared + results) / (1 + results)


def needed_by_formula(excess: float, size: int, slide: int, after: float = 1.0, bound: int = MAX_GAP) -> float:
    """The drop rate p that reduces a load above the capacity to the capacity."""
    return (excess / (1 + excess)) / saved_by_formula(size, slide, after, bound)
