"""Inverted dropout with reproducible masks."""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Array, Tape, Var

_STEPS = 1 << 16
"""A mask takes 16 random bits per element, a quarter of a float64's; rates are rounded to 1/65,536."""


def dropout(tape: Tape, x: Var, rate: float) -> Var:
    """Zero a fraction of the elements in training and scale up the others, which keeps the mean.

    Parameters
    ----------
    x : any shape
    rate : float
        Fraction to drop, 0 <= rate < 1. With 0, or outside training, ``x`` itself is returned.

    Returns
    -------
    like x
        ``y = x m / keep``, m drawn from a counter-based generator (Philox): the same step seed gives the same
        mask in every run, for every dtype, on every machine. Backward ``dx = dy m / keep``.

    Notes
    -----
    Srivastava et al., JMLR 15 (2014), scaled in training (section 10) so that predictions need no change.
    """
    if not tape.training or rate == 0:
        return x
    kept = max(1, round((1 - rate) * _STEPS))
    words = tape.random_words(-(-x.value.size // 4)).astype("<u8", copy=False)
    bits = words.view("<u2")[: x.value.size].reshape(x.value.shape)
    shape, dtype = x.value.shape, x.value.dtype
    factors = np.multiply(bits < kept, _STEPS / kept, dtype=dtype, out=tape.empty(shape, dtype))

    def backward(gradient: Array) -> None:
        x.accumulate(np.multiply(gradient, factors, out=tape.empty(shape, dtype)), owned=True)

    return tape.record(np.multiply(x.value, factors, out=tape.empty(shape, dtype)), backward)
