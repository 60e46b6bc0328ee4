"""SR-GNN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rec_models.engine.packed_sequences import Packed, Prefixes, one_step
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import (
    concat,
    dropout,
    edge_mean,
    gather,
    gru,
    gru_shapes,
    linear,
    prefix_attention,
    product,
)
from rec_models.model import DenseVars
from rec_models.options import LAYERS_MAX, fraction, size
from rec_models.session import SessionModelOfPairs


@dataclass(frozen=True, eq=False, repr=False)
class SRGNN(SessionModelOfPairs):
    """A gated graph network over the items of a session (Wu et al., AAAI 2019, arXiv:1811.00855).

    The weight of an edge is its count over that of all edges from its source (or to its target). The
    gates are those of the authors' code, with the reset gate after the product, as in `gru`.
    """

    graph_steps: Annotated[
        int, size("Number of propagation steps between neighbours; 1 in the paper.", LAYERS_MAX)
    ] = 1
    dropout: Annotated[
        float, fraction("Fraction of the floats of items dropped in training; none in the paper.")
    ] = 0.0
    dropout_hidden: Annotated[
        float, fraction("Fraction of the floats of a session's representation dropped; none in the paper.")
    ] = 0.0

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """``H`` and ``b`` for both directions, the gates, ``W_1``, ``W_2``, ``c``, ``q`` and ``W_3``."""
        D = self.dim
        return {
            "in.H": (D, D),
            "in.b": (D,),
            "out.H": (D, D),
            "out.b": (D,),
            **gru_shapes("gates", 2 * D, D),
            "attention.W1": (D, D),
            "attention.c": (D,),
            "attention.W2": (D, D),
            "attention.q": (D,),
            "readout.W3": (2 * D, D),
            "readout.b": (D,),
        }

    def states(self, tape: Tape, items: Var, steps: Packed, dense: DenseVars) -> Var:
        """``s_h`` of the graph of each prefix."""
        return self._read_out(tape, items, steps, steps.prefixes(), dense)

    def last_states(self, tape: Tape, items: Var, steps: Packed, positions: Array, dense: DenseVars) -> Var:
        """``s_h`` of the graphs that end at these positions."""
        return self._read_out(tape, items, steps, steps.prefixes(positions), dense)

    def _read_out(self, tape: Tape, items: Var, steps: Packed, pairs: Prefixes, dense: DenseVars) -> Var:
        graphs = session_graphs(steps.values, pairs)
        v = gather(tape, dropout(tape, items, self.dropout), graphs.firsts)
        for _ in range(self.graph_steps):
            v = self._propagated(tape, v, graphs, dense)
        s_l = gather(tape, v, graphs.ends)
        u = linear(tape, s_l, dense["attention.W1"], dense["attention.c"])
        k = product(tape, v, dense["attention.W2"])
        s_g = prefix_attention(tape, k, u, v, dense["attention.q"], graphs.visits)  # eq. 6
        both = dropout(tape, concat(tape, s_l, s_g), self.dropout_hidden)
        return linear(tape, both, dense["readout.W3"], dense["readout.b"])  # eq. 7

    def _propagated(self, tape: Tape, v: Var, graphs: SessionGraphs, dense: DenseVars) -> Var:
        """Propagate states between neighbours: eq. 1, and the gates of eq. 2 to 5."""
        before = edge_mean(tape, v, graphs.sources, graphs.targets)
        after = edge_mean(tape, v, graphs.targets, graphs.sources)
        arriving = linear(tape, before, dense["in.H"], dense["in.b"])
        leaving = linear(tape, after, dense["out.H"], dense["out.b"])
        a = linear(tape, concat(tape, arriving, leaving), dense["gates.W"], dense["gates.c"])
        return gru(tape, a, one_step(v.value.shape[0]), dense["gates.U"], dense["gates.b"], v)


@dataclass(frozen=True, slots=True, eq=False)
class SessionGraphs:
    """Graphs of prefixes.

    Attributes
    ----------
    firsts : (M,) int32
        For each node, an element that it represents; nodes of a prefix are adjacent.
    visits : Prefixes
        For each pair of a prefix and an element, the element's node.
    ends : (N,) int32
        For each prefix, the node of its last element.
    sources, targets : (E,) int32
        Nodes of each element that has a next one in its prefix, and of that next element; a repeated edge is
        listed repeatedly.
    """

    firsts: NDArray[np.int32]
    visits: Prefixes
    ends: NDArray[np.int32]
    sources: NDArray[np.int32]
    targets: NDArray[np.int32]


@singledispatch
def session_graphs(values: NDArray[np.int32], pairs: Prefixes) -> SessionGraphs:
    """Build the graphs of prefixes.

    Parameters
    ----------
    values : (N,) int32
        Value of each element; elements of one prefix with equal values are one node.
    pairs : Prefixes
        Pairs of prefix and element; at least one element per prefix.
    """
    named = values[pairs.items].astype(np.int64)
    codes = pairs.owners * (int(named.max(initial=0)) + 1) + named
    _, firsts, nodes = np.unique(codes, return_index=True, return_inverse=True)
    visited = nodes.astype(np.int32)
    follows = np.ones(visited.size, bool)
    follows[pairs.starts[:-1]] = False
    targets = np.flatnonzero(follows)
    return SessionGraphs(
        pairs.items[firsts],
        Prefixes(visited, pairs.owners, pairs.starts),
        visited[pairs.starts[1:] - 1],
        visited[targets - 1],
        visited[targets],
    )
