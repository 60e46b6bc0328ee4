"""Cross-entropy over a target and sampled negatives, corrected for how they were sampled.

For a state h with target t and negatives k = 1..K that all positions of a batch share, each drawn with
probability q(k) (Bengio and Senecal 2008; Jean et al., ACL 2015, arXiv:1412.2007; in GRU4Rec as "logq")::

    s(j)    = <h, v_j> + b_j - log q(j)          j = t, 1, ..., K;  s(k) = -inf where k is the target itself
    loss    = -s(t) + log sum_j exp s(j)

Without the correction (shifts of zero) it is GRU4Rec's cross-entropy (Hidasi and Karatzoglou, CIKM 2018,
arXiv:1706.03847).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array, Tape, Var

__all__ = ["Scored", "sampled_softmax"]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Vectors and biases of what is ranked.

    Attributes
    ----------
    vectors : (M, D)
    biases : (M, 1)
    ids : (M,) integers
        The same number for the same item.
    log_q : (M,) floats
        Logarithm of the chance to be drawn; zeros: no correction.
    """

    vectors: Var
    biases: Var
    ids: NDArray[np.integer]
    log_q: NDArray[np.floating]


def sampled_softmax(tape: Tape, h: Var, targets: Scored, negatives: Scored, positions: int) -> Var:
    """Mean loss over positions.

    Parameters
    ----------
    h : (N, D)
    targets : Scored
        Of N, one a position.
    negatives : Scored
        Of K, for all positions.
    positions : int
        What the mean is over: those of the whole batch, when these are a part of it.

    Returns
    -------
    ()
        Backward ``ds = (softmax(s) - [is target]) / positions``.
    """
    v_t, v_k = targets.vectors, negatives.vectors
    dtype = h.value.dtype
    s_t = np.einsum("nd,nd->n", h.value, v_t.value) + targets.biases.value[:, 0]
    s_t -= targets.log_q.astype(dtype)
    s_k = h.value @ v_k.value.T
    s_k += negatives.biases.value[:, 0] - negatives.log_q.astype(dtype)
    s_k[targets.ids[:, None] == negatives.ids[None, :]] = -np.inf
    top = np.maximum(s_t, s_k.max(axis=1, initial=-np.inf))
    losses = top - s_t
    e_t = np.exp(s_t - top)
    e_k = np.exp(np.subtract(s_k, top[:, None], out=s_k), out=s_k)
    total = e_t + e_k.sum(axis=1)
    losses += np.log(total)
    positions = max(1, positions)

    def backward(gradient: Array) -> None:
        scale = (gradient / positions).astype(dtype)
        d_t = ((e_t / total - 1) * scale)[:, None]
        d_k = e_k * (scale / total)[:, None]
        h.accumulate(d_k @ v_k.value + d_t * v_t.value, owned=True)
        v_t.accumulate(d_t * h.value, owned=True)
        v_k.accumulate(d_k.T @ h.value, owned=True)
        targets.biases.accumulate(d_t, owned=True)
        negatives.biases.accumulate(d_k.sum(axis=0)[:, None], owned=True)

    return tape.record(np.asarray(losses.sum() / positions, dtype), backward)
