"""Interfaces of a trainable model; `rec_models.Model` implements them, and any user class may."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import signature
from numbers import Real
from operator import index
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.suggestions import unknown_key
from pslib.table.optimizers import Optimizer
from pslib.table.tables import TableSpec
from pslib.validation import came


class Step(Protocol):
    """Result of a training step: loss, logits, gradients of rows and of dense parameters."""

    @property
    def loss(self) -> float:
        """Mean loss of the batch."""
        ...

    @property
    def logits(self) -> NDArray[Any]:
        """(B,) logits of the first task, before the step."""
        ...

    @property
    def rows_gradient(self) -> NDArray[Any]:
        """(U, D) gradient of the mean loss."""
        ...

    @property
    def dense_gradients(self) -> dict[str, NDArray[Any]]:
        """Gradients of dense parameters by name, in the order of ``dense_shapes``."""
        ...


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A step that owns its arrays.

    Gradients are read until their push is acknowledged, while the next steps are computed. A stepper in parts
    makes new arrays for each step; a model of another kind may reuse its arrays.
    """

    loss: float
    logits: NDArray[Any]
    rows_gradient: NDArray[Any]
    dense_gradients: dict[str, NDArray[Any]]

    @staticmethod
    def of(step: Step) -> KeptStep:
        """Copy a step."""
        dense = {name: np.array(gradient) for name, gradient in step.dense_gradients.items()}
        loss = float(step.loss)  # a NumPy scalar could not be sent in a report
        return KeptStep(loss, np.array(step.logits), np.array(step.rows_gradient), dense)


class Stepper(Protocol):
    """Interface for the training steps and predictions of a model."""

    def loss_and_gradients(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Step:
        """Compute one training step."""
        ...

    def predict(self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return (B,) probabilities, or (B, T) where the schema has T labels."""
        ...


@runtime_checkable
class ModelInParts(Protocol):
    """Extra interface of a model whose batch several threads compute: `rec_models.stepper.Stepper`."""

    def stepper(
        self, run: Callable[[Sequence[Callable[[], None]]], None], products: str = "float32"
    ) -> Stepper:
        """Return the model's stepper; ``run`` runs tasks in any order on any threads. Same bits as without.

        With ``products`` of ``bfloat16`` it may round the factors of a step's matrix products to that type. A
        model whose `stepper` has no ``products`` parameter is not passed it, and trains in float32.
        """
        ...


@runtime_checkable
class ModelWithOptions(Protocol):
    """Extra interface of a model that a checkpoint can name: `rec_models.saved` makes it again."""

    def options(self) -> dict[str, object]:
        """Return the model's options in plain form."""
        ...


def takes_products(model: object) -> bool:
    """Tell whether a model's steps can multiply in another type than float32."""
    return isinstance(model, ModelInParts) and "products" in signature(model.stepper).parameters


@runtime_checkable
class StepperInStages(Protocol):
    """Extra interface of a stepper whose steps may overlap; see `pslib.trainer.pipeline.overlap`."""

    def stages(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Generator[Sequence[Callable[[], None]], None, Step]:
        """Yield lists of tasks, each to run after the one before is done; return the step."""
        ...


@runtime_checkable
class TrainableModel(Stepper, Protocol):
    """A model of one table and some dense parameters; see `rec_models.Model` for the contracts."""

    @property
    def schema(self) -> Schema:
        """Schema of the columns that it reads."""
        ...

    def table(self) -> TableSpec:
        """Specification of its table."""
        ...

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the dense parameters."""
        ...

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return the initial values of the dense parameters."""
        ...


ALL_PARTS = "*"
"""Name of all parts of a row without an optimizer of their own."""
_OPTION = "_optimizer"
ModelT = TypeVar("ModelT")


def optimizer_options(kind: Any) -> dict[str, str]:
    """Map parts of a row to the option of a model's class with its optimizer: ``v`` to ``v_optimizer``.

    Other parts share one of these.
    """
    options = [one.name for one in fields(kind)] if is_dataclass(kind) else []
    return {name.removesuffix(_OPTION): name for name in options if name.endswith(_OPTION)}


def with_row_optimizers(model: ModelT, rows: Mapping[str, Optimizer]) -> ModelT:
    """Return the model with these optimizers of its rows.

    Parameters
    ----------
    model : TrainableModel
    rows : mapping of part name, or ``"*"``, to Optimizer
        Parts without one keep the model's own.

    Raises
    ------
    ConfigurationError
        If the model has no such part, or was made with another optimizer of it.
    """
    if not rows:
        return model
    name, options = type(model).__name__, optimizer_options(type(model))
    if not options:
        raise ConfigurationError(
            f"optimizers.rows: expected a model with options such as v_optimizer, got {name}, whose table() "
            "has the optimizers of its rows; set them there"
        )
    known = (*options, ALL_PARTS)
    problems = [unknown_key(f"optimizers.rows.{part}", options) for part in rows if part not in known]
    changed = dict[str, Optimizer]()
    for part, option in options.items():
        optimizer, own = rows.get(part, rows.get(ALL_PARTS)), getattr(model, option)
        default = type(model).__dataclass_fields__[option].default  # type: ignore[attr-defined]
        if optimizer is not None and own not in (default, optimizer):
            problems.append(f"optimizers.rows: {name} was made with {option}, {came(own)}; give one of them")
        if optimizer is not None:
            changed[option] = optimizer
    if problems:
        raise ConfigurationError(*problems)
    return cast("ModelT", replace(cast("Any", model), **changed))


Shapes = Mapping[str, tuple[int, ...]]
MEMBERS = ("loss", "logits", "rows_gradient", "dense_gradients")
"""Attributes of a `Step`."""


def _refuse(model: object, member: str, *problems: str) -> None:
    if problems:
        raise ConfigurationError(*(f"{type(model).__name__}.{member}: {problem}" for problem in problems))


def own_table_of(model: TrainableModel) -> TableSpec:
    """Return the model's own table; ConfigurationError when it, or the schema, has another type."""
    schema, table = model.schema, model.table()
    if not isinstance(schema, Schema):
        _refuse(model, "schema", f"expected a pslib.Schema, got {came(schema)}")
    if not isinstance(table, TableSpec):
        _refuse(model, "table", f"expected a pslib.TableSpec, got {came(table)}")
    return table


def dense_shapes_of(model: TrainableModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the dense parameters by name; ConfigurationError for invalid ones.

    Any sequence of integers is a shape, as in NumPy, including lists and NumPy integers.
    """
    shapes: Any = model.dense_shapes()
    found = {name: _shape_of(shape) for name, shape in shapes.items()} if isinstance(shapes, Mapping) else {}
    plain = {name: shape for name, shape in found.items() if shape is not None}
    if not isinstance(shapes, Mapping) or len(plain) < len(shapes):
        _refuse(model, "dense_shapes", f"expected shapes by name, as {{'b': (1,)}}, got {came(shapes)}")
    return plain


def first_dense_of(model: TrainableModel, shapes: Shapes, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return initial dense parameters; ConfigurationError for other names or shapes than declared."""
    values = model.initial_dense(seed)
    _refuse(model, "initial_dense", *_array_problems(values, shapes))
    return {name: np.asarray(values[name], np.float32) for name in shapes}


def check_step(model: object, batch: Batch, dense: Mapping[str, NDArray[Any]], step: Step) -> None:
    """Check a step; ConfigurationError for a missing member or a wrong shape.

    Gradients of rows are checked by the client, which names the keys of non-finite values.
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
    """Check predictions; ConfigurationError for non-probabilities. The score counter reports nan."""
    shapes = [(len(batch),), (len(batch), tasks)]
    if not isinstance(predicted, np.ndarray) or predicted.shape not in shapes:
        words = " or ".join(map(str, shapes if tasks > 1 else shapes[:1]))
        got = came(predicted)
        _refuse(
            model, "predict", f"expected one probability an example, an array of shape {words}, got {got}"
        )
    single = np.asarray(predicted, np.float32)  # as counted: 1 + 1e-16 is 1
    outside = (single < 0) | (single > 1)
    if outside.any():
        got = f"{single[outside][0]:.9g}, {outside.sum()} such in a batch"
        hint = "are these logits? give 1 / (1 + exp(-logits))"
        _refuse(model, "predict", f"expected probabilities, 0 to 1, got {got}; {hint}")


def _shape_of(shape: Any) -> tuple[int, ...] | None:
    """Return the shape as plain integers, as sent to the servers; None for an invalid one."""
    if not isinstance(shape, (Sequence, np.ndarray)) or isinstance(shape, (str, bytes)):
        return None
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        return None
    return sizes if all(size >= 0 for size in sizes) else None


def _array_problems(values: Any, shapes: Shapes) -> Iterator[str]:
    """Yield the problems of arrays by name, one line each."""
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
