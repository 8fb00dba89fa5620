"""The cost of checking live state (docs/decisions/0009-live-state-is-checked.md).

    python evidence/live_state.py [--folder /dev/shm]

One group with 8 arrays, or with a table, of different sizes. Milliseconds, the best of several rounds:

- commit: the checksums (up to 1 MiB of arrays; for more, a check of each file's metadata instead), and the stamp
- begin: the check by a process that still has the files mapped, before it uses them
- open: the check by another process, or by a new run
- crc32, all: what a commit would cost if it computed checksums of arrays of that size
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from anabranch.store.live.state import LiveState

SIZES = (0.01, 1, 10, 100, 500)
ARRAYS = 8


def best(act: Callable[[], object], rounds: int = 7) -> float:
    """Milliseconds of the fastest round."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds)


def measure(folder: Path, megabytes: float, kind: str) -> None:
    state = LiveState(folder, "run")
    values = np.random.default_rng(1).integers(0, 1 << 62, int(megabytes * (1 << 20)) // 8)
    if kind == "arrays":
        for i, part in enumerate(np.array_split(values, ARRAYS)):
            state.array(f"a{i}", np.int64, len(part))[:] = part
    else:
        state.put("t", pa.table({"x": values}))
    state.commit(0, "t")

    def commit() -> None:
        state.begin()
        state.commit(1, "t")

    figures = {
        "commit": best(commit),
        "begin": best(lambda: state.current() and state.intact()),
        "open": best(lambda: LiveState(folder, "run").stamp()),
        "crc32, all": best(lambda: zlib.crc32(values.data)),
    }
    shown = "".join(f"{value:12.3f}" for value in figures.values())
    print(f"{kind:8}{megabytes:8} MB{shown}")
    state.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the checks of live state cost.")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the files (default: a temporary one)")
    given = parser.parse_args()
    print(f"{'':19}" + "".join(f"{name:>12}" for name in ("commit", "begin", "open", "crc32, all")) + "   ms")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for kind in ("arrays", "table"):
            for number, megabytes in enumerate(SIZES):
                measure(Path(folder, f"{kind}{number}"), megabytes, kind)


if __name__ == "__main__":
    main()
