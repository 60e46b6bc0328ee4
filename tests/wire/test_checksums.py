"""CRC-32 by carry-less products: the definition is a division bit by bit, and zlib's must be the same."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.wire.checksums import crc32

POLYNOMIAL = 0xEDB88320


def divided(data: bytes) -> int:
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (POLYNOMIAL if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def test_the_standards_check_value() -> None:
    """ITU-T V.42 and the catalogue of CRCs: of these nine digits."""
    assert crc32(b"123456789") == divided(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("size", [*range(200), 255, 256, 257, 1023, 4096, 4097])
def test_every_length_is_folded_as_it_is_divided(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32(data) == divided(data)


@given(data=st.binary(max_size=300), cut=st.integers(0, 300), start=st.integers(0, 15))
def test_pieces_one_after_the_other_are_the_whole_wherever_they_lie_in_memory(
    data: bytes, cut: int, start: int
) -> None:
    placed = memoryview(bytes(start) + data)[start:]
    assert crc32(placed[cut:], crc32(placed[:cut])) == zlib.crc32(data)


@given(data=st.binary(max_size=200), value=st.integers(0, 2**32 - 1))
def test_any_value_may_come_before(data: bytes, value: int) -> None:
    assert crc32(data, value) == zlib.crc32(data, value)


def test_bytes_so_long_that_the_interpreter_is_let_go_meanwhile() -> None:
    data = np.random.default_rng(0).bytes((1 << 20) + 13)
    assert crc32(data) == zlib.crc32(data)


def test_arrays_are_bytes() -> None:
    array = np.arange(1000, dtype=np.float32).reshape(10, 100)
    assert crc32(array) == zlib.crc32(array.tobytes())


def test_every_flipped_bit_of_a_block_changes_the_sum() -> None:
    """The purpose of a CRC: one wrong bit is always found, and so is a burst of up to 32."""
    block = bytearray(np.random.default_rng(1).bytes(150))
    sums = {crc32(block)}
    for bit in range(8 * len(block)):
        block[bit >> 3] ^= 1 << (bit & 7)
        sums.add(crc32(block))
        block[bit >> 3] ^= 1 << (bit & 7)
    assert len(sums) == 1 + 8 * len(block)


def test_what_is_no_contiguous_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        crc32("text")  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        crc32(memoryview(bytes(100))[::2])
