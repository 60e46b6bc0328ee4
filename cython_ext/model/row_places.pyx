"""From rows to the places of a batch that name them, and gradients of places back to rows; pooling of lists.

Going forward a place reads its row. Going backward a row sums the gradients of its places in order of
appearance, one rounding an addition, so that a run repeats bit for bit and NumPy's ``np.add.at`` gives the
same bits. For the fields of examples a counting sort of the places (`occurrences`) lists them row by row, so
that each row is summed in registers and written once, and threads may share out the rows without changing a
bit.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from cython_ext.model.layers cimport (
    PslibAddends_double,
    PslibAddends_float,
    pslib_best_level,
    pslib_gather_double,
    pslib_gather_float,
    pslib_layer_level,
    pslib_occurrences,
    pslib_sum_rows_double,
    pslib_sum_rows_float,
    pslib_weigh_double,
    pslib_weigh_float,
)

import numpy as np

cnp.import_array()

pslib_layer_level = pslib_best_level()

cdef extern from "common/vectors.h" nogil:
    void PSLIB_PREFETCH_NEAR(const void *address)

cdef enum:
    AHEAD = 16  # places between the prefetch of a row and its sum

ctypedef fused real:
    float
    double


cdef object check_places(const int32_t* places, Py_ssize_t n, Py_ssize_t rows):
    """Raise ValueError unless all n places are in 0..rows-1: the loops do not check them."""
    cdef Py_ssize_t i
    cdef int32_t low = 0, high = -1
    with nogil:
        for i in range(n):
            low = min(low, places[i])
            high = max(high, places[i])
    if low < 0 or high >= rows:
        raise ValueError(f"places must be in 0..{rows - 1}, got {low if low < 0 else high}")


cdef object check_owners(const int32_t[::1] owners, Py_ssize_t examples):
    """Raise ValueError unless every owner is in 0..examples-1."""
    cdef Py_ssize_t i
    for i in range(owners.shape[0]):
        if not 0 <= owners[i] < examples:
            raise ValueError(f"owners must be in 0..{examples - 1}, got {owners[i]}")


cdef Py_ssize_t row_stride(name, const real[:, :] rows) except -1:
    """Return the floats from row to row; raise ValueError unless the floats of a row are contiguous."""
    cdef Py_ssize_t size = sizeof(real)
    if rows.shape[1] > 1 and rows.strides[1] != size or rows.strides[0] % size != 0 or rows.strides[0] < 0:
        raise ValueError(f"{name}: expected the floats of a row side by side in memory")
    return rows.strides[0] // size


def gather_fields(const real[:, :] rows, const int32_t[:, ::1] places, real[:, :] out):
    """Copy the rows that an example names side by side: ``out[i, f * d:(f + 1) * d] = rows[places[i, f]]``.

    Parameters
    ----------
    rows : (u, d) float32 or float64
        May be some columns of a wider array.
    places : (n, F) int32
        Each in 0..u-1.
    out : (n, F * d), changed
        Same dtype; may be some columns of a wider array.

    Raises
    ------
    ValueError
        When a place is out of range or a shape does not fit.
    """
    cdef Py_ssize_t n = places.shape[0], fields = places.shape[1], dim = rows.shape[1]
    cdef Py_ssize_t stride = row_stride("rows", rows), out_stride = row_stride("out", out)
    check_places(&places[0, 0], n * fields, rows.shape[0])
    if out.shape[0] != n or out.shape[1] != fields * dim:
        raise ValueError(f"out: expected {(n, fields * dim)}, got {(out.shape[0], out.shape[1])}")
    if n == 0 or fields == 0 or dim == 0:
        return
    with nogil:
        if real is float:
            pslib_gather_float(
                &rows[0, 0], stride, &places[0, 0], n, fields, dim, &out[0, 0], out_stride)
        else:
            pslib_gather_double(
                &rows[0, 0], stride, &places[0, 0], n, fields, dim, &out[0, 0], out_stride)


def weigh_fields(const real[:, :] rows, const int32_t[:, ::1] places, real[::1] out):
    """Sum the one float of the rows that an example names: ``out[i] = sum over f of rows[places[i, f], 0]``.

    Parameters
    ----------
    rows : (u, 1) float32 or float64
        May be a column of a wider array.
    places : (n, F) int32
        Each in 0..u-1.
    out : (n,), changed
        Same dtype; sums run over rising f, from 0.

    Raises
    ------
    ValueError
        When a place is out of range or a shape does not fit.
    """
    cdef Py_ssize_t n = places.shape[0], fields = places.shape[1], stride = row_stride("rows", rows)
    check_places(&places[0, 0], n * fields, rows.shape[0])
    if rows.shape[1] != 1:
        raise ValueError(f"rows: expected one float a row, got {rows.shape[1]}")
    if out.shape[0] != n:
        raise ValueError(f"out: expected {n} values, got {out.shape[0]}")
    if n == 0 or fields == 0:
        out[:] = 0
        return
    with nogil:
        if real is float:
            pslib_weigh_float(&rows[0, 0], stride, &places[0, 0], n, fields, &out[0])
        else:
            pslib_weigh_double(&rows[0, 0], stride, &places[0, 0], n, fields, &out[0])


def occurrences(const int32_t[::1] places, int32_t[::1] order, int32_t[::1] starts):
    """List the places that name each row, row by row, by a counting sort.

    Parameters
    ----------
    places : (n,) int32
    order : (n,) int32, changed
        Row r occurs at places ``order[starts[r]:starts[r + 1]]``, which rise.
    starts : (rows + 1,) int32, changed

    Raises
    ------
    ValueError
        When a place is not in 0..rows-1 or a length does not fit.
    """
    cdef Py_ssize_t n = places.shape[0], rows = starts.shape[0] - 1
    cdef int failed
    if order.shape[0] != n or rows < 0:
        raise ValueError(f"expected {n} places in order and a start, got {order.shape[0]} and {rows + 1}")
    if n == 0:
        starts[:] = 0
        return
    with nogil:
        failed = pslib_occurrences(&places[0], n, rows, &order[0], &starts[0])
    if failed:
        raise ValueError(f"places must be in 0..{rows - 1}")


def sum_occurrences(
    const int32_t[::1] order,
    const int32_t[::1] starts,
    Py_ssize_t first,
    Py_ssize_t last,
    const real[:, :] addends,
    Py_ssize_t fields,
    const int32_t[::1] owners,
    real[:, :] out,
):
    """Add to rows ``first`` to ``last - 1`` of ``out`` the addends of their places, in order of appearance.

    Parameters
    ----------
    order, starts : (n,) and (rows + 1,) int32
        As `occurrences` gave them.
    first, last : int
        Rows to sum; others are left as they are, and may be summed by another thread.
    addends : (examples, fields * d) float32 or float64
        The addend of place p is part ``p % fields`` of ``addends[p // fields]``; or, where that has d floats
        only or ``owners`` is given, all of ``addends[p // fields]`` or of ``addends[owners[p]]``.
    fields : int
        Places of an example, at least 1; ignored where ``owners`` is given.
    owners : (n,) int32 or None
        The example of each place, where examples differ in their number of places.
    out : (rows, d), changed
        May be some columns of a wider array.

    Raises
    ------
    ValueError
        When a shape does not fit or an owner is out of range.
    """
    cdef Py_ssize_t rows = starts.shape[0] - 1, dim = out.shape[1], n = order.shape[0]
    cdef Py_ssize_t stride = row_stride("addends", addends), out_stride = row_stride("out", out)
    cdef const int32_t* owner_of = NULL
    if not 0 <= first <= last <= rows or out.shape[0] != rows:
        raise ValueError(f"rows: expected 0 <= first <= last <= {rows} rows of out, "
                         f"got {first}, {last} and {out.shape[0]}")
    if owners is not None:
        fields = 1
        if owners.shape[0] != n:
            raise ValueError(f"owners: expected one a place, {n}, got {owners.shape[0]}")
        check_owners(owners, addends.shape[0])
        owner_of = &owners[0] if n else NULL
    elif fields < 1 or addends.shape[0] * fields != n:
        raise ValueError(f"addends: expected those of {n} places, {fields} an example, "
                         f"got {addends.shape[0]} examples")
    if addends.shape[1] != dim and addends.shape[1] != fields * dim:
        raise ValueError(f"addends: expected {fields * dim} or {dim} floats, got {addends.shape[1]}")
    if first == last or dim == 0 or n == 0:
        return
    cdef Py_ssize_t step = dim if addends.shape[1] == fields * dim else 0
    cdef PslibAddends_float floats
    cdef PslibAddends_double doubles
    with nogil:
        if real is float:
            floats = PslibAddends_float(&addends[0, 0], stride, step, <uint32_t> fields, owner_of)
            pslib_sum_rows_float(&order[0], &starts[0], first, last, &floats, dim, &out[0, 0], out_stride)
        else:
            doubles = PslibAddends_double(&addends[0, 0], stride, step, <uint32_t> fields, owner_of)
            pslib_sum_rows_double(&order[0], &starts[0], first, last, &doubles, dim, &out[0, 0], out_stride)


cdef object check_offsets(const int64_t[::1] offsets, Py_ssize_t values):
    """Raise ValueError unless offsets rise from 0 to the number of values."""
    cdef Py_ssize_t i
    cdef bint sound = offsets.shape[0] > 0
    if sound:
        sound = offsets[0] == 0 and offsets[offsets.shape[0] - 1] == values
        for i in range(offsets.shape[0] - 1):
            sound &= offsets[i] <= offsets[i + 1]
    if not sound:
        raise ValueError(f"offsets must rise from 0 to {values}, the number of places")


cdef inline void add_row(real* total, const real* row, Py_ssize_t d) noexcept nogil:
    """Add a row to a total; columns are independent, so the compiler vectorises them."""
    cdef Py_ssize_t j
    for j in range(d):
        total[j] += row[j]


cdef inline void divide_row(real* row, real divisor, Py_ssize_t d) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(d):
        row[j] /= divisor


def scatter_add_rows(const real[:, ::1] gradients, const int32_t[::1] places, Py_ssize_t rows):
    """Sum the gradients of each row: the gradient of ``rows[places]``.

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
    check_places(&places[0], places.shape[0], rows)
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
    """Sum or average the rows of each list.

    Parameters
    ----------
    rows : (u, d) float32 or float64
        The floats of a row are contiguous; rows may be some columns of a wider array.
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
    check_places(&places[0], places.shape[0], rows.shape[0])
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
    """Return the gradient of `pool_rows` with respect to its rows.

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
    check_places(&places[0], places.shape[0], rows)
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


def place_of_joined(list parts):
    """Return the place of arrays that follow each other in the memory of one contiguous array, their base.

    Parameters
    ----------
    parts : list of arrays
        At least one.

    Returns
    -------
    int
        Bytes from the start of the base to the first part; -1 where the parts are not contiguous in one base.
    """
    cdef cnp.ndarray first = parts[0], one
    cdef const char* address = <const char*> cnp.PyArray_DATA(first)
    cdef int axis, axes = cnp.PyArray_NDIM(first)
    cdef object owner = None if first.base == NULL else <object> first.base
    if axes == 0 or not isinstance(owner, cnp.ndarray) or not cnp.PyArray_IS_C_CONTIGUOUS(owner):
        return -1
    for one in parts:
        if one.base != first.base or one.descr is not first.descr or cnp.PyArray_NDIM(one) != axes:
            return -1
        if <const char*> cnp.PyArray_DATA(one) != address:
            return -1
        for axis in range(axes):
            if one.strides[axis] != first.strides[axis] or axis > 0 and one.shape[axis] != first.shape[axis]:
                return -1
        address += one.shape[0] * one.strides[0]
    return <const char*> cnp.PyArray_DATA(first) - <const char*> cnp.PyArray_DATA(owner)
