"""Rows to examples and gradients back: gather, scatter-add, and pooling of ragged lists.

Every sum runs in order of appearance with one rounding an addition, so that a run repeats bit for bit and the
NumPy definition (``np.add.at``) gives the same bits.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cdef extern from "common/prefetch.h" nogil:
    void PSLIB_PREFETCH_NEAR(const void *address)

cdef enum:
    AHEAD = 16  # places from a row's prefetch to its sum: rows lie in any order, beyond the nearer caches

ctypedef fused real:
    float
    double


cdef object check_places(const int32_t[::1] places, Py_ssize_t rows):
    """ValueError unless every place is in 0..rows-1: the loops below do not look again."""
    cdef Py_ssize_t i
    cdef int32_t low = 0, high = -1
    with nogil:
        for i in range(places.shape[0]):
            low = min(low, places[i])
            high = max(high, places[i])
    if low < 0 or high >= rows:
        raise ValueError(f"places must be in 0..{rows - 1}, got {low if low < 0 else high}")


cdef object check_offsets(const int64_t[::1] offsets, Py_ssize_t values):
    """ValueError unless offsets rise from 0 to the number of values."""
    cdef Py_ssize_t i
    cdef bint sound = offsets.shape[0] > 0
    if sound:
        sound = offsets[0] == 0 and offsets[offsets.shape[0] - 1] == values
        for i in range(offsets.shape[0] - 1):
            sound &= offsets[i] <= offsets[i + 1]
    if not sound:
        raise ValueError(f"offsets must rise from 0 to {values}, the number of places")


cdef inline void add_row(real* total, const real* row, Py_ssize_t d) noexcept nogil:
    """One addition a column; columns are independent, so the compiler may take several at once."""
    cdef Py_ssize_t j
    for j in range(d):
        total[j] += row[j]


cdef inline void divide_row(real* row, real divisor, Py_ssize_t d) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(d):
        row[j] /= divisor


def gather_rows(const real[:, ::1] rows, const int32_t[::1] places):
    """Rows at the given places: ``rows[places]``.

    Parameters
    ----------
    rows : (u, d) float32 or float64
    places : (n,) int32
        Each in 0..u-1.

    Returns
    -------
    (n, d)
        Same dtype.

    Raises
    ------
    ValueError
        When a place is out of range.
    """
    check_places(places, rows.shape[0])
    cdef Py_ssize_t i, n = places.shape[0], d = rows.shape[1]
    gathered = np.empty((n, d), np.float32 if real is float else np.float64)
    if n == 0 or d == 0:
        return gathered
    cdef real[:, ::1] out = gathered
    with nogil:
        for i in range(n):
            memcpy(&out[i, 0], &rows[places[i], 0], d * sizeof(real))
    return gathered


def scatter_add_rows(const real[:, ::1] gradients, const int32_t[::1] places, Py_ssize_t rows):
    """Sum of the gradients of each row: the gradient of `gather_rows`.

    Parameters
    ----------
    gradients : (n, d) float32 or float64
    places : (n,) int32
        Each in 0..rows-1.
    rows : int
        Rows of the result.

    Returns
    -------
    (rows, d)
        ``np.add.at(zeros, places, gradients)``: sums in order of appearance.

    Raises
    ------
    ValueError
        When a place is out of range, or there is not one gradient a place.
    """
    if rows < 0:
        raise ValueError(f"rows must be >= 0, got {rows}")
    if gradients.shape[0] != places.shape[0]:
        raise ValueError(f"expected one gradient a place: {places.shape[0]}, got {gradients.shape[0]}")
    check_places(places, rows)
    cdef Py_ssize_t i, n = places.shape[0], d = gradients.shape[1]
    summed = np.zeros((rows, d), np.float32 if real is float else np.float64)
    if n == 0 or d == 0:
        return summed
    cdef real[:, ::1] out = summed
    with nogil:
        for i in range(n):
            add_row(&out[places[i], 0], &gradients[i, 0], d)
    return summed


def pool_rows(const real[:, :] rows, const int32_t[::1] places, const int64_t[::1] offsets, bint mean):
    """Sum or mean of the rows of each list.

    Parameters
    ----------
    rows : (u, d) float32 or float64
        The floats of a row stand side by side; rows may be some columns of a wider array.
    places : (m,) int32
        Each in 0..u-1.
    offsets : (b + 1,) int64
        List ``i`` is ``places[offsets[i]:offsets[i + 1]]``.
    mean : bool
        Divide by the length of the list.

    Returns
    -------
    (b, d)
        Zeros for an empty list.

    Raises
    ------
    ValueError
        When a place or an offset is out of range, or the floats of a row are apart.
    """
    if rows.shape[1] > 1 and rows.strides[1] != sizeof(real):
        raise ValueError("rows: expected the floats of a row side by side in memory")
    check_places(places, rows.shape[0])
    check_offsets(offsets, places.shape[0])
    cdef Py_ssize_t i, b = offsets.shape[0] - 1, d = rows.shape[1]
    cdef int64_t k, length, last = places.shape[0] - 1
    pooled = np.zeros((b, d), np.float32 if real is float else np.float64)
    if b == 0 or d == 0:
        return pooled
    cdef real[:, ::1] out = pooled
    with nogil:
        for i in range(b):
            for k in range(offsets[i], offsets[i + 1]):
                PSLIB_PREFETCH_NEAR(&rows[places[min(k + AHEAD, last)], 0])
                add_row(&out[i, 0], &rows[places[k], 0], d)
            length = offsets[i + 1] - offsets[i]
            if mean and length > 1:
                divide_row(&out[i, 0], <real> length, d)
    return pooled


def pool_rows_gradient(
    const real[:, ::1] gradients,
    const int32_t[::1] places,
    const int64_t[::1] offsets,
    Py_ssize_t rows,
    bint mean,
):
    """Gradient of `pool_rows` with respect to its rows.

    Parameters
    ----------
    gradients : (b, d) float32 or float64
        Of the pooled vectors.
    places : (m,) int32
    offsets : (b + 1,) int64
    rows : int
        Rows of the result.
    mean : bool
        As given to `pool_rows`.

    Returns
    -------
    (rows, d)
        Sums in order of appearance; with ``mean`` each addend is the gradient divided by the list's length.

    Raises
    ------
    ValueError
        When a place or an offset is out of range, or there is not one gradient a list.
    """
    if rows < 0:
        raise ValueError(f"rows must be >= 0, got {rows}")
    check_places(places, rows)
    check_offsets(offsets, places.shape[0])
    cdef Py_ssize_t i, b = offsets.shape[0] - 1, d = gradients.shape[1]
    if gradients.shape[0] != b:
        raise ValueError(f"expected one gradient a list: {b}, got {gradients.shape[0]}")
    summed = np.zeros((rows, d), np.float32 if real is float else np.float64)
    if places.shape[0] == 0 or d == 0:
        return summed
    share = np.empty(d, np.float32 if real is float else np.float64)
    cdef int64_t k
    cdef real[:, ::1] out = summed
    cdef real[::1] addend = share
    with nogil:
        for i in range(b):
            memcpy(&addend[0], &gradients[i, 0], d * sizeof(real))
            if mean:
                divide_row(&addend[0], <real> max(<int64_t> 1, offsets[i + 1] - offsets[i]), d)
            for k in range(offsets[i], offsets[i + 1]):
                add_row(&out[places[k], 0], &addend[0], d)
    return summed
