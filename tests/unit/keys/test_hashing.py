"""The hash of keys over Arrow arrays. The expected values are Spark's, of `SELECT xxhash64(...)`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.keys.hashing import SEED, hash_keys, key_hash

INTS = {0: 3_614_696_996_920_510_707, 1: -6_698_625_589_789_238_999, -1: 2_017_008_487_422_258_757}
LONGS = {0: -5_252_525_462_095_825_812, 1: -7_001_672_635_703_045_582, -1: 3_858_142_552_250_413_010}

GOLDEN: list[tuple[pa.DataType, dict[Any, int]]] = [
    (pa.bool_(), {False: INTS[0], True: INTS[1]}),
    (pa.int8(), {**INTS, -128: 4_160_238_337_661_960_656, 127: 8_632_298_611_707_923_906}),
    (pa.int16(), {**INTS, -(2**15): -904_511_417_458_573_795, 2**15 - 1: 8_952_525_448_871_805_501}),
    (pa.int32(), {**INTS, -(2**31): 2_073_849_959_933_241_805, 2**31 - 1: 1_508_894_993_788_531_228}),
    (pa.int64(), {**LONGS, -(2**63): -8_619_748_838_626_508_300, 2**63 - 1: -3_246_596_055_638_297_850}),
    (pa.date32(), {0: INTS[0], 20_000: 4_105_311_829_237_691_660, -1: INTS[-1]}),
    (pa.timestamp("us"), {0: LONGS[0], 1_700_000_000_000_000: 6_483_947_384_059_677_160, -1: LONGS[-1]}),
    (pa.timestamp("us", "Asia/Tokyo"), {0: LONGS[0], 1_700_000_000_000_000: 6_483_947_384_059_677_160}),
    (pa.timestamp("s"), {0: LONGS[0], 1_700_000_000: 6_483_947_384_059_677_160}),
    (pa.timestamp("ns"), {999: LONGS[0], 1_000: LONGS[1], -1: LONGS[-1]}),
    (
        pa.float32(),
        {
            0.0: INTS[0],
            1.5: 6_163_473_420_726_370_430,
            float("inf"): -5_940_311_692_336_719_973,
            float("nan"): 2_692_338_816_207_849_720,
        },
    ),
    (
        pa.float64(),
        {
            0.0: LONGS[0],
            1.5: 7_738_255_526_519_901_366,
            float("inf"): 5_810_986_238_603_807_492,
            float("nan"): -3_127_944_061_524_951_246,
        },
    ),
    (
        pa.string(),
        {
            "": -7_444_071_767_201_028_348,
            "a": -8_582_455_328_737_087_284,
            "abc": 1_423_657_621_850_124_518,
            "abcd": -6_810_745_876_291_105_281,
            "abcdefg": 3_761_890_393_722_740_389,
            "abcdefgh": 2_470_326_616_177_429_180,
            "x" * 31: -1_716_462_135_722_163_746,
            "x" * 32: 1_299_777_543_150_008_824,
            "0123456789" * 10: 6_379_203_369_694_145_893,
            "Zürich": -2_199_928_141_300_491_114,
            "東京": -5_717_548_859_056_045_313,
            "😀": -5_869_505_314_936_196_641,
        },
    ),
    (
        pa.binary(),
        {
            b"": -7_444_071_767_201_028_348,
            b"abc": 1_423_657_621_850_124_518,
            b"\x00": -8_959_994_473_701_255_385,
            b"\xff\x80abc": -1_033_723_728_652_365_533,
        },
    ),
    (
        pa.decimal128(9, 2),
        {
            Decimal("0.00"): LONGS[0],
            Decimal("12.34"): -3_802_813_071_951_760_351,
            Decimal("-12.34"): -1_614_697_014_534_150_208,
        },
    ),
    (
        pa.decimal128(18, 0),
        {
            Decimal(10**18 - 1): 2_162_198_894_918_931_945,
            Decimal(1 - 10**18): 4_265_531_446_127_695_490,
        },
    ),
    (
        pa.decimal128(19, 0),  # one byte up to 127 and down to -128, then two
        {
            Decimal(0): -8_959_994_473_701_255_385,
            Decimal(127): -5_998_106_174_972_408_993,
            Decimal(128): 6_715_097_930_120_473_301,
            Decimal(-128): -7_898_411_661_632_158_123,
            Decimal(-129): -6_459_515_886_037_897_956,
        },
    ),
    (
        pa.decimal128(38, 0),
        {
            Decimal(1): 6_668_291_691_252_061_002,
            Decimal(10**38 - 1): -47_190_729_175_993_179,
            Decimal(1 - 10**38): -2_254_039_905_620_870_768,
        },
    ),
]

BY_TYPE = pytest.mark.parametrize(("kind", "expected"), GOLDEN, ids=[str(kind) for kind, _ in GOLDEN])

A, B = -8_582_455_328_737_087_284, -6_391_946_315_847_899_181


@BY_TYPE
def test_golden(kind: pa.DataType, expected: dict[Any, int]) -> None:
    assert hash_keys([pa.array(list(expected), kind)]).tolist() == list(expected.values())


@BY_TYPE
def test_null_is_the_seed(kind: pa.DataType, expected: dict[Any, int]) -> None:
    values = [each for value in expected for each in (value, None)]
    assert hash_keys([pa.array(values, kind)]).tolist() == [h for e in expected.values() for h in (e, SEED)]


@BY_TYPE
def test_where_values_lie_does_not_matter(kind: pa.DataType, expected: dict[Any, int]) -> None:
    # Enough rows that the kernels do whole blocks and a rest, from an offset that is no multiple of 8.
    values = [*expected, None] * 50
    array = pa.array(values, kind)
    want = [*expected.values(), SEED] * 50
    for start in (0, 1, 7, 8, 13, 64, 65):
        assert hash_keys([array[start:]]).tolist() == want[start:]
        assert hash_keys([array[start : start + 11]]).tolist() == want[start : start + 11]
    chunks = pa.chunked_array([array[:3], array[3:3], array[3:70], array[70:]])
    assert hash_keys([chunks]).tolist() == want
    full = pa.array(list(expected) * 50, kind)
    assert hash_keys([full[3:]]).tolist() == (list(expected.values()) * 50)[3:]


@BY_TYPE
def test_a_dictionary_counts_as_its_values(kind: pa.DataType, expected: dict[Any, int]) -> None:
    size = len(expected)
    want = [*expected.values(), SEED] * 3
    codes = pa.array([*range(size), None] * 3, pa.int8())
    array = pa.DictionaryArray.from_arrays(codes, pa.array(list(expected), kind))
    assert hash_keys([array]).tolist() == want
    assert hash_keys([array[2:]]).tolist() == want[2:]
    assert hash_keys([array[:1]]).tolist() == want[:1]
    ones = pa.array([1] * len(array), pa.int32())
    plain = array.dictionary_decode()
    assert hash_keys([array, ones]).tolist() == hash_keys([plain, ones]).tolist()
    assert hash_keys([ones, array]).tolist() == hash_keys([ones, plain]).tolist()
    full, ones = array.drop_null(), ones[: 3 * size]
    assert hash_keys([full, ones]).tolist() == hash_keys([full.dictionary_decode(), ones]).tolist()


def test_null_as_a_value_of_a_dictionary() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1, 0]), pa.array(["a", None]))
    assert hash_keys([array]).tolist() == [A, SEED, SEED, SEED, A]
    ones = pa.array([1] * 5)
    assert hash_keys([array, ones]).tolist() == hash_keys([pa.array(["a", None, None, None, "a"]), ones]).tolist()


def test_a_dictionary_as_large_as_its_codes_allow() -> None:
    # 128 values fill an int8: there is no code left for null.
    values = [f"road {i}" for i in range(128)]
    codes = pa.array([*range(128), None, None], pa.int8())
    array = pa.DictionaryArray.from_arrays(codes, pa.array(values))
    assert hash_keys([array]).tolist() == hash_keys([pa.array([*values, None, None])]).tolist()


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_other_layouts_of_strings(kind: pa.DataType) -> None:
    values = ["abc", None, "", "0123456789" * 10] * 5
    assert hash_keys([pa.array(values, kind)[3:]]).tolist() == hash_keys([pa.array(values)[3:]]).tolist()


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_other_layouts_of_binary(kind: pa.DataType) -> None:
    values = [b"abc", None, b"", b"\xff" * 40] * 5
    plain = pa.array(values, pa.binary())
    assert hash_keys([pa.array(values, kind)[3:]]).tolist() == hash_keys([plain[3:]]).tolist()


def test_one_zero_and_one_nan() -> None:
    doubles = np.array([0, 1 << 63, 0x7FF8 << 48, (0xFFF8 << 48) + 5, (0x7FF0 << 48) + 1], np.uint64).view(np.float64)
    floats = np.array([0, 1 << 31, 0x7FC00000, 0xFFC00005, 0x7F800001], np.uint32).view(np.float32)
    for values in (doubles, floats):
        zero, minus_zero, *nans = hash_keys([pa.array(values)]).tolist()
        assert zero == minus_zero
        assert len(set(nans)) == 1


def test_buffers_that_are_not_aligned() -> None:
    # A block lies in the middle of another column's bytes, so its buffers may begin anywhere.
    values = np.arange(-100, 100)
    shifted = pa.py_buffer(b"\x00" + values.tobytes()).slice(1)
    array = pa.Array.from_buffers(pa.int64(), len(values), [None, shifted])
    assert hash_keys([array]).tolist() == hash_keys([pa.array(values)]).tolist()


def test_keys_are_chained() -> None:
    a = pa.array(["a", None, "a", None, "b"])
    b = pa.array(["a", "a", None, None, "a"])
    n = pa.array([1, 1, 1, 1, None], pa.int32())
    both = [828_307_742_793_324_956, -8_527_884_376_001_292_090, 7_227_797_915_309_318_944, 3_188_756_510_806_108_107]
    assert hash_keys([a]).tolist() == [A, SEED, A, SEED, B]
    assert hash_keys([a, b]).tolist() == [*both, -1_956_461_354_546_969_052]
    assert hash_keys([a, b, n]).tolist() == [
        3_566_711_894_648_090_389,
        604_288_968_578_363_222,
        6_383_864_090_474_278_647,
        -1_052_564_430_239_427_704,
        -972_777_554_533_955_850,
    ]


def test_which_key_is_null_matters() -> None:
    left, right = hash_keys([pa.array(["a", None]), pa.array([None, "a"])])
    assert left != right
    # The bits of the nulls are no value of a key: a bigint key of the same bits is another key.
    some = hash_keys([pa.array([7, 7, 7, None]), pa.array([None, 2, 0, 7])])
    assert len(set(some.tolist())) == 4


def test_a_hash_does_not_depend_on_the_nulls_of_other_rows() -> None:
    a, b = pa.array(["a", "b", None]), pa.array([1, 2, 3])
    assert hash_keys([a, b]).tolist()[:2] == hash_keys([a[:2], b[:2]]).tolist()


def test_more_keys_than_bits() -> None:
    # Row i is null in key i only.
    keys = [pa.array([None if row == i else 1 for row in range(130)], pa.int8()) for i in range(130)]
    assert len(set(hash_keys(keys).tolist())) == 130
    ones = [pa.array([1], pa.int8())] * 130
    with_a_null_elsewhere = [pa.array([1, None], pa.int8())] * 130
    assert hash_keys(ones)[0] == hash_keys(with_a_null_elsewhere)[0]


def test_only_nulls() -> None:
    assert hash_keys([pa.nulls(3)]).tolist() == [SEED] * 3
    strings = pa.array(["a", "b", None])
    nulls = pa.nulls(3, pa.int64())
    assert hash_keys([strings, pa.nulls(3)]).tolist() == hash_keys([strings, nulls]).tolist()


@BY_TYPE
def test_no_rows(kind: pa.DataType, expected: dict[Any, int]) -> None:
    for empty in (pa.array([], kind), pa.chunked_array([], kind), pa.array(list(expected), kind)[1:1]):
        for keys in ([empty], [empty, empty]):
            found = hash_keys(keys)
            assert found.dtype == np.int64
            assert found.shape == (0,)


def test_hashes_spread() -> None:
    found = hash_keys([pa.array(range(10_000)), pa.array([i % 7 for i in range(10_000)], pa.int32())])
    assert len(np.unique(found)) == 10_000
    assert np.bincount(found % 16, minlength=16).min() > 500


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.int32())]),
        pa.list_(pa.int32()),
        pa.map_(pa.string(), pa.int32()),
        pa.uint32(),
        pa.float16(),
        pa.decimal256(40, 0),
        pa.duration("us"),
        pa.dictionary(pa.int8(), pa.uint16()),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [0, 2])
def test_other_types(kind: pa.DataType, rows: int) -> None:
    with pytest.raises(ColumnTypeError, match="hint: use the fields") as caught:
        hash_keys([pa.array([1] * rows), pa.nulls(rows, kind)])
    assert str(kind) in caught.value.message


def test_no_keys() -> None:
    with pytest.raises(InvalidArgumentError, match="no keys"):
        hash_keys([])
    with pytest.raises(InvalidArgumentError, match="no keys"):
        key_hash([])


def test_different_lengths() -> None:
    with pytest.raises(InvalidArgumentError, match="2, 1 rows"):
        hash_keys([pa.array([1, 2]), pa.array([1])])
