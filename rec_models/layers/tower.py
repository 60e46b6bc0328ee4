"""Hidden layers of an MLP, without the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rec_models.layers.activation import relu
from rec_models.layers.batch_norm import batch_norm
from rec_models.layers.dice import dice
from rec_models.layers.dropout import dropout
from rec_models.layers.linear import linear
from rec_models.layers.linear_relu import linear_relu
from rec_models.layers.prelu import prelu
from rec_models.layers.product import product
from rec_models.tape import Tape, Var

__all__ = ["tower", "tower_shapes"]


def tower_shapes(
    name: str, inputs: int, hidden: Sequence[int], batch_norm: bool = False, activation: str = "relu"
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a tower's dense parameters, in the order in which they are used.

    Parameters
    ----------
    name : str
        What the names begin with.
    inputs : int
        Floats an example.
    hidden : sequence of int
        Units of each layer.
    batch_norm : bool
        Whether units are normalised: then each layer has a scale and the statistics for predictions as well.
    activation : {"relu", "prelu", "dice"}
        The last two have slopes ``alpha``, and Dice statistics for predictions too; not with batch norm.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    widths = [inputs, *hidden]
    for layer, (rows, columns) in enumerate(pairwise(widths)):
        shapes |= {f"{name}.{layer}.w": (rows, columns), f"{name}.{layer}.b": (columns,)}
        if batch_norm:
            shapes |= {f"{name}.{layer}.{one}": (columns,) for one in ("scale", "mean", "inv_std")}
        more = {"prelu": ("alpha",), "dice": ("alpha", "mean", "inv_std")}.get(activation, ())
        shapes |= {f"{name}.{layer}.{one}": (columns,) for one in more}
    return shapes


def tower(tape: Tape, x: Var, dense: Mapping[str, Var], name: str, layers: int, rate: float) -> Var:
    """Layers with batch norm where the parameters have it, an activation and dropout.

    Parameters
    ----------
    x : (B, N)
    dense : mapping of name to Var
        Holds what `tower_shapes` names.
    name : str
    layers : int
    rate : float
        Dropout after each layer.

    Returns
    -------
    (B, M)
        ``a_0 = x; a_{l+1} = dropout(f(norm(a_l W_l) + b_l))``; x itself where there is no layer. ``f`` is
        relu, or where the parameters have slopes PReLU or Dice.
    """
    for layer in range(layers):
        here = f"{name}.{layer}"
        weights, bias = dense[f"{here}.w"], dense[f"{here}.b"]
        if f"{here}.scale" in dense:
            scale, mean, inv_std = (dense[f"{here}.{one}"] for one in ("scale", "mean", "inv_std"))
            x = relu(tape, batch_norm(tape, product(tape, x, weights), scale, bias, mean, inv_std))
        elif f"{here}.alpha" in dense:
            x = _sloped(tape, linear(tape, x, weights, bias), dense, here)
        else:
            x = linear_relu(tape, x, weights, bias)
        x = dropout(tape, x, rate)
    return x


def _sloped(tape: Tape, x: Var, dense: Mapping[str, Var], here: str) -> Var:
    """Dice where the parameters have its statistics, else PReLU."""
    alpha, mean = dense[f"{here}.alpha"], dense.get(f"{here}.mean")
    return prelu(tape, x, alpha) if mean is None else dice(tape, x, alpha, mean, dense[f"{here}.inv_std"])
