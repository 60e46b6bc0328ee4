"""Each element of a list beside its neighbours: what a convolution over lists multiplies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array, Tape, Var

__all__ = ["windows"]


def windows(tape: Tape, x: Var, offsets: NDArray[np.int64], size: int) -> Var:
    """Lay the ``size`` elements around each one side by side, zeros beyond the ends of its list.

    Parameters
    ----------
    x : (N, D)
        Elements of lists that stand one after the other.
    offsets : (B + 1,)
        Where each list begins, and N.
    size : int

    Returns
    -------
    (N, size * D)
        ``y_n = [x_{n - h}, ..., x_n, ..., x_{n - h + size - 1}]`` with ``h = (size - 1) // 2``. Backward:
        each element sums the gradients of its places.
    """
    elements, dim = x.value.shape
    owners = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    first, last = offsets[owners], offsets[owners + 1]
    here = np.arange(elements)
    shifts = range(-((size - 1) // 2), size - (size - 1) // 2)
    inside = [np.flatnonzero((here + shift >= first) & (here + shift < last)) for shift in shifts]
    value = np.zeros((elements, size, dim), x.value.dtype)
    for place, (shift, some) in enumerate(zip(shifts, inside, strict=True)):
        value[some, place] = x.value[some + shift]

    def backward(gradient: Array) -> None:
        by_place = gradient.reshape(elements, size, dim)
        onward = np.zeros_like(x.value)
        for place, (shift, some) in enumerate(zip(shifts, inside, strict=True)):
            onward[some + shift] += by_place[some, place]
        x.accumulate(onward, owned=True)

    return tape.record(value.reshape(elements, size * dim), backward)
