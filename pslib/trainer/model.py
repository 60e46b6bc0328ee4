"""What the trainer needs of a model; `rec_models.Model` gives it, and any class of a user's may."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.schema import Schema
from pslib.table.tables import TableSpec

__all__ = [
    "KeptStep",
    "ModelInParts",
    "Step",
    "Stepper",
    "StepperInStages",
    "TrainableModel",
    "takes_products",
]


class Step(Protocol):
    """What one training step gives back: loss, logits, gradients of rows and of dense parameters."""

    @property
    def loss(self) -> float:
        """Mean loss of the batch."""
        ...

    @property
    def logits(self) -> NDArray[Any]:
        """(B,) logits before the step, of the first task."""
        ...

    @property
    def rows_gradient(self) -> NDArray[Any]:
        """(U, D) gradient of the mean loss."""
        ...

    @property
    def dense_gradients(self) -> dict[str, NDArray[Any]]:
        """By name, in the order of ``dense_shapes``."""
        ...


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A step with arrays of its own.

    Gradients are read until their push is acknowledged, while the next steps are computed. A stepper of parts
    makes new arrays for each step; whoever writes a model of another kind may fill the same ones again.
    """

    loss: float
    logits: NDArray[Any]
    rows_gradient: NDArray[Any]
    dense_gradients: dict[str, NDArray[Any]]

    @staticmethod
    def of(step: Step) -> KeptStep:
        """A copy."""
        dense = {name: np.array(gradient) for name, gradient in step.dense_gradients.items()}
        loss = float(step.loss)  # of NumPy it could not travel to who reports it
        return KeptStep(loss, np.array(step.logits), np.array(step.rows_gradient), dense)


class Stepper(Protocol):
    """Computes steps and predictions of a model."""

    def loss_and_gradients(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Step:
        """One training step."""
        ...

    def predict(self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """(B,) probabilities, or (B, T) where the schema has T labels."""
        ...


@runtime_checkable
class ModelInParts(Protocol):
    """What a model has besides if several threads can compute a batch of it: `rec_models.stepper.Stepper`."""

    def stepper(
        self, run: Callable[[Sequence[Callable[[], None]]], None], products: str = "float32"
    ) -> Stepper:
        """What computes its steps; ``run`` runs tasks in any order by any threads. Same bits as without.

        With ``products`` of ``bfloat16`` it may round the factors of a step's matrix products to that. Nobody
        gives ``products`` to a model that does not name it: such a one trains in float32.
        """
        ...


def takes_products(model: object) -> bool:
    """Whether a model's steps can multiply in another type than float32."""
    return isinstance(model, ModelInParts) and "products" in signature(model.stepper).parameters


@runtime_checkable
class StepperInStages(Protocol):
    """What a stepper has besides if steps may overlap; see `pslib.trainer.overlap`."""

    def stages(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Generator[Sequence[Callable[[], None]], None, Step]:
        """Lists of tasks, each when all of the one before are done; returns the step."""
        ...


@runtime_checkable
class TrainableModel(Stepper, Protocol):
    """A model of one table and some dense parameters; see `rec_models.Model` for the contracts."""

    @property
    def schema(self) -> Schema:
        """Columns that it reads."""
        ...

    def table(self) -> TableSpec:
        """Its table."""
        ...

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of dense parameters."""
        ...

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Their first values."""
        ...
