"""FinalMLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import (
    add,
    bilinear_fusion,
    concat,
    linear,
    multiply,
    product,
    reshape,
    sigmoid,
    take_fields,
    tower,
    tower_output,
    tower_shapes,
)
from rec_models.model import DenseVars, EmbeddedModel, vector_fields
from rec_models.options import did_you_mean, fraction, size


@dataclass(frozen=True, eq=False, repr=False)
class FinalMLP(EmbeddedModel):
    """Two MLPs on the same input, each behind its own gate (Mao et al., AAAI 2023, arXiv:2304.00902).

    Gates and streams read the same embeddings; in the authors' code gates have separate ones.
    """

    hidden_1: Annotated[
        tuple[int, ...],
        size("Units of each layer of the first stream; the last must be a multiple of heads."),
    ] = (400,)
    hidden_2: Annotated[
        tuple[int, ...],
        size("Units of each layer of the second stream; the last must be a multiple of heads."),
    ] = (100,)
    dropout_1: Annotated[
        float, fraction("Fraction of units dropped after each layer of the first stream.")
    ] = 0.0
    dropout_2: Annotated[
        float, fraction("Fraction of units dropped after each layer of the second stream.")
    ] = 0.0
    heads: Annotated[
        int, size("Number of slices of both outputs; each pair of slices is fused by its own matrix.")
    ] = 5
    gated: Annotated[bool, Setting("Select the features of streams by gates.")] = True
    gate_hidden: Annotated[tuple[int, ...], size("Units of each hidden layer of a gate.")] = (64,)
    context_1: Annotated[
        tuple[str, ...],
        Setting("Sparse or ragged fields that the first gate reads; none: it is the same for all examples."),
    ] = ()
    context_2: Annotated[tuple[str, ...], Setting("The same for the second gate.")] = ()
    batch_norm: Annotated[bool, Setting("Normalise the units of both streams over the batch.")] = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Gates and MLPs of both streams, then the fusion."""
        inputs = self._mlp_width(self.dim)
        shapes: dict[str, tuple[int, ...]] = {}
        for stream, hidden, _, context in self._streams():
            shapes |= self._gate_shapes(stream, context, inputs) if self.gated else {}
            shapes |= tower_shapes(f"mlp_{stream}", inputs, hidden, self.batch_norm)
        m, n = ([inputs, *hidden][-1] for hidden in (self.hidden_1, self.hidden_2))
        shapes |= {"fusion.w": (self.heads, m // self.heads, n // self.heads)}
        return shapes | {"fusion.1.w": (m, 1), "fusion.2.w": (n, 1), "fusion.b": (1,)}

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 12: ``y = b + w_1 o_1 + w_2 o_2 + sum over heads of o_1h^T W_h o_2h``."""
        e = self._vectors(tape, batch, rows)
        x = concat(tape, *self._mlp_input(batch, e))
        o_1, o_2 = (
            tower(tape, self._gated(tape, x, e, context, dense, i), dense, f"mlp_{i}", len(hidden), rate)
            for i, hidden, rate, context in self._streams()
        )
        first = reshape(tape, linear(tape, o_1, dense["fusion.1.w"], dense["fusion.b"]), ())
        second = reshape(tape, product(tape, o_2, dense["fusion.2.w"]), ())
        return add(tape, first, second, bilinear_fusion(tape, o_1, o_2, dense["fusion.w"]))

    def _streams(self) -> tuple[tuple[int, tuple[int, ...], float, tuple[str, ...]], ...]:
        """Number, hidden units, dropout and context of each stream."""
        return (
            (1, self.hidden_1, self.dropout_1, self.context_1),
            (2, self.hidden_2, self.dropout_2, self.context_2),
        )

    def _gate_shapes(self, stream: int, context: tuple[str, ...], inputs: int) -> dict[str, tuple[int, ...]]:
        read = max(1, len(context)) * self.dim
        shapes: dict[str, tuple[int, ...]] = {} if context else {f"gate_{stream}.context": (1, self.dim)}
        return shapes | tower_shapes(f"gate_{stream}", read, self.gate_hidden, out=inputs)

    def _gated(
        self, tape: Tape, x: Var, e: Var, context: tuple[str, ...], dense: DenseVars, stream: int
    ) -> Var:
        """Eq. 8 to 11: ``2 sigmoid(MLP(context)) * x``."""
        if not self.gated:
            return x
        name = f"gate_{stream}"
        if context:
            fields = [vector_fields(self.schema).index(field) for field in context]
            read = concat(tape, take_fields(tape, e, fields))
        else:
            read = dense[f"{name}.context"]
        gate = tower_output(tape, read, dense, name, len(self.gate_hidden), 0.0)
        return multiply(tape, x, sigmoid(tape, gate), 2.0)

    def _problems(self) -> list[str]:
        problems = [
            f"{name}: expected a last layer of a multiple of heads = {self.heads} units, got {hidden}"
            for name, hidden in (("hidden_1", self.hidden_1), ("hidden_2", self.hidden_2))
            if [self._mlp_width(self.dim), *hidden][-1] % self.heads
        ]
        names = vector_fields(self.schema)
        for option, context in (("context_1", self.context_1), ("context_2", self.context_2)):
            problems += [
                f"{option}: {field!r} is no sparse or ragged field of the schema{did_you_mean(field, names)}"
                for field in context
                if field not in names
            ]
        return problems
