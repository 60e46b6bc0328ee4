"""Cross-entropy over a target and sampled negatives, corrected for how they were sampled.

For a state h with target t and negatives k = 1..K that all positions of a batch share, each drawn with
probability q(k) (Bengio and Senecal 2008; Jean et al., ACL 2015, arXiv:1412.2007; in GRU4Rec as "logq")::

    s(j)    = <h, v_j> + b_j - log q(j)          j = t, 1, ..., K;  s(k) = -inf where k is the target itself
    loss    = -s(t) + log sum_j exp s(j)

Without the correction (shifts of zero) it is GRU4Rec's cross-entropy (Hidasi and Karatzoglou, CIKM 2018,
arXiv:1706.03847).
"""

from __future__ import annotations

import numpy as np

from rec_models.scored import Scored, hand_back, scores_of
from rec_models.tape import Array, Tape, Var

__all__ = ["sampled_softmax"]


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
    s_t, s_k = scores_of(h, targets, negatives)
    top = np.maximum(s_t, s_k.max(axis=1, initial=-np.inf))
    losses = top - s_t
    e_t = np.exp(s_t - top)
    e_k = np.exp(np.subtract(s_k, top[:, None], out=s_k), out=s_k)
    total = e_t + e_k.sum(axis=1)
    losses += np.log(total)
    positions = max(1, positions)

    def backward(gradient: Array) -> None:
        scale = (gradient / positions).astype(h.value.dtype)
        hand_back(h, targets, negatives, (e_t / total - 1) * scale, e_k * (scale / total)[:, None])

    return tape.record(np.asarray(losses.sum() / positions, h.value.dtype), backward)
