"""Encoders of a list of keys as one vector: a convolution or a GRU, with max pooling."""

from __future__ import annotations

import numpy as np

from pslib.batch import Batch
from rec_models.layers import gather, gru, linear, list_max, list_vectors, tanh, windows
from rec_models.model import DenseVars
from rec_models.packed import packed
from rec_models.tape import Tape, Var

__all__ = ["cnn", "cnn_shapes", "grnn", "grnn_shapes"]


def cnn_shapes(name: str, dim: int, units: int, window: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of `cnn`."""
    return {f"{name}.W": (window * dim, units), f"{name}.b": (units,)}


def cnn(tape: Tape, rows: Var, batch: Batch, field: str, dense: DenseVars, name: str, window: int) -> Var:
    """Convolve over the elements of lists, apply tanh, and take the maximum of each unit, (B, units).

    Parameters
    ----------
    rows : (U, D)
    batch : Batch
    field : str
        Ragged field of the lists.
    dense : mapping of name to Var
        Parameters of `cnn_shapes`.
    window : int
        Elements in a window of the convolution.
    """
    offsets = batch.ragged[field].offsets
    around = windows(tape, list_vectors(tape, rows, batch, field), offsets, window)
    return list_max(tape, tanh(tape, linear(tape, around, dense[f"{name}.W"], dense[f"{name}.b"])), offsets)


def grnn_shapes(name: str, dim: int, units: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of `grnn`."""
    return {
        f"{name}.W": (dim, 3 * units),
        f"{name}.c": (3 * units,),
        f"{name}.U": (units, 3 * units),
        f"{name}.b": (units,),
    }


def grnn(tape: Tape, rows: Var, batch: Batch, field: str, dense: DenseVars, name: str) -> Var:
    """Run a GRU over the lists, and take the maximum of each unit over its states, (B, units).

    Parameters
    ----------
    rows, batch, field, dense
        As for `cnn`; see `grnn_shapes`.
    """
    lists = batch.ragged[field]
    steps = packed(lists)
    x = gather(tape, list_vectors(tape, rows, batch, field), steps.places)
    inputs = linear(tape, x, dense[f"{name}.W"], dense[f"{name}.c"])
    states = gru(tape, inputs, steps, dense[f"{name}.U"], dense[f"{name}.b"])
    in_order = gather(tape, states, np.argsort(steps.places))  # in the order of the lists
    return list_max(tape, in_order, lists.offsets)
