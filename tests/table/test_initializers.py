"""First values of rows: the kernel gives the bits of the definition, and the definition is what it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.common.hashing import mix64
from cython_ext.table.store import initial_rows, vector_levels
from pslib.errors import ConfigurationError
from pslib.shard.stores import make_store
from pslib.table.initializers import Constant, Initializer, Normal, Uniform
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions import table as definitions

ALL = [Constant(0.25), Uniform(0.01), Uniform(3.0), Normal(0.01), Normal(2.0)]
ANY_U64 = st.integers(0, 2**64 - 1)
BIG = np.random.default_rng(5).integers(0, 1 << 64, 20_000, np.uint64)

# A change of any of these makes every checkpoint and every trained model unreadable.
GOLDEN_UNIFORM = ["0xbefffbd4", "0x3f4a50f2", "0xbedca0fc", "0xbf33f38c", "0xbe0976e8", "0xbf145344"]
GOLDEN_NORMAL = ["0xbe3f9c00", "0xbf267700", "0xbdc00800", "0xbdbf0800", "0x3d9dc000", "0xbf92d580"]


def kernel(initializer: Initializer, keys: np.ndarray, dim: int, seed: int) -> np.ndarray:
    return initial_rows(keys, dim, initializer.kind, initializer.numbers(), seed)


def bits(values: np.ndarray) -> list[int]:
    return np.ascontiguousarray(values, np.float32).view(np.uint32).ravel().tolist()


@given(ANY_U64)
def test_mixing_can_be_undone(key: int) -> None:
    mixed = int(mix64(np.asarray([key], np.uint64))[0])
    assert mixed == definitions.mix64(key)
    assert definitions.unmix64(mixed) == key


@pytest.mark.parametrize("initializer", ALL, ids=repr)
@settings(deadline=None, max_examples=50)
@given(keys=st.lists(ANY_U64, max_size=20), dim=st.integers(1, 40), seed=ANY_U64)
def test_first_values_have_the_bits_of_the_definition(
    initializer: Initializer, keys: list[int], dim: int, seed: int
) -> None:
    array = np.asarray(keys, np.uint64)
    expected = definitions.first_values(initializer, array, dim, seed)
    assert bits(kernel(initializer, array, dim, seed)) == bits(expected)


@pytest.mark.parametrize("level", vector_levels())
@pytest.mark.parametrize("initializer", ALL, ids=repr)
def test_keys_without_rows_and_new_rows_begin_with_these_bits_on_all_vector_levels(
    level: str, initializer: Initializer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    for dim in (1, 7, 8, 16, 19, 40):
        table = TableSpec("t", (PartSpec("v", dim, SGD(1.0), initializer),), seed=8)
        store = make_store(table, 2)
        expected = kernel(initializer, BIG[:200], dim, table.part_seed(table.parts[0]))
        pulled = np.full((200, dim), np.nan, np.float32)
        assert store.pull(BIG[:200], pulled) == 200
        assert bits(pulled) == bits(expected)
        store.push(BIG[:200], np.zeros((200, dim), np.float32))
        assert store.pull(BIG[:200], pulled) == 0
        assert bits(pulled) == bits(expected)


def test_first_values_have_their_golden_values() -> None:
    keys = np.asarray([0, 12345, 2**64 - 1], np.uint64)
    assert [hex(value) for value in bits(kernel(Uniform(1.0), keys, 2, 99))] == GOLDEN_UNIFORM
    assert [hex(value) for value in bits(kernel(Normal(1.0), keys, 2, 99))] == GOLDEN_NORMAL


def test_a_constant_is_the_same_everywhere() -> None:
    assert (kernel(Constant(-1.5), BIG[:100], 7, 3) == np.float32(-1.5)).all()


def test_uniform_values_fill_their_range_evenly() -> None:
    values = kernel(Uniform(0.5), BIG, 8, 1)
    assert values.min() >= -0.5
    assert values.max() < 0.5
    counts, _ = np.histogram(values, bins=16, range=(-0.5, 0.5))
    expected = values.size / 16
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()


def test_normal_values_have_mean_zero_and_the_standard_deviation() -> None:
    values = kernel(Normal(2.0), BIG, 8, 1).astype(np.float64)
    assert abs(values.mean()) < 6 * 2.0 / np.sqrt(values.size)
    assert values.std() == pytest.approx(2.0, rel=0.01)
    assert np.abs(values).max() <= 12.0
    assert (np.abs(values) < 2.0).mean() == pytest.approx(0.683, abs=0.01)


@pytest.mark.parametrize("initializer", [Uniform(1.0), Normal(1.0)], ids=repr)
def test_keys_columns_and_seeds_do_not_repeat_one_another(initializer: Initializer) -> None:
    values = kernel(initializer, BIG, 8, 1).astype(np.float64)
    other_seed = kernel(initializer, BIG, 8, 2).astype(np.float64)
    limit = 6 / np.sqrt(len(BIG))
    columns = np.corrcoef(values, rowvar=False) - np.eye(8)
    assert np.abs(columns).max() < limit
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < limit
    assert abs(np.corrcoef(values[:, 0], other_seed[:, 0])[0, 1]) < limit


@pytest.mark.parametrize(
    ("one", "other"),
    [(Constant(0.1), Constant(0.2)), (Uniform(0.1), Uniform(0.2)), (Normal(0.1), Normal(0.2))],
    ids=repr,
)
def test_the_number_of_an_initializer_changes_the_result(one: Initializer, other: Initializer) -> None:
    assert not np.array_equal(kernel(one, BIG[:10], 4, 0), kernel(other, BIG[:10], 4, 0))


def test_neighbouring_integers_start_at_unrelated_values() -> None:
    values = kernel(Uniform(1.0), np.arange(20_000, dtype=np.uint64), 1, 0)[:, 0].astype(np.float64)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 6 / np.sqrt(len(values))


@pytest.mark.parametrize(
    ("kind", "number", "least"),
    [
        (Constant, 1e39, 3e38),
        (Constant, -1e39, -3e38),
        (Uniform, 1e39, 3e38),
        (Uniform, 1e-50, 1e-44),
        (Normal, 1e38, 5e37),  # a value is 6 times that at most
    ],
)
def test_a_number_that_float32_makes_infinite_or_0_is_refused(
    kind: type[Initializer], number: float, least: float
) -> None:
    with pytest.raises(ConfigurationError, match=r"finite in float32, got|in 0\.\.5\.67137e\+37, got"):
        kind(number)
    values = kernel(kind(least), np.arange(99, dtype=np.uint64), 4, 1)
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(2, np.int64), 4, 1, np.zeros(2, np.float32), 0), "keys: expected.*uint64.*got.*int64"),
        ((np.zeros((2, 2), np.uint64), 4, 1, np.zeros(2, np.float32), 0), "keys: expected.*got.*2, 2"),
        ((np.zeros(2, np.uint64), 0, 1, np.zeros(2, np.float32), 0), "dim: expected .* 1..4096, got 0"),
        ((np.zeros(2, np.uint64), 4, 3, np.zeros(2, np.float32), 0), "initializer_kind: .* 0..2, got 3"),
        ((np.zeros(2, np.uint64), 4, 1, np.zeros(3, np.float32), 0), r"numbers: expected.*\(2,\).*\(3,\)"),
        ((np.zeros(2, np.uint64), 4, 1, np.zeros(2, np.float32), -1), "part_seed: expected.*got -1"),
        ((np.zeros(2, np.uint64), 4, 1, np.zeros(2, np.float32), 2**64), "part_seed: expected"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        initial_rows(*arguments)
