"""SASRec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rec_models.engine.packed_sequences import Packed
from rec_models.engine.tape import Tape, Var
from rec_models.layers import (
    add,
    causal_attention,
    dropout,
    gather,
    layer_norm,
    linear,
    linear_relu,
    product,
)
from rec_models.model import DenseVars
from rec_models.options import LAYERS_MAX, LENGTH_MAX, fraction, size
from rec_models.session import SessionModelOfPairs


@dataclass(frozen=True, eq=False, repr=False)
class SASRec(SessionModelOfPairs):
    """Self-attention of each item to earlier ones (Kang and McAuley, ICDM 2018, arXiv:1808.09781).

    The loss is that of all session models, cross-entropy with many negatives shared by a batch; the paper has
    log loss with one negative a position. Positions are counted from the first item read.
    """

    blocks: Annotated[
        int, size("Number of blocks of self-attention and feed-forward network; 2 in the paper.", LAYERS_MAX)
    ] = 2
    heads: Annotated[int, size("Number of heads, a divisor of dim; 1 in the paper.")] = 1
    length_max: Annotated[
        int, size("Number of last items read of a session, the paper's n; each has a position.", LENGTH_MAX)
    ] = 50
    dropout: Annotated[
        float,
        fraction(
            "Fraction of floats dropped in training, of items with positions and of each layer's output."
        ),
    ] = 0.2

    def _problems(self) -> list[str]:
        if self.dim % self.heads:
            return [f"heads: expected a divisor of dim {self.dim}, got {self.heads}"]
        return []

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """``P``; ``W^Q, W^K, W^V``, ``W^(1), b^(1), W^(2), b^(2)`` and two norms per block; a last norm."""
        D = self.dim
        shapes: dict[str, tuple[int, ...]] = {"positions.P": (self.length_max, D)}
        for block in range(self.blocks):
            here = f"block.{block}"
            shapes |= _norm(f"{here}.attention", D)
            shapes |= {f"{here}.attention.{one}": (D, D) for one in ("Q", "K", "V")}
            shapes |= _norm(f"{here}.forward", D)
            shapes |= {f"{here}.forward.W1": (D, D), f"{here}.forward.b1": (D,)}
            shapes |= {f"{here}.forward.W2": (D, D), f"{here}.forward.b2": (D,)}
        return shapes | _norm("last", D)

    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """``F_t`` of the last block (eq. 5), whose products with items rank them (eq. 6)."""
        e = add(tape, items, gather(tape, dense["positions.P"], steps.times))  # eq. 1
        e = dropout(tape, e, self.dropout)
        for block in range(self.blocks):
            e = add(tape, e, dropout(tape, self._attended(tape, e, steps, dense, block), self.dropout))
            e = add(tape, e, dropout(tape, self._forwarded(tape, e, dense, block), self.dropout))
        return layer_norm(tape, e, dense["last.scale"], dense["last.shift"])

    def _attended(self, tape: Tape, e: Var, steps: Packed, dense: DenseVars, block: int) -> Var:
        """``SA(E)``, eq. 2 to 4, of normalised vectors."""
        here = f"block.{block}.attention"
        e = layer_norm(tape, e, dense[f"{here}.scale"], dense[f"{here}.shift"])
        q, k, v = (product(tape, e, dense[f"{here}.{one}"]) for one in ("Q", "K", "V"))
        return causal_attention(tape, q, k, v, steps, self.heads)

    def _forwarded(self, tape: Tape, e: Var, dense: DenseVars, block: int) -> Var:
        """``relu(S W^(1) + b^(1)) W^(2) + b^(2)``, eq. 5, of normalised vectors."""
        here = f"block.{block}.forward"
        e = layer_norm(tape, e, dense[f"{here}.scale"], dense[f"{here}.shift"])
        hidden = linear_relu(tape, e, dense[f"{here}.W1"], dense[f"{here}.b1"])
        return linear(tape, hidden, dense[f"{here}.W2"], dense[f"{here}.b2"])


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.scale": (width,), f"{name}.shift": (width,)}
