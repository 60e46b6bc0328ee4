"""BPR-max: a target against the negatives that score highest.

Hidasi and Karatzoglou, CIKM 2018, arXiv:1706.03847, section 3.3 and eq. of BPR-max with regularisation.

For a state with a target that scores r and negatives j = 1..K that score r_j::

    s_j  = softmax of r_j over the negatives that are not the target
    loss = -log sum_j s_j sigmoid(r - r_j)  +  bpreg sum_j s_j r_j^2
"""

from __future__ import annotations

import numpy as np

from rec_models.layers.activation import sigmoid_of
from rec_models.scored import Scored, hand_back, scores_of
from rec_models.tape import Array, Tape, Var

__all__ = ["bpr_max"]


def bpr_max(
    tape: Tape, h: Var, targets: Scored, negatives: Scored, positions: int, bpreg: float = 0.0
) -> Var:
    """Mean loss over positions; one with no negative but its own target loses nothing.

    Parameters
    ----------
    h, targets, negatives, positions
        As `sampled_softmax` takes them.
    bpreg : float
        Weight of the negatives' squared scores.

    Returns
    -------
    ()
        With ``p_j`` the share of j in the first sum, backward ``dr = -sum_j p_j sigmoid(r_j - r)``,
        ``dr_j = s_j - p_j sigmoid(r - r_j) + bpreg s_j (r_j^2 + 2 r_j - sum_i s_i r_i^2)``, over positions.
    """
    r_t, r = scores_of(h, targets, negatives)
    s, log_total = _softmax(r)
    margin = r_t[:, None] - r  # inf for a negative that is the target
    below = sigmoid_of(margin)
    log_below = np.minimum(margin, 0) - np.log1p(np.exp(-np.abs(margin)))
    p, log_sum = _softmax(r - log_total[:, None] + log_below)
    r = np.where(np.isfinite(r), r, 0)
    squares = r * r
    penalty = (s * squares).sum(axis=1)
    losses = r.dtype.type(bpreg) * penalty - log_sum
    positions = max(1, positions)

    def backward(gradient: Array) -> None:
        scale = (gradient / positions).astype(r.dtype)
        d_t = -(p * (1 - below)).sum(axis=1)
        d_k = s - p * below
        d_k += r.dtype.type(bpreg) * s * (squares + 2 * r - penalty[:, None])
        hand_back(h, targets, negatives, d_t * scale, d_k * scale)

    return tape.record(np.asarray(losses.sum() / positions, r.dtype), backward)


def _softmax(x: Array) -> tuple[Array, Array]:
    """Shares (N, K) and the logarithm of their divisor (N,); zeros for rows of -inf."""
    top = x.max(axis=1, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(x - top[:, None])
    total = e.sum(axis=1)
    total[total == 0] = 1
    return e / total[:, None], top + np.log(total)
