"""Optimizers against their twins in PyTorch, over many steps of one row, where PyTorch is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pslib.table.optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Optimizer
from tests.support.models.papers import WITHOUT_TORCH
from tests.table.test_optimizers import name_of, row_step

torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
optim = torch.optim

TWINS: list[tuple[Optimizer, Callable[[Any], Any]]] = [
    (SGD(0.1), lambda w: optim.SGD([w], lr=0.1)),
    (Momentum(0.1, 0.9), lambda w: optim.SGD([w], lr=0.1, momentum=0.9)),
    (Momentum(0.1, 0.9, nesterov=True), lambda w: optim.SGD([w], lr=0.1, momentum=0.9, nesterov=True)),
    (Adagrad(0.1, 1e-6, 0.5), lambda w: optim.Adagrad([w], lr=0.1, eps=1e-6, initial_accumulator_value=0.5)),
    (Adam(0.01, 0.8, 0.99, 1e-6), lambda w: optim.Adam([w], lr=0.01, betas=(0.8, 0.99), eps=1e-6)),
    (
        AdamW(0.01, 0.8, 0.99, 1e-6, weight_decay=0.3),
        lambda w: optim.AdamW([w], lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.3),
    ),
]


def steps(seed: int = 5) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    first, *gradients = rng.standard_normal((41, 17)).astype(np.float32)
    return first, gradients


@pytest.mark.parametrize(("optimizer", "make"), TWINS, ids=lambda value: getattr(value, "__name__", None))
def test_an_optimizer_agrees_with_its_twin(optimizer: Optimizer, make: Callable[[Any], Any]) -> None:
    first, gradients = steps()
    weights, state, twin = first.copy(), optimizer.initial_state(17), torch.tensor(first, requires_grad=True)
    twin_optimizer = make(twin)
    for gradient in gradients:
        row_step(optimizer, weights, state, gradient, missed=1)
        twin.grad = torch.from_numpy(gradient.copy())
        twin_optimizer.step()
    np.testing.assert_allclose(
        weights, twin.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=name_of(optimizer)
    )


def test_clipping_by_norm_agrees_with_its_twin() -> None:
    first, gradients = steps()
    weights, twin = first.copy(), torch.tensor(first, requires_grad=True)
    for gradient in gradients:
        row_step(SGD(0.1, clip_norm=4.0), weights, np.zeros(0, np.float32), gradient)
        twin.grad = torch.from_numpy(gradient.copy())
        torch.nn.utils.clip_grad_norm_([twin], 4.0)
        optim.SGD([twin], lr=0.1).step()
    norms = [np.linalg.norm(gradient) for gradient in gradients]
    assert min(norms) < 4.0 < max(norms)
    np.testing.assert_allclose(weights, twin.detach().numpy(), rtol=1e-5, atol=1e-5)
