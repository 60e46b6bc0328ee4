"""Keys and numbers of one batch: rows of a window, gathered, and keys made distinct (`batch_keys.h`)."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cython_ext.common.checks cimport checked_array, floats_of, keys_of, level_of, whole_number
from cython_ext.data.distinct cimport scratch_of
from cython_ext.common.hashing cimport int_base

import numpy as np

__all__ = ["batch_keys", "take_rows"]

cnp.import_array()

cdef extern from "data/batch_keys.h" nogil:
    enum:
        PSLIB_LIST_COPY

    ctypedef struct PslibSoFar:
        uint32_t *cells
        uint64_t mask
        uint64_t *found
        uint32_t count
        int level
        int open

    void pslib_place_keys(PslibSoFar *so_far, const uint64_t *keys, int64_t n, int32_t *places)
    void pslib_place_rows(
        PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows, int64_t count,
        int32_t *places)
    ctypedef struct PslibLists:
        const void *values
        int64_t size
        int64_t lists
        const void *offsets
        uint64_t base
        int width
        int narrow
        int level

    ctypedef struct PslibPlaced:
        int64_t *firsts
        int64_t *starts

    void pslib_place_lists(
        PslibSoFar *so_far, const PslibLists *lists, int64_t count, const PslibPlaced *placed, void *flat,
        int32_t *places)
    int64_t pslib_place_starts(
        const PslibLists *source, const int64_t *rows, int64_t count, const PslibPlaced *placed)
    void pslib_take_rows(const float *matrix, int64_t numbers, const int64_t *rows, int64_t count, float *to)

cdef Py_ssize_t KEYS_MAX = 0x7FFFFFFF  # places are int32

_U64, _I64, _I32 = np.dtype(np.uint64), np.dtype(np.int64), np.dtype(np.int32)
_U16, _F32 = np.dtype(np.uint16), np.dtype(np.float32)


cdef inline int64_t *longs_of(object array):
    return <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef tuple set_lists(PslibLists *column, int which, object values, object offsets, object salt, object rows):
    """Fill ``column``, which borrows the arrays.

    Returns the starts of the lists when they are contiguous, (k + 1,), and among the values, (k,).
    """
    wanted = _U64 if salt is None else _U16 if getattr(values, "dtype", None) == _U16 else _I32
    if checked_array(f"lists {which}: values", values, wanted, (None,)) is not values:
        raise ValueError(f"lists {which}: values: expected an aligned array, got one that is not")
    column.width, column.narrow = wanted.itemsize, getattr(offsets, "dtype", None) == _I32
    wanted = _I32 if column.narrow else _I64
    if checked_array(f"lists {which}: offsets", offsets, wanted, (None,)) is not offsets:
        raise ValueError(f"lists {which}: offsets: expected an aligned array, got one that is not")
    if salt is not None:
        salt = whole_number(f"lists {which}: salt", salt, 0, 0xFFFFFFFFFFFFFFFF)
        column.base = int_base(salt)
    column.values, column.size = cnp.PyArray_DATA(<cnp.ndarray>values), len(values)
    column.offsets, column.lists = cnp.PyArray_DATA(<cnp.ndarray>offsets), len(offsets) - 1
    cdef int64_t count = len(rows), wrong
    starts, firsts = np.empty(count + 1, np.int64), np.empty(count, np.int64)
    cdef const int64_t *row = longs_of(rows)
    cdef PslibPlaced placed = PslibPlaced(longs_of(firsts), longs_of(starts))
    with nogil:
        wrong = pslib_place_starts(column, row, count, &placed)
    if wrong >= 0:
        raise ValueError(
            f"lists {which}: expected rows in 0..{column.lists - 1} whose offsets rise within "
            f"0..{column.size}, got row {rows[wrong]} at place {wrong}")
    return starts, firsts


cdef int check_rows(object rows, Py_ssize_t known) except -1:
    """Raise ValueError unless all rows are in 0..known-1."""
    cdef const int64_t *row = longs_of(rows)
    cdef Py_ssize_t k, count = len(rows)
    for k in range(count):
        if not 0 <= row[k] < known:
            raise ValueError(f"rows: expected 0..{known - 1}, got {row[k]} at place {k}")
    return 0


cdef struct Parts:
    Py_ssize_t rows, fields, drawn


cdef int place_all(
    PslibSoFar *so_far, Parts parts, object matrix, object rows, PslibLists *columns, list placed,
    object drawn, void *flat, int32_t *places,
) except -1:
    """Compute the places of sparse keys, of lists (each column gathered in ``flat``) and of drawn keys."""
    cdef const uint64_t *keys = keys_of(matrix)
    cdef const uint64_t *last = keys_of(drawn)
    cdef const int64_t *row = longs_of(rows)
    cdef PslibPlaced here
    cdef Py_ssize_t j
    cdef int64_t size
    with nogil:
        pslib_place_rows(so_far, keys, parts.fields, row, parts.rows, places)
    places += parts.rows * parts.fields
    for j, (starts, firsts) in enumerate(placed):
        here = PslibPlaced(longs_of(firsts), longs_of(starts))
        size = here.starts[parts.rows]
        with nogil:
            pslib_place_lists(so_far, &columns[j], parts.rows, &here, flat, places)
        places += size
    with nogil:
        pslib_place_keys(so_far, last, parts.drawn, places)
    return 0


cdef tuple keys_and_places(
    object sparse, object rows, PslibLists *columns, list placed, object drawn, int level,
):
    """Return ``found`` and ``inverse`` of `batch_keys`, of checked arguments."""
    cdef Parts parts = Parts(len(rows), sparse.shape[1], len(drawn))
    cdef Py_ssize_t n = parts.rows * parts.fields + parts.drawn
    cdef Py_ssize_t longest = 0
    for starts, _ in placed:
        n += longs_of(starts)[parts.rows]
        longest = max(longest, <Py_ssize_t>longs_of(starts)[parts.rows])
    if n > KEYS_MAX:
        raise ValueError(f"expected at most {KEYS_MAX} keys, got {n}")
    cdef size_t cell_count = 16
    while cell_count < <size_t>(2 * n):
        cell_count *= 2
    cdef size_t found_count = n + 2, cell_bytes = cell_count * sizeof(uint32_t)
    cdef size_t flat_count = (longest + PSLIB_LIST_COPY) if placed else 0
    cdef uint8_t[::1] scratch = scratch_of((found_count + flat_count) * sizeof(uint64_t) + cell_bytes)
    cdef PslibSoFar so_far
    so_far.found, so_far.mask, so_far.count = <uint64_t *>&scratch[0] + 1, cell_count - 1, 0
    so_far.level, so_far.open = level, 0
    so_far.cells = <uint32_t *>(so_far.found - 1 + found_count + flat_count)
    inverse = np.empty(n, np.int32)
    place_all(
        &so_far, parts, sparse, rows, columns, placed, drawn, so_far.found - 1 + found_count,
        <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>inverse))
    found = np.empty(so_far.count, np.uint64)
    memcpy(keys_of(found), so_far.found, so_far.count * sizeof(uint64_t))
    return found, inverse


def batch_keys(sparse, lists, rows, drawn, vectors=None):
    """Make the keys of some rows distinct, and return the place of each key.

    Parameters
    ----------
    sparse : (n, F) uint64
        Keys of a window. Every key is legal, but unless keys are mixed numbers, as those of `hashing` are,
        this may be slow.
    lists : sequence of (values, offsets, salt)
        Of each list column the elements (m,), list ``i`` being ``values[offsets[i]:offsets[i + 1]]``;
        offsets (n + 1,) int64 or int32. With ``salt`` None the elements are keys (uint64); else they are
        int32 or uint16, whose keys are those of `hashing.hash_ints` with this salt.
    rows : (k,) int64
        Rows that are taken, in this order.
    drawn : (d,) uint64
        More keys, of no row.
    vectors : str or None
        Instruction set, of `vector_levels`; None takes the best. All give the same bits.

    Returns
    -------
    found : (u,) uint64
        Distinct keys in order of first appearance: the rows of ``sparse`` one after the other, then each
        list column, then ``drawn``.
    inverse : (k * F + m' + d,) int32
        ``found[inverse]`` is all of them in this order.
    starts : list of (k + 1,) int64
        Of each list column the starts of the rows' lists among its elements, and the end of the last one.

    Raises
    ------
    ValueError
        When a row is out of range, a type or length does not fit, or there are more than 2^31-1 keys.
    """
    sparse = checked_array("sparse", sparse, _U64, (None, None))
    rows = checked_array("rows", rows, _I64, (None,))
    drawn = checked_array("drawn", drawn, _U64, (None,))
    cdef int level = level_of(vectors)
    if sparse.shape[1] or not lists:  # else the lists' own checks tell
        check_rows(rows, len(sparse))
    cdef PslibLists *columns = <PslibLists *>calloc(max(1, len(lists)), sizeof(PslibLists))
    if columns == NULL:
        raise MemoryError
    try:
        placed = []
        for j, (values, offsets, salt) in enumerate(lists):
            columns[<int>j].level = level
            placed.append(set_lists(&columns[<int>j], j, values, offsets, salt, rows))
        found, inverse = keys_and_places(sparse, rows, columns, placed, drawn, level)
        return found, inverse, [starts for starts, _ in placed]
    finally:
        free(columns)


def take_rows(matrix, rows):
    """Copy some rows of a window's numbers, with prefetches: the rows lie far apart.

    Parameters
    ----------
    matrix : (n, N) or (n,) float32
    rows : (k,) int64
        Rows that are taken, in this order.

    Returns
    -------
    (k, N) or (k,) float32
        ``matrix[rows]``.

    Raises
    ------
    ValueError
        When a row is out of range, or a type does not fit.
    """
    matrix = checked_array("matrix", matrix, _F32, (None, None)[: getattr(matrix, "ndim", 2)])
    rows = checked_array("rows", rows, _I64, (None,))
    check_rows(rows, len(matrix))
    taken = np.empty((len(rows), *matrix.shape[1:]), np.float32)
    cdef int64_t numbers = matrix.shape[1] if matrix.ndim == 2 else 1
    cdef int64_t count = len(rows) if numbers else 0
    cdef const int64_t *row = longs_of(rows)
    cdef const float *first = floats_of(matrix)
    cdef float *to = floats_of(taken)
    with nogil:
        pslib_take_rows(first, numbers, row, count, to)
    return taken
