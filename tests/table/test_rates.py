"""A push may carry a factor of the learning rate, or deltas: against other optimizers, and by the formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cython_ext.table.steps import apply_dense_blocks
from cython_ext.table.store import Store, vector_levels
from pslib.server.checks import RATE_MAX, check_push_options
from pslib.shard.stores import DenseBlocks, make_store
from pslib.table.initializers import Uniform
from pslib.table.optimizers import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowwiseAdagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.wire.messages import Push
from tests.support.definitions.optimizers import full_step
from tests.support.refused import refused

f32 = np.float32
OPTIMIZERS = [SGD(0.1), Momentum(0.1), Adagrad(0.05), RowwiseAdagrad(0.05), Adam(0.01)]
RATE = 0.3
KEYS = np.arange(40, dtype=np.uint64)


def spec_with(optimizer: Optimizer, dim: int, storage: str = "float32") -> TableSpec:
    parts = (PartSpec("v", dim, optimizer, Uniform(0.1)), PartSpec("w", 1, optimizer, Uniform(0.1)))
    return TableSpec("t", parts[:1] if dim == 16 else parts, storage=storage)


def gradients_of(store: Store, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((KEYS.size, store.dim)).astype(np.float32)


def content(store: Store) -> list[tuple[bytes, ...]]:
    partitions = range(1 << store.partition_bits)
    return [tuple(array.tobytes() for array in store.export_partition(p)) for p in partitions]


def slower(optimizer: Optimizer) -> Optimizer:
    return replace(optimizer, learning_rate=float(f32(optimizer.learning_rate) * f32(RATE)))


@pytest.mark.parametrize("level", vector_levels())
@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_a_rate_is_that_of_an_optimizer_with_this_learning_rate(
    optimizer: Optimizer, dim: int, level: str, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    scaled = make_store(spec_with(optimizer, dim, storage), 2)
    other = make_store(spec_with(slower(optimizer), dim, storage), 2)
    for seed in range(3):
        scaled.push(KEYS, gradients_of(scaled, seed), salt=seed, rate=RATE)
        other.push(KEYS, gradients_of(scaled, seed), salt=seed)
    assert content(scaled) == content(other)


def test_the_next_push_has_the_full_rate_again() -> None:
    once, plain = (make_store(spec_with(Adagrad(0.05), 16), 2) for _ in range(2))
    once.push(KEYS[:20], gradients_of(once, 1)[:20], rate=RATE)
    once.push(KEYS[20:], gradients_of(once, 1)[20:])
    plain.push(KEYS[20:], gradients_of(once, 1)[20:])
    one, other = np.empty((2, 20, 16), np.float32)
    once.pull(KEYS[20:], one)
    plain.pull(KEYS[20:], other)
    assert one.tobytes() == other.tobytes()


def test_rows_decay_at_the_full_rate_whatever_the_rate_of_a_push() -> None:
    optimizer = AdamW(0.01, weight_decay=0.5)
    store = make_store(spec_with(optimizer, 3), 0)
    first = np.empty((1, 4), np.float32)
    store.pull(KEYS[:1], first)
    weights, state = first[0, :3].copy(), optimizer.initial_state(3)
    for now in (0, 4):
        gradient = gradients_of(store, now)[:1]
        store.push(KEYS[:1], gradient, now=float(now), rate=RATE)
        weights *= f32((1 - 0.01 * 0.5) ** 4) if now else f32(1)
        full_step(replace(slower(optimizer), weight_decay=0.0), weights, state, gradient[0, :3])
    store.pull(KEYS[:1], first, 4.0)
    np.testing.assert_allclose(first[0, :3], weights, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, FTRL(0.05), SGD(0.1, clip_norm=0.01)])
def test_deltas_are_added_exactly_and_change_no_state(optimizer: Optimizer) -> None:
    store = make_store(spec_with(optimizer, 16), 2)
    store.push(KEYS, gradients_of(store, 1))
    before = content(store)
    weights, after = np.empty((2, KEYS.size, 16), np.float32)
    store.pull(KEYS, weights)
    store.push(KEYS, gradients_of(store, 2), delta=True)
    store.pull(KEYS, after)
    assert after.tobytes() == (weights + gradients_of(store, 2)).tobytes()
    assert [one[2] for one in content(store)] == [one[2] for one in before]


def test_a_delta_of_an_unseen_key_is_added_to_its_first_value() -> None:
    store = make_store(spec_with(Adam(0.01), 16), 2)
    first, after = np.empty((2, KEYS.size, 16), np.float32)
    store.pull(KEYS, first)
    store.push(KEYS, gradients_of(store, 2), delta=True)
    store.pull(KEYS, after)
    assert after.tobytes() == (first + gradients_of(store, 2)).tobytes()


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.01), AdamW(0.01, weight_decay=0.1)])
def test_dense_blocks_take_rates_and_deltas(optimizer: Optimizer) -> None:
    start = np.linspace(-1, 1, 10, dtype=np.float32)
    gradient = np.linspace(2, 3, 10, dtype=np.float32)
    blocks = DenseBlocks(DenseSpec(10, optimizer), 1)
    blocks.put(0, start)
    blocks.apply(0, gradient, RATE)
    kept = 1 - optimizer.learning_rate * optimizer.weight_decay
    weights, state = start * f32(kept), optimizer.initial_state(10)
    full_step(replace(slower(optimizer), weight_decay=0.0), weights, state, gradient)
    assert blocks.weights[0].tobytes() == weights.tobytes()
    blocks.apply(0, gradient, delta=True)
    assert blocks.weights[0].tobytes() == (weights + gradient).tobytes()
    assert blocks.state[0].tobytes() == state.tobytes()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), "1", None])
def test_a_rate_that_is_no_number_is_refused(rate: object) -> None:
    store = make_store(spec_with(SGD(0.1), 16), 2)
    with pytest.raises(ValueError, match="push: rate"):
        store.push(KEYS, gradients_of(store, 1), rate=rate)  # type: ignore[arg-type]
    numbers = np.zeros(8, np.float32), np.zeros(4, np.float32), np.zeros((0, 2), np.float32)
    with pytest.raises(ValueError, match="apply_dense: rate"):
        apply_dense_blocks(0, *numbers, (np.ones(1, f32),), (np.ones(0, f32),), np.ones(1, f32), rate)  # type: ignore[arg-type]


def push_with(blocks: int = 0, **manner: object) -> Push:
    rows = {"t": np.empty((0, 17), np.float32)}
    dense = np.zeros(blocks, np.uint32), np.empty(0, np.float32)
    return Push(1, 0, 0, 0, 0, {"t": KEYS[:0]}, rows, *dense, **manner)  # type: ignore[arg-type]


def contributors(*ranks: int, units: tuple[int, ...] = (0,)) -> dict[str, np.ndarray]:
    return {"contributors": np.array(ranks, np.uint32), "units": np.array(units, np.uint32)}


@pytest.mark.parametrize(
    ("push", "problem"),
    [
        (push_with(), None),
        (push_with(rate=0.0), None),
        (push_with(rate=-0.1), "rate: expected 0"),
        (push_with(rate=2 * RATE_MAX), "rate: expected 0"),
        (push_with(rank=2, sync=contributors(0, 2)), None),
        (push_with(rank=1, sync=contributors(0, 2)), "rank 1 is not among the contributors"),
        (push_with(rank=0, sync=contributors(0, 0)), "ascending ranks"),
        (push_with(rank=0, sync=contributors()), "ascending ranks"),
        (push_with(rank=0, sync=contributors(0, units=(9,))), "units: expected 0..8, got 9"),
        (push_with(rank=0, sync={"units": np.empty(0, np.uint32)}), "expected contributors and units"),
    ],
)
def test_a_manner_that_can_not_be_is_told_in_a_line(push: Push, problem: str | None) -> None:
    told = refused(lambda: check_push_options(push, {"t": spec_with(SGD(0.1), 16)}, None, 9), problem or "")
    assert bool(told) is bool(problem)


def test_ftrl_has_one_learning_rate() -> None:
    table, dense = {"t": spec_with(FTRL(0.1), 16)}, DenseSpec(4, FTRL(0.1))
    plain = {"t": spec_with(SGD(0.1), 16)}
    assert refused(lambda: check_push_options(push_with(rate=0.5), table, None, 9), "FTRL")
    assert refused(lambda: check_push_options(push_with(1, rate=0.5), plain, dense, 9), "FTRL")
    for push in (push_with(rate=1.0), push_with(1, delta=True, rate=0.5)):
        check_push_options(push, table, dense, 9)
