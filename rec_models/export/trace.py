"""Graphs of a model: its own ``forward``, run with symbols in place of arrays.

A tape that traces hands each layer to the function that `rec_models.export.layers` or
`rec_models.export.list_layers` has for it. So a model has one definition, and a new one is exported as it is,
if its layers are known and it computes nothing beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pslib.errors import ConfigurationError, PslibError
from pslib.schema import Schema
from pslib.text import one_line
from rec_models.engine.tape import Array, Tape, Var
from rec_models.export.layers import sigmoid
from rec_models.export.list_layers import where_filled
from rec_models.export.tracer import Forward, Tracer
from rec_models.matching import MatchingModel
from rec_models.model import Model
from rec_models.session import SessionModel
from rec_models.word2vec import Word2Vec

MODEL, QUERY, ITEM = "model", "query", "item"
"""Names of graphs: of probabilities, and of the vectors of queries and items."""


def graphs_of(model: object, parameters: Mapping[str, Array]) -> dict[str, Any]:
    """Return the checked graphs of a model, `onnx.ModelProto` by name.

    ``model`` has the outputs ``logit`` and ``probability``, (B,) or (B, T); ``query`` and ``item`` have
    ``vector``, (B, M). A model of sessions has no ``item``: the vector of an item is its row. For the inputs
    see `rec_models.export.inputs`.

    Parameters
    ----------
    model : Model
    parameters : mapping of str to array
        Its dense parameters.

    Raises
    ------
    ConfigurationError
        If onnx is not installed, or the model is none of `rec_models`, or has a layer that is not known.
    """
    if not isinstance(model, Model):
        raise ConfigurationError(
            f"to onnx: expected a model of rec_models, got a {type(model).__name__}; "
            "a TorchModel is exported to torch"
        )
    found = {}
    for name, (schema, forward) in forwards_of(model).items():
        tracer = Tracer(schema, model.table().dim, parameters)
        try:
            result = tracer.traced(forward, parameters)
            outputs = {"vector": result}
            if name == MODEL:
                outputs = {"logit": result, "probability": sigmoid(tracer, result)}
            found[name] = tracer.model(outputs, f"{name} of a {type(model).__name__}")
        except PslibError:
            raise
        except Exception as error:  # of any kind, since it runs the model's own code
            raise ConfigurationError(
                f"to onnx: {type(model).__name__} computes something beside layers, which has no graph: "
                f"{one_line(error)}; make its forward of rec_models.layers alone"
            ) from error
    return found


def forwards_of(model: Model) -> dict[str, tuple[Schema, Forward]]:
    """Return the computation of each graph of a model, with the schema of its batch."""
    if isinstance(model, SessionModel):
        return {QUERY: (model.schema, _ends_of(model))}
    sides: dict[str, tuple[Schema, Forward]] = {}
    if isinstance(model, MatchingModel | Word2Vec):
        for name, schema, side in (
            (QUERY, model.query_schema, model.query),
            (ITEM, model.item_schema, model.items),
        ):
            sides[name] = schema, _of_side(side, schema)
    if isinstance(model, Word2Vec):
        return sides
    return {MODEL: (model.schema, model.forward)} | sides


def _of_side(side: Callable[..., Var], schema: Schema) -> Forward:
    return lambda tape, batch, rows, dense: side(tape, batch, schema, rows, dense)


def _ends_of(model: SessionModel) -> Forward:
    """States at the ends of sessions; zeros of an empty one."""

    def forward(tape: Tape, batch: Any, rows: Var, dense: Mapping[str, Var]) -> Var:
        _, ends = model.ends(tape, batch, rows, dense, model.history)
        tracer: Any = tape.traced
        found: Any = where_filled(tracer, ends, model.history)
        return Var(found)

    return forward
