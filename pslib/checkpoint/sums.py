"""Size and CRC-32 of a byte stream, in total and per block.

Bytes are summed once, block by block; the total sum follows from those of the blocks. A CRC is the remainder
of a division of polynomials over GF(2): when n more bytes follow, it is multiplied by x^(8 n), and their CRC
is added. Polynomials are represented as in zlib, with the coefficient of x^0 in the highest of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pyarrow import fs

from cython_ext.wire.checksums import crc32
from pslib.checkpoint.manifest import BLOCK_BYTES

_DIVISOR = 0xEDB88320
_ONE, _X = 1 << 31, 1 << 30


def _product(left: int, right: int) -> int:
    """Product of two polynomials modulo that of CRC-32."""
    found, place = 0, _ONE
    while place:
        if left & place:
            found ^= right
        right = right >> 1 ^ (_DIVISOR if right & 1 else 0)
        place >>= 1
    return found


@lru_cache(maxsize=64)
def _shift(count: int) -> int:
    """x^(8 count) modulo the polynomial of CRC-32."""
    found, power, left = _ONE, _X, 8 * count
    while left:
        if left & 1:
            found = _product(found, power)
        power = _product(power, power)
        left >>= 1
    return found


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of two concatenated pieces, from the CRC of each."""
    return _product(_shift(second_bytes), first) ^ second


class Sums:
    """Size and CRC-32 of added bytes, in total and per block of `BLOCK_BYTES`.

    Attributes
    ----------
    bytes : int
    blocks : list of int
        CRC-32 of each block; the last one may be shorter.
    """

    __slots__ = ("blocks", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self.blocks: list[int] = []

    def add(self, data: Any) -> None:
        """Add the next bytes of a file."""
        view = memoryview(data).cast("B")
        at = 0
        while at < view.nbytes:
            into = self.bytes % BLOCK_BYTES
            if into == 0:
                self.blocks.append(0)
            piece = view[at : at + BLOCK_BYTES - into]
            self.blocks[-1] = crc32(piece, self.blocks[-1])
            self.bytes += piece.nbytes
            at += piece.nbytes

    @property
    def crc32(self) -> int:
        """CRC-32 of all bytes."""
        found = 0
        for number, block in enumerate(self.blocks):
            found = joined_crc(found, block, min(BLOCK_BYTES, self.bytes - number * BLOCK_BYTES))
        return found


def sums_of(
    filesystem: fs.FileSystem, path: str, progress: Callable[[int], object] = lambda _bytes: None
) -> Sums:
    """Read a file once, block by block; call ``progress`` with the bytes of each block."""
    sums = Sums()
    with filesystem.open_input_file(path) as stream:
        while piece := stream.read(BLOCK_BYTES):
            sums.add(piece)
            progress(len(piece))
    return sums
