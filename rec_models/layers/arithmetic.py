"""Sums and products of variables."""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Array, Tape, Var, layer


@layer
def add(tape: Tape, first: Var, *others: Var) -> Var:
    """Sum of terms, in order.

    Parameters
    ----------
    first, *others : (B,), or (1,) for a bias
        At least one of them (B,).

    Returns
    -------
    (B,)
        Backward: each term gets the gradient, a bias its sum over the batch.
    """
    value = first.value
    for term in others:
        shape = np.broadcast_shapes(value.shape, term.value.shape)
        value = np.add(value, term.value, out=tape.empty(shape, value.dtype))

    def backward(gradient: Array) -> None:
        for term in (first, *others):
            whole = term.value.shape == gradient.shape
            term.accumulate(gradient if whole else gradient.sum(keepdims=True))

    return tape.record(value, backward)


@layer
def multiply(tape: Tape, x: Var, gate: Var, factor: float = 1.0) -> Var:
    """Element-wise product, such as with a gate.

    Parameters
    ----------
    x : (B, N)
    gate : (B, N), or (1, N) for all examples
    factor : float

    Returns
    -------
    (B, N)
        ``y = factor x * g``; backward ``dx = factor dy * g``, ``dg = factor dy * x``, summed over the batch
        for a gate (1, N).
    """
    scale = x.value.dtype.type(factor)

    def backward(gradient: Array) -> None:
        scaled = gradient * scale
        x.accumulate(scaled * gate.value, owned=True)
        each = scaled * x.value
        whole = gate.value.shape == each.shape
        gate.accumulate(each if whole else each.sum(axis=0, keepdims=True), owned=True)

    return tape.record(scale * x.value * gate.value, backward)


@layer
def row_dot(tape: Tape, a: Var, b: Var) -> Var:
    """Inner product of each pair of rows.

    Parameters
    ----------
    a, b : (N, D)

    Returns
    -------
    (N,)
        ``y_n = <a_n, b_n>``; backward ``da_n = dy_n b_n``, ``db_n = dy_n a_n``.
    """

    def backward(gradient: Array) -> None:
        a.accumulate(gradient[:, None] * b.value, owned=True)
        b.accumulate(gradient[:, None] * a.value, owned=True)

    return tape.record(np.einsum("nd,nd->n", a.value, b.value), backward)


@layer
def sum_vectors(tape: Tape, vectors: Var) -> Var:
    """Sum the elements of each vector.

    Parameters
    ----------
    vectors : (B, H, D)

    Returns
    -------
    (B, H)
        ``p_h = sum over d of v_hd``; backward ``dv_hd = dp_h``.

    Notes
    -----
    Lian et al., xDeepFM, KDD 2018, arXiv:1803.05170, eq. 7.
    """

    def backward(gradient: Array) -> None:
        vectors.accumulate(np.broadcast_to(gradient[:, :, None], vectors.value.shape))

    return tape.record(vectors.value.sum(axis=2), backward)


@layer
def mixture(tape: Tape, scores: Var, *experts: Var) -> Var:
    """Mixture of experts, weighted by a softmax gate.

    Parameters
    ----------
    scores : (B, E)
        Scores of the gate, before its softmax.
    *experts : (B, M)
        Outputs of the E experts.

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
