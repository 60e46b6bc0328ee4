"""Activations: relu, sigmoid, tanh, parametric relu (PReLU) and Dice."""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Array, Tape, Var, layer
from rec_models.layers.normalization import batch_norm


@layer
def relu(tape: Tape, x: Var) -> Var:
    """``y = max(x, 0)``; backward ``dx = dy where x > 0``, 0 at the kink. Any shape."""
    value = np.maximum(x.value, 0, out=tape.empty_like(x.value))

    def backward(gradient: Array) -> None:
        onward = np.multiply(gradient, value > 0, out=tape.empty_like(value))
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)


@layer
def sigmoid(tape: Tape, x: Var) -> Var:
    """``y = 1 / (1 + exp(-x))``; backward ``dx = dy y (1 - y)``. Any shape."""
    value = sigmoid_of(x.value)

    def backward(gradient: Array) -> None:
        x.accumulate(gradient * value * (1 - value))

    return tape.record(value, backward)


@layer
def tanh(tape: Tape, x: Var) -> Var:
    """``y = tanh(x)``; backward ``dx = dy (1 - y^2)``. Any shape."""
    value = np.tanh(x.value)

    def backward(gradient: Array) -> None:
        x.accumulate(gradient * (1 - value * value))

    return tape.record(value, backward)


def sigmoid_of(x: Array) -> Array:
    """Compute the sigmoid of an array in its dtype, without overflow, precise for very negative ``x``."""
    small = np.exp(-np.abs(x))  # in (0, 1]: the exponential that can't overflow
    return np.where(x >= 0, 1, small) / (1 + small)


@layer
def prelu(tape: Tape, x: Var, alpha: Var) -> Var:
    """Parametric relu: negative values have a learned slope.

    Parameters
    ----------
    x : (B, N)
    alpha : (N,)

    Returns
    -------
    (B, N)
        ``y = max(x, 0) + alpha min(x, 0)``; backward ``dx = dy`` where ``x > 0``, else ``alpha dy``;
        ``dalpha = sum over the batch of dy min(x, 0)``.

    Notes
    -----
    He et al., ICCV 2015, arXiv:1502.01852, eq. 1; Deep Interest Network, arXiv:1706.06978, eq. 2.
    """
    below = np.minimum(x.value, 0)

    def backward(gradient: Array) -> None:
        x.accumulate(np.where(x.value > 0, gradient, gradient * alpha.value), owned=True)
        alpha.accumulate(np.einsum("bn,bn->n", gradient, below), owned=True)

    return tape.record(np.maximum(x.value, 0) + alpha.value * below, backward)


@layer
def dice(tape: Tape, x: Var, alpha: Var, mean: Var, inv_std: Var) -> Var:
    """Dice: a PReLU whose threshold is the mean of its unit, with a smooth transition.

    Parameters
    ----------
    x : (B, N)
    alpha : (N,)
    mean, inv_std : (N,)
        Statistics for predictions, as in `batch_norm`.

    Returns
    -------
    (B, N)
        ``y = p x + (1 - p) alpha x`` with ``p = sigmoid(n)`` and ``n`` the normalised ``x``; backward
        ``dx = dy (p + (1 - p) alpha)`` plus the gradient through ``n``, ``dn = dy x (1 - alpha) p (1 - p)``;
        ``dalpha = sum over the batch of dy (1 - p) x``.

    Notes
    -----
    Zhou et al., Deep Interest Network, KDD 2018, arXiv:1706.06978, eq. 3. Epsilon is 1e-5, as in batch
    norm, where the paper has 1e-8.
    """
    ones, zeros = Var(np.ones_like(alpha.value)), Var(np.zeros_like(alpha.value))
    n = batch_norm(tape, x, ones, zeros, mean, inv_std)
    p = sigmoid_of(n.value)
    slope = p + (1 - p) * alpha.value

    def backward(gradient: Array) -> None:
        through = gradient * x.value
        n.accumulate(through * (1 - alpha.value) * p * (1 - p), owned=True)
        x.accumulate(gradient * slope, owned=True)
        alpha.accumulate(np.einsum("bn,bn->n", through, 1 - p), owned=True)

    return tape.record(x.value * slope, backward)
