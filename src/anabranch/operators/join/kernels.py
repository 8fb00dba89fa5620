"""Numba kernels that write the index of a join: insert, expire, pack, split and merge.

What they work on is described in `layout`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.operators.join.layout import (
    BITS,
    BLOCKS,
    DEPTH,
    ENTRIES,
    FREE,
    NEWEST,
    OLDEST,
    PER_PORT,
    PORT,
    SPARE,
    STUCK,
    Hashes,
    Ints,
    Links,
    Records,
    slot_of,
)

_ONE = np.uint64(1)


# --- insert and expire ----------------------------------------------------------------------------------------------


@kernel(nogil=True)
def free_all(blocks: Records, pool: Ints, begin: int) -> None:
    """Put new blocks, from `begin` on, on the free list."""
    for block in range(len(blocks), begin, -1):
        blocks[block - 1].newer = pool[FREE]
        pool[FREE] = block
        pool[SPARE] += 1


@kernel(nogil=True)
def _append(minis: Ints, mini: Any, at: int, blocks: Records, pool: Ints, size: int, t: int) -> Any:
    """Room for one more entry of that time, at the new end of a list."""
    newest = minis[mini, at + NEWEST]
    if newest == 0 or blocks[newest - 1].count == size:
        block = pool[FREE]
        pool[FREE] = blocks[block - 1].newer
        pool[SPARE] -= 1
        blocks[block - 1].latest = t
        blocks[block - 1].older = newest
        blocks[block - 1].newer = 0
        blocks[block - 1].count = 0
        if newest == 0:
            minis[mini, at + OLDEST] = block
        else:
            blocks[newest - 1].newer = block
        minis[mini, at + NEWEST] = block
        minis[mini, at + BLOCKS] += 1
        newest = block
    entry = (newest - 1) * size + blocks[newest - 1].count
    blocks[newest - 1].count += 1
    blocks[newest - 1].latest = max(blocks[newest - 1].latest, t)
    minis[mini, at + ENTRIES] += 1
    return entry


@kernel(nogil=True)
def _chain(entries: Records, entry: int, heads: Links, slot: int) -> None:
    entries[entry].link = heads[slot]
    heads[slot] = entry + 1


@kernel(nogil=True)
def insert(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], first: int,
    directory: Links, minis: Ints, entries: Records, blocks: Records, pool: Ints, heads: Links, slots: int, size: int,
) -> None:  # fmt: skip
    """Index the rows `first`, `first` + 1, ... of a stream; the pool has enough blocks."""
    at = PORT + PER_PORT * port
    mask = np.uint64(len(directory) - 1)
    for i in range(len(hashes)):
        if keyed[i]:
            mini = np.int64(directory[hashes[i] & mask])
            entry = _append(minis, mini, at, blocks, pool, size, times[i])
            entries[entry].hash = hashes[i]
            entries[entry].t = times[i]
            entries[entry].seq = first + i
            _chain(entries, entry, heads, slot_of(mini, hashes[i], slots))


@kernel(nogil=True)
def _release(minis: Ints, mini: int, at: int, blocks: Records, pool: Ints) -> None:
    """Free the oldest block of a list."""
    block = minis[mini, at + OLDEST]
    newer = np.int64(blocks[block - 1].newer)
    minis[mini, at + OLDEST] = newer
    minis[mini, at + BLOCKS] -= 1
    minis[mini, at + ENTRIES] -= blocks[block - 1].count
    if newer == 0:
        minis[mini, at + NEWEST] = 0
    else:
        blocks[newer - 1].older = 0
    blocks[block - 1].newer = pool[FREE]
    pool[FREE] = block
    pool[SPARE] += 1


@kernel(nogil=True)
def size_of(minis: Ints, mini: Any) -> Any:
    """The number of blocks of a mini-partition."""
    size = 0
    for at in range(PORT + BLOCKS, minis.shape[1], PER_PORT):
        size += minis[mini, at]
    return size


@kernel(nogil=True)
def expire(port: int, before: int, minis: Ints, blocks: Records, pool: Ints) -> int:
    """Free the old blocks whose latest time is before `before`; returns how many."""
    at = PORT + PER_PORT * port
    expired = 0
    for mini in range(len(minis)):
        while minis[mini, at + OLDEST] and blocks[minis[mini, at + OLDEST] - 1].latest < before:
            _release(minis, mini, at, blocks, pool)
            expired += 1
        minis[mini, STUCK] = min(minis[mini, STUCK], size_of(minis, mini))
    return expired


@kernel(nogil=True)
def relink(port: int, minis: Ints, entries: Records, blocks: Records, heads: Links, slots: int, size: int) -> None:
    """Build all chains of a stream; `heads` is zeros."""
    at = PORT + PER_PORT * port
    for mini in range(len(minis)):
        block = minis[mini, at + OLDEST]
        while block:
            for entry in range((block - 1) * size, (block - 1) * size + blocks[block - 1].count):
                _chain(entries, entry, heads, slot_of(mini, entries[entry].hash, slots))
            block = np.int64(blocks[block - 1].newer)


@kernel(nogil=True)
def pack(
    port: int, minis: Ints, entries: Records, blocks: Records, size: int, new_entries: Records, new_blocks: Records
) -> None:
    """Copy the blocks in use one after the other, list by list. The chains must be built afterwards."""
    at = PORT + PER_PORT * port
    made = 0
    for mini in range(len(minis)):
        block, older = minis[mini, at + OLDEST], 0
        minis[mini, at + OLDEST] = made + 1 if block else 0
        while block:
            for i in range(size):
                new_entries[made * size + i] = entries[(block - 1) * size + i]
            new_blocks[made] = blocks[block - 1]
            new_blocks[made].older = older
            block = np.int64(blocks[block - 1].newer)
            made += 1
            new_blocks[made - 1].newer = made + 1 if block else 0
            older = made
        minis[mini, at + NEWEST] = older


# --- split and merge ------------------------------------------------------------------------------------------------


@kernel(nogil=True)
def too_large(minis: Ints, theta: int) -> int:
    """A mini-partition to split, or -1."""
    for mini in range(len(minis)):
        size = size_of(minis, mini)
        if size <= 2 * theta:
            minis[mini, STUCK] = 0
        elif 4 * size > 5 * minis[mini, STUCK]:
            return mini
    return -1


@kernel(nogil=True)
def too_small(minis: Ints, directory: Links, theta: int) -> tuple[int, int]:
    """A mini-partition to merge and its buddy, or -1."""
    for mini in range(len(minis)):
        size, depth = size_of(minis, mini), minis[mini, DEPTH]
        if depth > 0 and size < theta:
            buddy = np.int64(directory[minis[mini, BITS] ^ (1 << (depth - 1))])
            if minis[buddy, DEPTH] == depth and size + size_of(minis, buddy) < 2 * theta:
                return mini, int(buddy)
    return -1, -1


@kernel(nogil=True)
def most_entries(port: int, minis: Ints) -> int:
    """Of a stream, in one mini-partition."""
    return int(minis[:, PORT + PER_PORT * port + ENTRIES].max())


@kernel(nogil=True)
def redistribute(
    port: int, source: int, buddy: int, zero: int, one: int, bit: int,
    minis: Ints, entries: Records, blocks: Records, pool: Ints, heads: Links, slots: int, size: int,
) -> None:  # fmt: skip
    """Move the entries of `source` and `buddy` (none: -1), oldest first, to `zero` and `one` by a bit of their hash."""
    at = PORT + PER_PORT * port
    middle = minis[source, at + ENTRIES]
    count = middle + (minis[buddy, at + ENTRIES] if buddy >= 0 else 0)
    moving = np.empty(count, entries.dtype)
    k = 0
    for mini in (source, buddy):
        while mini >= 0 and minis[mini, at + OLDEST]:
            block = minis[mini, at + OLDEST] - 1
            for entry in range(block * size, block * size + blocks[block].count):
                moving[k] = entries[entry]
                k += 1
            _release(minis, mini, at, blocks, pool)
    heads[zero * slots : (zero + 1) * slots] = 0
    heads[one * slots : (one + 1) * slots] = 0
    left, right = 0, middle
    while left < middle or right < count:
        if right == count or (left < middle and moving[left].seq < moving[right].seq):
            take = left
            left += 1
        else:
            take = right
            right += 1
        mini = one if (moving[take].hash >> np.uint64(bit)) & _ONE else zero
        entry = _append(minis, mini, at, blocks, pool, size, moving[take].t)
        entries[entry] = moving[take]
        _chain(entries, entry, heads, slot_of(mini, moving[take].hash, slots))


@kernel(nogil=True)
def bits_of(port: int, mini: int, minis: Ints, entries: Records, blocks: Records, size: int) -> Any:
    """(Bits set in some hash, bits not set in some hash)."""
    ones = zeros = np.uint64(0)
    block = minis[mini, PORT + PER_PORT * port + OLDEST]
    while block:
        for entry in range((block - 1) * size, (block - 1) * size + blocks[block - 1].count):
            ones |= entries[entry].hash
            zeros |= ~entries[entry].hash
        block = np.int64(blocks[block - 1].newer)
    return ones, zeros
