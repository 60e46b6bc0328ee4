"""Dense blocks of a pull's reply: only the changed ones, where the client states its versions.

The version of a block counts its steps from a number that follows from its initial values; no block has the
version 0, so a client that has nothing sends 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.table.partition_map import BlockBounds
from pslib.table.wire_format import DENSE_TYPES
from pslib.wire.messages import Changes, Pull
from pslib.wire.quantization import put_floats

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
        Read-only; not read where the version is 0.
    versions : (blocks,) uint64
        Version of each block as received; 0 for none.
    """

    vector: NDArray[np.float32]
    versions: NDArray[np.uint64]


@dataclass(slots=True)
class DenseDelta:
    """Buffer for the dense blocks of one reply, filled by all shards of a server.

    Attributes
    ----------
    vector : (n,) of one of `DENSE_TYPES`
        All requested blocks, concatenated.
    blocks : (k,) uint32
        Numbers of these blocks.
    ends : (k,) int64
        End of each block in the vector.
    known : (k,) uint64 or None
        The client's version of each. None: it wants all blocks and no versions.
    versions : (k,) uint64
        The server's version of each; 0 where it is refused, or not written yet.
    """

    vector: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.float32))
    blocks: NDArray[np.uint32] = field(default_factory=lambda: NO_BLOCKS)
    ends: NDArray[np.int64] = field(default_factory=lambda: NO_ENDS)
    known: NDArray[np.uint64] | None = None
    versions: NDArray[np.uint64] = field(default_factory=lambda: NO_VERSIONS)

    @staticmethod
    def to(message: Pull | Changes, bounds: BlockBounds) -> DenseDelta:
        """Allocate the buffer for the blocks of a pull, uninitialized."""
        blocks, ends = message.blocks, bounds.ends(message.blocks)
        vector = np.empty(int(ends[-1]) if blocks.size else 0, DENSE_TYPES[message.dense_as])
        known = message.known[VERSIONS] if message.known else None
        return DenseDelta(vector, blocks, ends, known, np.zeros(blocks.size, np.uint64))

    def put(self, places: Sequence[int], weights: Mapping[int, Floats], versions: Mapping[int, int]) -> int:
        """Write current blocks, except those the client has; return the number of floats written.

        Parameters
        ----------
        places : sequence of int
            Indices into ``blocks``, rising.
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
        """Write adjacent blocks in one operation."""
        if pieces and self.vector.dtype == np.float32:
            np.concatenate(pieces, out=self.vector[start:stop])
        elif pieces:
            put_floats(self.vector[start:stop], np.concatenate(pieces))

    def refuse(self, place: int) -> None:
        """Refuse a block that is not here; zero it, so that the reply does not expose old memory."""
        self._view(place)[:] = 0

    def _view(self, place: int) -> NDArray[Any]:
        return self.vector[self.ends[place - 1] if place else 0 : self.ends[place]]

    def frames(self) -> tuple[NDArray[Any], dict[str, NDArray[np.uint64]]]:
        """Return the arrays to send: changed blocks concatenated, and the versions of all (0: refused)."""
        if self.known is None:
            return self.vector, {}
        is_news = (self.versions != 0) & (self.versions != self.known)
        if is_news.all():
            return self.vector, {VERSIONS: self.versions}
        news = [self._view(place) for place in np.flatnonzero(is_news).tolist()]
        return np.concatenate([self.vector[:0], *news]), {VERSIONS: self.versions}
