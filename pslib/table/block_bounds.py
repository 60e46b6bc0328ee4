"""Bounds of the blocks of dense parameters, vectorised over the blocks of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockBounds"]


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """Block ``b`` covers ``[b * size, min((b + 1) * size, length))`` with ``size = ceil(length / blocks)``.

    Attributes
    ----------
    length : int
        Dense parameters.
    blocks : int
        Number of blocks, at least 1; the last ones may be empty.

    Examples
    --------
    >>> bounds = BlockBounds(10, 4)
    >>> bounds(3), bounds.floats(np.array([0, 3])), bounds.runs(np.array([0, 1, 3]))
    ((9, 10), 4, [(0, 6), (9, 10)])
    """

    length: int
    blocks: int

    def __call__(self, block: int) -> tuple[int, int]:
        """Start and end of a block, end exclusive."""
        size = self.size
        return min(block * size, self.length), min((block + 1) * size, self.length)

    @property
    def size(self) -> int:
        """Elements of all blocks but the last ones."""
        return -(-self.length // self.blocks)

    @property
    def used(self) -> int:
        """Number of non-empty blocks."""
        return -(-self.length // self.size) if self.length else 0

    def ends(self, blocks: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(n,) end of each of these blocks when concatenated."""
        starts = blocks.astype(np.int64) * self.size
        sizes = np.minimum(starts + self.size, self.length) - np.minimum(starts, self.length)
        return np.cumsum(sizes)

    def floats(self, blocks: NDArray[np.integer[Any]]) -> int:
        """Total elements of these blocks."""
        return int(self.ends(blocks)[-1]) if blocks.size else 0

    def runs(self, blocks: NDArray[np.integer[Any]]) -> list[tuple[int, int]]:
        """Start and end, end exclusive, of each run of consecutive blocks."""
        if not blocks.size:
            return []
        breaks = np.flatnonzero(np.diff(blocks.astype(np.int64)) != 1)
        first = blocks[np.concatenate(([0], breaks + 1))].tolist()
        last = blocks[np.concatenate((breaks, [blocks.size - 1]))].tolist()
        return [(self(one)[0], self(other)[1]) for one, other in zip(first, last, strict=True)]
