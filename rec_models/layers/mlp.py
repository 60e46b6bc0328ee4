"""Multilayer perceptron that ends in one number an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rec_models.layers.dropout import dropout
from rec_models.layers.linear import linear
from rec_models.layers.linear_relu import linear_relu
from rec_models.layers.relu_head import relu_head
from rec_models.tape import Array, Tape, Var

__all__ = ["mlp", "mlp_shapes"]


def mlp_shapes(inputs: int, hidden: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an MLP's dense parameters, in the order in which they are used.

    Parameters
    ----------
    inputs : int
        Floats an example.
    hidden : sequence of int
        Units of each hidden layer; empty for a linear map.
    """
    names = [f"mlp.{layer}" for layer in range(len(hidden))] + ["mlp.out"]
    widths = [inputs, *hidden, 1]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows, columns in zip(names, widths[:-1], widths[1:], strict=True):
        shapes |= {f"{name}.w": (rows, columns), f"{name}.b": (columns,)}
    return shapes


def mlp(tape: Tape, x: Var, dense: Mapping[str, Var], hidden_layers: int, rate: float) -> Var:
    """Hidden layers with relu and dropout, then a linear output.

    Parameters
    ----------
    x : (B, N)
    dense : mapping of name to Var
        Holds what `mlp_shapes` names.
    hidden_layers : int
    rate : float
        Dropout after each hidden layer.

    Returns
    -------
    (B,)
        ``a_0 = x; a_{l+1} = dropout(relu(a_l W_l + b_l)); y = a_H w + b``.
    """
    fused = hidden_layers > 0 and (rate == 0 or not tape.training)
    for layer in range(hidden_layers - fused):
        x = linear_relu(tape, x, dense[f"mlp.{layer}.w"], dense[f"mlp.{layer}.b"])
        x = dropout(tape, x, rate)
    out_weights, out_bias = dense["mlp.out.w"], dense["mlp.out.b"]
    if fused:
        last = f"mlp.{hidden_layers - 1}"
        return relu_head(tape, x, dense[f"{last}.w"], dense[f"{last}.b"], out_weights, out_bias)
    output = linear(tape, x, out_weights, out_bias)

    def backward(gradient: Array) -> None:
        output.accumulate(gradient[:, None])

    return tape.record(output.value[:, 0], backward)
