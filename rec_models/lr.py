"""Logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.table.initializers import Initializer
from pslib.table.optimizers import Optimizer
from pslib.table.tables import PartSpec
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, OF_FIRST_WEIGHTS, OF_WEIGHTS, W_INITIALIZER


@dataclass(frozen=True, eq=False, repr=False)
class LR(Model):
    """Weights of keys and dense fields, and a bias (Richardson, Dominowska and Ragno, WWW 2007, eq. 3)."""

    w_optimizer: Annotated[Optimizer, OF_WEIGHTS] = DEFAULT_OPTIMIZER
    w_initializer: Annotated[Initializer, OF_FIRST_WEIGHTS] = W_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the weight of a key."""
        return (PartSpec("w", 1, self.w_optimizer, self.w_initializer),)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Bias, and the weights of the dense fields."""
        return {"bias": (1,)} | self._first_order_shapes()

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """``y = w_0 + <w, x>``."""
        return add(tape, *self._first_order(tape, batch, rows, dense), dense["bias"])
