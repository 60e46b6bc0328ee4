"""Every length of a part, and every column of it, is read and rounded alike by all levels of vectors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.storage import INT8, STORAGE_NAMES, Floats, random_bits, rounded
from tests.table.test_storage import EDGES, TYPES, assert_same_values
from tests.values.test_same_bits import FLAGS, ROOT

SALT = 11


def store_of(dims: tuple[int, ...], storage: int, level: str) -> tuple[TableSpec, Store]:
    """Rows that begin at 0 and lose their gradient: a push of -w makes w, whatever w is."""
    parts = tuple(PartSpec(f"v{i}", dim, SGD(1.0), Constant(0.0)) for i, dim in enumerate(dims))
    spec = TableSpec("t", parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSLIB_VECTORS", level)
        return spec, Store(2, store_parts(spec), storage=storage)


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
        spec, store = store_of(dims, storage, level)
        store.push(keys, -rows, salt=SALT)
        out = np.full_like(rows, 5.0)
        assert store.pull(keys, out) == 0
        have.append(out)
    assert_same_values(have[0], wanted(spec, storage, keys, rows))
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
def test_an_int8_part_of_zeros_or_of_one_nan_comes_back_from_a_second_push(level: str, dim: int) -> None:
    # A scale of 0 or NaN is read in the step: the first leads to a row of numbers, the second stays.
    _, store = store_of((dim,), INT8, level)
    keys = np.asarray([1, 2], np.uint64)
    first = np.zeros((2, dim), np.float32)
    first[1, dim - 1] = np.nan
    store.push(keys, first, salt=1)
    store.push(keys, np.full((2, dim), -1.27, np.float32), salt=2)
    out = np.empty((2, dim), np.float32)
    store.pull(keys, out)
    np.testing.assert_allclose(out[0], 1.27, rtol=1e-6)
    assert np.isnan(out[1]).all()


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
