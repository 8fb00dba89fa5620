"""Each partitioner against its oracle, tuple by tuple; the metrics; the selection rule."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError
from anabranch.keys import partitioner
from anabranch.keys.kernels import _candidates
from anabranch.keys.metrics import WindowLoads
from anabranch.keys.partitioner import HeavyKeys, Partitioner
from anabranch.keys.policy import POLICIES, Partitioning
from anabranch.keys.selection import WindowKeys, select
from benchmarks.partitioner_runs import loads_of
from tests.oracles import partitioners as oracle

VARIANTS = [Partitioning(policy) for policy in POLICIES if policy != "heavy"] + [
    Partitioning(policy, cardinality="hll")
    for policy in ("cm", "am", "cam", "lm")  # type: ignore[arg-type]
]
KEYS = st.integers(0, 2**64 - 1)
STREAMS = st.one_of(
    st.lists(st.sampled_from([0, 1, 2**64 - 1, 7, 9]), max_size=60),  # few keys, each often
    st.lists(KEYS, max_size=60),  # every key once
    st.lists(KEYS, min_size=1, max_size=8).flatmap(lambda few: st.lists(st.sampled_from(few), max_size=60)),
)


def assigned(keys: list[int], workers: int, what: Partitioning, **more: object) -> list[int]:
    return Partitioner(what, workers, **more).assign(np.array(keys, np.uint64)).tolist()  # type: ignore[arg-type]


def expected(keys: list[int], workers: int, what: Partitioning, first: int = 0) -> list[int]:
    hll = what.cardinality == "hll"
    return oracle.partition(keys, workers, what.policy, what.choices, hll, what.balance, first)


@given(KEYS, st.integers(1, 70), st.integers(1, 70))
def test_candidates_are_different_workers(key: int, workers: int, d: int) -> None:
    d = min(d, workers)
    chosen, scratch = np.empty(d, np.int64), np.empty(d, np.int64)
    _candidates(np.uint64(key), workers, chosen, scratch)
    found = chosen.tolist()
    assert found == oracle.candidates(key, workers, d)
    assert len(set(found)) == d and all(0 <= w < workers for w in found)


@pytest.mark.parametrize("what", VARIANTS, ids=lambda v: v.label)
@given(keys=STREAMS, workers=st.integers(1, 9), d=st.integers(1, 6), p=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
@settings(max_examples=20, deadline=None)
@example(keys=[0, 0, 5, 0], workers=2, d=2, p=0.5)
def test_as_the_oracle(what: Partitioning, keys: list[int], workers: int, d: int, p: float) -> None:
    what = Partitioning(what.policy, d, what.cardinality, p)
    assert assigned(keys, workers, what) == expected(keys, workers, what)


ADVERSARIAL = {
    "one key": lambda rng: np.full(1_200, 77, np.uint64),
    "every key once": lambda rng: rng.integers(0, 2**63, 1_200).astype(np.uint64),
    "alternating": lambda rng: np.tile(np.array([3, 5], np.uint64), 600),
    "heavy tail": lambda rng: oracle_hashes(np.minimum(rng.zipf(1.3, 1_200), 10**6)),
    "sorted bursts": lambda rng: oracle_hashes(np.repeat(np.arange(30), 40)),
    "a key that comes back": lambda rng: oracle_hashes(np.r_[np.zeros(10), np.arange(1_100), np.zeros(90)].astype(int)),
}


def oracle_hashes(numbers: np.ndarray) -> np.ndarray:
    return np.array([oracle.mixed(int(n), 3) for n in numbers], np.uint64)


@pytest.mark.parametrize("stream", ADVERSARIAL)
@pytest.mark.parametrize("what", [v for v in VARIANTS if v.cardinality == "exact"], ids=lambda v: v.label)
def test_as_the_oracle_on_adversarial_streams(what: Partitioning, stream: str) -> None:
    keys = ADVERSARIAL[stream](np.random.default_rng(5))
    for workers, d in ((8, 2), (5, 5), (80, 70)):
        each = Partitioning(what.policy, d)
        assert assigned(keys.tolist(), workers, each) == expected(keys.tolist(), workers, each)


@pytest.mark.parametrize("policy", ["cm", "lm", "am", "cam"])
def test_hll_as_the_oracle_with_many_keys(policy: Any) -> None:
    """A worker that has had 40,000 keys: no register is zero any more, and estimates are raw ones."""
    what = Partitioning(policy, cardinality="hll")
    fast = Partitioner(what, 2)
    keys = oracle_hashes(np.arange(85_000))
    fast.assign(keys[:84_900])
    counts = fast._open[0]
    assert isinstance(counts.cardinality, partitioner._Sketches)
    mine = [oracle.HyperLogLog() for _ in range(2)]
    for sketch, registers in zip(mine, counts.cardinality.registers, strict=True):
        sketch.registers = registers.tolist()
    assert counts.cardinality.estimates.tolist() == [sketch.estimate() for sketch in mine]
    if policy in ("cm", "lm"):
        assert counts.cardinality.zeros.max() <= 4 and counts.cardinality.estimates.min() > 30_000
    loads = counts.loads.tolist()
    # From that state on, tuple by tuple.
    for key in keys[84_900:].tolist():
        w = oracle.decide(policy, oracle.candidates(key, 2, 2), key, loads, mine)
        loads[w] += 1
        assert fast.assign(np.array([key], np.uint64)).tolist() == [w]
    assert counts.loads.tolist() == loads


def test_estimates_spread_keys_as_sets_do() -> None:
    keys = oracle_hashes(np.arange(200_000))
    for policy in ("cm", "lm"):
        loads = Partitioner(Partitioning(policy, cardinality="hll"), 4)  # type: ignore[arg-type]
        loads.assign(keys)
        assert loads.loads().max() < 1.1 * len(keys) / 4


@pytest.mark.parametrize("what", VARIANTS, ids=lambda v: v.label)
def test_blocks_do_not_matter(what: Partitioning) -> None:
    """A stream in pieces, with tables that grow in between, is assigned as the whole."""
    keys = oracle_hashes(np.random.default_rng(2).integers(0, 4_000, 9_000))
    whole = Partitioner(what, 7).assign(keys)
    pieces = Partitioner(what, 7)
    assert np.concatenate([pieces.assign(part) for part in np.array_split(keys, 13)]).tolist() == whole.tolist()


@pytest.mark.parametrize("what", VARIANTS, ids=lambda v: v.label)
def test_windows_start_anew_and_do_not_know_of_each_other(what: Partitioning) -> None:
    keys = oracle_hashes(np.random.default_rng(3).integers(0, 50, 400))
    windows = np.random.default_rng(4).integers(-2, 2, 400)  # out of order, and negative
    together = Partitioner(what, 5).assign(keys, windows)
    for window in range(-2, 2):
        mine = keys[windows == window]
        assert together[windows == window].tolist() == expected(mine.tolist(), 5, what, first=window % 5)


def test_only_the_newest_windows_are_kept() -> None:
    kept = Partitioner(Partitioning("am"), 4)
    for window in range(3 * partitioner.MOST_OPEN_WINDOWS):
        kept.assign(oracle_hashes(np.arange(10)), np.full(10, window))
    assert sorted(kept._open) == list(range(2 * partitioner.MOST_OPEN_WINDOWS, 3 * partitioner.MOST_OPEN_WINDOWS))


def test_heavy_keys_go_where_the_table_says() -> None:
    table = HeavyKeys(np.array([5, 9], np.uint64), np.array([3, 0], np.int32))
    keys = [9, 5, 11, 0, 5]
    first = [oracle.candidates(k, 4, 1)[0] for k in keys]
    assert assigned(keys, 4, Partitioning("heavy"), heavy=table) == [0, 3, first[2], first[3], 3]
    assert assigned(keys, 4, Partitioning("heavy")) == first


def test_no_tuples() -> None:
    for what in VARIANTS:
        assert Partitioner(what, 3).assign(np.empty(0, np.uint64), np.empty(0, np.int64)).tolist() == []


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", VARIANTS, ids=lambda v: v.label)
@given(keys=STREAMS.filter(bool), workers=st.integers(1, 9), d=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_proposition_1(what: Partitioning, keys: list[int], workers: int, d: int) -> None:
    what = Partitioning(what.policy, d, what.cardinality)
    hashes = np.array(keys, np.uint64)
    loads = loads_of(Partitioner(what, workers).assign(hashes), hashes, workers)
    low, high = loads.bounds
    assert low <= loads.aggregation_cost <= high
    if what.keeps_keys_whole(splitters=1):
        assert loads.aggregation_cost == low  # exactly as hash partitioning
    if what.policy == "sh":
        assert loads.tuple_imbalance <= 1


def test_metrics_by_hand() -> None:
    #            worker 0    1   2
    loads = WindowLoads((6, 3, 0), (1, 3, 0), 3)
    assert loads.tuple_imbalance == 3.0
    assert loads.cardinality_imbalance == pytest.approx(3 - 4 / 3)
    # H = (0.5 + 1/6, 0.25 + 0.5, 0)
    assert loads.hybrid_imbalance() == pytest.approx(0.75 - (0.5 + 1 / 6 + 0.75) / 3)
    assert loads.aggregation_cost == 4 and loads.bounds == (3, 9)


def test_equal_loads_have_no_hybrid_imbalance() -> None:
    assert WindowLoads((2, 2), (1, 1), 2).hybrid_imbalance() == 0.0
    assert WindowLoads((2, 2), (1, 2), 2).hybrid_imbalance(p=1.0) == 0.0


def test_loads_of_counts_pairs() -> None:
    loads = loads_of(np.array([0, 0, 1, 1]), np.array([7, 7, 7, 8]), 3)
    assert loads == WindowLoads((2, 2, 0), (1, 2, 0), 2)


# --- memory (table 4) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "paper"), [(8, 0.02), (16, 0.04), (32, 0.08)])
def test_memory_of_hyperloglog_is_table_4s_within_a_factor_of_two(workers: int, paper: float) -> None:
    for policy in ("cm", "am", "lm"):
        kept = Partitioner(Partitioning(policy, cardinality="hll"), workers)  # type: ignore[arg-type]
        kept.assign(oracle_hashes(np.arange(2_000)))
        assert paper / 2 <= kept.nbytes / 1e6 <= paper * 2


# --- the rule -------------------------------------------------------------------------------------------------------


def test_the_selection_rule() -> None:
    few = WindowKeys([4, 4, 4], [10_000.0] * 3)
    many = WindowKeys([4_000, 4_100], [10_000.0] * 2)
    growing = WindowKeys([4, 400], [10_000.0] * 2)
    assert select(None, splitters=1).partitioning.policy == "cam"
    assert select(few, splitters=4).partitioning.policy == "sh"
    assert select(many, splitters=1).partitioning.policy == "cam"
    assert select(many, splitters=4).partitioning.policy == "heavy"
    assert select(growing, splitters=1).partitioning.policy == "cam"
    assert "4,100 keys" in select(many, splitters=1).why


def test_the_rule_does_not_swing() -> None:
    edge = WindowKeys([1_000], [9_999.0])  # a little too many keys for SH
    assert select(edge, splitters=1).partitioning.policy == "cam"
    assert select(edge, splitters=1, present=Partitioning("sh")).partitioning.policy == "sh"
    other = WindowKeys([1_000], [10_001.0])  # a few keys less than too many
    assert select(other, splitters=1).partitioning.policy == "sh"
    assert select(other, splitters=1, present=Partitioning("cam")).partitioning.policy == "cam"


# --- values ---------------------------------------------------------------------------------------------------------


def test_labels_are_the_papers() -> None:
    labels = [p.label for p in itertools.islice(VARIANTS, 7)]
    assert labels == ["SH-w", "FLD-1", "PK-2", "CM-2", "AM-2", "cAM-2", "LM-2"]
    assert Partitioning("lm", cardinality="hll").label == "LM-2-H"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "best"}, "is not a policy"),
        ({"policy": "pk", "choices": 0}, "at least one candidate"),
        ({"policy": "am", "cardinality": "some"}, "cardinality"),
        ({"policy": "pk", "cardinality": "hll"}, "does not count keys"),
        ({"policy": "lm", "balance": 2.0}, "balance"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Partitioning(**settings)
