"""The extendible hash directory: consistent after any sequence of inserts and expiries; stale links never match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.operators.join import kernels
from anabranch.operators.join.index import Index
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
    USED,
    mixed,
)
from anabranch.operators.join.probing import Probing
from anabranch.operators.state import MemoryState


@pytest.fixture(autouse=True, scope="module")
def no_spare_blocks() -> Iterator[None]:
    """Pools shrink at once, so that small examples see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch.operators.join.index._MOST_SPARE", 2)
        yield


WITHIN = np.array([10, 10])
NEVER = -(1 << 62)


def rows_of(keys: list[int], times: list[int]) -> Probing:
    hashes = mixed(np.array(keys, np.int64))
    return Probing(hashes, np.array(times, np.int64), np.ones(len(keys), np.bool_))


def entries_of(index: Index, port: int, mini: int, block: int) -> list[tuple[int, int, int]]:
    """(hash, t, seq) of a mini-partition, oldest first, and along the way what a list must look like."""
    pool, at, found = index.pools[port], PORT + PER_PORT * port, []
    number, older, blocks = int(index.minis[mini, at + OLDEST]), 0, 0
    while number:
        each = pool.blocks.array[number - 1]
        assert each["older"] == older
        assert each["count"] == block or not each["newer"]
        entries = pool.entries.array[(number - 1) * block :][: each["count"]]
        assert each["latest"] == entries["t"].max()
        found += [(int(e["hash"]), int(e["t"]), int(e["seq"])) for e in entries]
        older, number, blocks = number, int(each["newer"]), blocks + 1
    assert index.minis[mini, at + NEWEST] == older
    assert index.minis[mini, at + BLOCKS] == blocks and index.minis[mini, at + ENTRIES] == len(found)
    return found


def check(index: Index, theta: int, block: int, live: list[dict[int, tuple[int, int]]]) -> None:
    """`live`: for each stream seq -> (hash, t) of the rows that must be there."""
    minis, directory = index.minis, index.directory
    used = np.flatnonzero(minis[:, USED]).tolist()
    deepest = max(int(minis[mini, DEPTH]) for mini in used)
    assert len(directory) == 1 << deepest
    assert sorted(set(directory.tolist())) == used
    for i, mini in enumerate(directory.tolist()):
        assert i & ((1 << int(minis[mini, DEPTH])) - 1) == minis[mini, BITS]
    for port, pool in enumerate(index.pools):
        stored = []
        for mini in used:
            entries = entries_of(index, port, mini, block)
            assert [seq for *_, seq in entries] == sorted(seq for *_, seq in entries)
            for hash_, _, _ in entries:
                assert directory[hash_ & (len(directory) - 1)] == mini
            stored += entries
        by_number = {seq: (hash_, t) for hash_, t, seq in stored}
        assert len(by_number) == len(stored)
        assert live[port].items() <= by_number.items()
        in_lists = sum(int(minis[mini, PORT + PER_PORT * port + BLOCKS]) for mini in used)
        assert in_lists + int(pool.free[SPARE]) == len(pool.blocks.array) == len(free_blocks(index, port)) + in_lists
    for mini in used:
        size, depth = kernels.size_of(minis, mini), int(minis[mini, DEPTH])
        # Larger only if a trial to split was in vain, and it has not grown by a quarter since.
        assert size <= 2 * theta or 4 * size <= 5 * minis[mini, STUCK]
        if size < theta and depth:
            buddy = int(directory[int(minis[mini, BITS]) ^ (1 << (depth - 1))])
            assert minis[buddy, DEPTH] != depth or size + kernels.size_of(minis, buddy) >= 2 * theta


def free_blocks(index: Index, port: int) -> set[int]:
    pool, found = index.pools[port], set()
    number = int(pool.free[FREE])
    while number:
        assert number not in found
        found.add(number)
        number = int(pool.blocks.array[number - 1]["newer"])
    return found


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, 40), max_size=60), st.integers(0, 12)), min_size=1, max_size=12
)


@given(STEPS, st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=50)
def test_directory_stays_consistent(steps: list[tuple[int, list[int], int]], theta: int, block: int) -> None:
    index, metrics = Index(MemoryState(), 2, theta, block, True), Counter[str]()
    live: list[dict[int, tuple[int, int]]] = [{}, {}]
    count, now = [0, 0], 0
    for port, keys, step in steps:
        rows = rows_of(keys, [now + i % 3 for i in range(len(keys))])
        index.insert(port, rows, count[port], metrics)
        new = zip(rows.hashes.tolist(), rows.times.tolist(), strict=True)
        live[port] |= {count[port] + i: row for i, row in enumerate(new)}
        count[port] += len(keys)
        now += step
        for each in (0, 1):
            index.expire(each, now - 10, metrics)
            live[each] = {seq: row for seq, row in live[each].items() if row[1] >= now - 10}
        index.merge_small(metrics)
        check(index, theta, block, live)
        check_probe(index, live, keys, now)


def check_probe(index: Index, live: list[dict[int, tuple[int, int]]], keys: list[int], now: int) -> None:
    """Each way to search finds what is alive, once, the newest first."""
    rows = rows_of(keys[:5], [now] * len(keys[:5]))
    expected = [
        (i, seq)
        for i, hash_ in enumerate(rows.hashes.tolist())
        for seq, (other, t) in sorted(live[1].items(), reverse=True)
        if other == hash_ and abs(now - t) <= 10
    ]
    for nested in (False, True):
        found = [
            pair
            for numbers, partners in index.probe(0, rows, WITHIN, now, nested, Counter())
            for pair in zip(numbers.tolist(), partners[0].tolist(), strict=True)
        ]
        assert found == expected


def test_splits_and_merges_happen_and_the_directory_shrinks_again() -> None:
    index, metrics = Index(MemoryState(), 2, 2, 2, True), Counter[str]()
    index.insert(0, rows_of(list(range(200)), list(range(200))), 0, metrics)
    assert len(index.directory) >= 16 and metrics["splits"] >= 15
    index.expire(0, 1_000, metrics)
    index.merge_small(metrics)
    assert len(index.directory) == 1 and metrics["merges"] == metrics["splits"]
    assert len(index.minis) <= 2


def test_room_is_given_back() -> None:
    index, metrics = Index(MemoryState(), 2, 4, 2, True), Counter[str]()
    rows = rows_of([n % 50 for n in range(1_000)], list(range(1_000)))
    index.insert(1, rows, 0, metrics)
    before = len(index.pools[1].blocks.array)
    index.expire(1, 900, metrics)
    index.merge_small(metrics)
    assert len(index.pools[1].blocks.array) < before / 3
    alive = {n: (int(rows.hashes[n]), n) for n in range(900, 1_000)}
    check(index, 4, 2, [{}, alive])
    check_probe(index, [{}, alive], [45, 46, 47, 48, 49], 1_000)


def test_rows_of_one_key_cannot_be_split() -> None:
    index, metrics = Index(MemoryState(), 2, 1, 2, True), Counter[str]()
    for number in range(20):
        index.insert(0, rows_of([5] * 10, [0] * 10), number * 10, metrics)
    assert len(index.directory) == 1 and not metrics["splits"]
    index.insert(1, rows_of(list(range(60)), [0] * 60), 0, metrics)
    assert metrics["splits"] > 10


@pytest.mark.parametrize("seed", range(4))
def test_stale_links_do_not_match(seed: int) -> None:
    """Many small steps, so that blocks are written anew again and again, by inserts, splits and merges."""
    random = np.random.default_rng(seed)
    index, metrics = Index(MemoryState(), 2, 2, 2, True), Counter[str]()
    live: dict[int, tuple[int, int]] = {}
    count = 0
    for now in range(0, 400, 2):
        keys = random.integers(0, 30, random.integers(1, 25) if (now // 50) % 2 else 2).tolist()
        rows = rows_of(keys, [now] * len(keys))
        index.insert(1, rows, count, metrics)
        live |= {count + i: (hash_, now) for i, hash_ in enumerate(rows.hashes.tolist())}
        count += len(keys)
        index.expire(1, now - 10, metrics)
        index.merge_small(metrics)
        live = {seq: row for seq, row in live.items() if row[1] >= now - 10}
        check_probe(index, [{}, live], list(range(30)), now)
    assert metrics["splits"] > 20 and metrics["merges"] > 20
