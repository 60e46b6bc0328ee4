"""No step stores NaN or infinity: all optimizers, storage types and instruction sets against definitions."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pslib
from cython_ext.table.steps import apply_dense_blocks
from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Constant, Uniform
from pslib.table.optimizers import FTRL, SGD, Optimizer, dense_problem
from pslib.table.policies import STORAGES
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.optimizers import full_step
from tests.support.definitions.table import DictTable
from tests.table.test_optimizers import ALL, KEYS, name_of

MAX = float(np.finfo(np.float32).max)
EXTREMES = (0.0, 1.0, -1.0, 1e-45, 1e-30, 2e6, -1e12, 2e19, -2e19, 1e30, 1e38, -1e38, MAX, -MAX)
numbers = st.one_of(st.sampled_from(EXTREMES), st.floats(-MAX, MAX, width=32), st.floats(-2, 2, width=32))


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.5}, {"cowclip_ratio": 0.5, "cowclip_floor": 1e-3}])
@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@settings(deadline=None, max_examples=8)
@given(data=st.data(), dim=st.sampled_from((1, 3, 8, 16, 33)), storage=st.integers(0, len(STORAGES) - 1))
def test_extreme_finite_gradients_have_the_bits_of_the_definition_and_stay_finite(
    optimizer: Optimizer, clip: dict[str, float], data: Any, dim: int, storage: int
) -> None:
    decay = 0.0 if isinstance(optimizer, FTRL) else data.draw(st.sampled_from((0.0, 0.125)))
    optimizer = replace(optimizer, weight_decay=decay, **clip)
    counters = int(optimizer.catches_up) or 2 * data.draw(st.integers(0, 1))
    spec = TableSpec("t", (PartSpec("v", dim, optimizer, Uniform(0.5)),), seed=3)
    pushes = data.draw(st.lists(st.lists(numbers, min_size=dim, max_size=dim), min_size=1, max_size=6))
    gradients = [
        np.tile(np.asarray(one, np.float32), (len(KEYS), 1)) for one in (*pushes, pushes[-1], [1.0] * dim)
    ]
    shows = np.full(len(KEYS), data.draw(st.sampled_from((1.0, MAX))), np.float32)
    with np.errstate(all="ignore"):
        table = DictTable(spec, 0, storage=storage, counters=counters)
        for place, gradient in enumerate(gradients):
            table.push(KEYS, gradient, now=3 * place, salt=place, shows=shows)
        _, want, want_state = table.export_partition(0)
    for level in vector_levels():
        with mock.patch.dict(os.environ, PSLIB_VECTORS=level):
            store = Store(0, store_parts(spec), storage=storage, counters=counters)
        for place, gradient in enumerate(gradients):
            store.push(KEYS, gradient, now=3 * place, salt=place, shows=shows)
        _, weights, state = store.export_partition(0)
        assert np.isfinite(weights).all()
        assert np.isfinite(state).all()
        assert weights.tobytes() == want.tobytes()
        assert state.tobytes() == want_state.tobytes()


@pytest.mark.parametrize("optimizer", [one for one in ALL if dense_problem(one) is None], ids=name_of)
def test_a_dense_step_refuses_elements_one_by_one_wherever_it_is_cut(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(5)
    gradient, weights = rng.choice(np.asarray(EXTREMES, np.float32), 5000), rng.standard_normal(5000)
    told = (optimizer.kind, optimizer.hyperparameters(), optimizer.modifiers(), optimizer.corrections())
    whole, halves, want = (weights.astype(np.float32) for _ in range(3))
    state, want_state = optimizer.initial_state(5000), optimizer.initial_state(5000)
    cut_states = [optimizer.initial_state(100), optimizer.initial_state(4900)]
    for _ in range(5):
        apply_dense_blocks(*told, (whole,), (state,), gradient)
        apply_dense_blocks(*told, (halves[:100], halves[100:]), cut_states, gradient)
        full_step(optimizer, want, want_state, gradient, missed=1)
    assert np.isfinite(whole).all()
    assert np.isfinite(state).all()
    assert whole.tobytes() == halves.tobytes() == want.tobytes()
    assert state.tobytes() == want_state.tobytes()


@pytest.mark.parametrize("state", [-1.0, 1e38, np.inf, np.nan])
@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
def test_a_row_with_any_loaded_state_keeps_finite_weights(optimizer: Optimizer, state: float) -> None:
    spec = TableSpec("t", (PartSpec("v", 16, optimizer, Constant(0.0)),))
    store = Store(0, store_parts(spec), counters=int(optimizer.catches_up))
    states = np.full((3, store.state_floats), state, np.float32)
    store.assign(KEYS, np.zeros((3, 16), np.float32), states)
    for _ in range(3):
        store.push(KEYS, np.ones((3, 16), np.float32))
    assert np.isfinite(store.export_partition(0)[1]).all()


def test_a_refused_step_is_counted_and_told_once_a_table(caplog: pytest.LogCaptureFixture) -> None:
    key, large = np.array([1], np.uint64), np.full((1, 4), 3e38, np.float32)
    with caplog.at_level(logging.WARNING, "pslib"), pslib.connect() as cluster:
        client = cluster.client
        client.setup([TableSpec(name, (PartSpec("v", 4, SGD(1.0), Constant(0.0)),)) for name in "ab"])
        for _ in range(3):
            client.push({name: (key, large) for name in "ab"}).wait()
        rows = client.pull({"a": key}).wait().rows["a"]
        assert client.stats()["steps_refused"] == 4
    assert rows.tolist() == (-large).tolist()
    told = [one.getMessage() for one in caplog.records if "steps_refused" in one.getMessage()]
    assert [line.split(":")[1] for line in told] == [" table a", " table b"]
