"""Definition of the storage types in NumPy: their values, and the rounding of a weight to one.

Written with float64 arithmetic on multiples of the distance between two values (ulp), where the kernel shifts
bits: the two agree only if both are right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

FLOAT32, BFLOAT16, FLOAT16, INT8 = range(4)
STORAGE_NAMES = ("float32", "bfloat16", "float16", "int8")
SCALE_MAX = np.float32(float.fromhex("0x1.02040p121"))
MIX_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FloatFormat:
    """Binary floating point: bits of fraction, exponent of the least normal number, largest number."""

    fraction_bits: int
    least_exponent: int
    largest: float

    def ulp(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The distance of two values at these magnitudes."""
        _, exponents = np.frexp(magnitudes)  # magnitude = m 2^e with m in [0.5, 1)
        return np.ldexp(1.0, np.maximum(exponents - 1, self.least_exponent) - self.fraction_bits)


FORMATS = {BFLOAT16: FloatFormat(7, -126, 255 * 2.0**120), FLOAT16: FloatFormat(10, -14, 65504.0)}


def mix64_of(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of an array."""
    shift = np.uint64(32)
    for _ in range(2):
        words = (words ^ (words >> shift)) * MIX_MULTIPLIER
    return words ^ (words >> shift)


def random_bits(keys: NDArray[np.uint64], dim: int, part_seed: int, salt: int) -> NDArray[np.int64]:
    """The 16 random bits of each key and column of one part in a push of this salt, (n, dim)."""
    mixed_salt = mix64_of(np.asarray([salt], np.uint64))
    return bits_from(mix64_of(keys ^ np.uint64(part_seed) ^ mixed_salt), dim)


def bits_from(base: NDArray[np.uint64], dim: int) -> NDArray[np.int64]:
    """The 16 random bits of each row and column, (n, dim): four columns from one word."""
    columns = np.arange(dim, dtype=np.uint64)
    words = mix64_of(base[:, None] + (columns // np.uint64(4)) * GOLDEN)
    return ((words >> (columns % np.uint64(4) * np.uint64(16))) & np.uint64(0xFFFF)).astype(np.int64)


def to_format(form: FloatFormat, w: Floats, bits: NDArray[np.int64] | None) -> Floats:
    """The value of the format for each weight: stochastic by these bits, or the nearest one for None."""
    magnitudes = np.abs(w.astype(np.float64))
    finite = np.isfinite(w)
    magnitudes[~finite] = 0
    ulp = form.ulp(magnitudes)
    whole = np.rint(magnitudes / ulp) if bits is None else np.floor(magnitudes / ulp + bits / 65536)
    rounded = np.copysign(np.minimum(whole * ulp, form.largest), w.astype(np.float64))
    return np.where(finite, rounded, w).astype(np.float32)


def to_int8(w: Floats, bits: NDArray[np.int64] | None, given: float) -> tuple[Floats, np.float32]:
    """The values of one part, and its scale: `given` where that is above 0 and 127 of it are finite."""
    if not np.isfinite(w).all():
        return np.full(len(w), np.nan, np.float32), np.float32(np.nan)
    own = min(np.abs(w).max() / np.float32(127), SCALE_MAX)
    scale = np.float32(given) if 0 < given <= SCALE_MAX else own
    if scale == 0:
        return np.zeros(len(w), np.float32), np.float32(0)
    with np.errstate(over="ignore"):
        x = np.abs(w / scale).astype(np.float64)
    whole = np.rint(x) if bits is None else np.floor(x + bits / 65536)
    q = np.copysign(np.minimum(whole, 127), w).astype(np.int8)
    return q.astype(np.float32) * scale, scale


def rounded(
    storage: int, w: Floats, bits: NDArray[np.int64] | None = None, given: float = 0
) -> tuple[Floats, np.float32]:
    """Return one part of a row as read after it was stored, and its scale (0 where the type has none)."""
    if storage == INT8:
        return to_int8(w, bits, given)
    values = w.copy() if storage == FLOAT32 else to_format(FORMATS[storage], w, bits)
    return values, np.float32(0)
