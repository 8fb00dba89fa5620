"""Numba kernels: XXH64 as Spark computes it, over the buffers of Arrow arrays, chained from key to key."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel

Ints = NDArray[np.signedinteger[Any]]
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

# numba turns an unsigned and a signed integer together into floats, so every constant below is unsigned.
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_ONE, _FOUR, _EIGHT, _STRIPE = np.uint64(1), np.uint64(4), np.uint64(8), np.uint64(32)

_LANES = 64
"""Values that are hashed together; a constant, so that the compiler unrolls the loops."""


@kernel()
def _rotate(x: Any, bits: int) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@kernel()
def _mix_long(seed: Any, word: Any) -> Any:
    return _rotate(seed ^ (_rotate(word * _P2, 31) * _P1), 27) * _P1 + _P4


@kernel()
def _mix_int(seed: Any, word: Any) -> Any:
    return _rotate(seed ^ (word * _P1), 23) * _P2 + _P3


@kernel()
def _finish(h: Any) -> Any:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@kernel()
def _is_valid(valid: Bytes, at: int) -> Any:
    return (np.int64(valid[at >> 3]) >> (at & 7)) & 1


@kernel()
def add_null_bit(place: int, valid: Bytes, offset: int, words: Ints) -> None:
    for i in range(len(words)):
        words[i] |= (1 - _is_valid(valid, offset + i)) << place


@kernel()
def canonical_floats(bits: Ints, unsigned: int, infinity: int, nan: int) -> Ints:
    """The bits of floats, with one zero and one NaN."""
    out = np.empty_like(bits)
    for i in range(len(bits)):
        magnitude = bits[i] & unsigned
        out[i] = nan if magnitude > infinity else bits[i] if magnitude else 0
    return out


@kernel()
def hash_ints(values: Ints, valid: Bytes, offset: int, hashes: Hashes) -> None:
    """Spark's hashInt, for 32 bits or fewer."""
    for i in range(len(values)):
        if len(valid) == 0 or _is_valid(valid, offset + i):
            word = np.uint64(values[i]) & _LOW_HALF
            hashes[i] = _finish(_mix_int(hashes[i] + _P5 + _FOUR, word))


@kernel()
def hash_longs(values: Ints, valid: Bytes, offset: int, hashes: Hashes) -> None:
    """Spark's hashLong."""
    done = 0
    if len(valid) == 0:
        # The steps of one hash depend on each other. The same step of many values does not, and becomes vector code.
        lanes = np.empty(_LANES, np.uint64)
        done = len(values) // _LANES * _LANES
        for first in range(0, done, _LANES):
            for i in range(_LANES):
                lanes[i] = _rotate(np.uint64(values[first + i]) * _P2, 31)
            for i in range(_LANES):
                lanes[i] = _rotate((hashes[first + i] + _P5 + _EIGHT) ^ (lanes[i] * _P1), 27)
            for i in range(_LANES):
                lanes[i] = lanes[i] * _P1 + _P4
            for i in range(_LANES):
                lanes[i] = (lanes[i] ^ (lanes[i] >> np.uint64(33))) * _P2
            for i in range(_LANES):
                h = (lanes[i] ^ (lanes[i] >> np.uint64(29))) * _P3
                hashes[first + i] = h ^ (h >> np.uint64(32))
    for i in range(done, len(values)):
        if len(valid) == 0 or _is_valid(valid, offset + i):
            hashes[i] = _finish(_mix_long(hashes[i] + _P5 + _EIGHT, np.uint64(values[i])))


@kernel()
def hash_bytes(data: Bytes, starts: Ints, ends: Ints, valid: Bytes, offset: int, hashes: Hashes) -> None:
    """Spark's hashUnsafeBytes: XXH64 of data[start:end]."""
    for i in range(len(starts)):
        if len(valid) == 0 or _is_valid(valid, offset + i):
            hashes[i] = _hash_range(data, np.uint64(starts[i]), np.uint64(ends[i]), hashes[i])


@kernel()
def _hash_range(data: Bytes, at: Any, end: Any, seed: Any) -> Any:
    size = end - at
    if size >= _STRIPE:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + _STRIPE <= end:
            a = _round(a, _word(data, at))
            b = _round(b, _word(data, at + _EIGHT))
            c = _round(c, _word(data, at + np.uint64(16)))
            d = _round(d, _word(data, at + np.uint64(24)))
            at += _STRIPE
        h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        h = _merge(_merge(_merge(_merge(h, a), b), c), d)
    else:
        h = seed + _P5
    h += size
    while at + _EIGHT <= end:
        h = _mix_long(h, _word(data, at))
        at += _EIGHT
    if at + _FOUR <= end:
        h = _mix_int(h, _half_word(data, at))
        at += _FOUR
    while at < end:
        h = _rotate(h ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += _ONE
    return _finish(h)


@kernel()
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * _P2, 31) * _P1


@kernel()
def _merge(h: Any, lane: Any) -> Any:
    return (h ^ (_rotate(lane * _P2, 31) * _P1)) * _P1 + _P4


# Values are not aligned, so words are assembled from bytes; the compiler turns this into one load.


@kernel()
def _word(data: Bytes, at: Any) -> Any:
    return _half_word(data, at) | (_half_word(data, at + _FOUR) << np.uint64(32))


@kernel()
def _half_word(data: Bytes, at: Any) -> Any:
    return _byte(data, at, 0) | _byte(data, at, 1) | _byte(data, at, 2) | _byte(data, at, 3)


@kernel()
def _byte(data: Bytes, at: Any, place: int) -> Any:
    return np.uint64(data[at + np.uint64(place)]) << np.uint64(8 * place)
