"""Sequence semantic retrieval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.schema import Schema
from pslib.table.tables import DIM_MAX
from rec_models.engine.tape import Tape, Var
from rec_models.layers import gather, grnn, gru_shapes, linear, normalize
from rec_models.matching import CosineHinge
from rec_models.model import DenseVars
from rec_models.options import NEGATIVES_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class SSR(CosineHinge):
    """A GRU over the items that a user has read, matched with items by cosine: SSR as in PaddleRec.

    After Song, Elkahky, He, *Multi-Rate Deep Learning for Temporal Recommendation*, SIGIR 2016,
    10.1145/2911451.2914726. The query is one ragged field, items in their order, the item one sparse field of
    the same vocabulary.
    """

    units: Annotated[int, size("Units of the GRU.")] = 64
    out: Annotated[int, size("Floats of the vectors of queries and items.", DIM_MAX)] = 64
    negatives: Annotated[
        int, size("Items drawn uniformly for a batch, as candidates for the hinge loss.", NEGATIVES_MAX)
    ] = 256

    def sampling(self) -> Sampling:
        """Sample items uniformly."""
        return Sampling(self.item[0], self.negatives, 0.0)

    def _problems(self) -> list[str]:
        schema = self.schema
        if len(schema.sparse) != 1 or len(schema.ragged) != 1 or schema.dense:
            return ["expected a schema of a ragged field, what was read before, and a sparse one, the item"]
        return super()._problems()

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the GRU, and of the linear layers of both sides."""
        shapes = gru_shapes("gru", self.dim, self.units)
        shapes |= {"query.w": (self.units, self.out), "query.b": (self.out,)}
        return shapes | {"item.w": (self.dim, self.out), "item.b": (self.out,)}

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Maximum of each unit over the states of the GRU, through a linear layer."""
        state = grnn(tape, rows, batch, self.schema.ragged[0].name, dense, "gru")
        return normalize(tape, linear(tape, state, dense["query.w"], dense["query.b"]))

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """The item's row, through a linear layer."""
        return self._mapped(tape, batch.sparse[:, 0], rows, dense)

    def _mapped(self, tape: Tape, items: NDArray[np.int32], rows: Var, dense: DenseVars) -> Var:
        row = gather(tape, rows, items)
        return normalize(tape, linear(tape, row, dense["item.w"], dense["item.b"]))

    def others(
        self, tape: Tape, v: Var, batch: Batch, rows: Var, dense: DenseVars
    ) -> tuple[Var, NDArray[np.integer]]:
        """Vectors of the items drawn for the batch."""
        return self._mapped(tape, batch.negatives, rows, dense), batch.negatives
