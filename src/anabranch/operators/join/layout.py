"""The memory layout of a join's index, shared by all its kernels.

Each stream has one pool of blocks; `entries[block * size : (block + 1) * size]` are the entries of a block. A block
belongs to one mini-partition, in a list from the oldest to the newest, or to the free list. References to blocks and
entries are stored as number + 1, and 0 means none: fresh arrays are zeros.

Key hashes are *mixed*: the low bits of the plain hash chose the partition-group, so within a group they are alike. The
mix is a bijection, so equal mixes are equal hashes. Its low bits choose the mini-partition, bits 32 and up the slot in
the mini-partition's table `heads`, which refers to the slot's newest entry; `link` refers to the next older one.

numba's cache looks only at the file of the outermost function. After a change here, remove `__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel, mix64

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Records = NDArray[np.void]
Links = NDArray[np.int32]

ENTRY = np.dtype([("hash", "u8"), ("t", "i8"), ("seq", "i8"), ("link", "i4")])
BLOCK = np.dtype([("latest", "i8"), ("older", "i4"), ("newer", "i4"), ("count", "i4")])

# A mini-partition is a row of integers: these, and from PORT on four per stream.
USED, DEPTH, BITS, STUCK, PORT = range(5)
OLDEST, NEWEST, BLOCKS, ENTRIES = range(4)
PER_PORT = 4

# Fields of a pool of blocks.
FREE, SPARE = range(2)

_HALF = np.uint64(32)


@kernel(nogil=True)
def mixed(hashes: Ints) -> Hashes:
    """The mixed hashes."""
    out = np.empty(len(hashes), np.uint64)
    for i in range(len(hashes)):
        out[i] = mix64(np.uint64(hashes[i]))
    return out


@kernel(nogil=True)
def slot_of(mini: Any, hash_: Any, slots: int) -> Any:
    """The place in `heads` where the chain of a hash begins."""
    return mini * slots + np.int64((hash_ >> _HALF) & np.uint64(slots - 1))
