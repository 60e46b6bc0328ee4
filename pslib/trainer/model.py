"""What the trainer needs of a model; `rec_models.Model` gives it, and any class of a user's may."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from operator import index
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.table.tables import TableSpec
from pslib.validation import came

__all__ = [
    "KeptStep",
    "ModelInParts",
    "Step",
    "Stepper",
    "StepperInStages",
    "TrainableModel",
    "check_predictions",
    "check_step",
    "dense_shapes_of",
    "first_dense_of",
    "own_table_of",
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
    """What a stepper has besides if steps may overlap; see `pslib.trainer.pipeline.overlap`."""

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


Shapes = Mapping[str, tuple[int, ...]]
MEMBERS = ("loss", "logits", "rows_gradient", "dense_gradients")
"""Of a `Step`."""


def _refuse(model: object, member: str, *problems: str) -> None:
    if problems:
        raise ConfigurationError(*(f"{type(model).__name__}.{member}: {problem}" for problem in problems))


def own_table_of(model: TrainableModel) -> TableSpec:
    """The table as the model gives it; ConfigurationError when it, or the schema, is something else."""
    schema, table = model.schema, model.table()
    if not isinstance(schema, Schema):
        _refuse(model, "schema", f"expected a pslib.Schema, got {came(schema)}")
    if not isinstance(table, TableSpec):
        _refuse(model, "table", f"expected a pslib.TableSpec, got {came(table)}")
    return table


def dense_shapes_of(model: TrainableModel) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's dense parameters by name; ConfigurationError when they are none.

    Any sequence of whole numbers is a shape, as in NumPy, a list or numbers of NumPy's among them.
    """
    shapes: Any = model.dense_shapes()
    found = {name: _shape_of(shape) for name, shape in shapes.items()} if isinstance(shapes, Mapping) else {}
    plain = {name: shape for name, shape in found.items() if shape is not None}
    if not isinstance(shapes, Mapping) or len(plain) < len(shapes):
        _refuse(model, "dense_shapes", f"expected shapes by name, as {{'b': (1,)}}, got {came(shapes)}")
    return plain


def first_dense_of(model: TrainableModel, shapes: Shapes, seed: int) -> dict[str, NDArray[np.float32]]:
    """First values of the dense parameters; ConfigurationError when they have not these names and shapes."""
    values = model.initial_dense(seed)
    _refuse(model, "initial_dense", *_array_problems(values, shapes))
    return {name: np.asarray(values[name], np.float32) for name in shapes}


def check_step(model: object, batch: Batch, dense: Mapping[str, NDArray[Any]], step: Step) -> None:
    """ConfigurationError for a step without a member, or of other shapes than batch and dense parameters.

    Gradients of rows are looked at by the client, which names the keys of what is not finite.
    """
    if missing := [name for name in MEMBERS if not hasattr(step, name)]:
        got = f"a {type(step).__name__} without {', '.join(missing)}"
        _refuse(model, "loss_and_gradients", f"expected a step, as rec_models.StepResult(...), got {got}")
    problems = []
    if not isinstance(step.loss, Real) and getattr(step.loss, "shape", None) != ():
        problems.append(f"loss: expected a number, the mean of the batch, got {came(step.loss)}")
    if np.shape(step.logits) != (len(batch),):
        problems.append(f"logits: expected one an example, of shape ({len(batch)},), got {came(step.logits)}")
    shapes = {name: value.shape for name, value in dense.items()}
    problems += (f"dense_gradients: {line}" for line in _array_problems(step.dense_gradients, shapes))
    _refuse(model, "loss_and_gradients", *problems)


def check_predictions(model: object, batch: Batch, tasks: int, predicted: Any) -> None:
    """ConfigurationError for what is no probability an example; nan is told by who counts the scores."""
    shapes = [(len(batch),), (len(batch), tasks)]
    if not isinstance(predicted, np.ndarray) or predicted.shape not in shapes:
        words = " or ".join(map(str, shapes if tasks > 1 else shapes[:1]))
        got = came(predicted)
        _refuse(
            model, "predict", f"expected one probability an example, an array of shape {words}, got {got}"
        )
    single = np.asarray(predicted, np.float32)  # what is counted: 1 + 1e-16 is 1
    outside = (single < 0) | (single > 1)
    if outside.any():
        got = f"{single[outside][0]:.9g}, {outside.sum()} such in a batch"
        hint = "are these logits? give 1 / (1 + exp(-logits))"
        _refuse(model, "predict", f"expected probabilities, 0 to 1, got {got}; {hint}")


def _shape_of(shape: Any) -> tuple[int, ...] | None:
    """The shape in plain numbers, as it travels to the servers; None for what is none."""
    if not isinstance(shape, (Sequence, np.ndarray)) or isinstance(shape, (str, bytes)):
        return None
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        return None
    return sizes if all(size >= 0 for size in sizes) else None


def _array_problems(values: Any, shapes: Shapes) -> Iterator[str]:
    """What is wrong with arrays by name, one line each."""
    if not isinstance(values, Mapping):
        yield f"expected arrays by name, as {{'b': array}}, got {came(values)}"
        return
    for name, shape in shapes.items():
        if name not in values:
            yield f"expected {name}, which dense_shapes names, got {', '.join(map(str, values)) or 'none'}"
        elif np.shape(values[name]) != shape:
            yield f"{name}: expected an array of shape {shape}, as in dense_shapes, got {came(values[name])}"
    for name in values:
        if name not in shapes:
            yield f"{name}: dense_shapes does not name it; add it there, or leave it out"
