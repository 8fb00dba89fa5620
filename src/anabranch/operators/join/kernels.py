"""Numba kernels of the join: insert, probe, expire, and the moves of the extendible hash directory.

Of each stream there is one pool of blocks, and `entries[block * size : (block + 1) * size]` are a block's entries. A
block belongs to one mini-partition, in a list from the oldest to the newest, or to the free list. Wherever a number
says which block or entry, it is one more than that, and 0 is none: fresh arrays are zeros.

Key hashes are *mixed*: the low bits of the plain hash chose the partition-group, so within a group they are alike. The
mix is a bijection, so equal mixes are equal hashes. Its low bits choose the mini-partition, bits 32 and up the slot in
the mini-partition's table `heads`, which names the slot's newest entry; `link` names the next older one.

**Stale links.** Blocks expire from the oldest on, and their entries stay in the chains: `heads` and links may name an
entry that is free by now, or was written anew. Such an entry never makes a false or a second match:

- A free one still has its hash and time, and the time is past: no row that is not late lies in its window.
- One written anew in the same stream's pool is of a younger row (then the sequence number does not decrease, and the
  chain ends: all that was behind was older, and so expired before), or was moved there by a split or merge of *another*
  mini-partition (then its hash differs, for that one's rows have other low bits, and the walk goes on down a foreign
  chain to no effect). Should the walk come back to its own mini-partition, it meets other slots only, for it has
  passed the oldest row of its own slot.
- The sequence number falls with each step, so every walk ends. Splits and merges build the chains of the
  mini-partitions they touch anew.

All of it is one file because numba's cache looks at the file of the outermost function only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Records = NDArray[np.void]
Links = NDArray[np.int32]

ENTRY = np.dtype([("hash", "u8"), ("t", "i8"), ("seq", "i8"), ("link", "i4")])
BLOCK = np.dtype([("latest", "i8"), ("older", "i4"), ("newer", "i4"), ("count", "i4")])

# A mini-partition is a row of integers: these, and from PORT on four for each stream.
USED, DEPTH, BITS, STUCK, PORT = range(5)
OLDEST, NEWEST, BLOCKS, ENTRIES = range(4)
PER_PORT = 4

# What a pool of blocks says of itself.
FREE, SPARE = range(2)

AHEAD = 32
"""Rows whose walks begin together."""
STEPS = 6

_LARGEST = np.iinfo(np.int64).max
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@njit(cache=True, nogil=True)
def mixed(hashes: Ints) -> Hashes:
    """The finaliser of splitmix64."""
    out = np.empty(len(hashes), np.uint64)
    for i in range(len(hashes)):
        x = np.uint64(hashes[i])
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        out[i] = x ^ (x >> np.uint64(31))
    return out


@njit(cache=True, nogil=True)
def _slot(mini: Any, hash_: Any, slots: int) -> Any:
    return mini * slots + np.int64((hash_ >> _HALF) & np.uint64(slots - 1))


# --- insert and expire ----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def free_all(blocks: Records, pool: Ints, begin: int) -> None:
    """Put new blocks, from `begin` on, on the free list."""
    for block in range(len(blocks), begin, -1):
        blocks[block - 1].newer = pool[FREE]
        pool[FREE] = block
        pool[SPARE] += 1


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _chain(entries: Records, entry: int, heads: Links, slot: int) -> None:
    entries[entry].link = heads[slot]
    heads[slot] = entry + 1


@njit(cache=True, nogil=True)
def insert(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], first: int,
    directory: Links, minis: Ints, entries: Records, blocks: Records, pool: Ints, heads: Links, slots: int, size: int,
) -> None:  # fmt: skip
    """Index the rows `first`, `first` + 1, ... of a stream; the pool has blocks enough."""
    at = PORT + PER_PORT * port
    mask = np.uint64(len(directory) - 1)
    for i in range(len(hashes)):
        if keyed[i]:
            mini = np.int64(directory[hashes[i] & mask])
            entry = _append(minis, mini, at, blocks, pool, size, times[i])
            entries[entry].hash = hashes[i]
            entries[entry].t = times[i]
            entries[entry].seq = first + i
            _chain(entries, entry, heads, _slot(mini, hashes[i], slots))


@njit(cache=True, nogil=True)
def _release(minis: Ints, mini: int, at: int, blocks: Records, pool: Ints) -> None:
    """The oldest block of a list becomes free."""
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


@njit(cache=True, nogil=True)
def expire(port: int, before: int, minis: Ints, blocks: Records, pool: Ints) -> int:
    """Free the old blocks whose latest time is earlier; how many."""
    at = PORT + PER_PORT * port
    expired = 0
    for mini in range(len(minis)):
        while minis[mini, at + OLDEST] and blocks[minis[mini, at + OLDEST] - 1].latest < before:
            _release(minis, mini, at, blocks, pool)
            expired += 1
    return expired


@njit(cache=True, nogil=True)
def relink(port: int, minis: Ints, entries: Records, blocks: Records, heads: Links, slots: int, size: int) -> None:
    """Build all chains of a stream; `heads` is zeros."""
    at = PORT + PER_PORT * port
    for mini in range(len(minis)):
        block = minis[mini, at + OLDEST]
        while block:
            for entry in range((block - 1) * size, (block - 1) * size + blocks[block - 1].count):
                _chain(entries, entry, heads, _slot(mini, entries[entry].hash, slots))
            block = np.int64(blocks[block - 1].newer)


@njit(cache=True, nogil=True)
def pack(
    port: int, minis: Ints, entries: Records, blocks: Records, size: int, new_entries: Records, new_blocks: Records
) -> None:
    """Copy the blocks in use one after the other, list by list. The chains are still to be built."""
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


# --- probe ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _newest(
    nested: bool, mini: Any, hash_: Any, port: int, minis: Ints, blocks: Records, heads: Links, slots: int, size: int
) -> Any:
    """The entry where a search begins."""
    if not nested:
        return np.int64(heads[_slot(mini, hash_, slots)])
    block = minis[mini, PORT + PER_PORT * port + NEWEST]
    return (block - 1) * size + blocks[block - 1].count if block else 0


@njit(cache=True, nogil=True)
def _older(nested: bool, entry: int, entries: Records, blocks: Records, size: int) -> Any:
    """The entry that comes next. In a list, all blocks but the newest are full."""
    if not nested:
        return np.int64(entries[entry - 1].link)
    if (entry - 1) % size:
        return entry - 1
    return np.int64(blocks[(entry - 1) // size].older) * size


@njit(cache=True, nogil=True)
def probe_two(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], within: Ints, watermark: int, nested: bool,
    directory: Links, minis: Ints, entries: Records, blocks: Records, heads: Links, slots: int, size: int,
    place: Ints, walk: Ints, rows: Ints, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """As `probe`, of one other stream, whose pool it is: the common case, and much faster without levels.

    place[1] is the next entry of the row, or -1 where the row is to begin; walk[0] the number to stay below.
    """
    other = 1 - port
    n, made, looked, room = len(hashes), 0, 0, len(rows)
    after, ahead = within[other], within[port]
    starts = np.zeros(AHEAD, np.int64)
    row, entry, below = place[0], place[1], walk[0]
    base = touched = row
    while row < n and made < room:
        hash_, t = hashes[row], times[row]
        # What is behind the watermark may be there or not: never look at it, so the layout cannot show.
        earliest, latest = max(t - after, watermark - after), t + ahead
        if entry < 0:
            if row >= touched:
                touched = min(row + AHEAD, n)
                _start_walks(
                    nested, other, hashes[row:touched], directory, minis, entries, blocks, heads, slots, size, starts
                )
                base = row
            entry = starts[row - base] if keyed[row] else 0
            below = _LARGEST
        while entry > 0:
            at = entry - 1
            seq = entries[at].seq
            if seq >= below:
                break
            below = seq
            looked += 1
            entry = _older(nested, entry, entries, blocks, size)
            if entries[at].hash == hash_ and earliest <= entries[at].t <= latest:
                rows[made] = row
                found[made] = seq
                made += 1
                if made == room:
                    place[0], place[1], walk[0] = row, entry, below
                    return made, looked
        row += 1
        entry = -1
    place[0], place[1] = row, -1
    return made, looked


@njit(cache=True, nogil=True)
def _start_walks(
    nested: bool, other: int, hashes: Hashes, directory: Links, minis: Ints, entries: Records,
    blocks: Records, heads: Links, slots: int, size: int, starts: Ints,
) -> None:  # fmt: skip
    """Where the walks of a few rows begin. Their first steps are made together: each waits for memory, but not for the
    others, and the walks find their entries in the cache."""
    mask = np.uint64(len(directory) - 1)
    at = np.empty(AHEAD, np.int64)
    for i in range(len(hashes)):
        mini = np.int64(directory[hashes[i] & mask])
        starts[i] = _newest(nested, mini, hashes[i], other, minis, blocks, heads, slots, size)
        at[i] = starts[i]
    if nested:
        return
    for _ in range(STEPS):
        for i in range(len(hashes)):
            if at[i]:
                at[i] = entries[at[i] - 1].link


@njit(cache=True, nogil=True)
def probe(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], within: Ints, watermark: int, nested: bool,
    directory: Links, minis: Ints, entries: tuple[Records, ...], blocks: tuple[Records, ...],
    heads: tuple[Links, ...], slots: Ints, size: int,
    place: Ints, walks: Ints, rows: Ints, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Fill `rows` and `found` with composites of the probing rows: (how many, entries looked at).

    Stops when they are full. `place` (row, level) and `walks` remember where; to go on, call again with the same; all
    is done when place[0] is the number of rows. The search is depth first, one level for each other stream in order;
    walks[:, l] are of level l: the next entry, the sequence number it must be below, the one that was chosen, and of
    the probing row and the chosen ones of the levels before: the latest time, the earliest end of a window.
    """
    levels, n, made, looked = walks.shape[1], len(hashes), 0, 0
    row, level = place[0], place[1]
    mask = np.uint64(len(directory) - 1)
    while row < n:
        if level < 0:
            if not keyed[row]:
                row += 1
                continue
            level = 0
            walks[1, 0] = -1  # begin
            walks[3, 0], walks[4, 0] = times[row], times[row] + within[port]
        other = level if level < port else level + 1
        if walks[1, level] == -1:
            mini = np.int64(directory[hashes[row] & mask])
            walks[0, level] = _newest(
                nested, mini, hashes[row], other, minis, blocks[other], heads[other], slots[other], size
            )
            walks[1, level] = _LARGEST
        entry = walks[0, level]
        if entry == 0 or entries[other][entry - 1].seq >= walks[1, level]:
            level -= 1
            row += level < 0
            continue
        seen = entries[other][entry - 1]
        t, seq = seen.t, seen.seq
        looked += 1
        walks[0, level] = _older(nested, entry, entries[other], blocks[other], size)
        walks[1, level] = seq
        # What is behind the watermark may be there or not: never look at it, so the layout cannot show.
        if (
            seen.hash != hashes[row]
            or t > walks[4, level]
            or t < walks[3, level] - within[other]
            or t + within[other] < watermark
        ):
            continue
        walks[2, level] = seq
        if level + 1 < levels:
            walks[3, level + 1] = max(walks[3, level], t)
            walks[4, level + 1] = min(walks[4, level], t + within[other])
            level += 1
            walks[1, level] = -1
            continue
        rows[made] = row
        for each in range(levels):
            found[each, made] = walks[2, each]
        made += 1
        if made == len(rows):
            break
    place[0], place[1] = row, level
    return made, looked


# --- split and merge ------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def size_of(minis: Ints, mini: Any) -> Any:
    """Blocks of a mini-partition."""
    size = 0
    for at in range(PORT + BLOCKS, minis.shape[1], PER_PORT):
        size += minis[mini, at]
    return size


@njit(cache=True, nogil=True)
def too_large(minis: Ints, theta: int) -> int:
    """A mini-partition to split, or -1."""
    for mini in range(len(minis)):
        size = size_of(minis, mini)
        if size <= 2 * theta:
            minis[mini, STUCK] = 0
        elif 4 * size > 5 * minis[mini, STUCK]:
            return mini
    return -1


@njit(cache=True, nogil=True)
def too_small(minis: Ints, directory: Links, theta: int) -> tuple[int, int]:
    """A mini-partition to merge and its buddy, or -1."""
    for mini in range(len(minis)):
        size, depth = size_of(minis, mini), minis[mini, DEPTH]
        if depth > 0 and size < theta:
            buddy = np.int64(directory[minis[mini, BITS] ^ (1 << (depth - 1))])
            if minis[buddy, DEPTH] == depth and size + size_of(minis, buddy) < 2 * theta:
                return mini, int(buddy)
    return -1, -1


@njit(cache=True, nogil=True)
def most_entries(port: int, minis: Ints) -> int:
    """Of a stream, in one mini-partition."""
    return int(minis[:, PORT + PER_PORT * port + ENTRIES].max())


@njit(cache=True, nogil=True)
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
        _chain(entries, entry, heads, _slot(mini, moving[take].hash, slots))


@njit(cache=True, nogil=True)
def differing_bits(port: int, mini: int, minis: Ints, entries: Records, blocks: Records, size: int, other: Any) -> Any:
    """(A hash, the bits in which others differ from it); `other` is a hash to begin with, or 0."""
    at = PORT + PER_PORT * port
    bits = np.uint64(0)
    block = minis[mini, at + OLDEST]
    while block:
        for entry in range((block - 1) * size, (block - 1) * size + blocks[block - 1].count):
            if other == np.uint64(0):
                other = entries[entry].hash
            bits |= entries[entry].hash ^ other
        block = np.int64(blocks[block - 1].newer)
    return other, bits
