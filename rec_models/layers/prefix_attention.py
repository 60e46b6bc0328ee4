"""Additive attention of every element on those before it (Bahdanau et al., ICLR 2015), without a softmax.

For element n of a list, j = 1..n running over the list up to n::

    alpha(n, j) = <q, sigmoid(k_j + u_n)>
    y_n         = sum_j alpha(n, j) v_j

NARM (eq. 7 and 8), STAMP (eq. 7) and SR-GNN (eq. 6) all sum up a session that way.
"""

from __future__ import annotations

import numpy as np

from rec_models.layers.activation import sigmoid_of
from rec_models.packed import Prefixes
from rec_models.places import Places
from rec_models.tape import Array, Tape, Var

__all__ = ["prefix_attention"]


def prefix_attention(tape: Tape, keys: Var, queries: Var, values: Var, q: Var, pairs: Prefixes) -> Var:
    """Attend from every element to the elements so far.

    Parameters
    ----------
    keys : (M, A)
        ``k`` of what is attended to: the elements themselves, or what several of them share.
    queries : (N, A)
        ``u`` of each element that attends.
    values : (M, D)
        ``v``.
    q : (A,)
    pairs : Prefixes
        Of keys, and the queries that own them.

    Returns
    -------
    (N, D)
        Costs one row of A for each pair of an element and one before it.
    """
    places = Places(None, pairs.items, 1, None)
    gates = sigmoid_of(keys.value[pairs.items] + queries.value[pairs.owners])
    alpha = gates @ q.value
    weighed = alpha[:, None] * values.value[pairs.items]
    value = np.add.reduceat(weighed, pairs.starts[:-1], axis=0)

    def backward(gradient: Array) -> None:
        onward = gradient[pairs.owners]
        d_alpha = np.einsum("pd,pd->p", onward, values.value[pairs.items])
        values.accumulate(places.sum(alpha[:, None] * onward, values.value.shape), owned=True)
        q.accumulate(d_alpha @ gates, owned=True)
        d_gates = gates * (1 - gates)
        d_gates *= d_alpha[:, None] * q.value
        keys.accumulate(places.sum(d_gates, keys.value.shape), owned=True)
        queries.accumulate(np.add.reduceat(d_gates, pairs.starts[:-1], axis=0), owned=True)

    return tape.record(value, backward)
