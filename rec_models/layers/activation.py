"""Activations: relu, sigmoid, tanh."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["relu", "sigmoid", "sigmoid_of", "tanh"]


def relu(tape: Tape, x: Var) -> Var:
    """``y = max(x, 0)``; backward ``dx = dy where x > 0``, 0 at the kink. Any shape."""
    value = np.maximum(x.value, 0, out=tape.empty(x.value.shape, x.value.dtype))

    def backward(gradient: Array) -> None:
        onward = np.multiply(gradient, value > 0, out=tape.empty(value.shape, value.dtype))
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)


def sigmoid(tape: Tape, x: Var) -> Var:
    """``y = 1 / (1 + exp(-x))``; backward ``dx = dy y (1 - y)``. Any shape."""
    value = sigmoid_of(x.value)

    def backward(gradient: Array) -> None:
        x.accumulate(gradient * value * (1 - value))

    return tape.record(value, backward)


def tanh(tape: Tape, x: Var) -> Var:
    """``y = tanh(x)``; backward ``dx = dy (1 - y^2)``. Any shape."""
    value = np.tanh(x.value)

    def backward(gradient: Array) -> None:
        x.accumulate(gradient * (1 - value * value))

    return tape.record(value, backward)


def sigmoid_of(x: Array) -> Array:
    """Sigmoid of an array, of its dtype: no overflow, and full relative precision for very negative ``x``."""
    small = np.exp(-np.abs(x))  # in (0, 1]: the exponential that can't overflow
    return np.where(x >= 0, 1, small) / (1 + small)
