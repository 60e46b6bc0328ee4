"""What comes to a node along its edges: y_m = mean of x_s over the edges s -> m, zeros without any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rec_models.places import Places
from rec_models.tape import Array, Tape, Var

__all__ = ["edge_mean"]


def edge_mean(tape: Tape, x: Var, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> Var:
    """Multiply by a normalised adjacency matrix that is never made.

    Parameters
    ----------
    x : (M, D)
        One row a node.
    sources, targets : (E,) int32
        Nodes of each edge; an edge that stands twice counts twice.

    Returns
    -------
    (M, D)
        Backward: each node gets ``dy_m / edges of m`` from every target of its edges.
    """
    shape = x.value.shape
    counts = np.maximum(1, np.bincount(targets, minlength=shape[0]))[:, None].astype(x.value.dtype)
    arriving, leaving = Places(None, targets, 1, None), Places(None, sources, 1, None)
    value = arriving.sum(x.value[sources], shape) / counts

    def backward(gradient: Array) -> None:
        x.accumulate(leaving.sum((gradient / counts)[targets], shape), owned=True)

    return tape.record(value, backward)
