"""Matrix product of factors in bfloat16, defined in NumPy, and what else tests of products share."""

import numpy as np
import pytest

from cython_ext.model.products import has_bfloat16

needs_bfloat16 = pytest.mark.skipif(
    not has_bfloat16(),
    reason="AVX512_BF16 is an instruction of the processor, without which the kernel can't run, and pslib "
    "takes it on AMD's alone; that nothing is rounded elsewhere is shown on every processor by "
    "test_where_the_processor_is_no_faster_nothing_is_rounded",
)


def aligned(length):
    """Room for so many floats from a multiple of 64 bytes on."""
    room = np.empty(length + 16, np.float32)
    skipped = -room.ctypes.data % 64 // 4
    return room[skipped : skipped + length]


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def nearest(x):
    """bfloat16 values nearest to these, of two the even one; subnormal ones are 0."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    odd = (bits >> np.uint64(16)) & np.uint64(1)
    rounded = ((bits + np.uint64(0x7FFF) + odd) & np.uint64(0xFFFF0000)).astype(np.uint32).view(np.float32)
    rounded = np.where(np.isfinite(x), rounded, x)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), rounded)


def product(left, right):
    """Exact products, added in float32: of terms 0 and 1, 2 and 3, ... the second one first."""
    left, right = nearest(left).astype(np.longdouble), nearest(right).astype(np.longdouble)
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    terms = left.shape[1]
    for even in range(0, terms, 2):
        for p in (even + 1, even) if even + 1 < terms else (even,):
            total = (total + np.outer(left[:, p], right[p])).astype(np.float32)
    return total
