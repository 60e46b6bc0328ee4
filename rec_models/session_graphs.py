"""Sessions as graphs: a node for each distinct item, an edge from each item to the one that came next.

The state after an item knows only what came before, so each prefix of a session is a graph of its own; all
graphs of a batch stand side by side, and none is a matrix: a batch costs what its prefixes have of elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_models.packed import Prefixes

__all__ = ["SessionGraphs", "session_graphs"]


@dataclass(frozen=True, slots=True, eq=False)
class SessionGraphs:
    """The graphs of some prefixes.

    Attributes
    ----------
    firsts : (M,) int32
        For each node, an element that it stands for; nodes of a prefix stand together.
    visits : Prefixes
        For each pair of a prefix and an element, the element's node.
    ends : (N,) int32
        For each prefix, the node of its last element.
    sources, targets : (E,) int32
        The nodes of each element that has a successor in its prefix, and of that successor: an edge that is
        taken twice stands twice.
    """

    firsts: NDArray[np.int32]
    visits: Prefixes
    ends: NDArray[np.int32]
    sources: NDArray[np.int32]
    targets: NDArray[np.int32]


def session_graphs(values: NDArray[np.int32], pairs: Prefixes) -> SessionGraphs:
    """Graphs of prefixes.

    Parameters
    ----------
    values : (N,) int32
        What each element is: elements of one prefix with the same value are one node.
    pairs : Prefixes
        At least one element each.
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
