"""What it costs that live state is checked (docs/decisions/0009-live-state-is-checked.md).

    python evidence/live_state.py [--folder /dev/shm]

One group with 8 arrays, or with a table, of so many megabytes in all. Milliseconds, the best of some rounds:

- commit: the checksums (up to 1 MiB of arrays; above, a look at each file instead), and the stamp
- begin: what a process does that still has the files mapped, before it uses them
- open: what another process does, or a new run
- crc32, all: what a commit would cost if arrays of that size were summed
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

from anabranch.store.live import LiveState

SIZES = (0.01, 1, 10, 100, 500)
ARRAYS = 8


def best(act: Callable[[], object], rounds: int = 7) -> float:
    """Milliseconds."""
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
    told = "".join(f"{value:12.3f}" for value in figures.values())
    print(f"{kind:8}{megabytes:8} MB{told}")
    state.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure commits of live state.")
    parser.add_argument("--folder", type=Path, default=None, help="where the files are; a temporary one unless given")
    given = parser.parse_args()
    print(f"{'':19}" + "".join(f"{name:>12}" for name in ("commit", "begin", "open", "crc32, all")) + "   ms")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for kind in ("arrays", "table"):
            for number, megabytes in enumerate(SIZES):
                measure(Path(folder, f"{kind}{number}"), megabytes, kind)


if __name__ == "__main__":
    main()
