"""Dense blocks of an answer to a pull: only those that have changed, where the client says what it has.

The version of a block counts its steps from a number that follows from what it began with; no block has the
version 0, so a client that has nothing says 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.protocol.messages import Pull
from pslib.protocol.packed import put_floats
from pslib.table.wire_format import DENSE_TYPES

__all__ = ["VERSIONS", "DenseAnswer", "KnownDense"]

VERSIONS = "versions"
"""Name of the one array in `Pull.known` and `Pulled.dense_versions`."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownDense:
    """Dense parameters that a client has.

    Attributes
    ----------
    vector : (length,) float32
        Not to be changed; not read where the version is 0.
    versions : (blocks,) uint64
        Of each block, as it came; 0 for none.
    """

    vector: NDArray[np.float32]
    versions: NDArray[np.uint64]


@dataclass(slots=True)
class DenseAnswer:
    """Room for the blocks of one answer, filled by all shards of a server.

    Attributes
    ----------
    vector : (n,) of one of `DENSE_TYPES`
        All blocks that were asked for, side by side.
    views : dict of block to its part of the vector
    known : dict of block to the version that the client has, or None
        None: it wants all blocks and no versions.
    versions : dict of block to its version here
        Without blocks that are refused.
    """

    vector: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.float32))
    views: dict[int, NDArray[Any]] = field(default_factory=dict)
    known: dict[int, int] | None = None
    versions: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def to(message: Pull, bounds: Callable[[int], tuple[int, int]]) -> DenseAnswer:
        """Room for the blocks that a pull asks for, with whatever is in it."""
        blocks = message.blocks.tolist()
        sizes = [stop - start for start, stop in map(bounds, blocks)]
        vector = np.empty(sum(sizes), DENSE_TYPES[message.dense_as])
        ends = np.cumsum(sizes).tolist()
        views = {
            block: vector[end - size : end] for block, size, end in zip(blocks, sizes, ends, strict=True)
        }
        known = dict(zip(blocks, message.known[VERSIONS].tolist(), strict=True)) if message.known else None
        return DenseAnswer(vector, views, known)

    def put(self, block: int, weights: NDArray[np.float32], version: int) -> int:
        """A block as it is now; written only if it is news. Returns how many floats were written."""
        self.versions[block] = version
        if self.known is not None and self.known[block] == version:
            return 0
        put_floats(self.views[block], weights)
        return weights.size

    def refuse(self, block: int) -> None:
        """A block that is not here; zeros, else the answer would show what was in this memory before."""
        if block in self.views:
            self.views[block][:] = 0

    def frames(self) -> tuple[NDArray[Any], dict[str, NDArray[np.uint64]]]:
        """What travels: the blocks that are news side by side, and the versions of all (0: refused)."""
        if self.known is None:
            return self.vector, {}
        versions = np.array([self.versions.get(block, 0) for block in self.views], np.uint64)
        news = [
            view
            for block, view in self.views.items()
            if self.versions.get(block, 0) not in (0, self.known[block])
        ]
        if len(news) == len(self.views):
            return self.vector, {VERSIONS: versions}
        return np.concatenate([self.vector[:0], *news]), {VERSIONS: versions}
