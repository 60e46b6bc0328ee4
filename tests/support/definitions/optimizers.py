"""Optimizer steps as their formulas: float32 with one rounding an operation, so that a kernel gives the bits.

``w`` (dim,) and ``state`` are changed in place, ``g`` (dim,) is the gradient of one part of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.table.optimizers import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamL2,
    AdamW,
    Momentum,
    Optimizer,
    RowwiseAdagrad,
)

Floats = NDArray[np.float32]
f32 = np.float32
LANES = 16


def sum_of_squares(g: Floats) -> np.float32:
    """In 16 lanes, folded 8, 4, 2, 1: any vector width up to 16 gives these bits."""
    lanes = np.zeros(LANES, np.float32)
    for start in range(0, len(g), LANES):
        piece = g[start : start + LANES]
        lanes[: len(piece)] += piece * piece
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return lanes[0]


def sgd_step(optimizer: SGD, w: Floats, state: Floats, g: Floats) -> None:
    w -= f32(optimizer.learning_rate) * g


def momentum_step(optimizer: Momentum, w: Floats, b: Floats, g: Floats) -> None:
    rate, momentum = f32(optimizer.learning_rate), f32(optimizer.momentum)
    b[:] = momentum * b + g
    w -= rate * (g + momentum * b if optimizer.nesterov else b)


def adagrad_step(optimizer: Adagrad, w: Floats, a: Floats, g: Floats) -> None:
    rate, epsilon = f32(optimizer.learning_rate), f32(optimizer.epsilon)
    a += g * g
    w -= (rate * g) / (np.sqrt(a) + epsilon)


def rowwise_adagrad_step(optimizer: RowwiseAdagrad, w: Floats, a: Floats, g: Floats) -> None:
    rate, epsilon = f32(optimizer.learning_rate), f32(optimizer.epsilon)
    a += sum_of_squares(g) / f32(len(g))
    w -= (rate * g) / (np.sqrt(a[0]) + epsilon)


@lru_cache
def corrections_of(optimizer: Adam) -> Floats:
    return optimizer.corrections()


def adam_step(optimizer: Adam, w: Floats, state: Floats, g: Floats) -> None:
    rate, epsilon = f32(optimizer.learning_rate), f32(optimizer.epsilon)
    b1, b2 = f32(optimizer.beta1), f32(optimizer.beta2)
    m, v, t = state[: len(w)], state[len(w) : 2 * len(w)], state[2 * len(w) :]
    corrections = corrections_of(optimizer)
    count = t[0] + f32(1)
    t[0] = max(count, 1) if count < len(corrections) - 1 else len(corrections) - 1
    c1, c2 = corrections[int(t[0])]
    m[:] = b1 * m + (f32(1) - b1) * g
    v[:] = b2 * v + ((f32(1) - b2) * g) * g
    w -= (rate * (m * c1)) / (np.sqrt(v * c2) + epsilon)


def ftrl_step(optimizer: FTRL, w: Floats, state: Floats, g: Floats) -> None:
    alpha, beta, l1, l2 = map(f32, (optimizer.learning_rate, optimizer.beta, optimizer.l1, optimizer.l2))
    z, n = state[: len(w)], state[len(w) :]
    z[:] = np.where(n == 0, -((beta / alpha) * w), z) + g - ((np.sqrt(n + g * g) - np.sqrt(n)) / alpha) * w
    n += g * g
    moved = (np.copysign(l1, z) - z) / ((beta + np.sqrt(n)) / alpha + l2)
    w[:] = np.where(n == 0, w, np.where(np.abs(z) <= l1, f32(0), moved))


STEPS: dict[type[Optimizer], Callable[[Any, Floats, Floats, Floats], None]] = {
    SGD: sgd_step,
    Momentum: momentum_step,
    Adagrad: adagrad_step,
    RowwiseAdagrad: rowwise_adagrad_step,
    Adam: adam_step,
    AdamW: adam_step,
    AdamL2: adam_step,
    FTRL: ftrl_step,
}


def decay_factor(optimizer: Optimizer, missed: float) -> np.float32:
    """Return the decay factor of ``missed`` steps; squared and multiplied in double as the kernel does."""
    if optimizer.weight_decay == 0 or not missed >= 1:
        return f32(1)
    base = 1.0 - float(f32(optimizer.learning_rate)) * float(f32(optimizer.weight_decay))
    steps, power = min(int(min(missed, 2.0**62)), 2**62), 1.0
    while steps:
        power, base, steps = power * base if steps & 1 else power, base * base, steps >> 1
    return f32(power)


def clipped(g: Floats, bound: np.float32) -> Floats:
    norm = np.sqrt(sum_of_squares(g))
    return g * (bound / norm) if norm > bound else g


def finite_step(optimizer: Optimizer, w: Floats, state: Floats, g: Floats) -> None:
    """Step; an element whose weight or state would not be finite keeps both, as all do by the row's sum."""
    weights, states, dim = w.copy(), state.copy(), len(w)
    STEPS[type(optimizer)](optimizer, weights, states, g)
    many = optimizer.state_floats(2) - optimizer.state_floats(1)  # floats of state an element
    own = many * dim
    of_each, of_all = states[:own].reshape(many, dim), states[own:]
    if np.isfinite(of_all).all():
        sound = np.isfinite(weights) & np.isfinite(of_each).all(axis=0)
        w[:], state[own:] = np.where(sound, weights, w), of_all
        state[:own] = np.where(sound, of_each, state[:own].reshape(many, dim)).reshape(-1)


def full_step(
    optimizer: Optimizer, w: Floats, state: Floats, g: Floats, shows: float = 1, missed: float = 0
) -> None:
    """Decay for the steps that the row has missed, clip to the norm, clip to the row's bound, step."""
    with np.errstate(all="ignore"):  # what overflows is refused
        w *= decay_factor(optimizer, missed)
        if optimizer.clip_norm:
            g = clipped(g, f32(optimizer.clip_norm))
        if optimizer.cowclip_ratio or optimizer.cowclip_floor:
            bound, floor = f32(optimizer.cowclip_ratio) * np.sqrt(sum_of_squares(w)), optimizer.cowclip_floor
            g = clipped(g, f32(shows) * (bound if bound > f32(floor) else f32(floor)))
        if isinstance(optimizer, AdamL2):
            for _ in range(1, int(min(missed, AdamL2.CATCH_UP_MAX)) if missed > 1 else 1):
                finite_step(optimizer, w, state, f32(optimizer.l2) * w)
            g = g + f32(optimizer.l2) * w
        finite_step(optimizer, w, state, g)
