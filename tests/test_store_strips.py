"""Rows of one class, read and stepped in strips of eight keys: what strips must not pass over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cython_ext.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, Adagrad, Optimizer, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.definitions import DictTable, unmix64

WIDTHS = [(16,), (1, 16), (4, 8), (5,)]
BESIDE_KEY_0 = np.array([unmix64(mixed) for mixed in range(1, 5)], np.uint64)
"""Keys of key 0's home line, whose five cells these and key 0 fill."""


def table_of(optimizers: list[Optimizer], dims: tuple[int, ...]) -> TableSpec:
    parts = zip(optimizers, dims, strict=True)
    return TableSpec(
        "t", tuple(PartSpec(f"p{place}", dim, one, Uniform(0.1)) for place, (one, dim) in enumerate(parts))
    )


def both(spec: TableSpec) -> tuple[Store, DictTable]:
    """The table, and its definition."""
    return Store(1, store_parts(spec)), DictTable(spec, 1)


def assert_same_rows(store: Store, model: DictTable, keys: np.ndarray) -> None:
    have, want = (np.empty((keys.size, store.dim), np.float32) for _each in range(2))
    assert store.pull(keys, have) == model.pull(keys, want)
    assert have.tobytes() == want.tobytes()
    store.check_consistency()


@pytest.mark.parametrize("level", vector_levels())
@pytest.mark.parametrize("dims", WIDTHS, ids=str)
@pytest.mark.parametrize("gone", range(4))
def test_key_0_is_found_behind_a_cell_that_an_erased_key_has_left(
    level: str, dims: tuple[int, ...], gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty cell holds 0 too, and comes first."""
    monkeypatch.setenv("PSLIB_VECTORS", level)
    store, model = both(table_of([RowwiseAdagrad(0.1)] * len(dims), dims))
    keys = np.append(BESIDE_KEY_0, np.uint64(0))
    ones = np.ones((keys.size, store.dim), np.float32)
    for each in (store, model):
        for place in range(keys.size):  # one by one, so that key 0 has the last cell
            each.push(keys[place : place + 1], ones[:1])
        each.erase(keys[gone : gone + 1])
    assert_same_rows(store, model, keys)
    for each in (store, model):
        each.push(np.zeros(1, np.uint64), ones[:1])
    assert_same_rows(store, model, keys)


@pytest.mark.parametrize("level", vector_levels())
@pytest.mark.parametrize("clipped", [0, 1])
@pytest.mark.parametrize("dims", [dims for dims in WIDTHS if len(dims) == 2], ids=str)
@pytest.mark.parametrize(
    "clip",
    [{"clip_norm": 0.01}, {"cowclip_ratio": 0.1, "cowclip_floor": 1e-3}],
    ids=lambda clip: next(iter(clip)),
)
def test_one_part_that_clips_clips_whichever_it_is(
    level: str,
    clipped: int,
    dims: tuple[int, ...],
    clip: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    optimizers: list[Optimizer] = [SGD(0.5), Adagrad(0.5)]
    optimizers[clipped] = replace(optimizers[clipped], **clip)
    store, model = both(table_of(optimizers, dims))
    rng = np.random.default_rng(3)
    for _ in range(3):
        keys = rng.permutation(60).astype(np.uint64)[:43]  # five strips, and three keys more
        gradients = rng.standard_normal((keys.size, store.dim)).astype(np.float32)
        for each in (store, model):
            each.push(keys, gradients)
    assert_same_rows(store, model, np.arange(80, dtype=np.uint64))
