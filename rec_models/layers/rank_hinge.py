"""Hinge loss between a target and the first candidate that comes too near to it, weighed by rank (WARP).

For a query u with target t and candidates c_1, c_2, ... in the query's order, without those that are the
target itself (Weston, Bengio, Usunier, IJCAI 2011; Weston et al., EMNLP 2014)::

    n       = the first of at most T with  <u, c_n> > <u, t> - margin
    loss    = L(floor((Y - 1) / n)) (margin - <u, t> + <u, c_n>),     L(r) = 1 + 1/2 + ... + 1/r

with Y labels in all; 0 where no candidate comes so near. Without labels L is 1: with T = 1 that is the
plain pairwise hinge loss.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array, Tape, Var

__all__ = ["rank_hinge"]

AT_ONCE = 1 << 20
"""Scores of queries and candidates that are held at once: what is made of them takes 30 MB."""


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
    """Sum of losses divided by ``weight``.

    Parameters
    ----------
    u, targets : (N, D)
    candidates : (K, D)
        For all queries.
    ids : (N,) and (K,) integers
        The same number for the same item.
    first : (N,) integers below K
        Where a query begins to go through the candidates; after the last comes the first.
    margin : float
    trials : int
        Candidates that are looked at, T.
    labels : int
        Y; 0: all losses count alike.
    weight : int

    Returns
    -------
    ()
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
    """``1 + 1/2 + ... + 1/r`` for r from 0 to ``count``; kept, as labels may be millions."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, count + 1))])


def _violators(
    scores: Array,
    own: Array,
    ids: tuple[NDArray[np.integer], NDArray[np.integer]],
    first: NDArray[np.integer],
    margin: float,
    trials: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Queries with a candidate that comes too near, that candidate, and how many were looked at."""
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
