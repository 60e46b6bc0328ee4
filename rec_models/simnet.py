"""Multi-view Simnet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.schema import Schema
from pslib.settings import Setting
from pslib.table.tables import DIM_MAX
from rec_models.engine.tape import Tape, Var
from rec_models.layers import cnn, cnn_shapes, concat, grnn, gru_shapes, linear, normalize
from rec_models.matching import CosineHinge
from rec_models.model import DenseVars
from rec_models.options import WINDOW_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class MultiViewSimnet(CosineHinge):
    """Several views of a query and of an item, matched by their cosine: Multi-view Simnet as in PaddleRec.

    After Elkahky, Song, He, *A Multi-View Deep Learning Approach for Cross Domain User Modeling*, WWW 2015,
    10.1145/2736277.2741667. Every ragged field is a view, its elements in order; a sparse field is a view
    of one element, a dense field of a number.
    """

    encoder: Annotated[
        str,
        Setting(
            "Encoder of a ragged field: the sum or mean of its rows (the field's pooling), a "
            "convolution, or a GRU, both with max pooling. All views share it.",
            choices=("bow", "cnn", "gru"),
        ),
    ] = "gru"
    units: Annotated[int, size("Floats of a view's vector; with bow it is dim.")] = 32
    window: Annotated[int, size("Elements in a window of the convolution.", WINDOW_MAX)] = 3
    out: Annotated[int, size("Floats of the vectors of queries and items.", DIM_MAX)] = 64

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the encoder, and of the linear layers of both sides."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.encoder == "gru":
            shapes |= gru_shapes("gru", self.dim, self.units)
        elif self.encoder == "cnn":
            shapes |= cnn_shapes("cnn", self.dim, self.units, self.window)
        units = self.dim if self.encoder == "bow" else self.units
        for name, own in (("query", self.query_schema), ("item", self.item_schema)):
            width = units * len(own.ragged) + self.dim * len(own.sparse) + len(own.dense)
            shapes |= {f"{name}.w": (width, self.out), f"{name}.b": (self.out,)}
        return shapes

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Views of a query, concatenated, through a linear layer."""
        return self._mapped(tape, batch, schema, rows, dense, self.query_schema, "query")

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Views of an item, concatenated, through a linear layer."""
        return self._mapped(tape, batch, schema, rows, dense, self.item_schema, "item")

    def _mapped(
        self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars, own: Schema, name: str
    ) -> Var:
        views: list[Var] = []
        others: Schema | None = own
        if self.encoder != "bow" and own.ragged:
            views = [self._encoded(tape, batch, rows, dense, field.name) for field in own.ragged]
            others = _without_lists(own)
        if others is not None:
            views.append(self.side(tape, batch, schema, rows, others))
        return normalize(tape, linear(tape, concat(tape, *views), dense[f"{name}.w"], dense[f"{name}.b"]))

    def _encoded(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, field: str) -> Var:
        if self.encoder == "gru":
            return grnn(tape, rows, batch, field, dense, "gru")
        return cnn(tape, rows, batch, field, dense, "cnn", self.window)


def _without_lists(own: Schema) -> Schema | None:
    """Return a schema of the sparse and dense fields; None if there are none."""
    if not own.sparse and not own.dense:
        return None
    return Schema(label=None, dense=own.dense, sparse=own.sparse)
