"""Rows are read and stepped in strips of eight keys, with the results of one key at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, Adagrad, Optimizer, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.policies import BLOOM, BY_SCORE, CHANCE, COUNT, LAST_SEEN, SHOWS, PolicyTable
from tests.support.definitions.table import DictTable, partition_of, unmix64
from tests.support.tables.store_rules import UNIVERSE
from tests.table.policies.test_store_policies_model import HAPPENED, counts_of, filters_of, rows_of

WIDTHS = [(16,), (1, 16), (4, 8), (5,)]
BESIDE_KEY_0 = np.array([unmix64(mixed) for mixed in range(1, 5)], np.uint64)
"""Keys of key 0's home line, whose five cells these and key 0 fill."""

COMPACT = {"counters": SHOWS, "promotion": (BY_SCORE, 1.0), "score": (0.1, 1.0)}
POLICIES: dict[str, dict[str, Any]] = {
    "count": {"admission": (COUNT, 3, 0)},
    "filter": {"admission": (BLOOM, 3, 512)},
    "chance": {"admission": (CHANCE, 0.4, 0)},
    "counters": {"counters": LAST_SEEN | SHOWS},
    "narrow": {"narrow_parts": 1},
    "compact": {"narrow_parts": 1, **COMPACT},
    "count and compact": {"narrow_parts": 1, "admission": (COUNT, 3, 0), **COMPACT},
    "chance and narrow": {"narrow_parts": 1, "admission": (CHANCE, 0.4, 0), "counters": LAST_SEEN | SHOWS},
}
"""Policies under which keys have no rows, or rows count or are narrow."""


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


def orders_of(store: Store, model: PolicyTable) -> list[list[list[int]]]:
    """Keys of each partition and class by row number, as they are and as they were made."""
    have, want = [], []
    for partition in range(1 << store.partition_bits):
        for narrow in (False, True):
            have.append(store.export_partition(partition, narrow)[0].tolist())
            made = [key for key in model.table if model.is_narrow(key) == narrow]
            want.append([key for key in made if partition_of(key, store.partition_bits) == partition])
    return [have, want]


def assert_same_table(store: Store, model: PolicyTable, order: bool) -> None:
    store.check_consistency()
    assert rows_of(store) == {key: model.row_bytes(key) for key in model.table}
    assert (counts_of(store), filters_of(store)) == (model.counted, model.filters)
    stats = store.stats()
    assert {name: stats[name] for name in HAPPENED} == {name: model.happened[name] for name in HAPPENED}
    narrow = sum(model.is_narrow(key) for key in model.table)
    assert (stats["rows"], stats["narrow_rows"]) == (model.rows, narrow)
    if order:
        have, want = orders_of(store, model)
        assert have == want


SHAPES: list[tuple[tuple[int, ...], int]] = [((16,), 0), ((16,), 1), ((1, 16), 0), ((1, 16), 3), ((4, 8), 1)]


@pytest.mark.parametrize(
    ("name", "dims", "storage"),
    [
        (name, dims, storage)
        for name, policies in POLICIES.items()
        for dims, storage in SHAPES
        if len(dims) > policies.get("narrow_parts", 0)
    ],
    ids=str,
)
def test_keys_without_rows_and_narrow_rows_are_no_other_table(
    name: str, dims: tuple[int, ...], storage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of many strips, keys found, absent, counted, narrow, wide and repeated in any mixture."""
    policies: dict[str, Any] = {"storage": storage, **POLICIES[name]}
    spec = table_of([RowwiseAdagrad(0.1)] * len(dims), dims)
    stores: list[Store] = []
    for level in vector_levels():
        monkeypatch.setenv("PSLIB_VECTORS", level)
        stores.append(Store(1, store_parts(spec), **policies))
    model = PolicyTable(spec, 1, **policies)
    tables: list[Store | PolicyTable] = [*stores, model]
    rng = np.random.default_rng(5)
    universe = np.concatenate([UNIVERSE, rng.integers(0, 1 << 64, 200, np.uint64)])
    for step in range(5):
        keys = rng.permutation(universe)[: 90 * (step + 1) + step]
        keys = np.insert(keys, [3, keys.size // 2, keys.size], keys[[1, 2, 0]])
        gradients = rng.standard_normal((keys.size, spec.dim)).astype(np.float32)
        narrow = "narrow_parts" in policies and step % 2 == 0
        shows = rng.choice(np.asarray([0.3, 1, 2.5, 7], np.float32), keys.size) if step else None
        clicks = rng.choice(np.asarray([0, 0.5, 1], np.float32), keys.size) if step else None
        for table in tables:
            table.push(keys, gradients, narrow, salt=step, now=float(step), shows=shows, clicks=clicks)
        for store in stores:
            assert_same_rows(store, model, rng.permutation(universe))
            assert_same_table(store, model, "promotion" not in policies)
