"""A tape's listener: it adds each layer that a model calls to a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from pslib.errors import ConfigurationError
from pslib.schema import Schema
from rec_models.engine.tape import Array, Tape, Var
from rec_models.export.graph import BATCH, Graph, Symbol, symbol_of
from rec_models.export.inputs import Inputs

Forward: TypeAlias = Callable[[Tape, Any, Var, Mapping[str, Var]], Var]
"""Computation of a model: ``forward(tape, batch, rows, dense)``."""

EMITTERS: dict[str, Callable[..., Any]] = {}
"""Function that adds a layer to a graph, by the layer's name."""

F = TypeVar("F", bound=Callable[..., Any])


def emits(function: F) -> F:
    """Register a function as that of the layer of its name: it gets a `Tracer` in place of the tape."""
    EMITTERS[function.__name__] = function
    return function


class Tracer(Graph):
    """A graph of one model, whose layers call it.

    Parameters
    ----------
    schema : Schema
        Fields of the graph's batch.
    dim : int
        Floats of a row of the table.
    parameters : mapping of str to array
        Dense parameters.
    """

    def __init__(self, schema: Schema, dim: int, parameters: Mapping[str, Array]) -> None:
        super().__init__(dict(parameters))
        self.inputs = Inputs(self, schema, dim)

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Add the layer of a name to the graph; return its result as the layer does.

        Raises
        ------
        ConfigurationError
            If the layer is not known in ONNX.
        """
        if name not in EMITTERS:
            raise ConfigurationError(
                f"to onnx: the layer {name} is not known: add it to rec_models/export/layers.py"
            )
        found = EMITTERS[name](self, *args, **kwargs)
        return tuple(map(Var, found)) if isinstance(found, tuple) else Var(found)

    def zeros(self, *shape: int) -> Symbol:
        """Return zeros, (B, *shape), of a model without sparse and ragged fields."""
        size = self.op("Concat", self.dimension(self.inputs.dense, 0), np.array(shape, np.int64), axis=0)
        return self.op("ConstantOfShape", size, shape=(BATCH, *shape))

    def traced(self, forward: Forward, parameters: Mapping[str, Array]) -> Symbol:
        """Run ``forward``; return its result."""
        tape = Tape(training=False)
        tape.traced = self
        rows: Any = self.inputs.rows()
        variables = {name: Var(value) for name, value in parameters.items()}
        return symbol_of(forward(tape, self.inputs, Var(rows), variables))
