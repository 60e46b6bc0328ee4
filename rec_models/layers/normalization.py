"""Normalisation: batch norm, layer norm, and vectors of equal length."""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Array, Tape, Var, layer

EPSILON = 1e-5
"""Added to a variance before its root, as the paper and PyTorch do."""


@layer
def batch_norm(tape: Tape, x: Var, scale: Var, shift: Var, mean: Var, inv_std: Var) -> Var:
    """Normalise every unit over the examples to mean 0 and deviation 1, then scale and shift it.

    Parameters
    ----------
    x : (B, N)
    scale, shift : (N,)
        Gamma and beta of the paper.
    mean, inv_std : (N,)
        Mean and ``1 / sqrt(variance + epsilon)`` for predictions; training neither reads nor changes them,
        and they get no gradient. A tape that measures records their values on its examples.

    Returns
    -------
    (B, N)
        ``y = scale * n + shift`` with ``n = (x - m) i``; in training ``m`` and ``i`` are those of the
        examples on this tape, in a prediction the given ones. Backward ``dshift = sum dy``,
        ``dscale = sum dy n``, ``dx = scale i (dy - dshift / B - n dscale / B)``.

    Notes
    -----
    Ioffe and Szegedy, arXiv:1502.03167, algorithm 1. A tape holds a part of a batch, so statistics are of 256
    to 512 examples for any batch size: ghost batch norm, Hoffer et al., arXiv:1705.08741, section 4.
    """
    if not tape.training and tape.measured is None:
        return tape.record((x.value - mean.value) * (inv_std.value * scale.value) + shift.value, _nothing)
    examples = max(1, x.value.shape[0])
    m = x.value.sum(axis=0) / x.value.dtype.type(examples)
    n = np.subtract(x.value, m, out=tape.empty_like(x.value))
    variance = np.einsum("bn,bn->n", n, n) / x.value.dtype.type(examples)
    inverse = 1 / np.sqrt(variance + x.value.dtype.type(EPSILON))
    n *= inverse
    tape.measure(mean, m)
    tape.measure(inv_std, inverse)
    value = np.multiply(n, scale.value, out=tape.empty_like(x.value))
    value += shift.value

    def backward(gradient: Array) -> None:
        shift_gradient = gradient.sum(axis=0)
        scale_gradient = np.einsum("bn,bn->n", gradient, n)
        onward = np.multiply(n, -scale_gradient / examples, out=tape.empty_like(x.value))
        onward += gradient
        onward -= shift_gradient / examples
        onward *= scale.value * inverse
        x.accumulate(onward, owned=True)
        scale.accumulate(scale_gradient, owned=True)
        shift.accumulate(shift_gradient, owned=True)

    return tape.record(value, backward)


def _nothing(gradient: Array) -> None:
    """Ignore the gradient: predictions have none."""


EPSILON = 1e-5
"""Added to a variance before its root, as PyTorch does."""


@layer
def layer_norm(tape: Tape, x: Var, scale: Var, shift: Var) -> Var:
    """Normalise every vector over its units to mean 0 and deviation 1, then scale and shift each unit.

    Parameters
    ----------
    x : (B, N)
    scale, shift : (N,)

    Returns
    -------
    (B, N)
        ``y = scale * n + shift`` with ``n = (x - m) i``, ``m`` the mean of a row and ``i`` one over its
        deviation. Backward ``dshift = sum dy``, ``dscale = sum dy n``, and with ``g = scale dy`` row by row
        ``dx = i (g - mean of g - n mean of (g n))``.

    Notes
    -----
    Ba, Kiros and Hinton, arXiv:1607.06450, eq. 4. Examples are independent, so training in parts and
    predictions compute the same function.
    """
    units = x.value.dtype.type(max(1, x.value.shape[1]))
    n = np.subtract(x.value, x.value.sum(axis=1, keepdims=True) / units, out=tape.empty_like(x.value))
    variance = np.einsum("bn,bn->b", n, n) / units
    inverse = (1 / np.sqrt(variance + x.value.dtype.type(EPSILON)))[:, None]
    n *= inverse
    value = np.multiply(n, scale.value, out=tape.empty_like(x.value))
    value += shift.value

    def backward(gradient: Array) -> None:
        scale.accumulate(np.einsum("bn,bn->n", gradient, n), owned=True)
        shift.accumulate(gradient.sum(axis=0), owned=True)
        onward = gradient * scale.value
        along = np.einsum("bn,bn->b", onward, n)[:, None] / units
        onward -= onward.sum(axis=1, keepdims=True) / units
        onward -= n * along
        onward *= inverse
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)


@layer
def normalize(tape: Tape, x: Var, length: float = 1.0) -> Var:
    """Scale every vector to the same length, so that inner products are cosines.

    Parameters
    ----------
    x : (B, N)
    length : float

    Returns
    -------
    (B, N)
        ``y = c x / |x|``, zeros for zeros; with ``e = x / |x|`` backward
        ``dx = c / |x| (dy - e <e, dy>)``.
    """
    norms = np.sqrt(np.einsum("bn,bn->b", x.value, x.value))[:, None]
    norms = np.where(norms > 0, norms, 1).astype(x.value.dtype)
    unit = x.value / norms
    scale = x.value.dtype.type(length)

    def backward(gradient: Array) -> None:
        along = np.einsum("bn,bn->b", unit, gradient)[:, None]
        x.accumulate((gradient - unit * along) * (scale / norms), owned=True)

    return tape.record(unit * scale, backward)
