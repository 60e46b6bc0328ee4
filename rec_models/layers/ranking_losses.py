"""Losses that rank a target above negatives, which all positions or queries of a batch share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers.activations import sigmoid_of

AT_ONCE = 1 << 20
"""Limit of scores in memory at once in `rank_hinge`: their temporary arrays take 30 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Vectors and biases of candidates: the target of each position, or negatives for all positions.

    Attributes
    ----------
    vectors : (M, D)
    biases : (M, 1)
    ids : (M,) integers
        Equal for equal items.
    log_q : (M,) floats
        Logarithm of the sampling probability; zeros for no correction.
    """

    vectors: Var
    biases: Var
    ids: NDArray[np.integer]
    log_q: NDArray[np.floating]


def sampled_softmax(tape: Tape, h: Var, targets: Candidates, negatives: Candidates, positions: int) -> Var:
    """Cross-entropy of a target among sampled negatives, corrected for their sampling probability.

    Parameters
    ----------
    h : (N, D)
        States.
    targets : Candidates
        N targets, one per position.
    negatives : Candidates
        K negatives for all positions.
    positions : int
        Divisor of the mean: the positions of the whole batch, if these are a part of it.

    Returns
    -------
    ()
        Mean of ``-s(t) + log sum_j exp s(j)`` over targets t, with j = t, 1, ..., K,
        ``s(j) = <h, v_j> + b_j - log q(j)``, and -inf for a negative that is the target itself. Backward
        ``ds = (softmax(s) - [is target]) / positions``.

    Notes
    -----
    Bengio and Senecal 2008; Jean et al., ACL 2015, arXiv:1412.2007; in GRU4Rec as "logq". Without the
    correction it is GRU4Rec's cross-entropy (Hidasi and Karatzoglou, CIKM 2018, arXiv:1706.03847).
    """
    s_t, s_k = _scores(h, targets, negatives)
    top = np.maximum(s_t, s_k.max(axis=1, initial=-np.inf))
    losses = top - s_t
    e_t = np.exp(s_t - top)
    e_k = np.exp(np.subtract(s_k, top[:, None], out=s_k), out=s_k)
    total = e_t + e_k.sum(axis=1)
    losses += np.log(total)
    positions = max(1, positions)

    def backward(gradient: Array) -> None:
        scale = (gradient / positions).astype(h.value.dtype)
        _accumulate_scores(h, targets, negatives, (e_t / total - 1) * scale, e_k * (scale / total)[:, None])

    return tape.record(np.asarray(losses.sum() / positions, h.value.dtype), backward)


def bpr_max(
    tape: Tape, h: Var, targets: Candidates, negatives: Candidates, positions: int, bpreg: float = 0.0
) -> Var:
    """BPR-max: a target against the negatives with the highest scores.

    Parameters
    ----------
    h, targets, negatives, positions
        As for `sampled_softmax`.
    bpreg : float
        Weight of the negatives' squared scores.

    Returns
    -------
    ()
        Mean of ``-log sum_j s_j sigmoid(r - r_j) + bpreg sum_j s_j r_j^2``, with r the score of the target,
        r_j that of negative j, and s the softmax of the r_j without the target itself; 0 for a position
        without other negatives. With ``p_j`` the fraction of j in the first sum, backward
        ``dr = -sum_j p_j sigmoid(r_j - r)``,
        ``dr_j = s_j - p_j sigmoid(r - r_j) + bpreg s_j (r_j^2 + 2 r_j - sum_i s_i r_i^2)``, over positions.

    Notes
    -----
    Hidasi and Karatzoglou, CIKM 2018, arXiv:1706.03847, section 3.3.
    """
    r_t, r = _scores(h, targets, negatives)
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
        _accumulate_scores(h, targets, negatives, d_t * scale, d_k * scale)

    return tape.record(np.asarray(losses.sum() / positions, r.dtype), backward)


def _scores(h: Var, targets: Candidates, negatives: Candidates) -> tuple[Array, Array]:
    """Compute ``s(j) = <h, v_j> + b_j - log q(j)`` of targets (N,) and negatives (N, K).

    Parameters
    ----------
    h : (N, D)
        States.
    targets : Candidates
        N targets, one per position.
    negatives : Candidates
        K negatives for all positions. The score of a position's own target as a negative is -inf.
    """
    dtype = h.value.dtype
    s_t = np.einsum("nd,nd->n", h.value, targets.vectors.value) + targets.biases.value[:, 0]
    s_t -= targets.log_q.astype(dtype)
    s_k = h.value @ negatives.vectors.value.T
    s_k += negatives.biases.value[:, 0] - negatives.log_q.astype(dtype)
    s_k[targets.ids[:, None] == negatives.ids[None, :]] = -np.inf
    return s_t, s_k


def _accumulate_scores(h: Var, targets: Candidates, negatives: Candidates, d_t: Array, d_k: Array) -> None:
    """Accumulate the gradients of scores, (N,) and (N, K), into their inputs."""
    column = d_t[:, None]
    h.accumulate(d_k @ negatives.vectors.value + column * targets.vectors.value, owned=True)
    targets.vectors.accumulate(column * h.value, owned=True)
    negatives.vectors.accumulate(d_k.T @ h.value, owned=True)
    targets.biases.accumulate(column, owned=True)
    negatives.biases.accumulate(d_k.sum(axis=0)[:, None], owned=True)


def _softmax(x: Array) -> tuple[Array, Array]:
    """Compute softmax (N, K) and the logarithm of its divisor (N,); zeros for rows of -inf."""
    top = x.max(axis=1, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(x - top[:, None])
    total = e.sum(axis=1)
    total[total == 0] = 1
    return e / total[:, None], top + np.log(total)


def rank_hinge(
    tape: Tape,
    u: Var,
    targets: Var,
    candidates: Var,
    ids: tuple[NDArray[np.integer], NDArray[np.integer]],
    first: NDArray[np.integer],
    *,
    margin: float,
    trials: int,
    labels: int = 0,
    weight: int,
) -> Var:
    """Hinge loss between a target and the first candidate that violates the margin, weighted by rank (WARP).

    Parameters
    ----------
    u, targets : (N, D)
        Queries and their targets.
    candidates : (K, D)
        Candidates for all queries.
    ids : (N,) and (K,) integers
        Ids of targets and candidates, equal for equal items.
    first : (N,) integers below K
        First candidate of each query; the others follow cyclically.
    margin : float
    trials : int
        Maximum number of candidates per query, T.
    labels : int
        Number of labels, Y; 0: losses are not weighted by rank.
    weight : int
        Divisor of the sum of losses.

    Returns
    -------
    ()
        Sum of ``L(floor((Y - 1) / n)) (margin - <u, t> + <u, c_n>)`` over queries divided by ``weight``, with
        ``L(r) = 1 + 1/2 + ... + 1/r`` (1 without labels), and n the first of at most T candidates other than
        the target with ``<u, c_n> > <u, t> - margin``; 0 without such a candidate. With T = 1 and without
        labels it is the pairwise hinge loss.

    Notes
    -----
    Weston, Bengio, Usunier, IJCAI 2011; Weston et al., EMNLP 2014.
    """
    scale = u.value.dtype.type(1 / max(1, weight))
    own = np.einsum("nd,nd->n", u.value, targets.value)
    few = max(1, AT_ONCE // max(1, candidates.value.shape[0]))
    cuts = [slice(start, start + few) for start in range(0, max(1, own.size), few)]
    found = [
        _violators(
            u.value[cut] @ candidates.value.T, own[cut], (ids[0][cut], ids[1]), first[cut], margin, trials
        )
        for cut in cuts
    ]
    queries = np.concatenate([cut.start + some for cut, (some, _, _) in zip(cuts, found, strict=True)])
    violators, tried = (np.concatenate([one[part] for one in found]) for part in (1, 2))
    factors = np.full(queries.size, scale)
    if labels:
        harmonic = _harmonic_numbers(labels)
        factors = (harmonic[np.maximum(1, (labels - 1) // np.maximum(1, tried))] * scale).astype(scale.dtype)
    near = candidates.value[violators]
    losses = factors * (margin - own[queries] + np.einsum("nd,nd->n", u.value[queries], near))

    def backward(gradient: Array) -> None:
        each = (factors * gradient).astype(scale.dtype)[:, None]
        of_u, of_t, of_c = (np.zeros_like(one.value) for one in (u, targets, candidates))
        of_u[queries] = each * (near - targets.value[queries])
        of_t[queries] = -each * u.value[queries]
        np.add.at(of_c, violators, each * u.value[queries])
        for one, found in ((u, of_u), (targets, of_t), (candidates, of_c)):
            one.accumulate(found, owned=True)

    return tape.record(np.asarray(losses.sum(), u.value.dtype), backward)


@lru_cache(maxsize=1)
def _harmonic_numbers(count: int) -> NDArray[np.float64]:
    """Return ``1 + 1/2 + ... + 1/r`` for r from 0 to ``count``; cached, since there may be millions."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, count + 1))])


def _violators(
    scores: Array,
    own: Array,
    ids: tuple[NDArray[np.integer], NDArray[np.integer]],
    first: NDArray[np.integer],
    margin: float,
    trials: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return queries with a violation of the margin, the candidate of each, and the number of trials."""
    count = scores.shape[1]
    if not scores.size:
        none = np.empty(0, np.int64)
        return none, none, none
    order = (first[:, None] + np.arange(count)) % count
    other = ids[0][:, None] != ids[1][order]
    looked = np.cumsum(other, axis=1)
    too_near = np.take_along_axis(scores, order, axis=1) > own[:, None] - margin
    hits = too_near & other & (looked <= trials)
    queries = np.flatnonzero(hits.any(axis=1))
    at = hits[queries].argmax(axis=1)
    return queries, order[queries, at], looked[queries, at]
