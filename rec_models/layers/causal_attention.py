"""Multi-head attention of each element of a list to those before it, for lists of different lengths."""

from __future__ import annotations

import numpy as np

from rec_models.layers.attention import Backward, mixed
from rec_models.packed import Packed
from rec_models.tape import Array, Tape, Var

__all__ = ["causal_attention"]


def causal_attention(tape: Tape, query: Var, key: Var, value: Var, steps: Packed, heads: int) -> Var:
    """Mix, for every element of every list, the values up to itself.

    Parameters
    ----------
    query, key, value : (N, A)
        Packed as ``steps`` says.
    steps : Packed
    heads : int
        A divisor of A.

    Returns
    -------
    (N, A)
        As in `attention`, with ``s_ij = <q_i, k_j> / sqrt(A / heads)``, -inf for j after i (Kang and McAuley,
        ICDM 2018, arXiv:1808.09781, eq. 2). Lists of one length are computed together: a list of L elements
        costs L^2, whatever the others are.
    """
    scale = query.value.dtype.type((query.value.shape[1] / heads) ** -0.5)
    q, k, v = query.value * scale, key.value, value.value
    out = np.empty(v.shape, v.dtype)
    groups: list[tuple[Array, Backward]] = []
    for places in _by_length(steps):
        out[places], gradients = mixed(q[places], k[places], v[places], heads, causal=True)
        groups.append((places, gradients))

    def backward(gradient: Array) -> None:
        found = [np.empty(x.shape, x.dtype) for x in (q, k, v)]
        for places, gradients in groups:
            for whole, one in zip(found, gradients(gradient[places]), strict=True):
                whole[places] = one
        found[0] *= scale
        for x, one in zip((query, key, value), found, strict=True):
            x.accumulate(one, owned=True)

    return tape.record(out, backward)


def _by_length(steps: Packed) -> list[Array]:
    """Places (G, L) of the lists of each length L that there is, longest first."""
    lengths = np.flatnonzero(np.diff(np.append(steps.sizes, 0))) + 1  # where lists end
    counts = np.append(steps.sizes, 0)
    return [
        np.arange(counts[length], counts[length - 1])[:, None] + steps.starts[:length]
        for length in lengths[::-1].tolist()
    ]
