"""GRU4Rec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.settings import Setting
from rec_models.engine.packed_sequences import Packed
from rec_models.engine.tape import Tape, Var
from rec_models.layers import bpr_max, dropout, gru, gru_shapes, linear
from rec_models.layers.ranking_losses import Candidates
from rec_models.model import DenseVars
from rec_models.options import fraction
from rec_models.session import SessionModel


@dataclass(frozen=True, eq=False, repr=False)
class GRU4Rec(SessionModel):
    """A GRU over the items of a session (Hidasi et al., ICLR 2016, arXiv:1511.06939).

    With the losses of Hidasi and Karatzoglou (CIKM 2018, arXiv:1706.03847) over the next item and shared
    negatives. Gradients flow back through the whole session; the paper stops after one step. A batch consists
    of whole sessions.
    """

    dropout: Annotated[float, fraction("Fraction of the floats of items dropped in training.")] = 0.0
    dropout_hidden: Annotated[float, fraction("Fraction of the floats of states dropped in training.")] = 0.0
    rank_loss: Annotated[
        str, Setting("Loss of a session; bpr-max needs logq: false.", choices=("cross-entropy", "bpr-max"))
    ] = "cross-entropy"
    bpreg: Annotated[
        float,
        Setting("With bpr-max, the weight of the negatives' squared scores; the authors use 0.9 to 2.", ge=0),
    ] = 0.0

    def _problems(self) -> list[str]:
        if self.rank_loss == "bpr-max":
            return (
                ["logq: bpr-max is not corrected for what is drawn; set logq to false"] if self.logq else []
            )
        return ["bpreg: expected 0 with cross-entropy, only bpr-max has it"] if self.bpreg else []

    def rank_loss_of(
        self, tape: Tape, h: Var, targets: Candidates, negatives: Candidates, positions: int
    ) -> Var:
        """Compute the loss selected by ``rank_loss``."""
        if self.rank_loss == "bpr-max":
            return bpr_max(tape, h, targets, negatives, positions, self.bpreg)
        return super().rank_loss_of(tape, h, targets, negatives, positions)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Input weights and biases of reset gate, update gate and candidate; recurrent weights; a bias."""
        return gru_shapes("gru", self.dim, self.dim)

    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """``h_t = GRU(x_t, h_{t-1})``, section 3.1; the vector of an item is its input (constrained)."""
        x = linear(tape, dropout(tape, items, self.dropout), dense["gru.W"], dense["gru.c"])
        h = gru(tape, x, steps, dense["gru.U"], dense["gru.b"])
        return dropout(tape, h, self.dropout_hidden)
