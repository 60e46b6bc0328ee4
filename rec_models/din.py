"""Deep interest network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pslib.batch import Batch
from pslib.schema import RaggedField
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import (
    concat,
    embedding,
    facing,
    linear,
    list_softmax,
    list_vectors,
    mlp,
    mlp_shapes,
    product,
    reshape,
    take_fields,
    tower,
    tower_shapes,
    weighted_sum,
)
from rec_models.model import DenseVars, EmbeddedModel
from rec_models.options import HIDDEN, fraction, size


@dataclass(frozen=True, eq=False, repr=False)
class DIN(EmbeddedModel):
    """Attention of the candidate on the user's behaviours (Zhou et al., KDD 2018, arXiv:1706.06978).

    A ragged field with the vocabulary of a sparse field is a behaviour sequence, and that sparse field its
    target: ``RaggedField("viewed", vocabulary="item")`` is attended to by ``item`` and shares its embedding.
    Other ragged fields are pooled. Each sequence has its own activation unit. Without a sequence this is the
    paper's base model.
    """

    hidden: Annotated[tuple[int, ...], HIDDEN] = (200, 80)
    attention_hidden: Annotated[
        tuple[int, ...], size("Units of each hidden layer of an activation unit.")
    ] = (36,)
    activation: Annotated[
        str, Setting("Activation of hidden units, also in activation units.", choices=("prelu", "dice"))
    ] = "prelu"
    softmax: Annotated[
        bool,
        Setting(
            "Normalise the weights of a sequence to sum to 1; the paper does not, to express the "
            "strength of an interest."
        ),
    ] = False
    dropout: Annotated[
        float, fraction("Fraction of units dropped after each hidden layer, except in activation units.")
    ] = 0.0

    def sequences(self) -> dict[str, int]:
        """Behaviour sequences, each with the position of its target among the sparse fields."""
        targets = {field.salt: i for i, field in reversed(list(enumerate(self.schema.sparse)))}
        return {field.name: targets[field.salt] for field in self.schema.ragged if field.salt in targets}

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of each activation unit and of the MLP, with the slopes of units."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self.sequences():
            unit, width = f"attention.{name}", [4 * self.dim, *self.attention_hidden][-1]
            shapes |= tower_shapes(unit, 4 * self.dim, self.attention_hidden, activation=self.activation)
            shapes |= {f"{unit}.out.w": (width, 1)}
            shapes |= {} if self.softmax else {f"{unit}.out.b": (1,)}  # a softmax ignores a common bias
        return shapes | mlp_shapes(self._mlp_width(self.dim), self.hidden, activation=self.activation)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """``y = MLP([e_1, ..., v_U(A), ..., x_dense])``, with ``v_U(A)`` of eq. 3 for each sequence."""
        sequences = self.sequences()
        e = embedding(tape, rows, batch, replace(self.schema, ragged=self._pooled(sequences)))
        interests = [
            self._interest(
                tape, batch, name, list_vectors(tape, rows, batch, name), self._field(tape, e, t), dense
            )
            for name, t in sequences.items()
        ]
        inputs = self._mlp_input(batch, e)
        a0 = concat(tape, inputs[0], *interests, *inputs[1:])
        return mlp(tape, a0, dense, len(self.hidden), self.dropout)

    def _interest(self, tape: Tape, batch: Batch, name: str, e: Var, v_A: Var, dense: DenseVars) -> Var:
        """Eq. 3: ``v_U(A) = sum over the user's behaviours j of a(e_j, v_A) e_j``."""
        offsets, unit = batch.ragged[name].offsets, f"attention.{name}"
        x = facing(tape, e, v_A, offsets)
        x = tower(tape, x, dense, unit, len(self.attention_hidden), 0.0)
        w = dense[f"{unit}.out.w"]
        if self.softmax:
            a = list_softmax(tape, reshape(tape, product(tape, x, w), ()), offsets)
        else:
            a = reshape(tape, linear(tape, x, w, dense[f"{unit}.out.b"]), ())
        return weighted_sum(tape, a, e, offsets)

    def _field(self, tape: Tape, e: Var, field: int) -> Var:
        return reshape(tape, take_fields(tape, e, (field,)), (self.dim,))

    def _pooled(self, sequences: dict[str, int]) -> tuple[RaggedField, ...]:
        return tuple(field for field in self.schema.ragged if field.name not in sequences)
