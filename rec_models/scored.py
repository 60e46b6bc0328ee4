"""Scores of candidates at each position of a batch: its target, and negatives shared by all positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array, Var

__all__ = ["Scored", "hand_back", "scores_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Vectors and biases of candidates.

    Attributes
    ----------
    vectors : (M, D)
    biases : (M, 1)
    ids : (M,) integers
        Equal for equal items.
    log_q : (M,) floats
        Logarithm of the sampling probability; zeros: no correction.
    """

    vectors: Var
    biases: Var
    ids: NDArray[np.integer]
    log_q: NDArray[np.floating]


def scores_of(h: Var, targets: Scored, negatives: Scored) -> tuple[Array, Array]:
    """Compute ``s(j) = <h, v_j> + b_j - log q(j)`` of targets (N,) and negatives (N, K).

    Parameters
    ----------
    h : (N, D)
        States.
    targets : Scored
        N targets, one a position.
    negatives : Scored
        K negatives for all positions. A position's own target scores -inf as a negative.
    """
    dtype = h.value.dtype
    s_t = np.einsum("nd,nd->n", h.value, targets.vectors.value) + targets.biases.value[:, 0]
    s_t -= targets.log_q.astype(dtype)
    s_k = h.value @ negatives.vectors.value.T
    s_k += negatives.biases.value[:, 0] - negatives.log_q.astype(dtype)
    s_k[targets.ids[:, None] == negatives.ids[None, :]] = -np.inf
    return s_t, s_k


def hand_back(h: Var, targets: Scored, negatives: Scored, d_t: Array, d_k: Array) -> None:
    """Accumulate the gradients of scores, (N,) and (N, K), into their inputs."""
    column = d_t[:, None]
    h.accumulate(d_k @ negatives.vectors.value + column * targets.vectors.value, owned=True)
    targets.vectors.accumulate(column * h.value, owned=True)
    negatives.vectors.accumulate(d_k.T @ h.value, owned=True)
    targets.biases.accumulate(column, owned=True)
    negatives.biases.accumulate(d_k.sum(axis=0)[:, None], owned=True)
