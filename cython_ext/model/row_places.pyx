"""From rows to the places of a batch that name them, and gradients of places back to rows.

Going forward a place reads its row. Going backward a row sums the gradients of its places in order of
appearance: a counting sort of the places (`occurrences`) lists them row by row, so that each row is summed in
registers and written once, and threads may share out the rows without changing a bit. Nothing here makes an
array.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint32_t

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

cnp.import_array()

pslib_layer_level = pslib_best_level()

ctypedef fused real:
    float
    double


cdef object check_places(const int32_t[:, ::1] places, Py_ssize_t rows):
    """ValueError unless every place is in 0..rows-1: the loops do not look again."""
    cdef Py_ssize_t i, n = places.shape[0] * places.shape[1]
    cdef int32_t low = 0, high = -1
    cdef const int32_t* first
    if n == 0:
        return
    first = &places[0, 0]
    with nogil:
        for i in range(n):
            low = min(low, first[i])
            high = max(high, first[i])
    if low < 0 or high >= rows:
        raise ValueError(f"places must be in 0..{rows - 1}, got {low if low < 0 else high}")


cdef object check_owners(const int32_t[::1] owners, Py_ssize_t examples):
    """ValueError unless every owner is in 0..examples-1."""
    cdef Py_ssize_t i
    for i in range(owners.shape[0]):
        if not 0 <= owners[i] < examples:
            raise ValueError(f"owners must be in 0..{examples - 1}, got {owners[i]}")


cdef Py_ssize_t row_stride(name, const real[:, :] rows) except -1:
    """Floats from row to row; ValueError unless the floats of a row stand side by side."""
    cdef Py_ssize_t size = sizeof(real)
    if rows.shape[1] > 1 and rows.strides[1] != size or rows.strides[0] % size != 0 or rows.strides[0] < 0:
        raise ValueError(f"{name}: expected the floats of a row side by side in memory")
    return rows.strides[0] // size


def gather_fields(const real[:, :] rows, const int32_t[:, ::1] places, real[:, :] out):
    """Lay the rows that an example names side by side: ``out[i, f * d:(f + 1) * d] = rows[places[i, f]]``.

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
    check_places(places, rows.shape[0])
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
    check_places(places, rows.shape[0])
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
    """List the places that name each row, row by row: a counting sort.

    Parameters
    ----------
    places : (n,) int32
    order : (n,) int32, changed
        Row r stands at places ``order[starts[r]:starts[r + 1]]``, which rise.
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
    """Add to rows ``first`` to ``last - 1`` of ``out`` what their places give, in order of appearance.

    Parameters
    ----------
    order, starts : (n,) and (rows + 1,) int32
        As `occurrences` gave them.
    first, last : int
        Rows to sum; others are left as they are, and may be summed by another thread.
    addends : (examples, fields * d) float32 or float64
        Place p gives part ``p % fields`` of ``addends[p // fields]``; or, where that has d floats only or
        ``owners`` is given, all of ``addends[p // fields]`` or of ``addends[owners[p]]``.
    fields : int
        Places of an example, at least 1; not looked at where ``owners`` is given.
    owners : (n,) int32 or None
        The example of each place, where they differ in how many they have.
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


def place_of_joined(list parts):
    """Where arrays stand that lie one below the other in the memory of one contiguous array, their base.

    Parameters
    ----------
    parts : list of arrays
        At least one.

    Returns
    -------
    int
        Bytes from the first of the base to the first of the parts; -1 where they do not stand so.
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
