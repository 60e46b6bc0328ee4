"""Multilayer perceptrons: hidden layers with batch norm, activation and dropout, and an output unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rec_models.engine.tape import Tape, Var
from rec_models.layers.activations import dice, prelu, relu
from rec_models.layers.dropout import dropout
from rec_models.layers.linear import linear, linear_relu, product, relu_head
from rec_models.layers.normalization import batch_norm
from rec_models.layers.shapes import reshape


def tower_shapes(
    name: str,
    inputs: int,
    hidden: Sequence[int],
    batch_norm: bool = False,
    activation: str = "relu",
    out: int | None = None,
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a tower's dense parameters, in the order in which they are used.

    Parameters
    ----------
    name : str
        Prefix of the names.
    inputs : int
        Floats of an example.
    hidden : sequence of int
        Units of each layer.
    batch_norm : bool
        Normalise units: each layer then has a scale, and statistics for predictions.
    activation : {"relu", "prelu", "dice"}
        PReLU and Dice have slopes ``alpha``, Dice also statistics for predictions; not with batch norm.
    out : int or None
        Units of the output layer of `tower_output`. None: no output layer.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    widths = [inputs, *hidden]
    for layer, (rows, columns) in enumerate(pairwise(widths)):
        shapes |= {f"{name}.{layer}.w": (rows, columns), f"{name}.{layer}.b": (columns,)}
        if batch_norm:
            shapes |= {f"{name}.{layer}.{one}": (columns,) for one in ("scale", "mean", "inv_std")}
        more = {"prelu": ("alpha",), "dice": ("alpha", "mean", "inv_std")}.get(activation, ())
        shapes |= {f"{name}.{layer}.{one}": (columns,) for one in more}
    if out is not None:
        shapes |= {f"{name}.out.w": (widths[-1], out), f"{name}.out.b": (out,)}
    return shapes


def tower(tape: Tape, x: Var, dense: Mapping[str, Var], name: str, layers: int, rate: float) -> Var:
    """Hidden layers of an MLP, without the output.

    Parameters
    ----------
    x : (B, N)
    dense : mapping of name to Var
        Parameters of `tower_shapes`, whose names select batch norm and the activation.
    name : str
    layers : int
    rate : float
        Dropout after each layer.

    Returns
    -------
    (B, M)
        ``a_0 = x; a_{l+1} = dropout(f(norm(a_l W_l) + b_l))`` with ``f`` relu, PReLU or Dice; ``x`` itself
        without layers.
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
    """Apply Dice if the parameters have its statistics, else PReLU."""
    alpha, mean = dense[f"{here}.alpha"], dense.get(f"{here}.mean")
    return prelu(tape, x, alpha) if mean is None else dice(tape, x, alpha, mean, dense[f"{here}.inv_std"])


def tower_output(tape: Tape, x: Var, dense: Mapping[str, Var], name: str, layers: int, rate: float) -> Var:
    """Hidden layers of `tower`, then a linear output layer; arguments as for `tower`."""
    a = tower(tape, x, dense, name, layers, rate)
    return linear(tape, a, dense[f"{name}.out.w"], dense[f"{name}.out.b"])


def mlp_shapes(
    inputs: int, hidden: Sequence[int], batch_norm: bool = False, activation: str = "relu"
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of an MLP's dense parameters, in the order in which they are used.

    Parameters
    ----------
    inputs : int
        Floats of an example.
    hidden : sequence of int
        Units of each hidden layer; empty for a linear map.
    batch_norm : bool
        Normalise hidden units; see `tower_shapes`.
    activation : {"relu", "prelu", "dice"}
    """
    return tower_shapes("mlp", inputs, hidden, batch_norm, activation, out=1)


def mlp(tape: Tape, x: Var, dense: Mapping[str, Var], hidden_layers: int, rate: float) -> Var:
    """Multilayer perceptron with one output per example.

    Parameters
    ----------
    x : (B, N)
    dense : mapping of name to Var
        Parameters of `mlp_shapes`, whose names select batch norm and the activation.
    hidden_layers : int
    rate : float
        Dropout after each hidden layer.

    Returns
    -------
    (B,)
        ``a_0 = x; a_{l+1} = dropout(f(norm(a_l W_l) + b_l)); y = a_H w + b``.
    """
    plain = hidden_layers > 0 and not {"mlp.0.scale", "mlp.0.alpha"} & dense.keys()
    fused = plain and (rate == 0 or not tape.training)
    if not fused:
        return reshape(tape, tower_output(tape, x, dense, "mlp", hidden_layers, rate), ())
    x, last = tower(tape, x, dense, "mlp", hidden_layers - 1, rate), f"mlp.{hidden_layers - 1}"
    return relu_head(tape, x, dense[f"{last}.w"], dense[f"{last}.b"], dense["mlp.out.w"], dense["mlp.out.b"])
