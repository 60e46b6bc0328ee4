"""What every model is: rows of one table, dense parameters, and a ``forward`` that reads like its paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.tables import PartSpec, TableSpec, text_hash
from rec_models.layers import dot, log_loss
from rec_models.layers import first_order as first_order_layer
from rec_models.layers.activation import sigmoid_of
from rec_models.options import option_problem
from rec_models.tape import Array, Tape, Var

__all__ = ["DenseVars", "Model", "StepResult", "initial_values"]

DenseVars: TypeAlias = Mapping[str, Var]
"""Dense parameters of a model by name, on a tape."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What one training step gives back.

    Attributes
    ----------
    loss : float
        Mean log loss of the batch, before the step.
    logits : (B,)
    rows_gradient : (U, D)
        Gradient of the mean loss with respect to each distinct row; contiguous.
    dense_gradients : dict of name to array
        In the order of `Model.dense_shapes`.
    """

    loss: float
    logits: Array
    rows_gradient: Array
    dense_gradients: dict[str, Array]


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """Base of all models: a value that holds options and no parameters.

    A model is a frozen dataclass whose fields are its options; it says which parts its table has (`parts`),
    which dense parameters it needs (`dense_shapes`) and how they make logits (`forward`). All else is here.

    Attributes
    ----------
    schema : Schema
        The columns that the model reads.
    seed : int
        Seed of the first values of rows.

    Raises
    ------
    ConfigurationError
        When options are out of range; all of them at once.
    """

    schema: Schema
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        options = (field.name for field in fields(self) if field.name != "schema")
        problems = [problem for name in options if (problem := option_problem(name, getattr(self, name)))]
        if problems:
            raise ConfigurationError(*(f"{type(self).__name__}: {problem}" for problem in problems))

    @abstractmethod
    def parts(self) -> tuple[PartSpec, ...]:
        """Parts of a row, in the order in which `forward` splits them."""

    @abstractmethod
    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the dense parameters, in a fixed order."""

    @abstractmethod
    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Logits of a batch.

        Parameters
        ----------
        tape : Tape
        batch : Batch
        rows : (U, D)
            Rows of ``batch.keys``, all parts side by side.
        dense : mapping of name to Var
            What `dense_shapes` names.

        Returns
        -------
        (B,)
            The click probability is their sigmoid.
        """

    def table(self) -> TableSpec:
        """The one table that the model reads."""
        return TableSpec("embedding", self.parts(), self.seed)

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """First values of the dense parameters: each a pure function of (seed, name, shape)."""
        return {name: initial_values(seed, name, shape) for name, shape in self.dense_shapes().items()}

    def loss_and_gradients(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> StepResult:
        """Mean log loss of a batch and its gradients, with dropout seeded by ``step_seed``.

        Parameters
        ----------
        batch : Batch
        rows : (U, D)
            Rows of ``batch.keys``; float32 in training, float64 for gradient checks.
        dense : mapping of name to array of the same dtype
        step_seed : int
            The same seed drops the same units, on any trainer.
        """
        tape = Tape(training=True, step_seed=step_seed)
        row_var = Var(rows)
        dense_vars = {name: Var(dense[name]) for name in self.dense_shapes()}
        logits = self.forward(tape, batch, row_var, dense_vars)
        loss = log_loss(tape, logits, batch.labels)
        tape.backward(loss)
        return StepResult(
            loss=float(loss.value),
            logits=logits.value,
            rows_gradient=row_var.gradient_or_zeros(),
            dense_gradients={name: var.gradient_or_zeros() for name, var in dense_vars.items()},
        )

    def predict(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Click probabilities of a batch, (B,), without dropout; arguments as in `loss_and_gradients`."""
        dense_vars = {name: Var(dense[name]) for name in self.dense_shapes()}
        return sigmoid_of(self.forward(Tape(training=False), batch, Var(rows), dense_vars).value)

    def _first_order_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"dense.w": (len(self.schema.dense),)} if self.schema.dense else {}

    def _first_order(self, tape: Tape, batch: Batch, w: Var, dense: DenseVars) -> tuple[Var, ...]:
        """Terms of ``<w, x>``: one over keys, and one over dense fields where the schema has any."""
        over_keys = first_order_layer(tape, w, batch, self.schema)
        if not self.schema.dense:
            return (over_keys,)
        return over_keys, dot(tape, batch.dense, dense["dense.w"])

    def _mlp_input(self, batch: Batch, vectors: Var) -> tuple[Var, ...]:
        """Field vectors, and the dense fields where the schema has any."""
        if not self.schema.dense:
            return (vectors,)
        return vectors, Var(batch.dense)

    def _mlp_width(self, dim: int) -> int:
        schema = self.schema
        return dim * (len(schema.sparse) + len(schema.ragged)) + len(schema.dense)


def initial_values(seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """First values of one dense parameter: a pure function of (seed, name, shape).

    Matrices (N, M) are uniform in ``+-sqrt(6 / N)`` (He et al., arXiv:1502.01852: what relu layers need).
    Vectors, which are biases and first-order weights, are zeros. The numbers come from raw Philox bits, so a
    new NumPy does not change them.
    """
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    count = int(np.prod(shape))
    raw = np.random.Philox(key=text_hash("dense", str(seed), name)).random_raw(count)
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return (unit * np.float32(np.sqrt(6 / shape[0]))).reshape(shape)
