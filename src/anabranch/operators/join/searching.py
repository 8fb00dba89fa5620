"""Numba kernels that search the index of a join, described in `layout`.

A walk follows a chain from the newest entry to the oldest; a scan reads whole blocks, as a block nested loop does. Both
find the same rows in the same order.

**Stale links.** Blocks expire from the oldest on, and links to them are not repaired. So after the oldest live row of
its slot, a walk may reach entries that are free, or that were reused for any row of the stream. This causes no false
and no duplicate match, because a walk ends where the sequence number does not decrease:

- It meets all live rows of its slot first, because they are linked in order (whoever moves entries links them again).
  What it meets later with the same hash is older than all of these, so it has expired, and its time shows that.
- If no row of the slot is alive, any entry with the same hash has expired too.
- The sequence number falls with each step, so every walk ends. This works because each stream has its own pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.operators.join.layout import NEWEST, PER_PORT, PORT, Hashes, Ints, Links, Records, slot_of

WALKS_TOGETHER = 32
"""Rows whose walks begin together."""
STEPS = 6
"""Entries of each walk that are brought into the cache."""

_LARGEST = np.iinfo(np.int64).max


@kernel(nogil=True)
def _newest(
    nested: bool, mini: Any, hash_: Any, port: int, minis: Ints, blocks: Records, heads: Links, slots: int, size: int
) -> Any:
    """The entry where a search begins."""
    if not nested:
        return np.int64(heads[slot_of(mini, hash_, slots)])
    block = minis[mini, PORT + PER_PORT * port + NEWEST]
    return (block - 1) * size + blocks[block - 1].count if block else 0


@kernel(nogil=True)
def _older(nested: bool, entry: int, entries: Records, blocks: Records, size: int) -> Any:
    """The next entry. In a list, all blocks but the newest are full."""
    if not nested:
        return np.int64(entries[entry - 1].link)
    if (entry - 1) % size:
        return entry - 1
    return np.int64(blocks[(entry - 1) // size].older) * size


@kernel(nogil=True)
def probe_two(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], within: Ints, watermark: int,
    directory: Links, entries: Records, heads: Links, slots: int,
    place: Ints, walk: Ints, rows: Ints, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """As `probe`, of one other stream, whose pool it is: the common case, and much faster without levels.

    place[1] is the next entry of the row, or -1 where the row is to begin; walk[0] the number to stay below.
    """
    other = 1 - port
    n, made, looked, room = len(hashes), 0, 0, len(rows)
    after, ahead = within[other], within[port]
    starts = np.zeros(WALKS_TOGETHER, np.int64)
    row, entry, below = place[0], place[1], walk[0]
    base = touched = row
    while row < n and made < room:
        hash_, t = hashes[row], times[row]
        # Rows behind the watermark may or may not have been removed: skip them, so that the layout does not show.
        earliest, latest = max(t, watermark) - after, t + ahead
        if entry < 0:
            if row >= touched:
                touched = min(row + WALKS_TOGETHER, n)
                _start_walks(hashes[row:touched], directory, entries, heads, slots, starts)
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
            entry = np.int64(entries[at].link)
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


@kernel(nogil=True)
def _start_walks(
    hashes: Hashes, directory: Links, entries: Records, heads: Links, slots: int, starts: Ints
) -> None:  # fmt: skip
    """Find where the walks of a few rows begin. Their first steps are made together: each waits for memory, but not for
    the others, and then the walks find their entries in the cache."""
    mask = np.uint64(len(directory) - 1)
    at = np.empty(WALKS_TOGETHER, np.int64)
    for i in range(len(hashes)):
        mini = np.int64(directory[hashes[i] & mask])
        starts[i] = at[i] = heads[slot_of(mini, hashes[i], slots)]
    for _ in range(STEPS):
        for i in range(len(hashes)):
            if at[i]:
                at[i] = entries[at[i] - 1].link


@kernel(nogil=True)
def scan_two(
    port: int, begin: int, end: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], within: Ints,
    watermark: int, directory: Links, minis: Ints, entries: Records, blocks: Records, size: int,
    rows: Ints, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """The block nested loop: everything the probing rows [begin, end) find, or -1 if that does not fit `rows`.

    The probing rows of a mini-partition scan its blocks together, so each block is loaded once. The matches are sorted
    afterwards.
    """
    other, count, room, made, looked = 1 - port, end - begin, len(rows), 0, 0
    of = np.empty(count, np.int64)
    for i in range(count):
        of[i] = directory[hashes[begin + i] & np.uint64(len(directory) - 1)] if keyed[begin + i] else -1
    order = np.argsort(of, kind="mergesort")
    who, what, per_row = np.empty(room, np.int64), np.empty(room, np.int64), np.zeros(count + 1, np.int64)
    first = 0
    while first < count:
        mini, last = of[order[first]], first
        while last < count and of[order[last]] == mini:
            last += 1
        block = minis[mini, PORT + PER_PORT * other + NEWEST] if mini >= 0 else 0
        while block:
            start, filled = (block - 1) * size, int(blocks[block - 1].count)
            for i in order[first:last]:
                hash_, t = hashes[begin + i], times[begin + i]
                earliest, latest = max(t, watermark) - within[other], t + within[port]
                for at in range(start + filled - 1, start - 1, -1):
                    if entries[at].hash == hash_ and earliest <= entries[at].t <= latest:
                        if made == room:
                            return -1, looked
                        who[made], what[made] = i, entries[at].seq
                        per_row[i + 1] += 1
                        made += 1
            looked += filled * (last - first)
            block = np.int64(blocks[block - 1].older)
        first = last
    for i in range(count):
        per_row[i + 1] += per_row[i]
    for k in range(made):
        to = per_row[who[k]]
        rows[to], found[to] = begin + who[k], what[k]
        per_row[who[k]] += 1
    return made, looked


@kernel(nogil=True)
def probe(
    port: int, hashes: Hashes, times: Ints, keyed: NDArray[np.bool_], within: Ints, watermark: int, nested: bool,
    directory: Links, minis: Ints, entries: tuple[Records, ...], blocks: tuple[Records, ...],
    heads: tuple[Links, ...], slots: Ints, size: int,
    place: Ints, walks: Ints, rows: Ints, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Fill `rows` and `found` with composites of the probing rows; returns (how many, entries visited).

    Stops when they are full. `place` (row, level) and `walks` remember the position; call again with the same ones to
    continue, until place[0] is the number of rows. The search is depth first, with one level for each other stream.
    walks[:, l] belong to level l: the next entry, the sequence number it must be below, the chosen one, and, over the
    probing row and the rows chosen at earlier levels, the latest time and the earliest end of a window.
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
        candidate = entries[other][entry - 1]
        t, seq = candidate.t, candidate.seq
        looked += 1
        walks[0, level] = _older(nested, entry, entries[other], blocks[other], size)
        walks[1, level] = seq
        # Rows behind the watermark may or may not have been removed: skip them, so that the layout does not show.
        if (
            candidate.hash != hashes[row]
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
