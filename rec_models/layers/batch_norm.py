"""Batch normalisation."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["batch_norm"]

EPSILON = 1e-5
"""Added to a variance before its root, as the paper and PyTorch do."""


def batch_norm(tape: Tape, x: Var, scale: Var, shift: Var, mean: Var, inv_std: Var) -> Var:
    """Give every unit mean 0 and deviation 1 over the examples, then a scale and a shift of its own.

    Parameters
    ----------
    x : (B, N)
    scale, shift : (N,)
        Gamma and beta of the paper.
    mean, inv_std : (N,)
        Mean and ``1 / sqrt(variance + epsilon)`` for predictions; training neither reads nor changes them,
        and they get no gradient. A tape that measures notes what they ought to be.

    Returns
    -------
    (B, N)
        ``y = scale * n + shift`` with ``n = (x - m) i``; in training ``m`` and ``i`` are those of the
        examples on this tape, in a prediction the given ones. Backward ``dshift = sum dy``,
        ``dscale = sum dy n``, ``dx = scale i (dy - dshift / B - n dscale / B)``.

    Notes
    -----
    Ioffe and Szegedy, arXiv:1502.03167, algorithm 1. A tape holds a part of a batch, so statistics are of 256
    to 512 examples however large the batch is: ghost batch norm, Hoffer et al., arXiv:1705.08741, section 4.
    """
    if not tape.training and tape.measured is None:
        return tape.record((x.value - mean.value) * (inv_std.value * scale.value) + shift.value, _nothing)
    examples = max(1, x.value.shape[0])
    m = x.value.sum(axis=0) / x.value.dtype.type(examples)
    n = np.subtract(x.value, m, out=tape.empty(x.value.shape, x.value.dtype))
    variance = np.einsum("bn,bn->n", n, n) / x.value.dtype.type(examples)
    inverse = 1 / np.sqrt(variance + x.value.dtype.type(EPSILON))
    n *= inverse
    tape.measure(mean, m)
    tape.measure(inv_std, inverse)
    value = np.multiply(n, scale.value, out=tape.empty(x.value.shape, x.value.dtype))
    value += shift.value

    def backward(gradient: Array) -> None:
        shift_gradient = gradient.sum(axis=0)
        scale_gradient = np.einsum("bn,bn->n", gradient, n)
        onward = np.multiply(n, -scale_gradient / examples, out=tape.empty(x.value.shape, x.value.dtype))
        onward += gradient
        onward -= shift_gradient / examples
        onward *= scale.value * inverse
        x.accumulate(onward, owned=True)
        scale.accumulate(scale_gradient, owned=True)
        shift.accumulate(shift_gradient, owned=True)

    return tape.record(value, backward)


def _nothing(gradient: Array) -> None:
    """Predictions have no gradient."""
