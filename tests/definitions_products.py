"""What a matrix product of factors in bfloat16 is, in NumPy."""

import numpy as np


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
