"""Gated recurrent unit (Cho et al., EMNLP 2014, arXiv:1406.1078), with the reset gate after the product.

For one list, from h(0) = 0 or what is given, with * elementwise::

    r = sigmoid(x_r + h U_r)
    z = sigmoid(x_z + h U_z)
    n = tanh(x_n + r * (h U_n + b))
    h' = (1 - z) * n + z * h

That is the form of cuDNN and PyTorch; Cho et al. multiply by r before U_n. All lists of a batch go through a
step together (`Packed`), so that its product is one of matrices.
"""

from __future__ import annotations

import numpy as np

from rec_models.layers.activation import sigmoid_of
from rec_models.packed import Packed
from rec_models.tape import Array, Tape, Var

__all__ = ["gru"]


def gru(tape: Tape, x: Var, steps: Packed, weights: Var, bias: Var, first: Var | None = None) -> Var:
    """States of every list after every element.

    Parameters
    ----------
    x : (N, 3 H)
        Inputs to r, z and n, side by side, their biases in them; packed as ``steps`` says.
    steps : Packed
    weights : (H, 3 H)
        ``U_r, U_z, U_n`` side by side.
    bias : (H,)
    first : (B', H) or None
        ``h(0)`` of each of the lists that have an element, in their order. None: zeros.

    Returns
    -------
    (N, H)
        Packed like ``x``. Backward goes through all steps of all lists.
    """
    N, H = x.value.shape[0], bias.value.size
    dtype = x.value.dtype
    states = np.empty((N, H), dtype)
    gates = np.empty((N, 2 * H), dtype)  # r, z
    new = np.empty((N, H), dtype)
    inner = np.empty((N, H), dtype)  # h U_n + b
    before = np.empty((N, H), dtype)
    spans = [slice(a, b) for a, b in zip(steps.starts[:-1].tolist(), steps.starts[1:].tolist(), strict=True)]
    h = np.zeros((int(steps.sizes[0]) if spans else 0, H), dtype) if first is None else first.value
    for span in spans:
        h = h[: span.stop - span.start]
        before[span] = h
        product = h @ weights.value
        gates[span] = sigmoid_of(x.value[span, : 2 * H] + product[:, : 2 * H])
        r, z = gates[span, :H], gates[span, H:]
        np.add(product[:, 2 * H :], bias.value, out=inner[span])
        np.tanh(x.value[span, 2 * H :] + r * inner[span], out=new[span])
        h = np.add(new[span], z * (h - new[span]), out=states[span])

    def backward(gradient: Array) -> None:
        onward = np.empty((N, 3 * H), dtype)
        through = np.empty((N, 3 * H), dtype)  # of h U, where n's share went through r
        later = np.zeros((0, H), dtype)
        for span in reversed(spans):
            dh = gradient[span].copy()
            dh[: later.shape[0]] += later
            r, z, n = gates[span, :H], gates[span, H:], new[span]
            dn = dh * (1 - z) * (1 - n * n)
            onward[span, :H] = dn * inner[span] * r * (1 - r)
            onward[span, H : 2 * H] = dh * (before[span] - n) * z * (1 - z)
            onward[span, 2 * H :] = dn
            through[span] = onward[span]
            through[span, 2 * H :] *= r
            later = dh * z + through[span] @ weights.value.T
        x.accumulate(onward, owned=True)
        weights.accumulate_product(before, through)
        bias.accumulate(through[:, 2 * H :].sum(axis=0), owned=True)
        if first is not None:
            first.accumulate(later, owned=True)

    return tape.record(states, backward)
