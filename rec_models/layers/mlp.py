"""Multilayer perceptron that ends in one number an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rec_models.layers.linear import linear
from rec_models.layers.relu_head import relu_head
from rec_models.layers.tower import tower, tower_shapes
from rec_models.tape import Array, Tape, Var

__all__ = ["mlp", "mlp_shapes"]


def mlp_shapes(
    inputs: int, hidden: Sequence[int], batch_norm: bool = False, activation: str = "relu"
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an MLP's dense parameters, in the order in which they are used.

    Parameters
    ----------
    inputs : int
        Floats an example.
    hidden : sequence of int
        Units of each hidden layer; empty for a linear map.
    batch_norm : bool
        Whether hidden units are normalised; see `tower_shapes`.
    activation : {"relu", "prelu", "dice"}
    """
    units, tower = [inputs, *hidden][-1], tower_shapes("mlp", inputs, hidden, batch_norm, activation)
    return tower | {"mlp.out.w": (units, 1), "mlp.out.b": (1,)}


def mlp(tape: Tape, x: Var, dense: Mapping[str, Var], hidden_layers: int, rate: float) -> Var:
    """Hidden layers with an activation and dropout, then a linear output.

    Parameters
    ----------
    x : (B, N)
    dense : mapping of name to Var
        Holds what `mlp_shapes` names; batch norm, PReLU and Dice are where they have it.
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
    x = tower(tape, x, dense, "mlp", hidden_layers - fused, rate)
    out_weights, out_bias = dense["mlp.out.w"], dense["mlp.out.b"]
    if fused:
        last = f"mlp.{hidden_layers - 1}"
        return relu_head(tape, x, dense[f"{last}.w"], dense[f"{last}.b"], out_weights, out_bias)
    output = linear(tape, x, out_weights, out_bias)

    def backward(gradient: Array) -> None:
        output.accumulate(gradient[:, None])

    return tape.record(output.value[:, 0], backward)
