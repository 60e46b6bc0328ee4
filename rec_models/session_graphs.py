"""Sessions as graphs: a node for each distinct item, an edge from each item to the next one.

The state after an item depends only on earlier items, so each prefix of a session is a separate graph. All
graphs of a batch are stored together as lists, not matrices: the cost is that of the elements of all
prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_models.packed import Prefixes

__all__ = ["SessionGraphs", "session_graphs"]


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
