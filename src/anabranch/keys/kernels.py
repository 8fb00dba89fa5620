"""Numba kernels of the partitioners: from key hashes to workers, tuple by tuple, in order of arrival.

A key's candidates are d different workers: the j-th is drawn from the remaining ones, by the j-th mix of the key's
hash. So the first is the worker of hash partitioning, and with d = V every worker is a candidate.

Exact sets of keys are one open-addressing table for all workers, so that one lookup answers `contains` for all
candidates. If keys stay whole (AM, cAM) an entry is a key hash and its worker; otherwise, a key hash and one bit per
candidate that has the key. Two keys with the same 64-bit hash count as one: they share a worker, which changes no
result. A lookup in a large table waits for memory, so the entries of the next few tuples are touched first, all at
once.

HyperLogLog: 4,096 registers of 5 bits, one byte each, for every worker. A register is at most 31, so the sum of
2^-register is exact in a double and can be updated in place; an estimate is recomputed only when it has changed.
`contains` is a trial update: a key that would not change the estimate counts as known.

numba's cache looks only at the file of the outermost function. After a change in `compiled.mix64`, remove
`__pycache__`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel, mix64

Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Workers = NDArray[np.int32]

CM, AM, CAM, LM = range(4)

REGISTER_BITS = 12
REGISTERS = 1 << REGISTER_BITS
LARGEST_REGISTER = 31
_ALPHA = 0.7213 / (1.0 + 1.079 / REGISTERS)
_RAW = _ALPHA * REGISTERS * REGISTERS
_LINEAR_BELOW = 2.5 * REGISTERS

FULLEST = 0.5
"""The largest share of used entries in the table of keys: fuller tables are slow to search."""

TOUCHED_TOGETHER = 16
"""Tuples whose table entries are touched together."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NO_KEY = np.uint64(0)
_ONE = np.uint64(1)


@kernel()
def _mixed(key: np.uint64, j: int) -> np.uint64:
    """The j-th independent hash of a key hash (the finaliser of splitmix64)."""
    return mix64(key + np.uint64(j + 1) * _GOLDEN)  # type: ignore[no-any-return]


@kernel()
def _drawn(key: np.uint64, j: int, among: int) -> int:
    """A number below `among` from the upper half of the j-th hash: by a product instead of a division."""
    return np.int64(((_mixed(key, j) >> np.uint64(32)) * np.uint64(among)) >> np.uint64(32))  # type: ignore[return-value]


@kernel()
def _candidates(key: np.uint64, workers: int, chosen: Ints, taken: Ints) -> None:
    """Fill `chosen` with different workers, in order of preference; `taken` is scratch space."""
    if len(chosen) == 2:  # the usual case, made fast
        first = _drawn(key, 0, workers)
        second = _drawn(key, 1, workers - 1)
        chosen[0] = first
        chosen[1] = second + (second >= first)
        return
    for j in range(len(chosen)):
        worker = _drawn(key, j, workers - j)
        # The number counts only workers not taken yet: step over the taken ones, which are kept in order.
        at = 0
        while at < j and worker >= taken[at]:
            worker += 1
            at += 1
        for k in range(j, at, -1):
            taken[k] = taken[k - 1]
        taken[at] = worker
        chosen[j] = worker


@kernel()
def first_candidates(hashes: Hashes, workers: int, out: Workers, loads: Ints) -> None:
    """FLD."""
    for i in range(len(hashes)):
        worker = _drawn(hashes[i], 0, workers)
        loads[worker] += 1
        out[i] = worker


@kernel()
def in_turn(first: int, workers: int, out: Workers, loads: Ints) -> int:
    """SH; returns whose turn is next."""
    worker = first
    for i in range(len(out)):
        loads[worker] += 1
        out[i] = worker
        worker += 1
        if worker == workers:
            worker = 0
    return worker


@kernel()
def by_shared_table(hashes: Hashes, keys: Hashes, places: Workers, workers: int, out: Workers, loads: Ints) -> None:
    """heavy: `keys` are sorted; a key that is not among them goes to its first candidate."""
    for i in range(len(hashes)):
        at = np.searchsorted(keys, hashes[i])
        worker = int(places[at]) if at < len(keys) and keys[at] == hashes[i] else _drawn(hashes[i], 0, workers)
        loads[worker] += 1
        out[i] = worker


@kernel()
def fewest_tuples(hashes: Hashes, choices: int, out: Workers, loads: Ints) -> None:
    """PK."""
    chosen, taken = np.empty(choices, np.int64), np.empty(choices, np.int64)
    for i in range(len(hashes)):
        _candidates(hashes[i], len(loads), chosen, taken)
        worker = chosen[_least(loads, chosen)]
        loads[worker] += 1
        out[i] = worker


@kernel()
def _least(values: NDArray[np.generic], chosen: Ints) -> int:
    """The candidate with the smallest value; the first of several."""
    best = 0
    for j in range(1, len(chosen)):
        if values[chosen[j]] < values[chosen[best]]:
            best = j
    return best


@kernel()
def _least_hybrid(loads: Ints, counts: NDArray[np.generic], balance: float, chosen: Ints, extremes: Floats) -> int:
    """The candidate with the smallest mix of both loads: `balance` is the weight of tuples, the rest that of keys.

    Both are scaled to 0..1; `extremes` has their min and max.
    """
    best, least = 0, math.inf
    for j in range(len(chosen)):
        worker = chosen[j]
        hybrid = 0.0
        if extremes[1] > extremes[0]:
            hybrid += balance * ((loads[worker] - extremes[0]) / (extremes[1] - extremes[0]))
        if extremes[3] > extremes[2]:
            hybrid += (1.0 - balance) * ((counts[worker] - extremes[2]) / (extremes[3] - extremes[2]))
        if hybrid < least:
            best, least = j, hybrid
    return best


@kernel()
def _raised(values: NDArray[np.generic], before: float, worker: int, extremes: Floats, at: int) -> None:
    """Update min and max (at `at`, `at + 1`) after a worker's value rose from `before`."""
    extremes[at + 1] = max(extremes[at + 1], values[worker])
    if before == extremes[at]:
        extremes[at] = values.min()


# --- exact sets of keys ---------------------------------------------------------------------------------------------


@kernel()
def _slot(table: NDArray[np.uint64], key: np.uint64) -> int:
    """Where a key is in the table, or where it would go."""
    mask = np.uint64(len(table) - 1)
    at = key & mask
    while table[at, 0] != key and table[at, 0] != _NO_KEY:
        at = (at + _ONE) & mask
    return np.int64(at)  # type: ignore[return-value]


@kernel()
def grown(table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The table with twice the capacity."""
    larger = np.zeros((2 * len(table), table.shape[1]), np.uint64)
    for i in range(len(table)):
        if table[i, 0] != _NO_KEY:
            larger[_slot(larger, table[i, 0])] = table[i]
    return larger


@kernel()
def _touched(table: NDArray[np.uint64], hashes: Hashes, begin: int, end: int) -> np.uint64:
    """Bring the entries of these keys into the cache. These loads do not wait for one another, as lookups would."""
    mask, touched = np.uint64(len(table) - 1), _NO_KEY
    for i in range(begin, end):
        touched |= table[hashes[i] & mask, 0]
    return touched


@kernel()
def assign_whole(
    by_keys: bool, hashes: Hashes, begin: int, out: Workers, choices: int, loads: Ints, counts: Ints,
    table: NDArray[np.uint64], used: int,
) -> tuple[int, int, np.uint64]:  # fmt: skip
    """AM (`by_keys`) and cAM with sets; stops early when the table must grow.

    Returns (tuples done, entries used, touched values). The last is returned only so that it is not optimised away.
    """
    chosen, taken = np.empty(choices, np.int64), np.empty(choices, np.int64)
    room = int(FULLEST * len(table))
    touched = _NO_KEY
    for start in range(begin, len(hashes), TOUCHED_TOGETHER):
        end = min(start + TOUCHED_TOGETHER, len(hashes))
        if used + (end - start) > room:
            return start, used, touched
        touched |= _touched(table, hashes, start, end)
        for i in range(start, end):
            key = hashes[i] if hashes[i] != _NO_KEY else _GOLDEN
            at = _slot(table, key)
            if table[at, 0] == _NO_KEY:
                _candidates(hashes[i], len(loads), chosen, taken)
                worker = chosen[_least(counts, chosen) if by_keys else _least(loads, chosen)]
                table[at, 0], table[at, 1] = key, np.uint64(worker)
                counts[worker] += 1
                used += 1
            else:
                worker = np.int64(table[at, 1])
            loads[worker] += 1
            out[i] = worker
    return len(hashes), used, touched


@kernel()
def assign_spread(
    by_keys: bool, hashes: Hashes, begin: int, out: Workers, choices: int, balance: float, loads: Ints, counts: Ints,
    table: NDArray[np.uint64], used: int, extremes: Floats,
) -> tuple[int, int, np.uint64]:  # fmt: skip
    """CM (`by_keys`) and LM with sets; stops early when the table must grow.

    Returns (tuples done, entries used, touched values). The last is returned only so that it is not optimised away.
    """
    chosen, taken = np.empty(choices, np.int64), np.empty(choices, np.int64)
    room = int(FULLEST * len(table))
    touched = _NO_KEY
    for start in range(begin, len(hashes), TOUCHED_TOGETHER):
        end = min(start + TOUCHED_TOGETHER, len(hashes))
        if used + (end - start) > room:
            return start, used, touched
        touched |= _touched(table, hashes, start, end)
        for i in range(start, end):
            key = hashes[i] if hashes[i] != _NO_KEY else _GOLDEN
            at = _slot(table, key)
            _candidates(hashes[i], len(loads), chosen, taken)
            j = _least(counts, chosen) if by_keys else _least_hybrid(loads, counts, balance, chosen, extremes)
            worker = chosen[j]
            loads[worker] += 1
            out[i] = worker
            word, bit = 1 + (j >> 6), _ONE << np.uint64(j & 63)
            if not table[at, word] & bit:
                if table[at, 0] == _NO_KEY:
                    table[at, 0] = key
                    used += 1
                table[at, word] |= bit
                counts[worker] += 1
                if not by_keys:
                    _raised(counts, counts[worker] - 1, worker, extremes, 2)
            if not by_keys:
                _raised(loads, loads[worker] - 1, worker, extremes, 0)
    return len(hashes), used, touched


# --- HyperLogLog ----------------------------------------------------------------------------------------------------


@kernel()
def _register_of(key: np.uint64) -> tuple[int, int]:
    """(register, rank): the upper bits choose the register, the first set bit of the rest is the rank."""
    x = _mixed(key, -1)
    register = np.int64(x >> np.uint64(64 - REGISTER_BITS))
    rest = x << np.uint64(REGISTER_BITS)
    rank = 1
    while rank < LARGEST_REGISTER and not rest >> np.uint64(63):
        rest <<= _ONE
        rank += 1
    return register, rank  # type: ignore[return-value]


@kernel()
def estimate(inverse_sum: float, zeros: int) -> float:
    """Distinct keys, from the sum of 2^-register and the number of registers that are zero."""
    raw = _RAW / inverse_sum
    if raw <= _LINEAR_BELOW and zeros > 0:
        return REGISTERS * math.log(REGISTERS / zeros)
    return raw


@kernel()
def _after(register: np.int64, rank: int, inverse_sum: float, zeros: int) -> tuple[float, int, float]:
    """(sum, zeros, estimate) after a register rose to `rank`.

    `register` must be a signed number: in numba int() of a byte stays a byte, whose negative wraps around.
    """
    inverse_sum += 2.0**-rank - 2.0**-register
    if register == 0:
        zeros -= 1
    return inverse_sum, zeros, estimate(inverse_sum, zeros)


@kernel()
def assign_hll(
    policy: int,
    hashes: Hashes,
    out: Workers,
    choices: int,
    balance: float,
    loads: Ints,
    registers: NDArray[np.uint8],
    sums: Floats,
    zeros: Ints,
    estimates: Floats,
    extremes: Floats,
) -> None:
    """CM, AM, cAM, LM with HyperLogLog."""
    chosen, taken = np.empty(choices, np.int64), np.empty(choices, np.int64)
    for i in range(len(hashes)):
        key = hashes[i]
        _candidates(key, len(loads), chosen, taken)
        at, rank = _register_of(key)
        j, contained = -1, False
        if policy in (AM, CAM):
            for each in range(choices):
                worker = chosen[each]
                register = np.int64(registers[worker, at])
                if register >= rank or _after(register, rank, sums[worker], zeros[worker])[2] == estimates[worker]:
                    j, contained = each, True
                    break
            if not contained:
                j = _least(estimates, chosen) if policy == AM else _least(loads, chosen)
        elif policy == CM:
            j = _least(estimates, chosen)
        else:
            j = _least_hybrid(loads, estimates, balance, chosen, extremes)
        worker = chosen[j]
        loads[worker] += 1
        out[i] = worker
        if policy == LM:
            _raised(loads, loads[worker] - 1, worker, extremes, 0)
        register = np.int64(registers[worker, at])
        if not contained and register < rank:
            before = estimates[worker]
            registers[worker, at] = rank
            sums[worker], zeros[worker], estimates[worker] = _after(register, rank, sums[worker], zeros[worker])
            if policy == LM and estimates[worker] != before:
                # Where linear counting ends, the estimate may fall: then the extremes must be found again.
                if estimates[worker] < before:
                    extremes[2], extremes[3] = estimates.min(), estimates.max()
                else:
                    _raised(estimates, before, worker, extremes, 2)
