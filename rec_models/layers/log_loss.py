"""Log loss (binary cross-entropy) from logits.

For one example with logit z and label y in {0, 1}, p = sigmoid(z):

    loss(z, y)      = -y log p - (1 - y) log(1 - p) = max(z, 0) - z y + log(1 + exp(-|z|))
    d loss / d z    = p - y

The right-hand form never overflows and loses no precision for large |z|, so logits are clipped nowhere.
"""

from __future__ import annotations

import numpy as np

from rec_models.layers.activation import sigmoid_of
from rec_models.tape import Array, Tape, Var

__all__ = ["log_loss"]


def log_loss(
    tape: Tape, logits: Var, labels: Array, total: float | None = None, weights: Array | None = None
) -> Var:
    """Mean log loss of a batch.

    Parameters
    ----------
    logits : (B,), or (B, T) for several tasks
    labels : like logits
        0 or 1, of any dtype.
    total : float or None
        What the sum over examples is divided by: their number or the sum of their weights, of the whole batch
        when these are some of it. None: what that is for these.
    weights : (B,) or None
        How much each example counts: one of weight 2 like two of weight 1. None: all alike.

    Returns
    -------
    ()
        Sum over examples and tasks divided by ``total``, 0 where that is 0; backward
        ``dz = dy w (sigmoid(z) - y) / total``.
    """
    z = logits.value
    y = labels.astype(z.dtype, copy=False)
    if total is None:
        total = float(z.shape[0] if weights is None else weights.sum(dtype=np.float64))
    divisor = total or 1.0
    losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    if weights is None:
        share = z.dtype.type(1)
    else:  # weights may be as large or small as float32 goes: their shares of the sum are not
        share = (weights / np.float64(divisor)).astype(z.dtype).reshape(-1, *[1] * (z.ndim - 1))
        losses, divisor = losses * share, 1.0

    def backward(gradient: Array) -> None:
        onward = (sigmoid_of(z) - y) * (gradient / divisor)
        logits.accumulate(onward if weights is None else onward * share, owned=True)

    return tape.record(np.asarray(losses.sum() / divisor, z.dtype), backward)
