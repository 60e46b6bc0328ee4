"""NARM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rec_models.engine.packed_sequences import Packed, Prefixes
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import concat, dropout, gather, gru, gru_shapes, linear, prefix_attention, product
from rec_models.model import DenseVars
from rec_models.options import fraction
from rec_models.session import SessionModelOfPairs


@dataclass(frozen=True, eq=False, repr=False)
class NARM(SessionModelOfPairs):
    """A GRU and attention over its states (Li et al., CIKM 2017, arXiv:1711.04725)."""

    dropout: Annotated[
        float, fraction("Fraction of the floats of items dropped in training; 0.25 in the paper.")
    ] = 0.25
    dropout_hidden: Annotated[
        float,
        fraction(
            "Fraction of the floats of a session's representation dropped before decoding; 0.5 in the paper."
        ),
    ] = 0.5

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """The GRU, ``A1``, ``A2`` and ``v`` of the attention, and the bilinear decoder ``B`` with a bias."""
        D = self.dim
        return gru_shapes("gru", D, D) | {
            "attention.A1": (D, D),
            "attention.a": (D,),
            "attention.A2": (D, D),
            "attention.v": (D,),
            "decoder.B": (2 * D, D),
            "decoder.b": (D,),
        }

    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """``c_t = [h_t; sum_j alpha_tj h_j]`` (eq. 9), decoded by ``B`` (eq. 10)."""
        h = self._hidden(tape, items, steps, dense)
        return self._decoded(tape, h, h, steps.prefixes(), dense)

    def last_states(self, tape: Tape, items: Var, steps: Packed, positions: Array, dense: DenseVars) -> Var:
        """``c_t`` at these positions, without the pairs of other ones."""
        h = self._hidden(tape, items, steps, dense)
        return self._decoded(tape, h, gather(tape, h, positions), steps.prefixes(positions), dense)

    def _hidden(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        x = linear(tape, dropout(tape, items, self.dropout), dense["gru.W"], dense["gru.c"])
        return gru(tape, x, steps, dense["gru.U"], dense["gru.b"])  # eq. 2 to 5

    def _decoded(self, tape: Tape, h: Var, ends: Var, pairs: Prefixes, dense: DenseVars) -> Var:
        u = linear(tape, ends, dense["attention.A1"], dense["attention.a"])
        k = product(tape, h, dense["attention.A2"])
        local = prefix_attention(tape, k, u, h, dense["attention.v"], pairs)  # eq. 7, 8
        c = dropout(tape, concat(tape, ends, local), self.dropout_hidden)
        return linear(tape, c, dense["decoder.B"], dense["decoder.b"])
