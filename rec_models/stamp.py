"""STAMP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rec_models.engine.packed_sequences import Packed, Prefixes
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import (
    add,
    dropout,
    gather,
    linear,
    multiply,
    prefix_attention,
    prefix_mean,
    product,
    tanh,
)
from rec_models.model import DenseVars
from rec_models.options import fraction
from rec_models.session import SessionModelOfPairs


@dataclass(frozen=True, eq=False, repr=False)
class STAMP(SessionModelOfPairs):
    """Attention on the last item and on the whole session (Liu et al., KDD 2018, 10.1145/3219819.3219950)."""

    dropout: Annotated[
        float, fraction("Fraction of the floats of items dropped in training; none in the paper.")
    ] = 0.0

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """``W_0`` to ``W_3`` and ``b_a`` of the attention; MLP A of the memory, MLP B of the last click."""
        D = self.dim
        return {
            "attention.W1": (D, D),
            "attention.b": (D,),
            "attention.W2": (D, D),
            "attention.W3": (D, D),
            "attention.W0": (D,),
            "A.W": (D, D),
            "A.b": (D,),
            "B.W": (D, D),
            "B.b": (D,),
        }

    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """``h_s * h_t``, whose product with an item is the trilinear composition (eq. 5, 6)."""
        x = dropout(tape, items, self.dropout)  # m_t is x itself: the last click so far
        return self._composed(tape, x, x, prefix_mean(tape, x, steps), steps.prefixes(), dense)  # eq. 1

    def last_states(self, tape: Tape, items: Var, steps: Packed, positions: Array, dense: DenseVars) -> Var:
        """``h_s * h_t`` at these positions, without the pairs of other ones."""
        x = dropout(tape, items, self.dropout)
        m_t, m_s = (gather(tape, one, positions) for one in (x, prefix_mean(tape, x, steps)))
        return self._composed(tape, x, m_t, m_s, steps.prefixes(positions), dense)

    def _composed(self, tape: Tape, x: Var, m_t: Var, m_s: Var, pairs: Prefixes, dense: DenseVars) -> Var:
        k = linear(tape, x, dense["attention.W1"], dense["attention.b"])
        of_last = product(tape, m_t, dense["attention.W2"])
        of_mean = product(tape, m_s, dense["attention.W3"])
        u = add(tape, of_last, of_mean)
        m_a = prefix_attention(tape, k, u, x, dense["attention.W0"], pairs)  # eq. 7, 8
        h_s = tanh(tape, linear(tape, m_a, dense["A.W"], dense["A.b"]))  # eq. 3
        h_t = tanh(tape, linear(tape, m_t, dense["B.W"], dense["B.b"]))  # eq. 4
        return multiply(tape, h_s, h_t)
