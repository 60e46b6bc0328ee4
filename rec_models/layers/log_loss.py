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


def log_loss(tape: Tape, logits: Var, labels: Array, examples: int | None = None) -> Var:
    """Mean log loss of a batch.

    Parameters
    ----------
    logits : (B,)
    labels : (B,)
        0 or 1, of any dtype.
    examples : int or None
        Examples to take the mean over, when these are some of a larger batch; None: they are all.

    Returns
    -------
    ()
        Sum over examples divided by their number, 0 where there are none; backward ``dz = dy (sigmoid(z) - y)
        / B``.
    """
    z = logits.value
    y = labels.astype(z.dtype, copy=False)
    examples = max(1, z.size if examples is None else examples)
    losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))

    def backward(gradient: Array) -> None:
        logits.accumulate((sigmoid_of(z) - y) * (gradient / examples))

    return tape.record(np.asarray(losses.sum() / examples, z.dtype), backward)
