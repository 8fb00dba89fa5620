"""Kill things at random, start again, and compare all that came out with an undisturbed run, byte for byte.

    python -m tests.chaos.harness [--short] [--kills 50] [--seed 1] [--at-once 2]

A round is one job, on a local Spark or on a cluster, run to its end over whatever is done to it:

| victim | what dies | what has to go on |
|---|---|---|
| driver | the driver's process group, with its Java | a new driver, from the checkpoint |
| python | a Python process below the driver or an executor | Spark's retry; a new driver if it was the source's |
| executor | an executor, with what it had shuffled | Spark's retry of the stage |
| worker | a worker of the cluster, whose executor goes with it | the other worker, and a new one |

A kill counts only if the victim was alive and the query in the middle: the first epoch published, the last not. A
driver that fails is started again only if something was killed since its start; else it is a bug, and the run ends.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.cluster import Cluster, command_of, environment_of, family, kill
from tests.chaos.jobs import JOBS, record

ROOT = Path(__file__).resolve().parents[2]
LOCAL = "local[2,8]"
STUCK = 300
"""Seconds without a new epoch after which a query counts as stuck."""
VICTIMS = {"local": ("driver", "python"), "cluster": ("executor", "worker", "python", "driver")}


class ChaosError(Exception):
    """A query that failed or got stuck although nothing was done to it."""


@dataclass(frozen=True)
class Round:
    """One job, run to its end under fire."""

    job: str
    place: str
    seed: int


@dataclass
class Outcome:
    """What a round came to."""

    round: Round
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    epochs: int = 0
    differences: list[str] = field(default_factory=list)


class Driver:
    """A driver process; the query's progress is read from its ledger."""

    def __init__(self, job: str, recording: Path, folder: Path, master: str) -> None:
        self._job, self._recording, self._folder, self._master = job, recording, folder, master
        self._orphans: list[psutil.Process] = []
        self.starts = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._start()

    def _start(self) -> None:
        self.starts += 1
        self.hurt = False
        command = [sys.executable, "-m", "tests.chaos.jobs", self._job]
        command += ["--input", str(self._recording), "--folder", str(self._folder), "--master", self._master]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment_of(ROOT), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> Path:
        return self._folder / f"{self._job}-{self.starts}.log"

    def published(self) -> int:
        """Epochs that the ledger has as done."""
        with contextlib.suppress(OSError):
            ledger = self._folder / self._job / "checkpoint" / "ledger"
            return sum(1 for each in ledger.iterdir() if each.name.endswith(".done") and each.name[0] != ".")
        return 0

    def finished(self) -> bool:
        """Whether the query came to its end. A driver that died of what was done to it is started again."""
        code = self._process.poll()
        if code is None or code == 0:
            return code == 0
        if not self.hurt:
            raise ChaosError(f"{self._job} failed by itself\n{self.tail()}")
        self._start()
        return False

    def kill(self) -> bool:
        """Kill the process group: Python and Java at once. Its Python workers are orphans then, as in life."""
        if self._process.poll() is not None:
            return False
        self._orphans += family(self._process.pid)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return True

    def pythons(self) -> list[psutil.Process]:
        """Python processes below the driver: those of tasks, and that of the source."""
        return pythons(family(self._process.pid)[1:])

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def close(self) -> None:
        """Leave no process behind."""
        kill([*family(self._process.pid), *self._orphans])
        self._process.wait()


def pythons(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if "-m pyspark." in command_of(each) or "python_streaming" in command_of(each)]


def run_round(
    each: Round, *, recording: Path, reference: Path, folder: Path, epochs: int, gap: tuple[int, int]
) -> Iterator[Outcome]:
    """Run a round; yields after every kill, and when all is over. `gap`: epochs from kill to kill, least and most."""
    rng = random.Random(each.seed)
    outcome = Outcome(each)
    turns = itertools.cycle(rng.sample(VICTIMS[each.place], len(VICTIMS[each.place])))
    with contextlib.ExitStack() as stack:
        cluster = None
        if each.place == "cluster":
            cluster = stack.enter_context(Cluster(folder / "cluster", environment_of(ROOT)))
        driver = Driver(each.job, recording, folder, cluster.url if cluster else LOCAL)
        stack.callback(driver.close)
        due, victim = 1 + rng.randint(0, gap[0]), next(turns)
        published_before, changed = 0, time.monotonic()
        while not driver.finished():
            published = driver.published()
            if published != published_before:
                published_before, changed = published, time.monotonic()
            elif time.monotonic() - changed > STUCK:
                raise ChaosError(f"{each.job} has been stuck in epoch {published} for {STUCK} s\n{driver.tail()}")
            if due <= published < epochs - 1:
                time.sleep(rng.uniform(0, 1.5))  # anywhere in an epoch
                if driver.published() < epochs and strike(victim, driver, cluster, rng):
                    driver.hurt = True
                    outcome.kills[victim] += 1
                    due, victim = driver.published() + rng.randint(*gap), next(turns)
                    changed = time.monotonic()
                    yield outcome
            if cluster is not None:
                cluster.mend()
            time.sleep(0.02)
        outcome.restarts = driver.starts - 1
        outcome.epochs = driver.published()
    outcome.differences = differences(reference / each.job, folder / each.job)
    yield outcome


def strike(victim: str, driver: Driver, cluster: Cluster | None, rng: random.Random) -> bool:
    """Kill one; false if there was none alive."""
    if cluster is not None:
        cluster.remember()
    if victim == "driver":
        return driver.kill()
    if victim == "worker":
        assert cluster is not None
        # The Java alone: what becomes of its executor is for Spark to see.
        chosen = rng.choice(cluster.workers).pid
        return kill(family(chosen)[:1]) == 1
    if victim == "executor":
        assert cluster is not None
        found = cluster.executors()
    else:
        found = driver.pythons()
        if cluster is not None:
            found += [each for executor in cluster.executors() for each in pythons(family(executor.pid)[1:])]
    return bool(found) and kill([rng.choice(sorted(found, key=lambda each: each.pid))]) == 1


# --- what came out --------------------------------------------------------------------------------------------------


def delivered(folder: Path) -> dict[str, bytes]:
    """All visible files of a job's results and of its side output."""
    found = {}
    for top in (folder / "output", folder / "checkpoint" / "side"):
        for path in sorted(top.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and not any(part[0] in "._" for part in name.parts):
                found[str(name)] = path.read_bytes()
    return found


def differences(reference: Path, folder: Path) -> list[str]:
    """What differs between the results of two runs; nothing if they are equal to the last byte."""
    wanted, got = delivered(reference), delivered(folder)
    if not wanted:
        return ["the undisturbed run delivered nothing"]
    missing = [f"{name} is missing" for name in sorted(wanted.keys() - got.keys())]
    extra = [f"{name} should not be there" for name in sorted(got.keys() - wanted.keys())]
    changed = [name for name in sorted(wanted.keys() & got.keys()) if wanted[name] != got[name]]
    return [*missing, *extra, *(f"{name}: {_kind(reference / name, folder / name)}" for name in changed)]


def _kind(wanted: Path, got: Path) -> str:
    rows = [sorted(map(repr, pq.read_table(path, partitioning=None).to_pylist())) for path in (wanted, got)]
    if rows[0] == rows[1]:
        return "the same rows in another order or encoding"
    lost, new = (sum((Counter(a) - Counter(b)).values()) for a, b in (rows, rows[::-1]))
    return f"{lost} rows lost, {new} rows that should not be there"


# --- the command ----------------------------------------------------------------------------------------------------


def rounds(seed: int, *, short: bool) -> Iterator[Round]:
    """The rounds: each job in each place, over and over; the short form has each job and each place once."""
    if short:
        places = ("local", "local", "cluster", "local", "cluster", "cluster", "cluster")
        yield from (Round(job, place, seed) for job, place in zip(JOBS, places, strict=True))
        return
    for turn in itertools.count():
        for place in VICTIMS:
            yield from (Round(job, place, seed + turn) for job in JOBS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill things at random, and compare what comes out.")
    parser.add_argument("--short", action="store_true", help="for CI: a short round of each job")
    parser.add_argument("--kills", type=int, help="go on for at least so many; 50, or 6 in the short form")
    parser.add_argument("--epochs", type=int, help="of a round; 36, or 12 in the short form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="rounds that run at the same time (2)")
    parser.add_argument("--folder", type=Path, help="keep all files there")
    given = parser.parse_args(arguments)
    wanted = given.kills if given.kills is not None else (6 if given.short else 50)
    epochs = given.epochs if given.epochs is not None else (12 if given.short else 36)
    console = Console()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-chaos-", ignore_cleanup_errors=True))
        )
        try:
            outcomes = _run(
                console, folder.absolute(), given.seed, epochs, wanted, short=given.short, at_once=given.at_once
            )
        except ChaosError as error:
            console.print(f"[red]{error}", highlight=False)
            return 1
    kills = sum(sum(outcome.kills.values()) for outcome in outcomes)
    console.print(_table(outcomes))
    for outcome in outcomes:
        for each in outcome.differences[:10]:
            console.print(f"[red]{outcome.round.job} ({outcome.round.place}, seed {outcome.round.seed}): {each}")
    equal = not any(outcome.differences for outcome in outcomes)
    console.print(f"{kills} kills (at least {wanted} wanted); all results equal: {'yes' if equal else 'no'}")
    return 0 if equal and kills >= wanted else 1


def _run(
    console: Console, folder: Path, seed: int, epochs: int, wanted: int, *, short: bool, at_once: int
) -> list[Outcome]:
    """All rounds. Much of a round is waiting, for a process to come up or to be missed: so several run at once."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    recording, reference = folder / "recording", folder / "undisturbed"
    outcomes: dict[int, Outcome] = {}
    left, lock = enumerate(rounds(seed, short=short)), threading.Lock()

    def kills() -> int:
        return sum(sum(outcome.kills.values()) for outcome in outcomes.values())

    def next_round() -> tuple[int, Round] | None:
        with lock:
            enough = (kills() >= wanted and not short) or failed.is_set()
            return None if enough else next(left, None)

    def play() -> None:
        while (found := next_round()) is not None:
            number, each = found
            folders = {"recording": recording, "reference": reference, "folder": folder / f"round-{number}"}
            try:
                for outcome in run_round(each, **folders, epochs=epochs, gap=(2, 4)):
                    with lock:
                        outcomes[number] = outcome
                        progress.update(bar, completed=kills(), description=f"{each.job}, {each.place}")
            except BaseException:
                failed.set()
                raise

    failed = threading.Event()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("the undisturbed run", total=wanted)
        record(recording, epochs)
        _undisturbed(recording, reference)
        with ThreadPoolExecutor(at_once) as pool:
            for played in [pool.submit(play) for _ in range(at_once)]:
                played.result()
    return [outcomes[number] for number in sorted(outcomes)]


def _undisturbed(recording: Path, folder: Path) -> None:
    """All jobs, one after the other in one process."""
    command = [sys.executable, "-m", "tests.chaos.jobs", *JOBS]
    command += ["--input", str(recording), "--folder", str(folder), "--master", LOCAL]
    run = subprocess.run(command, env=environment_of(ROOT), cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise ChaosError(f"the undisturbed run failed\n{run.stderr[-4000:]}")


def _table(outcomes: Sequence[Outcome]) -> Table:
    victims = list(dict.fromkeys(victim for place in VICTIMS.values() for victim in place))
    table = Table("job", "place", "epochs", *victims, "restarts", "equal", box=box.SIMPLE, padding=0)
    for each in outcomes:
        counts = [str(each.kills[victim]) if victim in VICTIMS[each.round.place] else "" for victim in victims]
        equal = "[red]no" if each.differences else "yes"
        table.add_row(each.round.job, each.round.place, str(each.epochs), *counts, str(each.restarts), equal)
    totals = [str(sum(each.kills[victim] for each in outcomes)) for victim in victims]
    table.add_section()
    table.add_row("all", "", "", *totals, str(sum(each.restarts for each in outcomes)), "")
    return table


if __name__ == "__main__":
    sys.exit(main())
