"""Log loss (binary cross-entropy) of logits, and the logit of a product of probabilities."""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Array, Tape, Var, layer
from rec_models.layers.activations import sigmoid_of


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
        Divisor of the sum over examples: the number or the sum of weights of the examples of the whole batch,
        if these are a part of it. None: that of these examples.
    weights : (B,) or None
        Weights of examples: one of weight 2 counts like two of weight 1. None: all equal.

    Returns
    -------
    ()
        Sum over examples and tasks divided by ``total``, 0 if that is 0; backward
        ``dz = dy w (sigmoid(z) - y) / total``.

    Notes
    -----
    With ``p = sigmoid(z)`` the loss is
    ``-y log p - (1 - y) log(1 - p) = max(z, 0) - z y + log(1 + exp(-|z|))``. The right-hand form never
    overflows and is precise for large ``|z|``, so logits are not clipped.
    """
    z = logits.value
    y = labels.astype(z.dtype, copy=False)
    if total is None:
        total = float(z.shape[0] if weights is None else weights.sum(dtype=np.float64))
    divisor = total or 1.0
    losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    if weights is None:
        share = z.dtype.type(1)
    else:  # shares of the sum, since weights may be close to the limits of float32
        share = (weights / np.float64(divisor)).astype(z.dtype).reshape(-1, *[1] * (z.ndim - 1))
        losses, divisor = losses * share, 1.0

    def backward(gradient: Array) -> None:
        onward = (sigmoid_of(z) - y) * (gradient / divisor)
        logits.accumulate(onward if weights is None else onward * share, owned=True)

    return tape.record(np.asarray(losses.sum() / divisor, z.dtype), backward)


@layer
def logit_of_product(tape: Tape, a: Var, b: Var) -> Var:
    """Logit of the product of two probabilities: that both events happen.

    Parameters
    ----------
    a, b : any shape
        Logits.

    Returns
    -------
    like a
        ``c = logit(sigmoid(a) sigmoid(b))``; backward ``da = dc (e^-a + e^(-a - b)) e^c``, likewise ``db``.

    Notes
    -----
    For ``p = sigmoid(a)`` and ``q = sigmoid(b)``, ``p q / (1 - p q) = 1 / (e^-a + e^-b + e^(-a - b))``, whose
    logarithm is ``-logsumexp(-a, -b, -a - b)``, which never overflows.
    """
    left, right = -a.value, -b.value
    c = -np.logaddexp(np.logaddexp(left, right), left + right)
    for_a = np.exp(np.logaddexp(left, left + right) + c)
    for_b = np.exp(np.logaddexp(right, left + right) + c)

    def backward(gradient: Array) -> None:
        a.accumulate(gradient * for_a, owned=True)
        b.accumulate(gradient * for_b, owned=True)

    return tape.record(c, backward)
