"""Keys never change: golden values, and each kernel beside its definition in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.common.hashing import hash_ints, hash_strings, mix64, mix64_of, null_key, partition_of
from tests.support.definitions.table import mix64 as mix

MASK = (1 << 64) - 1
SALT = 0x0123456789ABCDEF
# Written down once from the definitions below; keys stand in checkpoints, so a change here breaks them all.
GOLDEN_MIX = [
    0x0000000000000000,
    0x4179B061E0C0E0D0,
    0x1C9963305FEBC252,
    0xD179FA85B9D0E649,
    0xA04A6AAE1526EDA6,
    0x72446BBCF6C799D7,
    0x448E29CED4103459,
    0x3EFDEA49C590F4EC,
]
GOLDEN_INTS = [0x0B9D28FA9ED6E0E7, 0xE706BC5CD5EC5660, 0x689D928132CF4A79, 0xFD3F3DB451A90BDB]
GOLDEN_TEXTS = [0x7C7B1B335CCC085D, 0xB7DDFA69201ADB94, 0xBCB7668FF3DB4502, 0xCB40C716B6B6DCAC]
GOLDEN_NULL = 0xB9C302924ED855CF

keys64 = st.integers(0, MASK)


def key_of_int(salt: int, value: int) -> int:
    return mix((value & MASK) ^ mix(salt ^ 0x9E3779B97F4A7C15))


def key_of_bytes(salt: int, text: bytes) -> int:
    h = mix((mix(salt ^ 0xC2B2AE3D27D4EB4F) + len(text) * 0x9E3779B97F4A7C15) & MASK)
    for start in range(0, len(text), 8):
        h = mix(h ^ int.from_bytes(text[start : start + 8], "little"))
    return h


def hashed(texts: list[bytes], salt: int = SALT, valid: np.ndarray | None = None) -> list[int]:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return hash_strings(np.frombuffer(b"".join(texts), np.uint8), offsets, salt, valid).tolist()


def test_mixed_keys_are_these_for_ever() -> None:
    keys = np.array([0, 1, 2, 12345, 1 << 32, 1 << 63, MASK, SALT], np.uint64)
    assert mix64(keys).tolist() == GOLDEN_MIX


def test_hashed_values_are_these_for_ever() -> None:
    ints = hash_ints(np.array([0, 1, -1, 1 << 40], np.int64), SALT).tolist()
    texts = hashed([b"", b"5", b"a" * 8, b"a longer string of several words"])
    assert ints == GOLDEN_INTS
    assert texts == GOLDEN_TEXTS
    assert null_key(SALT) == GOLDEN_NULL


@given(st.lists(keys64))
def test_mix64_is_its_definition(keys: list[int]) -> None:
    assert mix64(np.array(keys, np.uint64)).tolist() == [mix(key) for key in keys]
    assert [mix64_of(key) for key in keys] == [mix(key) for key in keys]


@given(st.lists(keys64), st.integers(0, 20))
def test_a_partition_is_the_top_bits_of_the_mixed_key(keys: list[int], bits: int) -> None:
    expected = [mix(key) >> (64 - bits) for key in keys]
    assert partition_of(np.array(keys, np.uint64), bits).tolist() == expected


def test_consecutive_keys_fill_partitions_evenly() -> None:
    counts = np.bincount(partition_of(np.arange(1 << 16, dtype=np.uint64), 8), minlength=256)
    assert counts.min() > 180
    assert counts.max() < 340  # 256 on average, standard deviation 16


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())), keys64)
def test_hash_ints_is_its_definition(values: list[tuple[int, bool]], salt: int) -> None:
    numbers = np.array([value for value, _ in values], np.int64)
    valid = np.array([flag for _, flag in values], np.uint8)
    expected = [key_of_int(salt, value) if flag else null_key(salt) for value, flag in values]
    assert hash_ints(numbers, salt, valid).tolist() == expected
    assert hash_ints(numbers, salt).tolist() == [key_of_int(salt, value) for value, _ in values]


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans())), keys64)
def test_hash_strings_is_its_definition(values: list[tuple[bytes, bool]], salt: int) -> None:
    texts = [text for text, _ in values]
    valid = np.array([flag for _, flag in values], np.uint8)
    expected = [key_of_bytes(salt, text) if flag else null_key(salt) for text, flag in values]
    assert hashed(texts, salt, valid) == expected
    assert hashed(texts, salt) == [key_of_bytes(salt, text) for text in texts]


def test_a_slice_of_strings_needs_no_copy() -> None:
    data = np.frombuffer(b"zeroonetwothree", np.uint8)
    for kind in (np.int32, np.int64):
        offsets = np.array([0, 4, 7, 10, 15], kind)
        assert hash_strings(data, offsets[1:4], SALT).tolist() == hashed([b"one", b"two"])


def test_null_empty_zero_and_five_all_differ() -> None:
    keys = [null_key(SALT), *hashed([b"", b"5", b"\0", b"\0\0"])]
    keys += hash_ints(np.array([0, 5], np.int64), SALT).tolist()
    assert len(set(keys)) == 7


def test_equal_values_of_two_vocabularies_differ() -> None:
    values = np.arange(1000, dtype=np.int64)
    keys = np.concatenate([hash_ints(values, salt) for salt in (0, 1, 2, MASK)])
    assert np.unique(keys).size == 4000


def test_ids_above_2_to_24_stay_apart() -> None:
    values = np.array([1 << 24, (1 << 24) + 1, 1 << 53, (1 << 53) + 1], np.int64)
    assert np.unique(hash_ints(values, SALT)).size == 4


def test_empty_input_gives_empty_output() -> None:
    no_keys = np.empty(0, np.uint64)
    assert mix64(no_keys).shape == (0,)
    assert partition_of(no_keys, 20).shape == (0,)
    assert hash_ints(np.empty(0, np.int64), SALT, np.empty(0, np.uint8)).shape == (0,)
    assert hashed([]) == []


@pytest.mark.parametrize("bits", [-1, 21])
def test_partition_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=r"0\.\.20"):
        partition_of(np.zeros(1, np.uint64), bits)


@pytest.mark.parametrize("offsets", [[], [0, 4], [-1, 2], [0, 3, 2], [2, 1, 3]])
def test_offsets_that_leave_the_data_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must"):
        hash_strings(np.zeros(3, np.uint8), np.array(offsets, np.int64), SALT)


def test_flags_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 2, got 1"):
        hash_ints(np.zeros(2, np.int64), SALT, np.ones(1, np.uint8))
    with pytest.raises(ValueError, match="expected 1, got 0"):
        hash_strings(np.zeros(2, np.uint8), np.array([0, 2], np.int64), SALT, np.ones(0, np.uint8))


@pytest.mark.parametrize("salt", [-1, 1 << 64])
def test_a_salt_out_of_range_is_refused(salt: int) -> None:
    with pytest.raises(ValueError, match="salt"):
        null_key(salt)
