"""TagSpace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.schema import Schema
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import cnn, cnn_shapes, gather, linear, rank_hinge, tanh
from rec_models.matching import ProductModel
from rec_models.model import DenseVars
from rec_models.options import NEGATIVES_MAX, WINDOW_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class TagSpace(ProductModel):
    """A convolution over a text's words, matched with tags by WARP (Weston, Chopra, Adams, EMNLP 2014).

    The query is one ragged field, the words in their order; the item is one sparse field, the tag. Texts with
    several tags are several examples.
    """

    units: Annotated[int, size("Filters of the convolution, the paper's H.")] = 100
    window: Annotated[int, size("Words in a window of the convolution, K.", WINDOW_MAX)] = 5
    margin: Annotated[
        float, Setting("Required difference between the scores of the example's tag and another one.", gt=0)
    ] = 0.1
    negatives: Annotated[
        int,
        size(
            "Tags drawn uniformly for a batch; an example tries them until one violates the margin.",
            NEGATIVES_MAX,
        ),
    ] = 64

    def _problems(self) -> list[str]:
        schema = self.schema
        if len(schema.sparse) != 1 or len(schema.ragged) != 1 or schema.dense:
            return ["expected a schema of a ragged field, the words, and a sparse one, the tag"]
        return super()._problems()

    def sampling(self) -> Sampling:
        """Sample tags uniformly."""
        return Sampling(self.item[0], self.negatives, 0.0)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the convolution, and of the linear layer to a tag's dimensions."""
        shapes = cnn_shapes("cnn", self.dim, self.units, self.window)
        return shapes | {"out.w": (self.units, self.dim), "out.b": (self.dim,)}

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``e_conv(w)``, section 3: lookup, convolution, tanh, max, tanh, linear."""
        words = self.schema.ragged[0].name
        pooled = tanh(tape, cnn(tape, rows, batch, words, dense, "cnn", self.window))
        return linear(tape, pooled, dense["out.w"], dense["out.b"])

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``e_lt(t)``: the tag's row."""
        return gather(tape, rows, batch.sparse[:, 0])

    def match_loss(
        self, tape: Tape, u: Var, v: Var, batch: Batch, rows: Var, dense: DenseVars, weight: int
    ) -> Var:
        """WARP, section 3: the first drawn tag that violates the margin, weighted by its estimated rank."""
        where = self.matches(batch)
        drawn = batch.negatives
        labels = round(float(np.exp(-batch.log_q[drawn[0]]))) if drawn.size else 1
        return rank_hinge(
            tape,
            self.matched(tape, u, batch),
            self.matched(tape, v, batch),
            gather(tape, rows, drawn),
            (self.item_ids(batch)[where], drawn),
            where % max(1, drawn.size),
            margin=self.margin,
            trials=self.negatives,
            labels=labels,
            weight=weight,
        )
