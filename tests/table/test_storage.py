"""Storage types: each weight becomes the value of the definition, on every instruction set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Constant, Normal
from pslib.table.optimizers import SGD, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.storage import (
    BFLOAT16,
    FLOAT16,
    FORMATS,
    INT8,
    STORAGE_NAMES,
    Floats,
    random_bits,
    rounded,
)
from tests.values.test_same_bits import FLAGS, ROOT

TYPES = [BFLOAT16, FLOAT16, INT8]
KEY = 77
EDGES = [
    *(0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.4028234663852886e38, -3.4028234663852886e38),
    *(65504.0, 65505.0, 65519.99, 65520.0, 1e5, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-26, 2.0**-40),
    *(6.097e-05, 6.104e-05, 1e-45, 1.1754943508222875e-38, 1.1754942e-38, 9.2e-41, 3.3895313892515355e38),
    *(1.00390625, 1.01171875, 1.00048828125, 0.1, -0.3, 2047.5, 2048.5),
]
WEIGHTS = st.lists(
    st.one_of(st.floats(width=32), st.floats(-1, 1, width=32), st.sampled_from(EDGES)),
    min_size=1,
    max_size=40,
)


def spec_of(*dims: int) -> TableSpec:
    """Rows that begin at 0 and lose their gradient: a push of -w makes w, or leaves 0 if w is not finite."""
    parts = (PartSpec(f"v{i or ''}", dim, SGD(1.0), Constant(0.0)) for i, dim in enumerate(dims))
    return TableSpec("t", tuple(parts))


def store_of(dims: int | tuple[int, ...], storage: int, level: str) -> Store:
    spec = spec_of(dims) if isinstance(dims, int) else spec_of(*dims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSLIB_VECTORS", level)
        return Store(0, store_parts(spec), storage=storage)


def seed_of(dim: int) -> int:
    spec = spec_of(dim)
    return spec.part_seed(spec.parts[0])


def pushed(w: np.ndarray, storage: int, level: str, salt: int) -> np.ndarray:
    store = store_of(len(w), storage, level)
    store.push(np.asarray([KEY], np.uint64), -w[None, :], salt=salt)
    return pulled(store)


def pulled(store: Store) -> np.ndarray:
    out = np.full((1, store.dim), 5.0, np.float32)
    assert store.pull(np.asarray([KEY], np.uint64), out) == 0
    return out[0]


def assert_same_values(have: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(have, want)  # NaN equals NaN here
    finite = ~np.isnan(want)
    assert np.array_equal(np.signbit(have[finite & (want != 0)]), np.signbit(want[finite & (want != 0)]))


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
@settings(deadline=None, max_examples=80)
@given(weights=WEIGHTS, salt=st.integers(0, 2**64 - 1))
@example(weights=EDGES, salt=0)
@example(weights=EDGES, salt=9)
@example(weights=[value for value in EDGES if np.isfinite(value)], salt=3)
@example(weights=EDGES[:16], salt=1)
@example(weights=EDGES[8:24], salt=1)
@example(weights=[0.0], salt=0)
def test_a_push_rounds_by_the_random_bits_of_key_part_column_and_salt(
    storage: int, weights: list[float], salt: int
) -> None:
    w = np.asarray(weights, np.float32)
    keys = np.asarray([KEY], np.uint64)
    stepped = np.where(np.isfinite(w), w, np.float32(0))
    want, _ = rounded(storage, stepped, random_bits(keys, len(w), seed_of(len(w)), salt)[0])
    have = [pushed(w, storage, level, salt) for level in vector_levels()]
    assert_same_values(have[0], want)
    assert len({some.tobytes() for some in have}) == 1


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
@settings(deadline=None, max_examples=80)
@given(weights=WEIGHTS, scale=st.one_of(st.just(0.0), st.floats(width=32)))
@example(weights=EDGES, scale=0.0)
@example(weights=[value for value in EDGES if np.isfinite(value)], scale=0.0)
@example(weights=[0.5, 1.5, -2.5, 0.25, 126.5, 127.5, -300.0], scale=1.0)
@example(weights=[0.0, -0.0], scale=0.0)
def test_what_is_assigned_is_rounded_to_the_nearest_value(
    storage: int, weights: list[float], scale: float
) -> None:
    w = np.asarray(weights, np.float32)
    store = store_of(len(w), storage, vector_levels()[-1])
    state = np.full((1, store.state_floats), scale, np.float32)
    store.assign(np.asarray([KEY], np.uint64), w[None, :], state)
    want, want_scale = rounded(storage, w, None, np.float32(scale))
    assert_same_values(pulled(store), want)
    if storage == INT8:
        assert_same_values(store.export_partition(0)[2][0], np.asarray([want_scale]))


def test_the_nearest_float16_is_that_of_numpy_and_of_bfloat16_the_cut_of_float32() -> None:
    w = np.random.default_rng(0).integers(0, 1 << 32, 20_000, np.uint64).astype(np.uint32).view(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-30, 20))
    w = np.concatenate([w[np.isfinite(w)], np.asarray(EDGES, np.float32), powers])
    with np.errstate(over="ignore"):
        half = w.astype(np.float16).astype(np.float32)
    inside = np.isfinite(half) | ~np.isfinite(w)
    assert_same_values(rounded(FLOAT16, w)[0][inside], half[inside])
    cut = (w.view(np.uint32) & 0xFFFF0000).view(np.float32)
    numbers = ~np.isnan(w)
    assert_same_values(rounded(BFLOAT16, w, np.zeros(len(w), np.int64))[0][numbers], cut[numbers])


@pytest.mark.parametrize("storage", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
def test_every_value_of_a_16_bit_type_goes_out_and_in_and_through_a_push_unchanged(storage: int) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    if storage == BFLOAT16:
        values = (bits << 16).view(np.float32)
    else:
        values = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    values = values[np.isfinite(values)]
    rows = values[: len(values) // 16 * 16].reshape(-1, 16)
    keys = np.arange(len(rows), dtype=np.uint64)
    for level in vector_levels():
        store = store_of(16, storage, level)
        store.assign(keys, rows, np.zeros((len(rows), 0), np.float32))
        order, weights, state = store.export_partition(0)
        assert weights.tobytes() == rows[order.astype(np.int64)].tobytes()
        store.push(keys, np.zeros_like(rows), salt=12345)
        moved = store_of(16, storage, level)
        moved.import_partition(0, *store.export_partition(0))
        assert moved.export_partition(0)[1].tobytes() == weights.tobytes()
        assert state.shape == (len(rows), 0)


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
def test_rounding_has_no_bias(storage: int) -> None:
    # The mean of n independent roundings is off by at most 6 of its deviations, ulp / (2 sqrt(n)) each at
    # most, and by what 16 random bits can't say, ulp / 65536.
    salts = 4000
    w = np.random.default_rng(1).uniform(-1, 1, 16).astype(np.float32)
    w[:3] = [2.0**-20 / 3, 2.0**-15 / 7, 1.0]  # a subnormal float16; the last one fixes the scale of int8
    store = store_of(16, storage, vector_levels()[-1])
    keys = np.asarray([KEY], np.uint64)
    total = np.zeros(16)
    for salt in range(salts):
        store.erase(keys)
        store.push(keys, -w[None, :], salt=salt)
        total += pulled(store)
    ulp = np.full(16, 1 / 127) if storage == INT8 else FORMATS[storage].ulp(np.abs(w.astype(np.float64)))
    assert (np.abs(total / salts - w) < ulp * (6 / (2 * salts**0.5) + 1 / 65536)).all()


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
def test_the_same_salt_gives_the_same_bits_and_another_salt_others(storage: int) -> None:
    w = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    rows = [pushed(w, storage, vector_levels()[-1], salt).tobytes() for salt in (1, 2, 1, 2)]
    assert rows[0] == rows[2] != rows[1] == rows[3]


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
def test_two_columns_of_a_row_and_two_rows_round_by_different_bits(storage: int) -> None:
    w = np.full((50, 32), 0.7003, np.float32)
    w[:, 0] = 1.0
    store = store_of(32, storage, vector_levels()[-1])
    store.push(np.arange(50, dtype=np.uint64), -w, salt=5)
    _, weights, _ = store.export_partition(0)
    ups = weights[:, 1:] > w[:, 1:]
    assert 0 < ups.mean() < 1
    assert len(np.unique(ups, axis=0)) > 40
    assert len(np.unique(ups, axis=1).T) > 25


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
def test_many_small_steps_move_a_weight_that_nearest_rounding_would_hold(storage: int) -> None:
    store = store_of(16, storage, vector_levels()[-1])
    keys = np.arange(64, dtype=np.uint64)
    store.assign(keys, np.ones((64, 16), np.float32), np.zeros((64, store.state_floats), np.float32))
    step = np.full((64, 16), 1e-4, np.float32)
    for salt in range(1000):
        store.push(keys, step, salt=salt)
    _, weights, _ = store.export_partition(0)
    assert abs(float(weights.mean()) - 0.9) < 0.01


@settings(deadline=None, max_examples=30)
@given(
    storage=st.sampled_from(TYPES),
    bits=st.integers(0, 12),
    dims=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_rows_do_not_depend_on_partitions_or_on_the_order_in_a_batch(
    storage: int, bits: int, dims: list[int], order: object
) -> None:
    spec = TableSpec(
        "t", tuple(PartSpec(f"v{i}", dim, RowwiseAdagrad(0.1), Normal(0.1)) for i, dim in enumerate(dims))
    )
    keys = np.random.default_rng(3).integers(0, 1 << 64, 60, np.uint64)
    one = Store(0, store_parts(spec), storage=storage)
    other = Store(bits, store_parts(spec), storage=storage)
    for salt in range(3):
        gradients = np.random.default_rng(salt).standard_normal((60, spec.dim)).astype(np.float32)
        places = list(range(60))
        order.shuffle(places)  # type: ignore[attr-defined]
        one.push(keys, gradients, salt=salt)
        other.push(keys[places], gradients[places], salt=salt)
    have, want = (np.empty((60, spec.dim), np.float32) for _ in range(2))
    assert one.pull(keys, want) == other.pull(keys, have) == 0
    assert have.tobytes() == want.tobytes()


def test_a_row_of_16_in_a_16_bit_type_costs_36_bytes_beside_its_key() -> None:
    spec = TableSpec("t", (PartSpec("v", 16, RowwiseAdagrad()),))
    keys = np.random.default_rng(0).integers(0, 1 << 64, 100_000, np.uint64)
    bytes_a_row = []
    for storage in range(4):
        store = Store(4, store_parts(spec), storage=storage)
        store.push(keys, np.ones((len(keys), 16), np.float32))
        stats = store.stats()
        bytes_a_row.append((stats["row_bytes"] - stats["free_bytes"]) / len(keys))
    assert bytes_a_row == pytest.approx([68, 36, 36, 24], abs=1)


# --- every length of a part and every column is read and rounded alike by all levels of vectors


SALT = 11


def rows_of(dim: int) -> Floats:
    """Each edge in each column once, beside numbers; rows of zeros, and of numbers alone."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((dim * len(EDGES) + 8, dim)).astype(np.float32)
    rows *= np.ldexp(np.float32(1), rng.integers(-20, 3, (len(rows), 1)))
    for number in range(dim * len(EDGES)):
        rows[number, number % dim] = EDGES[number // dim]
    rows[-2:] = [[0.0], [-0.0]]
    return rows


def wanted(spec: TableSpec, storage: int, keys: np.ndarray, rows: Floats) -> Floats:
    out, start = np.empty_like(rows), 0
    rows = np.where(np.isfinite(rows), rows, np.float32(0))
    for part in spec.parts:
        bits = random_bits(keys, part.dim, spec.part_seed(part), SALT)
        for row in range(len(rows)):
            columns = row, slice(start, start + part.dim)
            out[columns] = rounded(storage, rows[columns], bits[row])[0]
        start += part.dim
    return out


def assert_all_levels_round(dims: tuple[int, ...], storage: int, rows: Floats) -> None:
    keys = np.random.default_rng(9).integers(0, 1 << 64, len(rows), np.uint64)
    have = []
    for level in vector_levels():
        store = store_of(dims, storage, level)
        store.push(keys, -rows, salt=SALT)
        out = np.full_like(rows, 5.0)
        assert store.pull(keys, out) == 0
        have.append(out)
    assert_same_values(have[0], wanted(spec_of(*dims), storage, keys, rows))
    assert len({some.tobytes() for some in have}) == 1


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
@pytest.mark.parametrize("dim", range(1, 41))
def test_every_edge_in_every_column_of_every_width_becomes_what_the_definition_says(
    dim: int, storage: int
) -> None:
    assert_all_levels_round((dim,), storage, rows_of(dim))


@pytest.mark.parametrize("storage", TYPES, ids=STORAGE_NAMES[1:])
@pytest.mark.parametrize("dims", [(1, 16, 3, 33), (5, 7, 8, 17), (3, 4, 12, 20), (15, 1, 31, 2)], ids=str)
def test_parts_that_begin_at_odd_bytes_round_each_on_its_own(dims: tuple[int, ...], storage: int) -> None:
    assert_all_levels_round(dims, storage, rows_of(sum(dims)))


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 40])
@pytest.mark.parametrize("level", vector_levels())
def test_an_int8_part_of_zeros_comes_back_from_a_second_push_and_one_nan_is_refused(
    level: str, dim: int
) -> None:
    store = store_of(dim, INT8, level)
    keys = np.asarray([1, 2], np.uint64)
    first = np.zeros((2, dim), np.float32)
    first[1, dim - 1] = np.nan
    store.push(keys, first, salt=1)
    store.push(keys, np.full((2, dim), -1.27, np.float32), salt=2)
    out = np.empty((2, dim), np.float32)
    store.pull(keys, out)
    np.testing.assert_allclose(out, 1.27, rtol=1e-6)


@pytest.mark.parametrize("off", [False, True], ids=["this machine", "a processor without levels"])
def test_every_level_reads_and_stores_the_bits_of_the_plain_loops_and_touches_nothing_else(
    off: bool, tmp_path: Path
) -> None:
    program = tmp_path / "rounding"
    strict = ["-Wall", "-Wextra", "-Werror", *(["-DWITHOUT_LEVELS"] if off else [])]
    source = [str(ROOT / "tests/table/rounding.c"), "-I", str(ROOT / "cython_ext"), "-o", str(program)]
    subprocess.run(["gcc", *source, *strict, *FLAGS], check=True, timeout=120)
    ran = subprocess.run([str(program)], check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.endswith(" rows alike\n")
