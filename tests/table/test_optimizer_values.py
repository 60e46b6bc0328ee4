"""Momentum and FTRL against their papers, and optimizers as values: ranges and plain forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.errors import ConfigurationError
from pslib.table.optimizers import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, optimizer_from_dict
from tests.table.test_optimizers import ALL, name_of, row_step, some_gradients

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


@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
def test_an_optimizer_survives_its_plain_form(optimizer: Optimizer) -> None:
    for one in (optimizer, replace(optimizer, clip_norm=0.5)):
        assert optimizer_from_dict(one.to_dict()) == one
    assert "clip_norm" not in optimizer.to_dict()


def test_decay_that_adamw_has_by_default_is_told_also_when_it_is_off() -> None:
    assert AdamW().to_dict()["weight_decay"] == 0.01
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
