"""Base classes of models: rows of one table, dense parameters, and a ``forward`` in the paper's notation.

`Model` is the base of all. `EmbeddedModel` adds an embedding of each key, `WeightedModel` a first-order
weight beside it, `MLPModel` the options of a multilayer perceptron, `MultiTaskModel` a logit for each label.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.schema import Schema
from pslib.settings import Settings, short_repr
from pslib.table.initializers import Initializer
from pslib.table.optimizers import Optimizer
from pslib.table.tables import PartSpec, TableSpec, text_hash
from pslib.text import html_table
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import dot, embedding, log_loss, mlp, mlp_shapes, tower_output, tower_shapes
from rec_models.layers import first_order as first_order_layer
from rec_models.options import (
    BATCH_NORM,
    DEFAULT_OPTIMIZER,
    DIM,
    DROPOUT,
    HIDDEN,
    OF_FIRST_VECTORS,
    OF_FIRST_WEIGHTS,
    OF_VECTORS,
    OF_WEIGHTS,
    SEED,
    V_INITIALIZER,
    W_INITIALIZER,
    plain_of,
    plain_options,
)
from rec_models.stepper import Run, Stepper, StepResult

DenseVars: TypeAlias = Mapping[str, Var]
"""Dense parameters of a model by name, on a tape."""

TASKS_MAX = 64
"""Limit of tasks; published models have two to ten."""
STATISTICS = (".mean", ".inv_std")
ONES = (".scale", ".inv_std")
VECTORS = (".v",)
FORMS = ("fusion.w",)
VECTOR_BOUND = 0.01 * math.sqrt(3)
"""Bound of initial vectors of dense fields: a standard deviation of 0.01, like ``V_INITIALIZER``'s."""


@dataclass(frozen=True, eq=False, repr=False)
class Model(Settings):
    """Base of all models: a value that holds options and no parameters.

    A model is a frozen dataclass whose fields are its options, annotated with bounds and help as those of all
    `pslib.settings.Settings`; a job file gives them by name. It defines the parts of its table (`parts`),
    its dense parameters (`dense_shapes`) and the computation of logits (`forward`).

    Attributes
    ----------
    schema : Schema
        Columns that the model reads.

    Raises
    ------
    ConfigurationError
        When options are out of range; all of them at once.
    """

    examples_independent: ClassVar[bool] = True
    """True if the logit of an example depends on no other example of its batch: then `forward` is given parts
    of a batch. A model with, say, normalisation over the batch sets this to False and gets the whole
    batch."""

    tasks: ClassVar[tuple[int, int]] = (1, 1)
    """Minimum and maximum number of labels; models that rank items need none."""

    AT = "{kind}: "

    schema: Schema
    _: KW_ONLY
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        plain_options(self)
        super().__post_init__()

    def _field_problems(self) -> Iterator[str]:
        yield from super()._field_problems()
        if isinstance(self.schema, Schema):
            yield from self._target_problems()

    def _target_problems(self) -> list[str]:
        """Return problems of the schema's labels and weight for this model."""
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

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        schema = self.schema
        columns = {"label": ", ".join(schema.labels) or "none"} | {
            kind: ", ".join(field.name for field in getattr(schema, kind)) or "none"
            for kind in ("sparse", "dense", "ragged")
        }
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "schema"}
        return html_table(type(self).__name__, columns | options)

    def options(self) -> dict[str, object]:
        """Return its options in plain form, from which `rec_models.build` makes it again."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "schema"}
        return {name: plain_of(value) for name, value in named.items()}

    @abstractmethod
    def parts(self) -> tuple[PartSpec, ...]:
        """Return the parts of a row, in the order in which `forward` splits them."""

    @abstractmethod
    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the dense parameters, in a fixed order."""

    @abstractmethod
    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Compute the logits of a batch.

        Parameters
        ----------
        tape : Tape
        batch : Batch
        rows : (U, D)
            Rows of ``batch.keys``, all parts side by side.
        dense : mapping of name to Var
            Dense parameters of `dense_shapes`.

        Returns
        -------
        (B,), or (B, T) of a model of T tasks
            Probabilities are their sigmoid.
        """

    def weight(self, batch: Batch) -> float:
        """Return the divisor of the mean loss of a batch: number of examples, or sum of their weights."""
        return len(batch) if batch.weights is None else float(batch.weights.sum(dtype=np.float64))

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Compute a part's share of the mean loss over ``weight``, and the first task's logits, (B,)."""
        logits = self.forward(tape, batch, rows, dense)
        of_first = logits.value if logits.value.ndim == 1 else logits.value[:, 0]
        return log_loss(tape, logits, batch.every_label, weight, batch.weights), of_first

    def table(self) -> TableSpec:
        """Return the one table that the model reads."""
        return TableSpec("embedding", self.parts(), self.seed)

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return initial dense parameters: each a pure function of (seed, name, shape)."""
        return {name: initial_values(seed, name, shape) for name, shape in self.dense_shapes().items()}

    def loss_and_gradients(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> StepResult:
        """Compute the mean log loss of a batch and its gradients, with dropout seeded by ``step_seed``.

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
        """Compute probabilities, (B,) or (B, T), without dropout; arguments as in `loss_and_gradients`."""
        return Stepper(self).predict(batch, rows, dense)

    def statistics(self) -> tuple[str, ...]:
        """Return the dense parameters without gradients, set by `measured`: statistics of batch norm."""
        return tuple(name for name in self.dense_shapes() if name.endswith(STATISTICS))

    def measured(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> dict[str, Array]:
        """Measure the `statistics` on these examples: layer by layer, without dropout."""
        return Stepper(self).measured(batch, rows, dense)

    def stepper(self, run: Run, products: str = "float32") -> Stepper:
        """Return a stepper for a trainer, which gives the same bits with the threads of ``run``.

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
        """Return the terms of ``<w, x>``: one over keys, and one over dense fields if there are any."""
        over_keys = first_order_layer(tape, w, batch, self.schema)
        if not self.schema.dense:
            return (over_keys,)
        return over_keys, dot(tape, batch.dense, dense["dense.w"])

    def _vectors(self, tape: Tape, batch: Batch, rows: Var) -> Var:
        """Return one vector a field, with room for dense fields after those of an example."""
        return embedding(tape, rows, batch, self.schema, beside=len(self.schema.dense))

    def _mlp_input(self, batch: Batch, vectors: Var) -> tuple[Var, ...]:
        """Return field vectors, and the dense fields if there are any."""
        if not self.schema.dense:
            return (vectors,)
        return vectors, Var(batch.dense)

    @property
    def _fields(self) -> int:
        return len(self.schema.sparse) + len(self.schema.ragged)

    def _mlp_width(self, dim: int) -> int:
        return dim * self._fields + len(self.schema.dense)


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddedModel(Model):
    """Base of models that read an embedding of each key."""

    dim: Annotated[int, DIM] = 10
    _: KW_ONLY
    v_optimizer: Annotated[Optimizer, OF_VECTORS] = DEFAULT_OPTIMIZER
    v_initializer: Annotated[Initializer, OF_FIRST_VECTORS] = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the embedding of a key."""
        return (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),)


@dataclass(frozen=True, eq=False, repr=False)
class WeightedModel(EmbeddedModel):
    """Base of models that read a first-order weight of each key beside its embedding."""

    _: KW_ONLY
    w_optimizer: Annotated[Optimizer, OF_WEIGHTS] = DEFAULT_OPTIMIZER
    w_initializer: Annotated[Initializer, OF_FIRST_WEIGHTS] = W_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the first-order weight of a key; ``v``: its embedding."""
        return (PartSpec("w", 1, self.w_optimizer, self.w_initializer), *super().parts())


@dataclass(frozen=True, eq=False, repr=False)
class MLPModel(EmbeddedModel):
    """Base of models with a multilayer perceptron."""

    hidden: Annotated[tuple[int, ...], HIDDEN] = (400, 400, 400)
    dropout: Annotated[float, DROPOUT] = 0.0
    batch_norm: Annotated[bool, BATCH_NORM] = False

    def _mlp_shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the MLP's parameters."""
        return mlp_shapes(inputs, self.hidden, self.batch_norm)

    def _mlp(self, tape: Tape, x: Var, dense: DenseVars) -> Var:
        """Compute the MLP's output, (B,), from (B, N)."""
        return mlp(tape, x, dense, len(self.hidden), self.dropout)


@dataclass(frozen=True, eq=False, repr=False)
class MultiTaskModel(MLPModel):
    """Base of models that predict several labels of an example: the schema's ``label`` and ``more_labels``.

    Each task has an MLP of its own. `forward` gives a logit for each task, (B, T) in the schema's order; the
    loss is the sum of their log losses.
    """

    tasks: ClassVar[tuple[int, int]] = (2, TASKS_MAX)

    hidden: Annotated[tuple[int, ...], HIDDEN] = (200, 80)

    def _head_shapes(self, name: str, inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a task's MLP, which ends in its logit."""
        return tower_shapes(name, inputs, self.hidden, self.batch_norm, out=1)

    def _head(self, tape: Tape, x: Var, dense: DenseVars, name: str) -> Var:
        """Compute the logit of a task, (B, 1)."""
        return tower_output(tape, x, dense, name, len(self.hidden), self.dropout)


def vector_fields(schema: Schema) -> list[str]:
    """Return sparse and ragged fields, in the order of their vectors."""
    return [*(field.name for field in schema.sparse), *(field.name for field in schema.ragged)]


def initial_values(seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return initial values of one dense parameter: a pure function of (seed, name, shape).

    Matrices (N, M) are uniform in ``+-sqrt(6 / N)`` (He et al., arXiv:1502.01852, for relu layers), and so
    are those of a stack (K, N, M). A bilinear form (`FORMS`), (K, N, M), adds up K N M products to one
    number, so its bound is ``sqrt(6 / (K N M))``: within that of a stack FinalMLP's first logits deviated by
    7 in place of 1.3. Biases and first-order weights, (N,), are zeros; scales (`ONES`) are ones.
    Vectors of dense fields (`VECTORS`), (N, D), are embeddings, as small as those of keys: with He's bound,
    2.4 for a single field, they dominated attention permanently. Random numbers come from raw Philox bits,
    independent of the NumPy version. A matrix without inputs, over the pairs of a single field, is empty.
    """
    if name.endswith(ONES):
        return np.ones(shape, np.float32)
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    count = int(np.prod(shape))
    raw = np.random.Philox(key=text_hash("dense", str(seed), name)).random_raw(count)
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    inputs = count if name.endswith(FORMS) else shape[-2]
    bound = VECTOR_BOUND if name.endswith(VECTORS) else np.sqrt(6 / max(1, inputs))
    return (unit * np.float32(bound)).reshape(shape)
