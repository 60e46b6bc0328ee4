"""Recurrent, convolutional and graph layers over the elements of lists."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from rec_models.engine.occurrences import Occurrences
from rec_models.engine.packed_sequences import Packed, packed
from rec_models.engine.tape import Array, Tape, Var, layer
from rec_models.layers.activations import sigmoid_of, tanh
from rec_models.layers.embedding import list_vectors
from rec_models.layers.linear import linear
from rec_models.layers.lists import list_max, windows
from rec_models.layers.shapes import gather


@layer
def gru(tape: Tape, x: Var, steps: Packed, weights: Var, bias: Var, first: Var | None = None) -> Var:
    """Gated recurrent unit: states of every list after every element.

    Parameters
    ----------
    x : (N, 3 H)
        Inputs to r, z and n with their biases, side by side; packed by ``steps``.
    steps : Packed
        All lists of a batch take a step together, so that its product is one of matrices.
    weights : (H, 3 H)
        ``U_r, U_z, U_n`` side by side.
    bias : (H,)
    first : (B', H) or None
        ``h(0)`` of each non-empty list, in their order. None: zeros.

    Returns
    -------
    (N, H)
        Packed like ``x``; with * elementwise ``r = sigmoid(x_r + h U_r)``, ``z = sigmoid(x_z + h U_z)``,
        ``n = tanh(x_n + r * (h U_n + b))``, ``h' = (1 - z) * n + z * h``. Backward goes through all steps.

    Notes
    -----
    Cho et al., EMNLP 2014, arXiv:1406.1078, with the reset gate after the product, as in cuDNN and PyTorch;
    Cho et al. multiply by r before ``U_n``.
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
        through = np.empty((N, 3 * H), dtype)  # gradient of h U; that of n passes through r
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


@layer
def prefix_mean(tape: Tape, x: Var, steps: Packed) -> Var:
    """Mean of every list up to every element.

    Parameters
    ----------
    tape : Tape
    x : (N, D)
        Packed by ``steps``.
    steps : Packed

    Returns
    -------
    (N, D)
        ``y_n = (x_1 + ... + x_n) / n``, packed like ``x``. Backward: each element sums ``dy_n / n`` over
        itself and later elements.
    """
    pairs = steps.prefixes()
    if not pairs.items.size:
        return tape.record(x.value, x.accumulate)
    counts = np.diff(pairs.starts)[:, None].astype(x.value.dtype)
    value = np.add.reduceat(x.value[pairs.items], pairs.starts[:-1], axis=0) / counts

    def backward(gradient: Array) -> None:
        shares = (gradient / counts)[pairs.owners]
        x.accumulate(Occurrences(None, pairs.items).sum(shares, x.value.shape), owned=True)

    return tape.record(value, backward)


@layer
def edge_mean(tape: Tape, x: Var, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> Var:
    """Mean over incoming edges: the product with a normalised adjacency matrix that is never materialised.

    Parameters
    ----------
    x : (M, D)
        A row per node.
    sources, targets : (E,) int32
        Nodes of each edge; repeated edges count repeatedly.

    Returns
    -------
    (M, D)
        ``y_m = mean of x_s over the edges s -> m``, zeros without any. Backward: each node sums
        ``dy_m / edges of m`` over the targets m of its edges.
    """
    shape = x.value.shape
    counts = np.maximum(1, np.bincount(targets, minlength=shape[0]))[:, None].astype(x.value.dtype)
    incoming, outgoing = Occurrences(None, targets), Occurrences(None, sources)
    value = incoming.sum(x.value[sources], shape) / counts

    def backward(gradient: Array) -> None:
        x.accumulate(outgoing.sum((gradient / counts)[targets], shape), owned=True)

    return tape.record(value, backward)


def cnn_shapes(name: str, dim: int, units: int, window: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of `cnn`."""
    return {f"{name}.W": (window * dim, units), f"{name}.b": (units,)}


def cnn(
    tape: Tape, rows: Var, batch: Batch, field: str, dense: Mapping[str, Var], name: str, window: int
) -> Var:
    """Encode lists by a convolution with tanh and max pooling.

    Parameters
    ----------
    rows : (U, D)
    batch : Batch
    field : str
        Ragged field of the lists.
    dense : mapping of name to Var
        Parameters of `cnn_shapes`.
    name : str
        Prefix of the parameters' names.
    window : int
        Elements in a window of the convolution.

    Returns
    -------
    (B, units)
    """
    offsets = batch.ragged[field].offsets
    around = windows(tape, list_vectors(tape, rows, batch, field), offsets, window)
    return list_max(tape, tanh(tape, linear(tape, around, dense[f"{name}.W"], dense[f"{name}.b"])), offsets)


def gru_shapes(name: str, inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GRU's parameters: of its input layer (W, c), and of `gru` (U, b)."""
    return {
        f"{name}.W": (inputs, 3 * units),
        f"{name}.c": (3 * units,),
        f"{name}.U": (units, 3 * units),
        f"{name}.b": (units,),
    }


def grnn(tape: Tape, rows: Var, batch: Batch, field: str, dense: Mapping[str, Var], name: str) -> Var:
    """Encode lists by a GRU with max pooling over its states, (B, units); arguments as for `cnn`."""
    lists = batch.ragged[field]
    steps = packed(lists)
    x = gather(tape, list_vectors(tape, rows, batch, field), steps.indices)
    inputs = linear(tape, x, dense[f"{name}.W"], dense[f"{name}.c"])
    states = gru(tape, inputs, steps, dense[f"{name}.U"], dense[f"{name}.b"])
    in_order = gather(tape, states, steps.places)  # in the order of the lists
    return list_max(tape, in_order, lists.offsets)
