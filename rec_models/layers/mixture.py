"""A mixture of experts, weighed by a softmax gate."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["mixture"]


def mixture(tape: Tape, scores: Var, *experts: Var) -> Var:
    """Mix what several experts say of each example.

    Parameters
    ----------
    scores : (B, E)
        Of the gate, before its softmax.
    *experts : (B, M)
        E of them.

    Returns
    -------
    (B, M)
        ``y = sum_i g_i f_i`` with ``g = softmax(s)``; backward ``df_i = g_i dy``, ``dg_i = <dy, f_i>``,
        ``ds = g (dg - <g, dg>)``.

    Notes
    -----
    Ma et al., Multi-gate Mixture-of-Experts, KDD 2018, 10.1145/3219819.3220007, eq. 6 and 7.
    """
    g = np.exp(scores.value - scores.value.max(axis=1, keepdims=True))
    g /= g.sum(axis=1, keepdims=True)
    value = np.zeros_like(experts[0].value)
    for i, expert in enumerate(experts):
        value += g[:, i : i + 1] * expert.value

    def backward(gradient: Array) -> None:
        of_gate = np.stack([np.einsum("bm,bm->b", gradient, expert.value) for expert in experts], axis=1)
        inner = np.einsum("be,be->b", g, of_gate)
        scores.accumulate(g * (of_gate - inner[:, None]), owned=True)
        for i, expert in enumerate(experts):
            expert.accumulate(g[:, i : i + 1] * gradient, owned=True)

    return tape.record(value, backward)
