"""Optimizer steps: kernels against definitions and papers; every hyperparameter changes the result."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.table.steps import apply_dense_blocks, apply_row
from cython_ext.table.store import Store, vector_levels
from pslib.errors import ConfigurationError
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import (
    FTRL,
    MODIFIERS,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamL2,
    AdamW,
    Momentum,
    Optimizer,
    RowwiseAdagrad,
    optimizer_from_dict,
)
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions import table as definitions
from tests.support.definitions.optimizers import STEPS, full_step

ALL: list[Optimizer] = [
    SGD(0.1),
    Momentum(0.1, 0.8),
    Momentum(0.1, 0.8, nesterov=True),
    Adagrad(0.1, 1e-6, 0.25),
    RowwiseAdagrad(0.1, 1e-6, 0.25),
    Adam(0.01, 0.8, 0.9, 1e-6),
    Adam(0.01, 0.0, 0.0, 1e-6),
    AdamW(0.01, 0.8, 0.9, 1e-6, weight_decay=0.1),
    AdamL2(0.01, 0.8, 0.9, 1e-6, l2=0.1),
    FTRL(0.1, 0.5, 0.01, 0.02),
    FTRL(0.1, 0.0),
]


def name_of(optimizer: Optimizer) -> str:
    own = [field.name for field in fields(optimizer) if getattr(optimizer, field.name)]
    return "-".join([type(optimizer).__name__, *own])


DIMS = [1, 2, 15, 16, 17, 31, 32, 33, 48, 100]
KEYS = np.asarray([0, 7, 2**64 - 1], np.uint64)


def table_of(optimizer: Optimizer, dim: int) -> TableSpec:
    return TableSpec("embedding", (PartSpec("v", dim, optimizer, Uniform(0.5)),), seed=3)


def rows_after(optimizer: Optimizer, dim: int, gradients: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights and state of KEYS after these pushes, by ascending row number; the same on all levels."""
    found = [rows_at(level, optimizer, dim, gradients) for level in vector_levels()]
    for weights, state in found[1:]:
        assert weights.tobytes() == found[0][0].tobytes()
        assert state.tobytes() == found[0][1].tobytes()
    return found[0]


def rows_at(
    level: str, optimizer: Optimizer, dim: int, gradients: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    with mock.patch.dict(os.environ, PSLIB_VECTORS=level):
        store = Store(0, store_parts(table_of(optimizer, dim)), counters=counters_of(optimizer))
    for place, gradient in enumerate(gradients):
        store.push(KEYS, gradient, now=3 * place)
    keys, weights, state = store.export_partition(0)
    assert keys.tolist() == KEYS.tolist()
    return weights, state[:, counters_of(optimizer) :]


def counters_of(optimizer: Optimizer) -> int:
    """Rows that make up for missed steps know when they were seen."""
    return int(optimizer.catches_up)


def defined_rows_after(
    optimizer: Optimizer, dim: int, gradients: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    table = definitions.DictTable(table_of(optimizer, dim), 0, counters=counters_of(optimizer))
    for place, gradient in enumerate(gradients):
        table.push(KEYS, gradient, now=3 * place)
    _, weights, state = table.export_partition(0)
    return weights, state[:, counters_of(optimizer) :]


def some_gradients(dim: int, count: int, seed: int = 0, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((len(KEYS), dim)) * scale).astype(np.float32) for _ in range(count)]


def dense_step(optimizer: Optimizer, weights: np.ndarray, state: np.ndarray, gradient: np.ndarray) -> None:
    numbers = (optimizer.kind, optimizer.hyperparameters(), optimizer.modifiers(), optimizer.corrections())
    apply_dense_blocks(*numbers, (weights,), (state,), gradient)


def row_step(
    optimizer: Optimizer,
    weights: np.ndarray,
    state: np.ndarray,
    gradient: np.ndarray,
    shows: float = 1,
    missed: float = 0,
) -> None:
    numbers = (optimizer.kind, optimizer.hyperparameters(), optimizer.modifiers(), optimizer.corrections())
    apply_row(*numbers, weights, state, gradient, shows, missed)


@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@pytest.mark.parametrize("dim", DIMS)
def test_rows_have_the_bits_of_the_definition(optimizer: Optimizer, dim: int) -> None:
    gradients = some_gradients(dim, 5)
    have, want = rows_after(optimizer, dim, gradients), defined_rows_after(optimizer, dim, gradients)
    assert have[0].tobytes() == want[0].tobytes()
    assert have[1].tobytes() == want[1].tobytes()


@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@settings(deadline=None, max_examples=40)
@given(data=st.data(), dim=st.integers(1, 40))
def test_any_finite_gradient_has_the_bits_of_the_definition(
    optimizer: Optimizer, data: st.DataObject, dim: int
) -> None:
    numbers = st.floats(-1e6, 1e6, width=32)
    flat = data.draw(st.lists(numbers, min_size=3 * dim, max_size=3 * dim))
    gradients = [np.asarray(flat, np.float32).reshape(3, dim)] * 2
    have, want = rows_after(optimizer, dim, gradients), defined_rows_after(optimizer, dim, gradients)
    assert np.array_equal(have[0], want[0], equal_nan=True)
    assert np.array_equal(have[1], want[1], equal_nan=True)


@pytest.mark.parametrize("optimizer", [o for o in ALL if o.elementwise], ids=name_of)
@pytest.mark.parametrize("length", [0, 1, 3, 16, 1000])
def test_a_dense_step_has_the_bits_of_the_definition(optimizer: Optimizer, length: int) -> None:
    rng = np.random.default_rng(length)
    weights = rng.standard_normal(length).astype(np.float32)
    state = optimizer.initial_state(length)
    want_weights, want_state = weights.copy(), state.copy()
    for _ in range(4):
        gradient = rng.standard_normal(length).astype(np.float32)
        full_step(optimizer, want_weights, want_state, gradient, missed=1)
        dense_step(optimizer, weights, state, gradient)
    assert weights.tobytes() == want_weights.tobytes()
    assert state.tobytes() == want_state.tobytes()


EXAMPLES: dict[type[Optimizer], Optimizer] = {type(optimizer): optimizer for optimizer in ALL} | {
    Adam: Adam(0.01, 0.8, 0.9, 1e-3),
    FTRL: FTRL(0.1, 0.5, 0.1, 0.2),
}
ON = {
    "weight_decay": {"weight_decay": 0.2},
    "clip_norm": {"clip_norm": 0.5},
    "cowclip_ratio": {"cowclip_ratio": 0.5, "cowclip_floor": 1e-6},
    "cowclip_floor": {"cowclip_floor": 0.1},
}


def test_every_optimizer_has_a_definition_and_is_held_against_it() -> None:
    kinds = set(OPTIMIZERS.values())
    assert set(STEPS) == kinds == {type(optimizer) for optimizer in ALL} == set(EXAMPLES)


def row_after(optimizer: Optimizer) -> bytes:
    """Weights of a row that was pushed to three times, and had missed steps between."""
    weights = np.linspace(-1, 1, 8, dtype=np.float32)
    state = optimizer.initial_state(8)
    for gradient in some_gradients(8, 3):
        row_step(optimizer, weights, state, gradient[0], missed=2)
    return weights.tobytes()


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field.name) for kind in OPTIMIZERS.values() for field in fields(kind)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_hyperparameter_changes_the_result(kind: type[Optimizer], field: str) -> None:
    if (kind, field) == (FTRL, "weight_decay"):
        with pytest.raises(ConfigurationError, match="use l2"):
            FTRL(weight_decay=0.1)
        return
    one = replace(EXAMPLES[kind], **ON.get(field, {}))
    value = getattr(one, field)
    assert value > 0, "the example must set it"
    other = replace(one, **{field: not value if isinstance(value, bool) else value / 2})
    assert row_after(one) != row_after(other)
    if field in MODIFIERS:
        off = {name: 0.0 for name in ON[field]}
        assert row_after(one) != row_after(replace(one, **off))


def test_sgd_moves_by_the_rate_times_the_gradient() -> None:
    weights, gradient = np.asarray([1.0, -2.0], np.float32), np.asarray([0.5, 4.0], np.float32)
    dense_step(SGD(0.25), weights, np.zeros(0, np.float32), gradient)
    assert weights.tolist() == [0.875, -3.0]


def test_the_first_adagrad_step_has_the_length_of_the_rate() -> None:
    weights, state = np.zeros(2, np.float32), np.zeros(2, np.float32)
    gradient = np.asarray([3.0, -0.5], np.float32)
    dense_step(Adagrad(0.25), weights, state, gradient)
    assert state.tolist() == [9.0, 0.25]
    assert weights == pytest.approx([-0.25, 0.25])


def test_rowwise_adagrad_divides_all_columns_by_one_number() -> None:
    gradient = np.tile(np.asarray([3.0, 4.0], np.float32), (3, 1))
    first, _ = rows_after(RowwiseAdagrad(1.0), 2, [gradient * 0])
    weights, state = rows_after(RowwiseAdagrad(1.0), 2, [gradient])
    assert state[:, 0].tolist() == [12.5] * 3
    assert first - weights == pytest.approx(np.tile(np.asarray([3.0, 4.0]) / np.sqrt(12.5), (3, 1)), rel=1e-5)


def test_the_first_adam_step_has_the_length_of_the_rate_and_counts_one() -> None:
    gradient = np.full((3, 4), -7.0, np.float32)
    first, _ = rows_after(SGD(1.0), 4, [gradient * 0])
    weights, state = rows_after(Adam(0.5), 4, [gradient])
    assert weights - first == pytest.approx(np.full((3, 4), 0.5), rel=1e-4)
    assert state[:, -1].tolist() == [1.0] * 3


def test_adam_counts_the_steps_of_each_row_apart() -> None:
    store = Store(0, store_parts(table_of(Adam(), 2)))
    for key, steps in ((11, 3), (12, 1)):
        for _ in range(steps):
            store.push(np.asarray([key], np.uint64), np.ones((1, 2), np.float32))
    keys, _, state = store.export_partition(0)
    assert dict(zip(keys.tolist(), state[:, -1].tolist(), strict=True)) == {11: 3.0, 12: 1.0}


@pytest.mark.parametrize("count", [0.0, -5.0, 3.5, 1e30, np.inf, -np.inf, np.nan])
def test_an_adam_count_from_a_damaged_file_stays_inside_its_table(count: float) -> None:
    optimizer = Adam(0.01, 0.5, 0.5)
    last = len(optimizer.corrections()) - 1
    weights, gradient = np.ones(3, np.float32), np.ones(3, np.float32)
    state = optimizer.initial_state(3)
    state[-1] = count
    want_weights, want_state = weights.copy(), state.copy()
    full_step(optimizer, want_weights, want_state, gradient)
    dense_step(optimizer, weights, state, gradient)
    assert 1 <= state[-1] <= last
    assert weights.tobytes() == want_weights.tobytes()
    assert state.tobytes() == want_state.tobytes()


def test_adam_stops_counting_where_both_corrections_are_one() -> None:
    optimizer = Adam(0.01, 0.5, 0.6)
    last = len(optimizer.corrections()) - 1
    _, state = rows_after(optimizer, 1, [np.ones((3, 1), np.float32)] * (last + 5))
    assert state[:, -1].tolist() == [float(last)] * 3


@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_reaches_no_row(optimizer: Optimizer, bad: float) -> None:
    gradients = some_gradients(17, 2)
    clean, _ = rows_after(optimizer, 17, gradients)
    gradients[0] = gradients[0].copy()
    gradients[0][1, 3] = bad
    weights, state = rows_after(optimizer, 17, gradients)
    want_weights, want_state = defined_rows_after(optimizer, 17, gradients)
    assert np.isfinite(weights).all()
    assert np.isfinite(state).all()
    assert weights[[0, 2]].tobytes() == clean[[0, 2]].tobytes()
    assert weights.tobytes() == want_weights.tobytes()
    assert state.tobytes() == want_state.tobytes()


# --- what the kernel refuses


def dense_arguments() -> dict[str, Any]:
    return {
        "optimizer_kind": 1,
        "hyperparameters": np.zeros(8, np.float32),
        "modifiers": np.zeros(4, np.float32),
        "corrections": np.zeros((0, 2), np.float32),
        "weights": np.zeros(4, np.float32),
        "state": np.zeros(4, np.float32),
        "gradient": np.zeros(4, np.float32),
    }


def apply_dense(arguments: dict[str, Any]) -> None:
    """Take one step of one vector."""
    one = arguments | {"weights": (arguments["weights"],), "states": (arguments["state"],)}
    del one["state"]
    apply_dense_blocks(**one)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimizer_kind", 99, "optimizer_kind: expected a whole number in 0.."),
        ("optimizer_kind", -1, "optimizer_kind: expected"),
        ("optimizer_kind", 2, "elementwise"),
        ("optimizer_kind", 3, "corrections: expected 2.. rows for Adam, got 0"),
        ("hyperparameters", np.zeros(7, np.float32), r"hyperparameters: expected.*\(8,\), got.*\(7,\)"),
        ("modifiers", np.zeros(4), r"modifiers: expected.*float32.*\(4,\), got.*float64"),
        ("modifiers", np.full(4, -1, np.float32), "modifiers: expected finite numbers >= 0, got"),
        ("modifiers", np.full(4, np.nan, np.float32), "modifiers: expected finite numbers >= 0, got"),
        ("modifiers", np.eye(4, dtype=np.float32)[1], "modifiers: expected no clipping of a dense vector"),
        ("modifiers", np.eye(4, dtype=np.float32)[2], "modifiers: expected no clipping of a dense vector"),
        ("modifiers", np.eye(4, dtype=np.float32)[3], "modifiers: expected no clipping of a dense vector"),
        ("corrections", np.zeros(4, np.float32), r"corrections: expected.*\(n, 2\), got.*\(4,\)"),
        ("weights", np.zeros((4, 1), np.float32), r"weights: expected.*\(n,\), got.*\(4, 1\)"),
        ("weights", np.zeros(8, np.float32)[::2], "weights: expected C-contiguous.*got strided"),
        ("state", np.zeros(5, np.float32), r"state: expected.*\(4,\), got.*\(5,\)"),
        ("gradient", np.zeros(4), "gradient: expected.*float32.*got.*float64"),
        ("gradient", [0.0] * 4, "gradient: expected.*got list"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name: str, value: object, message: str) -> None:
    message = message.replace("2.. rows", "2..16777216 rows")
    with pytest.raises(ValueError, match=message):
        apply_dense(dense_arguments() | {name: value})


@pytest.mark.parametrize("sizes", [(), (5,), (5, 16, 0, 33)])
def test_a_step_of_several_blocks_is_a_step_of_each(sizes: tuple[int, ...]) -> None:
    rng, optimizer = np.random.default_rng(5), Adam(0.1)
    numbers = (optimizer.kind, optimizer.hyperparameters(), optimizer.modifiers(), optimizer.corrections())
    blocks = [rng.standard_normal(size, np.float32) for size in sizes]
    states = [optimizer.initial_state(size) for size in sizes]
    alone = [(block.copy(), state.copy()) for block, state in zip(blocks, states, strict=True)]
    gradient = rng.standard_normal(sum(sizes), np.float32)
    apply_dense_blocks(*numbers, blocks, states, gradient, 0.5)
    start = 0
    for block, state, (weights, own) in zip(blocks, states, alone, strict=True):
        apply_dense_blocks(*numbers, (weights,), (own,), gradient[start : start + block.size], 0.5)
        start += block.size
        assert weights.tobytes() == block.tobytes()
        assert own.tobytes() == state.tobytes()


def test_a_step_of_several_blocks_that_do_not_fit_changes_none() -> None:
    numbers = (0, *(dense_arguments()[name] for name in ("hyperparameters", "modifiers", "corrections")))
    blocks = [np.ones(2, np.float32), np.ones(3, np.float32)]
    for states, gradient in (
        ([np.empty(0, np.float32)], np.ones(5, np.float32)),
        (None, np.ones(4, np.float32)),
    ):
        with pytest.raises(ValueError, match="apply_dense: "):
            apply_dense_blocks(*numbers, blocks, states or [np.empty(0, np.float32)] * 2, gradient)
    assert all((block == 1).all() for block in blocks)


def test_dense_weights_that_are_read_only_are_refused() -> None:
    arguments = dense_arguments()
    arguments["weights"].setflags(write=False)
    with pytest.raises(ValueError, match="weights: expected a writeable"):
        apply_dense(arguments)


# --- optimizers against their papers, and as values


# --- momentum and FTRL

small = st.floats(0, 2, width=32)
positive = st.floats(0.0625, 2)


def test_momentum_gathers_speed_and_nesterov_looks_ahead() -> None:
    for nesterov, want in ((False, [-1.0, -2.5]), (True, [-1.5, -3.25])):
        optimizer, weights = Momentum(1.0, 0.5, nesterov), np.zeros(1, np.float32)
        state, seen = optimizer.initial_state(1), []
        for _ in range(2):
            row_step(optimizer, weights, state, np.ones(1, np.float32))
            seen.append(float(weights[0]))
        assert seen == want


def ftrl_of_the_paper(optimizer: FTRL, gradients: list[np.ndarray]) -> np.ndarray:
    """McMahan et al., algorithm 1, coordinate by coordinate, in float64."""
    weights = []
    for coordinate in np.asarray(gradients, np.float64).T:
        z = n = w = 0.0
        for g in coordinate:
            sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / optimizer.learning_rate
            z, n = z + g - sigma * w, n + g * g
            rate = 1 / ((optimizer.beta + np.sqrt(n)) / optimizer.learning_rate + optimizer.l2)
            w = 0.0 if abs(z) <= optimizer.l1 else -rate * (z - np.sign(z) * optimizer.l1)
        weights.append(w)
    return np.asarray(weights)


def after_steps(optimizer: Optimizer, first: float, gradients: list[np.ndarray]) -> np.ndarray:
    weights = np.full(len(gradients[0]), first, np.float32)
    state = optimizer.initial_state(len(weights))
    for gradient in gradients:
        row_step(optimizer, weights, state, gradient)
    return weights


@given(seed=st.integers(0, 999), l1=small, l2=small, beta=positive)
def test_ftrl_from_zero_is_the_algorithm_of_the_paper(seed: int, l1: float, l2: float, beta: float) -> None:
    gradients = [gradient[0] for gradient in some_gradients(6, 8, seed)]
    optimizer = FTRL(0.1, beta, l1, l2)
    want = ftrl_of_the_paper(optimizer, gradients)
    assert after_steps(optimizer, 0.0, gradients) == pytest.approx(want, rel=1e-4, abs=1e-6)


@given(seed=st.integers(0, 999), first=st.floats(-1, 1), beta=positive)
def test_ftrl_without_l1_and_l2_is_adagrad_from_any_first_value(seed: int, first: float, beta: float) -> None:
    gradients = [gradient[0] for gradient in some_gradients(6, 8, seed)]
    want = after_steps(Adagrad(0.1, epsilon=beta), first, gradients)
    assert after_steps(FTRL(0.1, beta), first, gradients) == pytest.approx(want, abs=1e-5)


def test_l1_makes_weights_exactly_zero_until_their_gradients_agree() -> None:
    rng = np.random.default_rng(4)
    noise = [rng.normal(0, 0.1, 50).astype(np.float32) for _ in range(30)]
    agreed = [gradient + np.float32(0.2) for gradient in noise]
    assert np.count_nonzero(after_steps(FTRL(0.1, l1=1.8), 0.0, noise)) == 0
    assert np.count_nonzero(after_steps(FTRL(0.1, l1=0.0), 0.0, noise)) == 50
    assert np.count_nonzero(after_steps(FTRL(0.1, l1=1.8), 0.0, agreed)) == 50


def test_a_weight_of_ftrl_without_a_gradient_keeps_its_first_value() -> None:
    gradients = [np.asarray([0.0, 1.0], np.float32)] * 3
    weights = after_steps(FTRL(0.1, l1=0.001, l2=0.5), 0.25, gradients)
    assert weights[0] == 0.25 > weights[1]


# --- values and plain forms


def test_decay_that_adamw_has_by_default_is_told_also_when_it_is_off() -> None:
    assert AdamW().to_dict()["weight_decay"] == 0.01
    assert "clip_norm" not in AdamW().to_dict()
    assert optimizer_from_dict(AdamW(weight_decay=0.0).to_dict()) == AdamW(weight_decay=0.0)
    assert optimizer_from_dict({"name": "Adam"}) == Adam()


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (
            SGD,
            {"weight_decay": -0.1},
            "SGD.weight_decay: expected a number, 0 or more and finite in float32, got -0.1",
        ),
        (
            SGD,
            {"weight_decay": 1e-60},
            "weight_decay: expected a number, 0 or more and finite in float32, got 1e-60",
        ),
        (
            SGD,
            {"learning_rate": 0.5, "weight_decay": 2.0},
            "weight_decay: expected less than 1 / learning_rate = 2.0",
        ),
        (SGD, {"learning_rate": 1e-3, "weight_decay": 1e-5}, "changes no float32 weight.*at least 6.0e-05"),
        (
            SGD,
            {"clip_norm": np.inf},
            "clip_norm: expected a number, 0 or more and finite in float32, got inf",
        ),
        (
            SGD,
            {"clip_norm": np.nan},
            "clip_norm: expected a number, 0 or more and finite in float32, got nan",
        ),
        (SGD, {"cowclip_ratio": 1.0}, "cowclip_ratio: expected cowclip_floor > 0"),
        (SGD, {"learning_rate": 1e39}, "learning_rate: expected a number above 0 and finite in float32, got"),
        (Momentum, {"momentum": 1.0}, "momentum: expected less than 1 in float32, got 1.0"),
        (Momentum, {"momentum": 1 - 1e-12}, "expected less than 1 in float32"),
        (Momentum, {"nesterov": 1.0}, "nesterov: expected True or False, got 1.0"),
        (FTRL, {"beta": -1.0}, "beta: expected a number, 0 or more and finite in float32, got -1.0"),
        (FTRL, {"l1": np.nan}, "l1: expected a number, 0 or more and finite in float32, got nan"),
        (FTRL, {"l2": np.inf}, "l2: expected a number, 0 or more and finite in float32, got inf"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(
    kind: type[Optimizer], numbers: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(**numbers)


def test_all_numbers_out_of_range_are_told_at_once_and_so_is_what_does_not_go_together() -> None:
    def named(*numbers: float, **more: float) -> list[str]:
        with pytest.raises(ConfigurationError) as caught:
            FTRL(*numbers, **more)
        return [problem.split()[0].removeprefix("FTRL.").rstrip(":") for problem in caught.value.problems]

    numbers = ["learning_rate", "clip_norm", "beta", "l1", "l2"]
    assert named(-1.0, -1.0, np.inf, np.nan, clip_norm=-1.0) == numbers
    assert named(weight_decay=0.5, cowclip_ratio=1.0) == ["cowclip_ratio", "weight_decay"]
