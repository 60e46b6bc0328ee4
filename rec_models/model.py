"""What every model is: rows of one table, dense parameters, and a ``forward`` that reads like its paper."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.table.tables import PartSpec, TableSpec, text_hash
from pslib.validation import check_fields
from rec_models.layers import dot, embedding, log_loss
from rec_models.layers import first_order as first_order_layer
from rec_models.options import option_problem, plain_options
from rec_models.result import StepResult
from rec_models.stepper import Run, Stepper
from rec_models.tape import Array, Tape, Var

__all__ = ["DenseVars", "Model", "StepResult", "initial_values"]

DenseVars: TypeAlias = Mapping[str, Var]
"""Dense parameters of a model by name, on a tape."""

STATISTICS = (".mean", ".inv_std")
ONES = (".scale", ".inv_std")
VECTORS = (".v",)
VECTOR_BOUND = 0.01 * math.sqrt(3)
"""Of first values of dense fields' vectors: a standard deviation of 0.01, ``V_INITIALIZER``'s of keys."""


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

    examples_independent: ClassVar[bool] = True
    """Whether the logit of an example depends on no other example of its batch: then `forward` is given parts
    of a batch. A model with, say, normalisation over the batch sets this to False and gets the whole
    batch."""

    tasks: ClassVar[tuple[int, int]] = (1, 1)
    """Of how many labels it is, at least and at most; those that rank items can do without."""

    schema: Schema
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "schema")
        options = [field.name for field in fields(self) if field.name != "schema"]
        plain_options(self, options)
        problems = [problem for name in options if (problem := option_problem(name, getattr(self, name)))]
        problems = [*self._target_problems(), *(problems or self._problems())]
        if problems:
            raise ConfigurationError(*(f"{type(self).__name__}: {problem}" for problem in problems))

    def _target_problems(self) -> list[str]:
        """What of the schema's labels and weight the model would not learn from."""
        labels, (least, most) = self.schema.labels, self.tasks
        problems = []
        if not least <= len(labels) <= most:
            count = "1 label" if most == 1 else f"{least} labels"
            more = "" if most in (least, 1) else " or more"
            got = (
                f"{', '.join(labels)}; see more_labels: esmm, mmoe"
                if labels
                else "none; name the column of 0 and 1"
            )
            problems.append(f"schema: expected {count}{more}, got {got}")
        if self.schema.weight is not None and type(self).loss is not Model.loss:
            problems.append(f"schema: expected no weight, got {self.schema.weight!r}: its loss has none")
        return problems

    def _problems(self) -> list[str]:
        """What is wrong with options that have to fit each other or the schema; each is right by itself."""
        return []

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
        (B,), or (B, T) of a model of T tasks
            Probabilities are their sigmoid.
        """

    def weight(self, batch: Batch) -> float:
        """What the mean loss of a batch is a mean over: its examples, or the sum of their weights."""
        return len(batch) if batch.weights is None else float(batch.weights.sum(dtype=np.float64))

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Loss of a part of a batch as a share of the mean over ``weight``; first task's logits, (B,)."""
        logits = self.forward(tape, batch, rows, dense)
        of_first = logits.value if logits.value.ndim == 1 else logits.value[:, 0]
        return log_loss(tape, logits, batch.every_label, weight, batch.weights), of_first

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
        return Stepper(self).loss_and_gradients(batch, rows, dense, step_seed)

    def predict(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Probabilities of a batch, (B,) or (B, T), without dropout; arguments as in `loss_and_gradients`."""
        return Stepper(self).predict(batch, rows, dense)

    def statistics(self) -> tuple[str, ...]:
        """Names of the dense parameters that no gradient moves, but `measured` says: batch norm's."""
        return tuple(name for name in self.dense_shapes() if name.endswith(STATISTICS))

    def measured(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> dict[str, Array]:
        """What `statistics` ought to be for examples like these: layer by layer, without dropout."""
        return Stepper(self).measured(batch, rows, dense)

    def stepper(self, run: Run, products: str = "float32") -> Stepper:
        """What computes many steps of this model, for a trainer: the same bits, with the threads of ``run``.

        Parameters
        ----------
        run : callable
            Runs a list of tasks in any order by any threads, and returns when all are done.
        products : "float32" or "bfloat16"
            See `Stepper`.
        """
        return Stepper(self, run, products)

    def _first_order_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"dense.w": (len(self.schema.dense),)} if self.schema.dense else {}

    def _first_order(self, tape: Tape, batch: Batch, w: Var, dense: DenseVars) -> tuple[Var, ...]:
        """Terms of ``<w, x>``: one over keys, and one over dense fields where the schema has any."""
        over_keys = first_order_layer(tape, w, batch, self.schema)
        if not self.schema.dense:
            return (over_keys,)
        return over_keys, dot(tape, batch.dense, dense["dense.w"])

    def _vectors(self, tape: Tape, batch: Batch, rows: Var) -> Var:
        """One vector a field, with room for the dense fields after those of an example."""
        return embedding(tape, rows, batch, self.schema, beside=len(self.schema.dense))

    def _mlp_input(self, batch: Batch, vectors: Var) -> tuple[Var, ...]:
        """Field vectors, and the dense fields where the schema has any."""
        if not self.schema.dense:
            return (vectors,)
        return vectors, Var(batch.dense)

    @property
    def _field_names(self) -> list[str]:
        """Sparse and ragged fields, in the order of field vectors."""
        return [*(field.name for field in self.schema.sparse), *(field.name for field in self.schema.ragged)]

    @property
    def _fields(self) -> int:
        return len(self.schema.sparse) + len(self.schema.ragged)

    def _mlp_width(self, dim: int) -> int:
        return dim * self._fields + len(self.schema.dense)


def initial_values(seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """First values of one dense parameter: a pure function of (seed, name, shape).

    Matrices (N, M) are uniform in ``+-sqrt(6 / N)`` (He et al., arXiv:1502.01852: what relu layers need), and
    so are those of a stack (K, N, M). Biases and first-order weights, (N,), are zeros, and those that scale
    (`ONES`) ones. Vectors of dense fields (`VECTORS`), (N, D), are an embedding and no layer: as small as
    those of keys. Within He's bound, which for a single field is 2.4, attention was all theirs and did not
    come back. The numbers come from raw Philox bits, so a new NumPy does not change them. A matrix of no
    inputs, over the pairs of a single field, has no numbers.
    """
    if name.endswith(ONES):
        return np.ones(shape, np.float32)
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    count = int(np.prod(shape))
    raw = np.random.Philox(key=text_hash("dense", str(seed), name)).random_raw(count)
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    bound = VECTOR_BOUND if name.endswith(VECTORS) else np.sqrt(6 / max(1, shape[-2]))
    return (unit * np.float32(bound)).reshape(shape)
