"""The streams of paper 2: Poisson arrivals, tuples of 64 bytes, keys by a b-model."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError
from benchmarks.join_streams import DOMAIN, SCHEMA, SECOND, TUPLE_BYTES, JoinStream, b_model, matches


def test_tuples_are_64_bytes_in_the_order_of_time() -> None:
    table = JoinStream(1_500, start=7 * SECOND).seconds(3, 10)
    assert table.schema == SCHEMA
    assert table.nbytes == TUPLE_BYTES * table.num_rows
    t = table["t"].to_numpy()
    assert (np.diff(t) >= 0).all()
    assert 10 * SECOND <= t[0] < 10.1 * SECOND
    assert 19.9 * SECOND < t[-1] < 20 * SECOND


def test_arrivals_are_a_poisson_process() -> None:
    t = JoinStream(500).seconds(0, 200)["t"].to_numpy()
    assert len(t) == pytest.approx(100_000, rel=0.01)
    per_second = np.bincount(t // SECOND)
    assert per_second.var() == pytest.approx(500, rel=0.3)
    between = np.diff(t)
    assert between.std() == pytest.approx(between.mean(), rel=0.02)  # exponential


@given(st.integers(0, 5), st.integers(0, 5))
def test_a_span_is_the_same_in_pieces(first: int, second: int) -> None:
    stream = JoinStream(50, b=0.7, seed=3)
    whole = stream.seconds(2, first + second)
    parts = [stream.seconds(2, first), stream.seconds(2 + first, second)]
    assert pa.concat_tables(parts).equals(whole)


def test_two_streams_and_two_seeds_differ() -> None:
    tables = [JoinStream(50, stream, seed=seed).seconds(0, 2) for stream, seed in product((0, 1), (1, 2))]
    assert all(not a.equals(b) for i, a in enumerate(tables) for b in tables[:i])
    assert JoinStream(50).seconds(0, 2).equals(JoinStream(50).seconds(0, 2))


@pytest.mark.parametrize("b", [None, 0.5, 0.7])
def test_keys_are_within_the_domain(b: float | None) -> None:
    keys = JoinStream(20_000, b=b).seconds(0, 1)["key"].to_numpy()
    assert keys.min() >= 0
    assert keys.max() < DOMAIN
    if b != 0.7:
        assert keys.mean() == pytest.approx(DOMAIN / 2, rel=0.02)


def test_each_half_has_its_share() -> None:
    # [0 ------------- 70 % ------------ | - 30 % - 8)
    # [0 ---- 49 % --- | ----- 21 % ---- 4)
    keys = b_model(np.random.default_rng(1), 100_000, 0.7, domain=8)
    share = np.bincount(keys, minlength=8) / 100_000
    expected = [np.prod([0.3 if bit == "1" else 0.7 for bit in f"{key:03b}"]) for key in range(8)]
    assert share == pytest.approx(expected, abs=0.01)


@given(st.integers(1, 40), st.floats(0.01, 0.99))
def test_any_domain_is_covered(domain: int, b: float) -> None:
    keys = b_model(np.random.default_rng(1), 50, b, domain=domain)
    assert 0 <= keys.min() <= keys.max() < domain


def test_a_domain_that_is_no_power_of_two() -> None:
    keys = b_model(np.random.default_rng(1), 100_000, 0.7, domain=3)  # 0 | 1 | 2
    assert np.bincount(keys) / 100_000 == pytest.approx([0.7, 0.3 * 0.7, 0.3 * 0.3], abs=0.01)


@pytest.mark.parametrize(("b", "domain"), [(0.7, 1_000), (0.7, 1_024), (0.6, 100), (0.5, 64), (None, 1_000)])
def test_matches_are_as_computed(b: float | None, domain: int) -> None:
    one, other = (JoinStream(2_000, i, b, domain=domain).seconds(0, 20)["key"].to_numpy() for i in (0, 1))
    pairs = (np.bincount(one, minlength=domain) * np.bincount(other, minlength=domain)).sum()
    assert pairs / len(one) == pytest.approx(matches(2_000, 20, b, domain=domain), rel=0.05)


def test_the_paper_s_streams_find_three_matches() -> None:
    assert matches(1_500, 600) == pytest.approx(3.0, rel=0.1)
    assert matches(1_500, 600, None) == pytest.approx(0.09)


@pytest.mark.parametrize("wrong", [{"rate": -1}, {"rate": 1, "b": 1.0}, {"rate": 1, "b": 0}, {"rate": 1, "domain": 0}])
def test_impossible_streams_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        JoinStream(**wrong)  # type: ignore[arg-type]


def test_no_time_no_tuples() -> None:
    assert JoinStream(100).seconds(0, 0).num_rows == 0
    assert JoinStream(0).seconds(0, 3).schema == SCHEMA
