"""What models of sessions share: items that follow each other, and the next one to be ranked among many."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pslib.batch import Batch
from pslib.data.negatives import Sampling
from pslib.errors import ConfigurationError
from pslib.table.initializers import Constant, Initializer, Uniform
from pslib.table.optimizers import Adagrad, Optimizer
from pslib.table.tables import PartSpec
from rec_models.layers import gather, sampled_softmax, split
from rec_models.model import DenseVars, Model
from rec_models.packed import Packed, packed
from rec_models.scored import Scored
from rec_models.tape import Array, Tape, Var

__all__ = ["SessionModel", "SessionModelOfPairs"]


@dataclass(frozen=True, eq=False)
class SessionModel(Model):
    """Base of models that predict the next item of a session.

    An example is a session: one ragged field, its items in their order. At every item but the last the model
    has a state, and ranks the item that follows above negatives that the whole batch shares. Items have one
    vector that is both read and ranked, and a bias; a row is an item.

    Attributes
    ----------
    dim : int
        Floats of an item's vector.
    negatives : int
        Items drawn for a batch.
    alpha : float
        They are drawn by their count to this power (`pslib.data.negatives`).
    logq : bool
        Whether the loss is corrected for how they were drawn.
    v_optimizer : Optimizer
        Of items, their biases too.
    v_initializer : Initializer
    """

    tasks: ClassVar[tuple[int, int]] = (0, 1)

    dim: int = 100
    negatives: int = 2048
    alpha: float = 0.5
    logq: bool = True
    v_optimizer: Optimizer = Adagrad(0.1)
    v_initializer: Initializer = Uniform(0.1)

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
        """Name of the field of items."""
        return self.schema.ragged[0].name

    @property
    def items_max(self) -> int | None:
        """The last items of a session that are read; None: all."""
        return None

    def sampling(self) -> Sampling:
        """What is drawn for each batch."""
        return Sampling(self.history, self.negatives, self.alpha)

    def parts(self) -> tuple[PartSpec, ...]:
        """``b``: the bias of an item; ``v``: its vector."""
        return (
            PartSpec("b", 1, self.v_optimizer, Constant(0.0)),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    @abstractmethod
    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """States after each item.

        Parameters
        ----------
        tape : Tape
        items : (N, D)
            Vectors of the items, packed as ``steps`` says.
        steps : Packed
            Which item of which list stands where.
        dense : mapping of str to Var
            Dense parameters.

        Returns
        -------
        (N, D)
            Packed alike; a state's products with items rank them.
        """

    def last_states(self, tape: Tape, items: Var, steps: Packed, places: Array, dense: DenseVars) -> Var:
        """States after the last item of each list, for a model that needs not all to know these.

        Parameters
        ----------
        tape, items, steps, dense
            As for `states`.
        places : (M,) integers
            Where those last items stand.

        Returns
        -------
        (M, D)
        """
        return gather(tape, self.states(tape, items, steps, dense), places)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Refuse: a session has no click to predict.

        Raises
        ------
        ConfigurationError
            Always.
        """
        raise ConfigurationError(f"{type(self).__name__} ranks items: call rank, not evaluate or predict")

    def weight(self, batch: Batch) -> int:
        """Positions with a next item."""
        lengths = np.maximum(batch.ragged[self.history].lengths - 1, 0)
        return int((lengths if self.items_max is None else np.minimum(lengths, self.items_max)).sum())

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Loss over the next items and the batch's negatives; no logits."""
        lists = batch.ragged[self.history]
        steps = packed(lists, without_last=True, at_most=self.items_max)
        b, v = split(tape, rows, (1, self.dim))
        h = self.states(tape, gather(tape, v, steps.values), steps, dense)

        def scored(places: Array) -> Scored:
            log_q = batch.log_q[places] if self.logq else np.zeros(places.size, np.float32)
            return Scored(gather(tape, v, places), gather(tape, b, places), places, log_q)

        targets, negatives = scored(lists.values[steps.places + 1]), scored(batch.negatives)
        loss = self.rank_loss_of(tape, h, targets, negatives, int(weight))
        return loss, np.zeros(len(batch), h.value.dtype)

    def rank_loss_of(self, tape: Tape, h: Var, targets: Scored, negatives: Scored, positions: int) -> Var:
        """Loss of states with their next items, a share of the mean over ``positions``: cross-entropy."""
        return sampled_softmax(tape, h, targets, negatives, positions)

    def encode(self, batch: Batch, rows: Array, dense: dict[str, Array], field: str) -> Array:
        """States at the end of each session.

        Parameters
        ----------
        batch : Batch
        rows : (U, 1 + D)
        dense : mapping of name to array
        field : str
            The ragged field with the items so far.

        Returns
        -------
        (B, D)
            Zeros for an empty session.
        """
        tape, steps = Tape(training=False), packed(batch.ragged[field], at_most=self.items_max)
        sessions, places = steps.last()
        vectors, parameters = Var(rows[:, 1:][steps.values]), {n: Var(value) for n, value in dense.items()}
        found = np.zeros((len(batch), self.dim), rows.dtype)
        found[sessions] = self.last_states(tape, vectors, steps, places, parameters).value
        return found


@dataclass(frozen=True, eq=False)
class SessionModelOfPairs(SessionModel):
    """Base of session models that compare each item with all before it.

    Attributes
    ----------
    length_max : int
        The last items of a session that are read, in training and when items are ranked. A session of L items
        has L (L + 1) / 2 pairs, each with some vectors of ``dim`` floats: 13 MB a vector at 256 items and 100
        floats. The longest session of yoochoose1_64 has 146 items, of diginetica 70.
    """

    length_max: int = 256

    @property
    def items_max(self) -> int | None:
        """As many as the option says."""
        return self.length_max
