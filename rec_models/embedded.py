"""Bases of models whose rows hold an embedding, or a first-order weight and an embedding."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pslib.table.initializers import Initializer
from pslib.table.optimizers import Optimizer
from pslib.table.tables import PartSpec
from rec_models.model import Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, W_INITIALIZER

__all__ = ["EmbeddedModel", "WeightedModel"]


@dataclass(frozen=True, eq=False)
class EmbeddedModel(Model):
    """Base of models that read an embedding of each key.

    Attributes
    ----------
    dim : int
        Floats of an embedding.
    v_optimizer : Optimizer
        Optimizer of embeddings.
    v_initializer : Initializer
        Initial values of embeddings.
    """

    dim: int = 10
    _: KW_ONLY
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the embedding of a key."""
        return (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),)


@dataclass(frozen=True, eq=False)
class WeightedModel(EmbeddedModel):
    """Base of models that read a first-order weight of each key beside its embedding.

    Attributes
    ----------
    w_optimizer : Optimizer
        Optimizer of first-order weights.
    w_initializer : Initializer
        Initial values of first-order weights.
    """

    _: KW_ONLY
    w_optimizer: Optimizer = DEFAULT_OPTIMIZER
    w_initializer: Initializer = W_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the first-order weight of a key; ``v``: its embedding."""
        return (PartSpec("w", 1, self.w_optimizer, self.w_initializer), *super().parts())
