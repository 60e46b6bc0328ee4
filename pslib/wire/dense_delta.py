"""Dense blocks of an answer to a pull: only those that have changed, where the client says what it has.

The version of a block counts its steps from a number that follows from what it began with; no block has the
version 0, so a client that has nothing says 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.table.block_bounds import BlockBounds
from pslib.table.wire_format import DENSE_TYPES
from pslib.wire.messages import Pull
from pslib.wire.quantization import put_floats

__all__ = ["VERSIONS", "DenseDelta", "KnownDense"]

Floats = NDArray[np.float32]
VERSIONS = "versions"
"""Name of the one array in `Pull.known` and `Pulled.dense_versions`."""
NO_BLOCKS, NO_ENDS, NO_VERSIONS = np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint64)


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
class DenseDelta:
    """Room for the blocks of one answer, filled by all shards of a server.

    Attributes
    ----------
    vector : (n,) of one of `DENSE_TYPES`
        All blocks that were asked for, side by side.
    blocks : (k,) uint32
        Which these are.
    ends : (k,) int64
        Where each ends in the vector.
    known : (k,) uint64 or None
        The version of each that the client has. None: it wants all blocks and no versions.
    versions : (k,) uint64
        The version of each here; 0 where it is refused, or not written yet.
    """

    vector: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.float32))
    blocks: NDArray[np.uint32] = field(default_factory=lambda: NO_BLOCKS)
    ends: NDArray[np.int64] = field(default_factory=lambda: NO_ENDS)
    known: NDArray[np.uint64] | None = None
    versions: NDArray[np.uint64] = field(default_factory=lambda: NO_VERSIONS)

    @staticmethod
    def to(message: Pull, bounds: BlockBounds) -> DenseDelta:
        """Room for the blocks that a pull asks for, with whatever is in it."""
        blocks, ends = message.blocks, bounds.ends(message.blocks)
        vector = np.empty(int(ends[-1]) if blocks.size else 0, DENSE_TYPES[message.dense_as])
        known = message.known[VERSIONS] if message.known else None
        return DenseDelta(vector, blocks, ends, known, np.zeros(blocks.size, np.uint64))

    def put(self, places: Sequence[int], weights: Mapping[int, Floats], versions: Mapping[int, int]) -> int:
        """Blocks as they are now; those that are no news are not written. Returns how many floats were.

        Parameters
        ----------
        places : sequence of int
            Which of ``blocks``, rising.
        weights, versions : mapping of block to its weights, and to its version
        """
        news: list[Floats] = []
        start = stop = written = 0
        for place in places:
            block = int(self.blocks[place])
            self.versions[place] = version = versions[block]
            if self.known is not None and self.known[place] == version:
                continue
            end, size = int(self.ends[place]), weights[block].size
            if end - size != stop:
                self._write(start, stop, news)
                news, start = [], end - size
            news.append(weights[block])
            stop, written = end, written + size
        self._write(start, stop, news)
        return written

    def _write(self, start: int, stop: int, pieces: list[Floats]) -> None:
        """Blocks that stand side by side, in one go."""
        if pieces and self.vector.dtype == np.float32:
            np.concatenate(pieces, out=self.vector[start:stop])
        elif pieces:
            put_floats(self.vector[start:stop], np.concatenate(pieces))

    def refuse(self, place: int) -> None:
        """A block that is not here; zeros, else the answer would show what was in this memory before."""
        self._view(place)[:] = 0

    def _view(self, place: int) -> NDArray[Any]:
        return self.vector[self.ends[place - 1] if place else 0 : self.ends[place]]

    def frames(self) -> tuple[NDArray[Any], dict[str, NDArray[np.uint64]]]:
        """What travels: the blocks that are news side by side, and the versions of all (0: refused)."""
        if self.known is None:
            return self.vector, {}
        is_news = (self.versions != 0) & (self.versions != self.known)
        if is_news.all():
            return self.vector, {VERSIONS: self.versions}
        news = [self._view(place) for place in np.flatnonzero(is_news).tolist()]
        return np.concatenate([self.vector[:0], *news]), {VERSIONS: self.versions}
