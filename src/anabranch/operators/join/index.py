"""Finds the rows of a window by key: an extendible hash directory of mini-partitions, each with lists of blocks.

The directory has 2^d entries; the d lowest bits of a (mixed) key hash choose one, which refers to a mini-partition. A
mini-partition of local depth d' <= d holds all keys with the same d' lowest bits, of all streams, so 2^(d - d') entries
refer to it. Its size is the number of its blocks. Fine tuning keeps that within [theta, 2 theta]:

    size > 2 theta                                       split by bit d'; the directory doubles if d' = d
    size < theta, buddy as deep, both together < 2 theta    merge; the directory halves when no d' = d is left

The buddy is the mini-partition whose bits differ only in bit d'-1. Rows of one key cannot be separated, and bits that
nearly all rows share are not worth a directory of millions. So d' is limited, and a mini-partition that could not be
split is tried again only when it has grown by a quarter.

The layout never shows in the output: every walk goes from the newest row to the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from anabranch.operators.join import kernels, searching
from anabranch.operators.join.buffers import Buffer
from anabranch.operators.join.layout import (
    BITS,
    BLOCK,
    BLOCKS,
    DEPTH,
    ENTRY,
    PER_PORT,
    PORT,
    SPARE,
    STUCK,
    USED,
    Ints,
    Links,
    Records,
)
from anabranch.operators.join.probing import Probing
from anabranch.operators.state import State

CHUNK = 65_536
"""Composites that a probe collects before it yields them."""
DEEPEST = 20
"""Bits of the largest directory; bits from 32 on choose the slots."""
_SPARE_DEPTH = 4
"""Extra depth beyond that of even mini-partitions, for keys that are not spread evenly."""
_MOST_SPARE = 64
"""Free blocks that a pool may always keep."""
_FIRST_SLOTS = 64
_MOST_SLOTS = 1 << 26


Found: TypeAlias = tuple[Ints, Ints]
"""The probing rows, and for each other stream a row of sequence numbers."""


class Pool:
    """The blocks of one stream, and the heads of the chains through them."""

    def __init__(self, state: State, name: str, block: int) -> None:
        self._block = block
        self.entries = Buffer(state, f"{name}.entries", ENTRY)
        self.blocks = Buffer(state, f"{name}.blocks", BLOCK)
        self.free = Buffer(state, f"{name}.free", np.int64, 2).array
        self.heads = Buffer(state, f"{name}.heads", np.int32)

    def reserve(self, blocks: int) -> None:
        """Make sure that there are that many free blocks."""
        missing = blocks - int(self.free[SPARE])
        if missing <= 0:
            return
        count = len(self.blocks.array)
        more = count + max(missing, count // 8)
        self.blocks.resize(more)
        self.entries.resize(more * self._block)
        kernels.free_all(self.blocks.array, self.free, count)

    def refill(self, entries: Records, blocks: Records) -> None:
        """Replace the content by these blocks, and add a few free ones."""
        used = len(blocks)
        self.blocks.resize(used + used // 8)
        self.entries.resize(len(self.blocks.array) * self._block)
        self.blocks.array[:used], self.entries.array[: len(entries)] = blocks, entries
        self.free[:] = 0
        kernels.free_all(self.blocks.array, self.free, used)


class Index:
    """The directory of one partition-group."""

    def __init__(self, state: State, ports: int, theta: int, block: int, fine_tuning: bool) -> None:
        self._theta, self._block, self._fine_tuning = theta, block, fine_tuning
        self._width = PORT + PER_PORT * ports
        self.pools = [Pool(state, f"index.{port}", block) for port in range(ports)]
        self._directory = Buffer(state, "index.directory", np.int32, 1)
        self._minis = Buffer(state, "index.minis", np.int64, self._width)
        self._slots = Buffer(state, "index.slots", np.int64, ports).array
        self._most_slots = 2 * _power_of_two(theta * block // 2) if fine_tuning else _MOST_SLOTS
        if not self.minis[0, USED]:
            self.minis[0, USED] = 1
            self._slots[:] = min(_FIRST_SLOTS, self._most_slots)
            for port in range(ports):
                self._fit_heads(port)

    @property
    def directory(self) -> Links:
        """The mini-partition for each value of the low bits."""
        return self._directory.array

    @property
    def minis(self) -> Ints:
        """The mini-partitions, one per row."""
        return self._minis.array.reshape(-1, self._width)

    def insert(self, port: int, probing: Probing, first: int, metrics: Counter[str]) -> None:
        """Index new rows of a stream; `first` is the sequence number of the first one."""
        pool, rows = self.pools[port], len(probing.hashes)
        pool.reserve(rows // self._block + min(rows, int(self.minis[:, USED].sum())))
        kernels.insert(
            port, probing.hashes, probing.times, probing.keyed, first,
            self.directory, self.minis, pool.entries.array, pool.blocks.array, pool.free, pool.heads.array,
            self._slots[port], self._block,
        )  # fmt: skip
        if self._fine_tuning:
            self._split_large(metrics)
        self._spread(port)

    def probe(
        self, port: int, probing: Probing, within: Ints, watermark: int, nested: bool, metrics: Counter[str]
    ) -> Iterator[Found]:
        """Composites of probing rows with the other streams' rows, in chunks."""
        if len(self.pools) > 2:
            return self._probe_all(port, probing, within, watermark, nested, metrics)
        search = self._scan if nested else self._walk
        return search(port, probing, within, watermark, metrics)

    def _walk(
        self, port: int, probing: Probing, within: Ints, watermark: int, metrics: Counter[str]
    ) -> Iterator[Found]:
        """Probe one other stream, along the chains."""
        pool, slots = self.pools[1 - port], int(self._slots[1 - port])
        rows, found = np.empty(CHUNK, np.int64), np.empty((1, CHUNK), np.int64)
        place, below = np.array([0, -1]), np.zeros(1, np.int64)
        while place[0] < len(probing.hashes):
            count, looked = searching.probe_two(
                port, probing.hashes, probing.times, probing.keyed, within, watermark,
                self.directory, pool.entries.array, pool.heads.array, slots, place, below, rows, found[0],
            )  # fmt: skip
            metrics["probed"] += looked
            if count:
                yield rows[:count], found[:, :count]

    def _scan(
        self, port: int, probing: Probing, within: Ints, watermark: int, metrics: Counter[str]
    ) -> Iterator[Found]:
        """Probe one other stream, block by block: with fewer rows at a time if their partners exceed a chunk."""
        pool, begin, step = self.pools[1 - port], 0, len(probing.hashes)
        rows, found = np.empty(CHUNK, np.int64), np.empty((1, CHUNK), np.int64)
        while begin < len(probing.hashes):
            end = min(begin + step, len(probing.hashes))
            count, looked = searching.scan_two(
                port, begin, end, probing.hashes, probing.times, probing.keyed, within, watermark,
                self.directory, self.minis, pool.entries.array, pool.blocks.array, self._block, rows, found[0],
            )  # fmt: skip
            metrics["probed"] += looked
            if count < 0 and step > 1:
                step //= 2
                continue
            if count < 0:  # a walk can stop within a row, and finds the same rows in the same order
                for _, partners in self._walk(port, probing.row(begin), within, watermark, metrics):
                    yield np.full(partners.shape[1], begin), partners
            elif count:
                yield rows[:count], found[:, :count]
            begin = end

    def _probe_all(
        self, port: int, probing: Probing, within: Ints, watermark: int, nested: bool, metrics: Counter[str]
    ) -> Iterator[Found]:
        """Probe any number of other streams."""
        others = len(self.pools) - 1
        rows, found = np.empty(CHUNK, np.int64), np.empty((others, CHUNK), np.int64)
        place, walks = np.array([0, -1]), np.zeros((5, others), np.int64)
        while place[0] < len(probing.hashes):
            count, looked = searching.probe(
                port, probing.hashes, probing.times, probing.keyed, within, watermark, nested,
                self.directory, self.minis,
                tuple(pool.entries.array for pool in self.pools),
                tuple(pool.blocks.array for pool in self.pools),
                tuple(pool.heads.array for pool in self.pools),
                self._slots, self._block, place, walks, rows, found,
            )  # fmt: skip
            metrics["probed"] += looked
            if count:
                yield rows[:count], found[:, :count]

    def expire(self, port: int, before: int, metrics: Counter[str]) -> None:
        """Free the blocks whose rows are all earlier than `before`."""
        pool = self.pools[port]
        metrics["expired_blocks"] += kernels.expire(port, before, self.minis, pool.blocks.array, pool.free)
        spare = int(pool.free[SPARE])
        if spare > _MOST_SPARE and spare > 2 * (len(pool.blocks.array) - spare):
            self._shrink(port)

    # --- fine tuning ------------------------------------------------------------------------------------------------

    def merge_small(self, metrics: Counter[str]) -> None:
        """Merge mini-partitions below theta with their buddies, if the rules allow it."""
        if not self._fine_tuning:
            return
        while True:
            mini, buddy = kernels.too_small(self.minis, self.directory, self._theta)
            if mini < 0:
                return
            self._merge(min(mini, buddy), max(mini, buddy))
            metrics["merges"] += 1

    def _split_large(self, metrics: Counter[str]) -> None:
        while (mini := kernels.too_large(self.minis, self._theta)) >= 0:
            if self._can_split(mini):
                self._split(mini)
                metrics["splits"] += 1
            else:
                self.minis[mini, STUCK] = kernels.size_of(self.minis, mini)

    def _can_split(self, mini: int) -> bool:
        total = int(self.minis[:, PORT + BLOCKS :: PER_PORT].sum())
        limit = min(DEEPEST, (total // self._theta).bit_length() + _SPARE_DEPTH)
        ones = zeros = 0
        for port, pool in enumerate(self.pools):
            some, others = kernels.bits_of(
                port, mini, self.minis, pool.entries.array, pool.blocks.array, self._block
            )  # fmt: skip
            ones, zeros = ones | int(some), zeros | int(others)
        return (ones & zeros & ((1 << limit) - 1)) >> int(self.minis[mini, DEPTH]) != 0

    def _split(self, mini: int) -> None:
        new = self._new_mini()
        minis = self.minis
        depth = int(minis[mini, DEPTH])
        entries = len(self.directory)
        if entries == 1 << depth:
            self._directory.resize(2 * entries)
            self.directory[entries:] = self.directory[:entries]
        minis[new] = 0
        minis[new, USED] = 1
        minis[new, BITS] = minis[mini, BITS] | 1 << depth
        minis[mini, STUCK] = 0
        minis[[mini, new], DEPTH] = depth + 1
        self.directory[int(minis[new, BITS]) :: 1 << (depth + 1)] = new
        self._redistribute(mini, -1, mini, new, depth)

    def _merge(self, mini: int, buddy: int) -> None:
        minis = self.minis
        depth = int(minis[mini, DEPTH]) - 1
        self._redistribute(mini, buddy, mini, mini, 0)
        minis[buddy] = 0
        minis[mini, DEPTH] = depth
        minis[mini, BITS] &= ~(1 << depth)
        self.directory[int(minis[mini, BITS]) :: 1 << depth] = mini
        deepest = int(minis[:, DEPTH].max())
        if len(self.directory) > 1 << deepest:
            self._directory.resize(1 << deepest)
        last = int(np.flatnonzero(minis[:, USED])[-1])
        if len(minis) > 2 * (last + 1):
            self._resize_minis(last + 1)

    def _redistribute(self, source: int, buddy: int, zero: int, one: int, bit: int) -> None:
        for port, pool in enumerate(self.pools):
            pool.reserve(1)
            kernels.redistribute(
                port, source, buddy, zero, one, bit, self.minis, pool.entries.array, pool.blocks.array, pool.free,
                pool.heads.array, self._slots[port], self._block,
            )  # fmt: skip

    def _new_mini(self) -> int:
        unused = np.flatnonzero(self.minis[:, USED] == 0)
        if len(unused):
            return int(unused[0])
        count = len(self.minis)
        self._resize_minis(count + 1 + count // 4)
        return count

    def _resize_minis(self, count: int) -> None:
        self._minis.resize(count * self._width)
        for port in range(len(self.pools)):
            self._fit_heads(port)

    # --- chains -----------------------------------------------------------------------------------------------------

    def _spread(self, port: int) -> None:
        """Use more slots if the chains got long."""
        most, slots = kernels.most_entries(port, self.minis), int(self._slots[port])
        wanted = min(_power_of_two(most), self._most_slots)
        if most <= 2 * slots or wanted <= slots:
            return
        self._slots[port] = wanted
        self._fit_heads(port)
        self._relink(port)

    def _relink(self, port: int) -> None:
        pool = self.pools[port]
        pool.heads.array[:] = 0
        kernels.relink(
            port, self.minis, pool.entries.array, pool.blocks.array, pool.heads.array, int(self._slots[port]),
            self._block,
        )  # fmt: skip

    def _shrink(self, port: int) -> None:
        """Free the memory of free blocks, which lie between those in use."""
        pool = self.pools[port]
        used = len(pool.blocks.array) - int(pool.free[SPARE])
        entries, blocks = np.empty(used * self._block, ENTRY), np.empty(used, BLOCK)
        kernels.pack(port, self.minis, pool.entries.array, pool.blocks.array, self._block, entries, blocks)
        pool.refill(entries, blocks)
        self._relink(port)

    def _fit_heads(self, port: int) -> None:
        self.pools[port].heads.resize(len(self.minis) * int(self._slots[port]))


def _power_of_two(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << max(0, n.bit_length() - 1)
