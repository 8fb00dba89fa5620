"""`python -m tests.fuzz`: draw cases until the time is up, and print a script for every failure."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from anabranch.local.session import local_session
from tests.fuzz.cases import KINDS, Case, features
from tests.fuzz.draw import ZONES, draw
from tests.fuzz.oracle import expected
from tests.fuzz.run import Outcome, python_path, run
from tests.fuzz.script import script_of
from tests.fuzz.shrink import shrink

SILENCE = 60
"""seconds between two lines of progress where there is no terminal"""
MOST_MEMORY = 4 << 30
"""bytes that this process may take, Spark not counted"""
ENOUGH = 2
"""failures of one kind that are made small and printed; more are only counted"""


@dataclass
class Tally:
    """What came out of all cases."""

    counts: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def summary(self) -> str:
        return f"{self.counts['passed']} passed, {self.counts['failed']} failed"

    def kinds(self) -> Counter[str]:
        return Counter(str(failure["signature"]) for failure in self.failures)

    def to_json(self) -> str:
        record = {
            "passed": self.counts["passed"],
            "failed": self.counts["failed"],
            "refused": dict(self.refused),
            "drawn": dict(sorted(self.drawn.items())),
            "failures": self.failures,
        }
        return json.dumps(record)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    spark = _session()
    tally = Tally()
    threading.Thread(target=_watch_memory, args=(tally,), daemon=True).start()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress,
    ):
        task = progress.add_task("starting", total=None)
        printed_at = time.monotonic()
        for number, case in _cases(options):
            progress.update(task, description=f"case {number} ({case.kind}): {tally.summary}")
            if not console.is_terminal and time.monotonic() > printed_at + SILENCE:
                printed_at = time.monotonic()
                console.print(f"case {number}: {tally.summary}", highlight=False)
            _one(options, number, case, spark, tally, progress.console)
    _tables(tally, console)
    if options.json:
        print(tally.to_json())
    print(tally.summary)
    return 1 if tally.counts["failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="draw cases for so long")
    parser.add_argument("--case", type=int, help="only this case of the seed")
    parser.add_argument("--first", type=int, default=0, help="begin with this case")
    parser.add_argument("--kind", choices=KINDS, help="only cases of this kind; kills are drawn only if asked for")
    parser.add_argument("--zone", choices=ZONES, help="only this session time zone")
    parser.add_argument("--shrink", type=float, default=90.0, help="seconds to make a failing case small")
    parser.add_argument("--scripts", type=Path, help="folder for the scripts of failures; they are printed anyway")
    parser.add_argument("--json", action="store_true", help="print a record of everything, for programs")
    return parser


def _cases(options: argparse.Namespace) -> Iterator[tuple[int, Case]]:
    if options.case is not None:
        yield options.case, draw(options.seed, options.case, options.kind, options.zone)
        return
    end = time.monotonic() + options.minutes * 60
    for number in itertools.count(options.first):
        if time.monotonic() > end:
            return
        yield number, draw(options.seed, number, options.kind, options.zone)


def _one(
    options: argparse.Namespace, number: int, case: Case, spark: SparkSession, tally: Tally, console: Console
) -> None:
    outcome = run(case, spark)
    tally.counts[outcome.status] += 1
    tally.drawn.update(set(features(case)))
    if outcome.status == "refused":
        tally.refused[outcome.signature] += 1
    if not outcome.failed:
        return
    again = " ".join(
        ["python -m tests.fuzz", f"--seed {options.seed} --case {number}"]
        + [f"--{name} {value}" for name in ("kind", "zone") if (value := getattr(options, name)) is not None]
    )
    failure = {"case": number, "kind": case.kind, "signature": outcome.signature, "again": again}
    console.print(f"[red]case {number} ({case.kind}) failed:[/] {outcome.signature}", highlight=False, soft_wrap=True)
    if tally.kinds()[outcome.signature] < ENOUGH:
        text = _script(case, outcome, again, spark, options.shrink)
        failure["script"] = text
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if options.scripts is not None:
            options.scripts.mkdir(parents=True, exist_ok=True)
            (options.scripts / f"{case.kind}-{options.seed}-{number}.py").write_text(text, encoding="utf-8")
    tally.failures.append(failure)


def _script(case: Case, outcome: Outcome, again: str, spark: SparkSession, seconds: float) -> str:
    def fails_alike(candidate: Case) -> bool:
        return run(candidate, spark).signature == outcome.signature

    small = shrink(case, fails_alike, 0.0 if case.kills else seconds)
    last = outcome if small == case else run(small, spark)
    shown = [line[:300] for line in last.detail.splitlines() if line.strip()]
    comment = [again, outcome.signature, *shown[:8], *(["..."] if len(shown) > 8 else [])]
    return script_of(small, "\n".join(comment), expected(small))


def _tables(tally: Tally, console: Console) -> None:
    console.print("drawn: " + ", ".join(f"{name} {n}" for name, n in sorted(tally.drawn.items())), soft_wrap=True)
    for message, times in tally.refused.most_common():
        console.print(f"refused {times}: {message}", markup=False, soft_wrap=True)
    for signature, times in tally.kinds().most_common():
        cases = [str(each["case"]) for each in tally.failures if each["signature"] == signature]
        console.print(f"failed {times}: {signature} (cases {', '.join(cases)})", markup=False, soft_wrap=True)


def _watch_memory(tally: Tally) -> None:
    """An oracle that grows without bound must not take the machine with it."""
    process = psutil.Process()
    while process.memory_info().rss < MOST_MEMORY:
        time.sleep(0.5)
    os.write(2, f"the fuzzer takes more than 4 GB in the case after: {tally.summary}\n".encode())
    os._exit(3)


def _session() -> SparkSession:
    os.environ["PYTHONPATH"] = python_path()
    spark = local_session(cores=2, shuffle_partitions=2, app_name="anabranch-fuzz")
    spark.sparkContext.setLogLevel("OFF")  # failures are found here, and told in short
    return spark


if __name__ == "__main__":
    sys.exit(main())
