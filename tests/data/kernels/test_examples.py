"""Columns that become examples, each kernel beside its definition in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.common.hashing import hash_ints, null_key
from cython_ext.data.examples import fill_keys, fill_numbers
from cython_ext.table.store import vector_levels
from pslib.data.dataset import ParquetData
from pslib.data.order import GroupSlice
from pslib.data.window import WindowDecoder
from pslib.schema import DenseField, Schema

INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
SALT = 12_345
ROWS = st.integers(0, 2_500)  # more than two blocks of rows
LEVELS = st.sampled_from(vector_levels())


def columns_of(kinds: list[np.dtype], rows: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.frombuffer(rng.bytes(rows * kind.itemsize), kind) for kind in kinds]


def bitmap(present: np.ndarray, first_bit: int) -> np.ndarray:
    """Arrow's bitmap, with other bits before it."""
    return np.packbits(np.concatenate([np.ones(first_bit, bool), present]), bitorder="little")


@given(st.lists(st.sampled_from(INTEGERS), max_size=4), ROWS, st.integers(0, 9), st.integers(0, 99), LEVELS)
def test_keys_of_integers_are_those_of_hash_ints_a_row_each(
    kinds: list[np.dtype], rows: int, first_bit: int, seed: int, level: str
) -> None:
    columns = columns_of(kinds, rows, seed)
    present = np.random.default_rng(seed).random((len(kinds), rows)) < 0.7
    out = np.zeros((rows, len(kinds)), np.uint64)
    given_columns = [(values, bitmap(there, first_bit), first_bit, SALT + j, None)
                     for j, (values, there) in enumerate(zip(columns, present, strict=True))]  # fmt: skip
    fill_keys(given_columns, out, level)
    for j, (values, there) in enumerate(zip(columns, present, strict=True)):
        wide = values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
        np.testing.assert_array_equal(out[:, j], hash_ints(wide, SALT + j, there.view(np.uint8)))


@given(st.sampled_from(INTEGERS), ROWS, st.integers(1, 100), st.integers(0, 99), LEVELS)
def test_places_become_the_keys_of_a_table_and_null_or_absent_ones_the_null_key(
    kind: np.dtype, rows: int, size: int, seed: int, level: str
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 1 << 64, size, np.uint64)
    places = rng.integers(0, 120, rows).astype(kind)
    present = rng.random(rows) < 0.7
    out = np.zeros((rows, 2), np.uint64)
    fill_keys([(places, None, 0, SALT, table), (places, bitmap(present, 0), 0, SALT, table)], out, level)
    wanted = np.append(table, np.uint64(null_key(SALT)))[np.minimum(places, size)]
    np.testing.assert_array_equal(out[:, 0], wanted)
    np.testing.assert_array_equal(out[:, 1], np.where(present, wanted, np.uint64(null_key(SALT))))


def test_keys_that_are_there_already_stand_as_they_are() -> None:
    keys = np.arange(3000, dtype=np.uint64) << np.uint64(40)
    out = np.zeros((3000, 2), np.uint64)
    fill_keys([(keys, None, 0, None, None), (keys[::-1].copy(), None, 0, None, None)], out)
    np.testing.assert_array_equal(out, np.stack([keys, keys[::-1]], axis=1))


@given(
    st.sampled_from([*INTEGERS, np.dtype(np.float32), np.dtype(np.float64)]), ROWS, st.integers(0, 9),
    st.integers(0, 99), LEVELS,
)  # fmt: skip
def test_numbers_are_what_numpy_makes_of_them_with_nulls_and_nan_filled(
    kind: np.dtype, rows: int, first_bit: int, seed: int, level: str
) -> None:
    (values,) = columns_of([kind], rows, seed)  # any bits: NaN, infinite and subnormal numbers among them
    present = np.random.default_rng(seed).random(rows) < 0.7
    out = np.zeros((rows, 2), np.float32)
    infinite = fill_numbers(
        [(values, bitmap(present, first_bit), first_bit, 7.5, False), (values, None, 0, -1.0, False)],
        out,
        level,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(np.float32)
    for j, (there, fill) in enumerate([(present, np.float32(7.5)), (np.ones(rows, bool), np.float32(-1))]):
        np.testing.assert_array_equal(out[:, j], np.where(there & ~np.isnan(wanted), wanted, fill))
    assert infinite == ([0, 1] if np.isinf(wanted).any() else [])


def squeezed_by_numpy(values: np.ndarray) -> np.ndarray:
    wide = values.astype(np.float64)
    return (np.sign(wide) * np.log1p(np.abs(wide))).astype(np.float32)


@pytest.mark.parametrize("level", vector_levels())
def test_a_squeezed_number_is_the_float_nearest_to_its_logarithm(level: str) -> None:
    sizes = np.arange(0, 0x7F80_0000, 4_099, dtype=np.uint32)  # also subnormal ones
    hardest = np.arange(0.403, 0.405, 2e-8).astype(np.float32).view(np.uint32)  # where the series is longest
    bits = np.concatenate([sizes, hardest])
    every = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    out = np.zeros((every.size, 1), np.float32)
    assert fill_numbers([(every, None, 0, 0.0, True)], out, level) == []
    np.testing.assert_array_equal(out[:, 0], squeezed_by_numpy(every))
    assert np.signbit(out[:, 0]).tolist() == np.signbit(every).tolist()  # that of -0.0 too


@given(st.sampled_from(INTEGERS), ROWS, st.integers(0, 99), LEVELS)
def test_squeezed_and_other_columns_stand_side_by_side_and_what_fills_is_squeezed_too(
    kind: np.dtype, rows: int, seed: int, level: str
) -> None:
    (values,) = columns_of([kind], rows, seed)
    present = np.random.default_rng(seed).random(rows) < 0.7
    out = np.zeros((rows, 3), np.float32)
    bits = bitmap(present, 0)
    fill_numbers([(values, bits, 0, -7.5, log1p) for log1p in (True, False, True)], out, level)
    wanted = np.where(present, values.astype(np.float32), np.float32(-7.5))
    np.testing.assert_array_equal(out[:, 1], wanted)
    np.testing.assert_array_equal(out[:, 0], squeezed_by_numpy(wanted))
    np.testing.assert_array_equal(out[:, 2], out[:, 0])


GIVEN = np.zeros(3, np.int64)
BAD_COLUMNS = {
    "another length": (np.zeros(2, np.int64), None, 0, SALT, None),
    "floats": (np.zeros(3), None, 0, SALT, None),
    "no array": ([1, 2, 3], None, 0, SALT, None),
    "a short bitmap": (GIVEN, np.zeros(1, np.uint8), 6, SALT, None),
    "a salt out of range": (GIVEN, None, 0, 1 << 64, None),
    "a table of other numbers": (GIVEN, None, 0, SALT, GIVEN),
    "keys of another type": (GIVEN, None, 0, None, None),
    "strided values": (np.zeros(6, np.int64)[::2], None, 0, SALT, None),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_a_column_that_does_not_fit_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        fill_keys([BAD_COLUMNS[case]], np.zeros((3, 1), np.uint64))


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vectors: expected one of plain.* got mmx"):
        fill_keys([(GIVEN, None, 0, SALT, None)], np.zeros((3, 1), np.uint64), "mmx")


def test_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="out: expected"):
        fill_keys([(GIVEN, None, 0, SALT, None)], np.zeros((3, 2), np.uint64))
    with pytest.raises(ValueError, match="out: expected"):
        fill_numbers([(GIVEN, None, 0, 0.0, False)], np.zeros((3, 1)))
    with pytest.raises(ValueError, match="column 0: expected an array of one of"):
        fill_numbers([(np.zeros(3, bool), None, 0, 0.0, False)], np.zeros((3, 1), np.float32))


def test_no_rows_and_no_columns_are_ordinary() -> None:
    fill_keys([], np.zeros((3, 0), np.uint64))
    fill_keys([(np.zeros(0, np.int64), None, 0, SALT, None)], np.zeros((0, 1), np.uint64))
    assert fill_numbers([], np.zeros((3, 0), np.float32)) == []


def test_arrow_s_own_bitmaps_are_understood_also_of_slices() -> None:
    array = pa.array([1, None, 3, None, 5, 6, None, 8, 9, None, 11], pa.int32()).slice(3)
    out = np.zeros((len(array), 1), np.uint64)
    values = np.frombuffer(array.buffers()[1], np.int32)[array.offset :]
    fill_keys([(values, np.frombuffer(array.buffers()[0], np.uint8), array.offset, SALT, None)], out)
    wanted = [null_key(SALT) if value is None else int(hash_ints(np.array([value]), SALT)[0])
              for value in array.to_pylist()]  # fmt: skip
    assert out[:, 0].tolist() == wanted


def test_half_floats_are_the_same_numbers_as_float32(tmp_path: Path) -> None:
    values = np.array([0.5, -2.25, 65504.0, 6e-8, 0.0], np.float16)
    column = pa.array(values, mask=np.array([False, False, False, False, True]))
    pq.write_table(pa.table({"label": [1, 0, 1, 0, 1], "price": column}), tmp_path / "a.parquet")
    data = ParquetData(tmp_path, Schema(label="label", dense=[DenseField("price", fill=7.0)]))
    (group,) = data.row_groups
    window = WindowDecoder(data).decode([GroupSlice(0, 0, group.rows)])
    np.testing.assert_array_equal(window.dense[:, 0], [*values[:4].astype(np.float32), np.float32(7)])
