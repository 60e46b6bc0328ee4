"""Bases of session models, which rank the next item after a sequence of items."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.errors import ConfigurationError
from pslib.settings import Setting
from pslib.table.initializers import Constant, Initializer, Uniform
from pslib.table.optimizers import Adagrad, Optimizer
from pslib.table.tables import DIM_MAX, PartSpec
from rec_models.engine.packed_sequences import Packed, packed
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import gather, sampled_softmax, split
from rec_models.layers.ranking_losses import Candidates
from rec_models.model import DenseVars, Model
from rec_models.options import LENGTH_MAX, NEGATIVES_MAX, initializer, optimizer, size


@dataclass(frozen=True, eq=False, repr=False)
class SessionModel(Model):
    """Base of models that predict the next item of a session.

    An example is a session: one ragged field, its items in order. At every item except the last the model has
    a state, and ranks the next item above negatives shared by the whole batch. An item has one vector, used
    as input and as candidate, and a bias; a row is an item.
    """

    tasks: ClassVar[tuple[int, int]] = (0, 1)

    dim: Annotated[int, size("Floats of an item's vector.", DIM_MAX)] = 100
    negatives: Annotated[int, size("Items drawn for a batch.", NEGATIVES_MAX)] = 2048
    alpha: Annotated[float, Setting("Power of an item's count in its sampling probability.", ge=0, le=1)] = (
        0.5
    )
    logq: Annotated[bool, Setting("Correct the loss for the sampling probability.")] = True
    v_optimizer: Annotated[Optimizer, optimizer("Optimizer of items and their biases.")] = Adagrad(0.1)
    v_initializer: Annotated[Initializer, initializer("Initial values of items and their biases.")] = Uniform(
        0.1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        schema = self.schema
        if len(schema.ragged) != 1 or schema.sparse or schema.dense:
            raise ConfigurationError(
                f"{type(self).__name__}: schema: expected one ragged field, the items of a session, got "
                f"{len(schema.dense)} dense, {len(schema.sparse)} sparse, {len(schema.ragged)} ragged fields"
            )

    @property
    def history(self) -> str:
        """Name of the item field."""
        return self.schema.ragged[0].name

    @property
    def items_max(self) -> int | None:
        """Number of last items read of a session; None: all."""
        return None

    def sampling(self) -> Sampling:
        """Sampling of negatives for each batch."""
        return Sampling(self.history, self.negatives, self.alpha)

    def parts(self) -> tuple[PartSpec, ...]:
        """``b``: the bias of an item; ``v``: its vector."""
        return (
            PartSpec("b", 1, self.v_optimizer, Constant(0.0)),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    @abstractmethod
    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """Compute the states after each item.

        Parameters
        ----------
        tape : Tape
        items : (N, D)
            Vectors of the items, packed by ``steps``.
        steps : Packed
            Positions of items and lists.
        dense : mapping of str to Var
            Dense parameters.

        Returns
        -------
        (N, D)
            States, packed by ``steps``; products of a state with items rank the items.
        """

    def last_states(self, tape: Tape, items: Var, steps: Packed, positions: Array, dense: DenseVars) -> Var:
        """Compute the states after the last item of each list, without other states if the model allows it.

        Parameters
        ----------
        tape, items, steps, dense
            As for `states`.
        positions : (M,) integers
            Positions of these last items.

        Returns
        -------
        (M, D)
        """
        return gather(tape, self.states(tape, items, steps, dense), positions)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Raise an error: a session has no click to predict.

        Raises
        ------
        ConfigurationError
            Always.
        """
        raise ConfigurationError(f"{type(self).__name__} ranks items: call rank, not evaluate or predict")

    def weight(self, batch: Batch) -> int:
        """Return the number of positions with a next item."""
        lengths = np.maximum(batch.ragged[self.history].lengths - 1, 0)
        return int((lengths if self.items_max is None else np.minimum(lengths, self.items_max)).sum())

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Compute the loss over next items and the batch's negatives; no logits."""
        lists = batch.ragged[self.history]
        steps = packed(lists, without_last=True, at_most=self.items_max)
        b, v = split(tape, rows, (1, self.dim))
        h = self.states(tape, gather(tape, v, steps.values), steps, dense)

        def candidates(rows: Array) -> Candidates:
            log_q = batch.log_q[rows] if self.logq else np.zeros(rows.size, np.float32)
            return Candidates(gather(tape, v, rows), gather(tape, b, rows), rows, log_q)

        targets, negatives = candidates(lists.values[steps.indices + 1]), candidates(batch.negatives)
        loss = self.rank_loss_of(tape, h, targets, negatives, int(weight))
        return loss, np.zeros(len(batch), h.value.dtype)

    def rank_loss_of(
        self, tape: Tape, h: Var, targets: Candidates, negatives: Candidates, positions: int
    ) -> Var:
        """Compute the cross-entropy of states and next items, as a share of the mean over ``positions``."""
        return sampled_softmax(tape, h, targets, negatives, positions)

    def encode(self, batch: Batch, rows: Array, dense: dict[str, Array], field: str) -> Array:
        """Compute the state at the end of each session.

        Parameters
        ----------
        batch : Batch
        rows : (U, 1 + D)
        dense : mapping of name to array
        field : str
            Ragged field with the items so far.

        Returns
        -------
        (B, D)
            Zeros for an empty session.
        """
        parameters = {name: Var(value) for name, value in dense.items()}
        sessions, ends = self.ends(Tape(training=False), batch, Var(rows), parameters, field)
        found = np.zeros((len(batch), self.dim), rows.dtype)
        found[sessions] = ends.value
        return found

    def ends(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, field: str) -> tuple[Array, Var]:
        """Compute the states at the ends of the sessions that are not empty; return which these are, too."""
        steps = packed(batch.ragged[field], at_most=self.items_max)
        sessions, positions = steps.last()
        _, v = split(tape, rows, (1, self.dim))
        return sessions, self.last_states(tape, gather(tape, v, steps.values), steps, positions, dense)


@dataclass(frozen=True, eq=False, repr=False)
class SessionModelOfPairs(SessionModel):
    """Base of session models that compare each item with all earlier ones."""

    # A session of L items has L (L + 1) / 2 pairs, each with some vectors of ``dim`` floats: 13 MB per vector
    # at 256 items and 100 floats. The longest session of yoochoose1_64 has 146 items, of diginetica 70.
    length_max: Annotated[int, size("Number of last items read of a session.", LENGTH_MAX)] = 256

    @property
    def items_max(self) -> int | None:
        """Limit of the option ``length_max``."""
        return self.length_max
