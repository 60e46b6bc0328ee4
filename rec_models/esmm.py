"""Entire space multi-task model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, logit_of_product
from rec_models.model import DenseVars, MultiTaskModel


@dataclass(frozen=True, eq=False, repr=False)
class ESMM(MultiTaskModel):
    """Post-click conversion learned from all impressions (Ma et al., SIGIR 2018, arXiv:1804.07931).

    The schema's label is the click; its one further label is click and conversion, 1 if both happened.
    Predictions are pCTR and pCTCVR; pCVR, the probability that a click converts, is their ratio. Both towers
    share the embeddings.
    """

    tasks: ClassVar[tuple[int, int]] = (2, 2)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the two MLPs."""
        width = self._mlp_width(self.dim)
        return self._head_shapes("ctr", width) | self._head_shapes("cvr", width)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1: ``pCTCVR = pCTR pCVR``; the loss of `Model.loss` is then eq. 3."""
        x = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, rows)))
        ctr, cvr = self._head(tape, x, dense, "ctr"), self._head(tape, x, dense, "cvr")
        return concat(tape, ctr, logit_of_product(tape, ctr, cvr))
