"""Shared by the scripts of paper 5 (docs/papers.md): window routers as local processes, and the CPU time of a split.

**Routers** (figures 4 and 5) are real processes that send windows of W bytes through sockets to p consumers.

**Splits** (figures 6 and 7) have more processes than this machine has cores. So each splitter and each query processor
does its real work on real data, one after the other, and its CPU time is measured. The rate of the whole is what the
busiest of them allows. Only the effect of processes on each other when they share a machine is left out.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.io.blocks import pack, unpack
from anabranch.observe.progress import SplitterMeasure, WorkerMeasure
from anabranch.runtime.tasks.worker import merge_by_time
from anabranch.split.cost import SplitCosts
from anabranch.split.gates import RowGate
from anabranch.split.readers import BlockReader
from anabranch.split.report import SplitterReport
from anabranch.split.routes import FunctionRoute
from anabranch.split.splitter import ALL_GROUPS, REPORT_GROUP, Splitter

# --- window routers as processes ------------------------------------------------------------------------------------

_fork = multiprocessing.get_context("fork")


def single_router(p: int, size: int, seconds: float) -> float:
    """Bytes per second that one router sends to p consumers, in windows of `size` bytes."""
    return _through(p, size, seconds, branches=None)


def router_tree(p: int, size: int, seconds: float) -> float:
    """The same with two levels of routers, of equal fan-out."""
    return _through(p, size, seconds, branches=max(1, round(p**0.5)))


def _through(p: int, size: int, seconds: float, branches: int | None) -> float:
    processes: list[Any] = []
    fan = branches or p
    outs = []
    for i in range(fan):
        ours, theirs = socket.socketpair()
        leaves = None if branches is None else p // branches + (i < p % branches)
        target, more = (_consume, (theirs,)) if leaves is None else (_forward, (theirs, size, leaves))
        process = _fork.Process(target=target, args=(ours, *more), daemon=False)
        process.start()
        theirs.close()
        outs.append(ours)
        processes.append(process)
    sent, took = _route(outs, size, seconds)
    for out in outs:
        out.close()
    for process in processes:
        process.join()
    return sent / took


def _route(outs: Sequence[socket.socket], size: int, seconds: float) -> tuple[int, float]:
    window = memoryview(os.urandom(size))
    rng = random.Random(1)
    sent, began, now = 0, time.perf_counter(), 0.0
    while now < seconds:
        for _ in range(64 if size < 65_536 else 1):  # reading the clock takes time too
            rng.choice(outs).sendall(window)
            sent += size
        now = time.perf_counter() - began
    return sent, now


def _consume(theirs: socket.socket, mine: socket.socket) -> None:
    theirs.close()  # otherwise this process would never see the end of the stream
    space = bytearray(1 << 20)
    while mine.recv_into(space):
        pass


def _forward(theirs: socket.socket, mine: socket.socket, size: int, leaves: int) -> None:
    theirs.close()
    outs, processes = [], []
    for _ in range(leaves):
        ours, far = socket.socketpair()
        process = _fork.Process(target=_consume, args=(ours, far))
        process.start()
        far.close()
        outs.append(ours)
        processes.append(process)
    window = bytearray(size)
    rng = random.Random(2)
    while _fill(mine, memoryview(window)):
        rng.choice(outs).sendall(window)
    for out in outs:
        out.close()
    for process in processes:
        process.join()


def _fill(source: socket.socket, window: memoryview) -> bool:
    got = 0
    while got < len(window):
        n = source.recv_into(window[got:])
        if not n:
            return False
        got += n
    return True


# --- the busy time of a split ---------------------------------------------------------------------------------------

ROUTED, BROADCAST, OMITTED = 0.99, 0.005, 0.005
"""Shares in Linear Road: position reports, balance queries, the rest."""


def windows(count: int, rows: int, q: int, seed: int = 1) -> list[pa.RecordBatch]:
    """Linear Road's input for q expressways, as physical windows."""
    rng = np.random.default_rng(seed)
    n = count * rows
    kind = rng.choice([0, 2, 4], n, p=[ROUTED, BROADCAST, OMITTED]).astype(np.int32)
    columns = {"t": np.sort(rng.integers(0, 3_600_000_000, n)), "kind": kind, "vid": rng.integers(0, 10**6, n)}
    columns |= {name: rng.integers(0, 100, n).astype(np.int32) for name in ("speed", "lane", "seg", "pos")}
    columns["xway"] = rng.integers(0, q, n).astype(np.int32)
    batches: list[pa.RecordBatch] = pa.table(columns).to_batches(max_chunksize=rows)
    return batches


@dataclass(frozen=True)
class Busy:
    """CPU seconds of every process of a split."""

    rows: int
    router: float
    splitters: tuple[SplitterMeasure, ...]
    processors: tuple[WorkerMeasure, ...]

    @property
    def rate(self) -> float:
        """Tuples per second if each process had its own core: what the busiest process allows."""
        busiest = max(self.router, *(s.seconds for s in self.splitters), *(p.seconds for p in self.processors))
        return self.rows / busiest

    @property
    def efficiency(self) -> float:
        """Equation (7): the splitters' share of all CPU time."""
        splitting = sum(s.seconds for s in self.splitters)
        return splitting / (self.router + splitting + sum(p.seconds for p in self.processors))

    def costs(self) -> SplitCosts:
        found = SplitCosts.from_measures(self.splitters, self.processors, len(self.processors))
        assert found is not None
        return found


def split(stream: Sequence[pa.RecordBatch], p: int, q: int) -> Busy:
    """Route, split and merge the windows with p splitters and q query processors."""
    packed = [pack(window) for window in stream]
    began = time.process_time()
    received = [bytes(memoryview(window)) for window in packed]  # into the router and out of it, one copy each
    sent = [bytearray(window) for window in received]
    router = time.process_time() - began
    del sent
    splitters, blocks = [], defaultdict(list)
    # In turn and not at random: with a few windows per splitter, chance would decide the result.
    for i in range(p):
        measure, pieces = _split(received[i::p], i, q)
        splitters.append(measure)
        for j, piece in pieces:
            blocks[j].append(piece)
    processors = tuple(_merge(blocks[j], j) for j in range(q))
    return Busy(sum(window.num_rows for window in stream), router, tuple(splitters), processors)


def profiled(count: int, rows: int, q: int = 16) -> SplitCosts:
    """The costs of one splitter, from the best of several runs. With one substream it would have nothing to split."""
    stream = windows(count, rows, q)
    runs = [split(stream, 1, q) for _ in range(4)]
    return min(runs, key=lambda busy: busy.splitters[0].seconds).costs()


def _split(packed: Sequence[bytes], number: int, q: int) -> tuple[SplitterMeasure, list[tuple[int, pa.Buffer]]]:
    route = FunctionRoute(
        lambda block, _: np.where(np.asarray(block.column("kind")) == 0, np.asarray(block.column("xway")), -1),
        lambda block: np.asarray(block.column("kind")) == 2,
    )
    splitter = Splitter(0, BlockReader("block"), RowGate("t", None), route, tuple(range(q)), q, window_bytes=1)
    batch = pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], names=["block"])
    began = time.process_time()
    sent = list(splitter(iter([batch])))
    took = time.process_time() - began
    pieces: list[tuple[int, pa.Buffer]] = []
    report = SplitterReport(number, 0)
    for each in sent:
        places = zip(each.column("worker").to_pylist(), each.column("grp").to_pylist(), strict=True)
        for (worker, group), block in zip(places, each.column("block"), strict=True):
            if group == REPORT_GROUP:
                report = SplitterReport.unpacked(block.as_buffer().to_pybytes()) if worker == 0 else report
            else:
                assert group in (ALL_GROUPS, worker)
                pieces.append((worker, block.as_buffer()))
    assert report.counters is not None
    # The splitter measures its parts in wall time. Keep their shares, and scale their sum to the CPU time.
    measured = SplitterMeasure(number, report.rows, **vars(report.counters))
    scale = took / max(measured.seconds, 1e-9)
    parts = ("read_seconds", "split_seconds", "emit_seconds")
    return replace(measured, **{name: getattr(measured, name) * scale for name in parts}), pieces


def _merge(blocks: Sequence[pa.Buffer], number: int) -> WorkerMeasure:
    began = time.process_time()
    unpacked = [unpack(block) for block in blocks]
    read = time.process_time() - began
    rows = merge_by_time(unpacked, "t").num_rows if unpacked else 0
    total = time.process_time() - began
    return WorkerMeasure(number, rows, total, merge_seconds=total - read, read_seconds=read)
