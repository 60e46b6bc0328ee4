"""Modifiers of any optimizer: decay that catches up, clipping by norm and by the row's own norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.table.store import Store, vector_levels
from pslib.errors import ConfigurationError
from pslib.shard.stores import store_parts
from pslib.table.optimizers import FTRL, SGD, Adagrad, Adam, AdamL2, AdamW, Optimizer, RowwiseAdagrad
from pslib.table.tables import DenseSpec
from tests.support.definitions.optimizers import full_step
from tests.support.definitions.table import DictTable
from tests.table.test_optimizers import (
    ALL,
    KEYS,
    defined_rows_after,
    dense_step,
    name_of,
    row_step,
    rows_after,
    some_gradients,
    table_of,
)

CLIPS = [
    {"clip_norm": 0.5},
    {"cowclip_ratio": 0.5, "cowclip_floor": 0.01},
    {"cowclip_floor": 0.1},
    {"clip_norm": 0.75, "cowclip_ratio": 1.0, "cowclip_floor": 0.01},
]
DECAYING = [optimizer for optimizer in ALL if not isinstance(optimizer, FTRL)]


def clip_name(clip: dict[str, float]) -> str:
    return "+".join(clip)


def moved(optimizer: Optimizer, first: np.ndarray, gradient: np.ndarray, **row: float) -> np.ndarray:
    """Weights after one step of a fresh row."""
    weights = first.copy()
    row_step(optimizer, weights, optimizer.initial_state(len(weights)), gradient, **row)
    return weights


# --- kernel and definition

numbers = st.floats(-1e6, 1e6, width=32)
rows = st.integers(1, 40).flatmap(lambda dim: st.tuples(*[st.lists(numbers, min_size=dim, max_size=dim)] * 2))
counts = st.one_of(st.integers(0, 10**6).map(float), st.floats(width=32))


@pytest.mark.parametrize("clip", CLIPS, ids=clip_name)
@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@settings(deadline=None, max_examples=15)
@given(row=rows, shows=counts, missed=counts)
def test_any_row_has_the_bits_of_the_definition(
    optimizer: Optimizer,
    clip: dict[str, float],
    row: tuple[list[float], list[float]],
    shows: float,
    missed: float,
) -> None:
    decay = 0.0 if isinstance(optimizer, FTRL) else 0.125
    optimizer = replace(optimizer, weight_decay=decay, **clip)
    weights, gradient = (np.asarray(numbers, np.float32) for numbers in row)
    state, want_weights = optimizer.initial_state(len(weights)), weights.copy()
    want_state = state.copy()
    for times in (missed, 1.0):
        row_step(optimizer, weights, state, gradient, shows, times)
        full_step(optimizer, want_weights, want_state, gradient, shows, times)
    assert np.array_equal(weights, want_weights, equal_nan=True)
    assert np.array_equal(state, want_state, equal_nan=True)


@pytest.mark.parametrize("clip", CLIPS, ids=clip_name)
@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
@pytest.mark.parametrize("dim", [1, 16, 33])
def test_rows_of_a_table_have_the_bits_of_the_definition(
    optimizer: Optimizer, clip: dict[str, float], dim: int
) -> None:
    optimizer = replace(optimizer, **clip)
    gradients = some_gradients(dim, 4)
    have, want = rows_after(optimizer, dim, gradients), defined_rows_after(optimizer, dim, gradients)
    assert have[0].tobytes() == want[0].tobytes()
    assert have[1].tobytes() == want[1].tobytes()


@pytest.mark.parametrize("level", vector_levels())
@pytest.mark.parametrize("clip", CLIPS, ids=clip_name)
@pytest.mark.parametrize("optimizer", DECAYING, ids=name_of)
def test_a_push_says_how_often_a_key_was_shown_and_the_row_knows_what_it_missed(
    optimizer: Optimizer, clip: dict[str, float], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    spec = table_of(replace(optimizer, weight_decay=0.05, **clip), 16)
    store, table = Store(0, store_parts(spec), counters=1), DictTable(spec, 0, counters=1)
    rng = np.random.default_rng(6)
    for now in (0, 1, 7, 7, 5, 1000):
        keys = np.sort(rng.choice(KEYS, 2, replace=False))
        gradients = rng.standard_normal((2, 16)).astype(np.float32)
        shows = rng.integers(1, 20, 2).astype(np.float32)
        for each in (store, table):
            each.push(keys, gradients, now=now, shows=shows)
    for now in (0.0, 1000.0, 1234.5):
        have, want = np.empty((3, 16), np.float32), np.empty((3, 16), np.float32)
        assert store.pull(KEYS, have, now) == table.pull(KEYS, want, now)
        assert have.tobytes() == want.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("clip", CLIPS, ids=clip_name)
def test_a_gradient_that_is_not_finite_is_refused_with_clipping_too(
    clip: dict[str, float], bad: float
) -> None:
    optimizer = replace(SGD(0.5), **clip)
    gradient = np.asarray([1.0, bad, 1.0], np.float32)
    weights, want = np.ones(3, np.float32), np.ones(3, np.float32)
    row_step(optimizer, weights, np.zeros(0, np.float32), gradient)
    full_step(optimizer, want, np.zeros(0, np.float32), gradient)
    assert weights.tobytes() == want.tobytes()
    assert weights[1] == 1.0
    if np.isfinite(bad):
        assert weights.tolist() == [1.0] * 3  # a norm that overflows leaves nothing of a finite gradient


# --- decay


@pytest.mark.parametrize("optimizer", [one for one in DECAYING if not isinstance(one, AdamL2)], ids=name_of)
def test_a_row_decays_for_all_the_steps_that_it_has_missed(optimizer: Optimizer) -> None:
    optimizer = replace(optimizer, weight_decay=0.5)
    first, nothing = np.linspace(-1, 1, 5, dtype=np.float32), np.zeros(5, np.float32)
    factor = (1 - optimizer.learning_rate * 0.5) ** 7
    assert moved(optimizer, first, nothing, missed=7) == pytest.approx(first * factor, rel=1e-6)
    step_by_step, state = first.copy(), optimizer.initial_state(5)
    for _ in range(7):
        row_step(optimizer, step_by_step, state, nothing, missed=1)
    assert step_by_step == pytest.approx(first * factor, rel=1e-5)


@pytest.mark.parametrize(
    ("missed", "steps"),
    [
        (-np.inf, 0),
        (-3, 0),
        (-0.0, 0),
        (0, 0),
        (0.99, 0),
        (np.nan, 0),
        (1, 1),
        (1.99, 1),
        (2, 2),
        (1000, 1000),
    ],
)
def test_missed_steps_are_whole_and_never_negative(missed: float, steps: int) -> None:
    first = np.ones(1, np.float32)
    weights = moved(SGD(0.5, weight_decay=0.001), first, np.zeros(1, np.float32), missed=missed)
    assert weights[0] == np.float32((1 - 0.5 * float(np.float32(0.001))) ** steps)


@pytest.mark.parametrize("missed", [2.0**40, 2.0**62, 2.0**63, 2.0**64, 3e38, np.inf])
@pytest.mark.parametrize("decay", [1e-6, 0.1, 1.5])
def test_after_any_number_of_missed_steps_it_ends_with_nothing_left(missed: float, decay: float) -> None:
    first = np.full(4, -1e30, np.float32)
    weights = moved(SGD(0.5, weight_decay=decay), first, np.zeros(4, np.float32), missed=missed)
    assert weights.tolist() == [0.0] * 4


def test_a_small_decay_is_as_large_as_it_says_after_many_steps() -> None:
    """In float32, 1 - 1e-6 is 1 - 1.0133e-6: a million steps would be off by more than one percent."""
    weights = moved(
        SGD(1.0, weight_decay=1e-6), np.ones(1, np.float32), np.zeros(1, np.float32), missed=1_000_000
    )
    assert weights[0] == pytest.approx(np.exp(-1), rel=1e-6)


def test_l2_takes_the_steps_that_a_row_has_missed_one_by_one() -> None:
    optimizer = AdamL2(0.01, l2=0.5)
    first, gradient, nothing = (np.asarray(one, np.float32) for one in ([0.5, -0.25], [1, 2], [0, 0]))
    weights, state = first.copy(), optimizer.initial_state(2)
    for one in (nothing, nothing, nothing, gradient):
        row_step(optimizer, weights, state, one, missed=1)
    assert moved(optimizer, first, gradient, missed=4).tobytes() == weights.tobytes()
    assert moved(optimizer, first, gradient, missed=3).tobytes() != weights.tobytes()


def test_l2_of_a_row_that_was_not_asked_for_in_ages_ends_near_nothing() -> None:
    weights = moved(AdamL2(0.01, l2=0.5), np.ones(4, np.float32), np.zeros(4, np.float32), missed=1e9)
    assert np.abs(weights).max() < 0.05


def test_without_l2_it_is_lazy_adam() -> None:
    first, gradient = np.ones(4, np.float32), np.ones(4, np.float32)
    plain = moved(Adam(), first, gradient, missed=9)
    assert moved(AdamL2(l2=0.0), first, gradient, missed=9).tobytes() == plain.tobytes()


def test_adamw_is_adam_with_decay_on() -> None:
    first, gradient = np.linspace(-1, 1, 5, dtype=np.float32), np.ones(5, np.float32)
    decayed = moved(AdamW(), first, gradient, missed=3)
    assert decayed.tobytes() == moved(Adam(weight_decay=0.01), first, gradient, missed=3).tobytes()
    assert decayed.tobytes() != moved(Adam(), first, gradient, missed=3).tobytes()
    assert (
        moved(AdamW(weight_decay=0.0), first, gradient).tobytes() == moved(Adam(), first, gradient).tobytes()
    )


# --- clipping


@given(row=rows, bound=st.floats(0.0625, 100, width=32))
def test_a_gradient_is_shortened_to_the_norm_and_keeps_its_direction(
    row: tuple[list[float], list[float]], bound: float
) -> None:
    gradient = np.asarray(row[1], np.float32)
    step = -moved(SGD(1.0, clip_norm=bound), np.zeros_like(gradient), gradient)
    norm = float(np.linalg.norm(gradient.astype(np.float64)))
    if norm <= bound * (1 - 1e-5):
        assert step.tolist() == gradient.tolist()
    else:
        assert step == pytest.approx(gradient * min(1, bound / norm), rel=1e-4, abs=1e-30)


def test_cowclip_bounds_a_row_by_its_own_norm_and_its_shows() -> None:
    """Zheng et al., algorithm 1: shows * max(r * |w|, zeta)."""
    optimizer = SGD(1.0, cowclip_ratio=0.5, cowclip_floor=0.01)
    gradient = np.asarray([30.0, 40.0], np.float32)
    for first, shows, bound in [
        ([3.0, 4.0], 1, 2.5),
        ([3.0, 4.0], 4, 10.0),
        ([3.0, 4.0], 100, 50.0),
        ([0.0, 0.0], 1, 0.01),
        ([0.0, 0.0], 7, 0.07),
        ([0.003, 0.004], 1, 0.01),
        ([3.0, 4.0], 0, 0.0),
    ]:
        weights = np.asarray(first, np.float32)
        step = weights - moved(optimizer, weights, gradient, shows=shows)
        assert np.linalg.norm(step) == pytest.approx(bound, rel=1e-4, abs=1e-7)


def test_decay_comes_first_then_the_norm_then_the_bound_of_the_row() -> None:
    optimizer = SGD(0.5, weight_decay=1.0, clip_norm=3.0, cowclip_ratio=1.0, cowclip_floor=0.125)
    weights = moved(optimizer, np.asarray([8.0], np.float32), np.asarray([9.0], np.float32), missed=1)
    assert weights.tolist() == [4.0 - 0.5 * 3.0]
    weights = moved(optimizer, np.asarray([2.0], np.float32), np.asarray([9.0], np.float32), missed=1)
    assert weights.tolist() == [1.0 - 0.5 * 1.0]


# --- dense parameters


def test_dense_parameters_decay_at_each_step() -> None:
    optimizer, weights, state = AdamW(0.5, weight_decay=1.0), np.ones(4, np.float32), np.zeros(9, np.float32)
    for _ in range(3):
        dense_step(optimizer, weights, state, np.zeros(4, np.float32))
    assert weights.tolist() == [0.125] * 4


@pytest.mark.parametrize("clip", CLIPS, ids=clip_name)
def test_dense_parameters_are_not_clipped_and_the_error_says_why(clip: dict[str, float]) -> None:
    optimizer = replace(Adagrad(), **clip)
    assert not optimizer.elementwise
    on = ", ".join(clip)
    with pytest.raises(ConfigurationError) as caught:
        DenseSpec(10, optimizer)
    (problem,) = caught.value.problems
    assert problem.startswith(f"dense parameters: Adagrad with {on} takes norms of rows, and")
    assert not RowwiseAdagrad().elementwise
    assert DenseSpec(10, AdamW()).optimizer.elementwise
