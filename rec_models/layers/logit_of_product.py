"""The logit of a product of two probabilities, from their logits.

For p = sigmoid(a) and q = sigmoid(b)::

    p q / (1 - p q) = 1 / (e^-a + e^-b + e^(-a - b))

so that its logarithm is ``-logsumexp(-a, -b, -a - b)``, which never overflows.
"""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["logit_of_product"]


def logit_of_product(tape: Tape, a: Var, b: Var) -> Var:
    """What has the probability that both happen.

    Parameters
    ----------
    a, b : any shape
        Logits.

    Returns
    -------
    like a
        ``c = logit(sigmoid(a) sigmoid(b))``; backward ``da = dc (e^-a + e^(-a - b)) e^c``, and so for ``b``.
    """
    left, right = -a.value, -b.value
    c = -np.logaddexp(np.logaddexp(left, right), left + right)
    for_a = np.exp(np.logaddexp(left, left + right) + c)
    for_b = np.exp(np.logaddexp(right, left + right) + c)

    def backward(gradient: Array) -> None:
        a.accumulate(gradient * for_a, owned=True)
        b.accumulate(gradient * for_b, owned=True)

    return tape.record(c, backward)
