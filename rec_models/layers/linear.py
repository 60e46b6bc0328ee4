"""Fully connected layers: products with a weight matrix, with bias, relu and an output unit fused."""

from __future__ import annotations

import numpy as np

from cython_ext.model.fused_layers import head_gradient, relu_gradient
from rec_models.engine.products import times, times_transposed
from rec_models.engine.tape import Array, Tape, Var, layer


@layer
def linear(tape: Tape, x: Var, weights: Var, bias: Var) -> Var:
    """Fully connected layer.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)

    Returns
    -------
    (B, M)
        ``y = x W + b``; backward ``dx = dy W^T``, ``dW = x^T dy``, ``db = sum over the batch of dy``.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    value = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value)

    def backward(gradient: Array) -> None:
        onward = times_transposed(gradient, weights, tape.empty_like(x.value))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, gradient)
        bias.accumulate(gradient.sum(axis=0), owned=True)

    return tape.record(value, backward)


@layer
def linear_relu(tape: Tape, x: Var, weights: Var, bias: Var) -> Var:
    """Fully connected layer with relu: `linear`, then `relu`, without an array in between.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)

    Returns
    -------
    (B, M)
        ``y = max(x W + b, 0)``; backward ``dz = dy where y > 0``, 0 at the kink, ``dx = dz W^T``,
        ``dW = x^T dz``, ``db = sum over the batch of dz``.

    Notes
    -----
    Bits are those of the two separate layers.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    value = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value, relu=True)

    def backward(gradient: Array) -> None:
        dy = np.ascontiguousarray(gradient)
        dz = dy if output.owns_gradient and dy is gradient else tape.empty(shape, dy.dtype)
        bias_gradient = np.zeros_like(bias.value)
        relu_gradient(dy, value, dz, bias_gradient)
        onward = times_transposed(dz, weights, tape.empty(x.value.shape, dy.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, dz)
        bias.accumulate(bias_gradient, owned=True)

    output = tape.record(value, backward)
    return output


@layer
def relu_head(tape: Tape, x: Var, weights: Var, bias: Var, out_weights: Var, out_bias: Var) -> Var:
    """Last two layers of an MLP: `linear_relu`, then `linear` to one unit, with a fused backward pass.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)
    out_weights : (M, 1)
    out_bias : (1,)

    Returns
    -------
    (B,)
        ``a = max(x W + b, 0)``, ``y = a w + c``; backward ``dz = dy w^T where a > 0``, ``dw = a^T dy``,
        ``dc = sum of dy``, ``db = sum of dz``, ``dW = x^T dz``, ``dx = dz W^T``.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    a = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value, relu=True)
    value = a @ out_weights.value[:, 0]
    value += out_bias.value

    def backward(gradient: Array) -> None:
        dz, db, dw = tape.empty(shape, a.dtype), np.zeros_like(bias.value), np.zeros_like(out_weights.value)
        dy = np.ascontiguousarray(gradient)
        head_gradient(dy, a, np.ascontiguousarray(out_weights.value[:, 0]), dz, db, dw[:, 0])
        onward = times_transposed(dz, weights, tape.empty(x.value.shape, a.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, dz)
        bias.accumulate(db, owned=True)
        out_weights.accumulate(dw, owned=True)
        out_bias.accumulate(gradient.sum(keepdims=True), owned=True)

    return tape.record(value, backward)


@layer
def product(tape: Tape, x: Var, weights: Var) -> Var:
    """Product with a matrix, without a bias.

    Parameters
    ----------
    x : (B, N) or (B, F, N)
    weights : (N, M)

    Returns
    -------
    (B, M) or (B, F, M)
        ``y = x W``; backward ``dx = dy W^T``, ``dW = x^T dy``, summed over all vectors.
    """
    value = tape.empty((*x.value.shape[:-1], weights.value.shape[1]), x.value.dtype)
    times(
        _vectors(x.value), weights, _vectors(value)
    )  # one product; NumPy would compute one for each example

    def backward(gradient: Array) -> None:
        onward = tape.empty_like(x.value)
        times_transposed(_vectors(gradient), weights, _vectors(onward))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(_vectors(x.value), _vectors(gradient))

    return tape.record(value, backward)


def _vectors(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1]) if x.size else np.zeros((0, x.shape[-1]), x.dtype)
