"""Columns of a file become examples: keys and numbers of a row next to each other.

Each column is a tuple, so that one call fills all columns of a block of rows while the block is in the cache
(`examples.h`). Values are read from Arrow's buffers, with Arrow's validity bitmap.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from cython_ext.common.checks cimport checked_array, checked_target, level_of, whole_number
from cython_ext.common.hashing cimport int_base, null_key_of

import numpy as np

__all__ = ["fill_keys", "fill_numbers"]

cnp.import_array()

cdef extern from "data/examples.h" nogil:
    enum:
        PSLIB_HASHED
        PSLIB_LOOKED_UP
        PSLIB_GIVEN

    ctypedef struct PslibKeyColumn:
        const void *values
        const uint8_t *valid
        int64_t first_bit
        int type
        int way
        int level
        uint64_t base
        uint64_t null_key
        const uint64_t *table
        uint64_t table_size

    ctypedef struct PslibNumberColumn:
        const void *values
        const uint8_t *valid
        int64_t first_bit
        int type
        int level
        int log1p
        float fill

    void pslib_fill_keys(const PslibKeyColumn *columns, int64_t count, int64_t rows, uint64_t *out)
    void pslib_fill_numbers(
        const PslibNumberColumn *columns, int64_t count, int64_t rows, float *out, uint8_t *infinite)

_TYPES = [np.dtype(name) for name in (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")]
_NUMBERS = {dtype: place for place, dtype in enumerate(_TYPES)}
_INTEGERS = {dtype: place for dtype, place in _NUMBERS.items() if dtype.kind in "iu"}
_U64, _U8, _F32 = np.dtype(np.uint64), np.dtype(np.uint8), np.dtype(np.float32)


cdef int type_of(str where, object values, dict known, Py_ssize_t rows) except -1:
    """Return the number of the dtype of values, (rows,), among the known ones."""
    place = known.get(values.dtype) if isinstance(values, np.ndarray) else None
    if place is None:
        came = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"{where}: expected an array of one of {', '.join(map(str, known))}, got {came}")
    checked_array(where, values, values.dtype, (rows,))
    if not values.flags.aligned:
        raise ValueError(f"{where}: expected an aligned array, got one that is not")
    return place


cdef const uint8_t *bits_of(str where, object valid, object first_bit, Py_ssize_t rows) except? NULL:
    """Return the validity bitmap, which must have a bit for each row."""
    if valid is None:
        return NULL
    checked_array(where, valid, _U8, (None,))
    whole_number(where, first_bit, 0, 1 << 62)
    if (first_bit + rows + 7) // 8 > len(valid):
        raise ValueError(f"{where}: expected a bit a value, {first_bit + rows}, got {8 * len(valid)}")
    return <const uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>valid)


cdef int set_keys(PslibKeyColumn *column, str where, object values, object valid, object first_bit,
                  object salt, object table, Py_ssize_t rows) except -1:
    """Fill ``column``, which borrows the arrays."""
    column.type = type_of(where, values, _INTEGERS, rows)
    column.values = cnp.PyArray_DATA(<cnp.ndarray>values)
    if salt is None:
        if values.dtype != _U64:
            raise ValueError(f"{where}: expected keys as uint64, got {values.dtype}")
        column.way = PSLIB_GIVEN
        return 0
    column.valid = bits_of(where, valid, first_bit, rows)
    column.first_bit = first_bit
    cdef uint64_t seed = whole_number(f"{where}: salt", salt, 0, 0xFFFFFFFFFFFFFFFF)
    column.base, column.null_key = int_base(seed), null_key_of(seed)
    column.way = PSLIB_HASHED
    if table is not None:
        checked_array(f"{where}: table", table, _U64, (None,))
        column.way = PSLIB_LOOKED_UP
        column.table = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>table)
        column.table_size = len(table)
    return 0


def fill_keys(columns, out, vectors=None):
    """Compute the keys of columns, a row for each example.

    Parameters
    ----------
    columns : sequence of (values, valid, first_bit, salt, table)
        For each column its ``(n,)`` integers of any width, and Arrow's bitmap (uint8, or None) from bit
        ``first_bit`` on. With ``salt`` None the values are keys already (uint64) and stand as they are. With
        ``table`` (uint64) they are places in it, of a dictionary whose keys it holds; else they are hashed as
        `hashing.hash_ints` does. A null, or a place that the table does not have, gives the null key.
    out : (n, F) uint64
        Written to.
    vectors : str or None
        Instruction set, of `vector_levels`; None takes the best. All give the same bits.

    Raises
    ------
    ValueError
        When a type or length does not fit.
    """
    cdef Py_ssize_t count = len(columns), rows = len(out), j
    cdef int level = level_of(vectors)
    checked_target("out", out, _U64, (None, count))
    if not count or not rows:
        return
    cdef PslibKeyColumn *all_of_them = <PslibKeyColumn *>calloc(count, sizeof(PslibKeyColumn))
    if all_of_them == NULL:
        raise MemoryError
    cdef uint64_t *first = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>out)
    try:
        for j, (values, valid, first_bit, salt, table) in enumerate(columns):
            set_keys(&all_of_them[j], f"column {j}", values, valid, first_bit, salt, table, rows)
            all_of_them[j].level = level
        with nogil:
            pslib_fill_keys(all_of_them, count, rows, first)
    finally:
        free(all_of_them)


def fill_numbers(columns, out, vectors=None):
    """Convert numbers of columns to float32, a row for each example.

    Parameters
    ----------
    columns : sequence of (values, valid, first_bit, fill, log1p)
        For each column its ``(n,)`` integers or floats, Arrow's bitmap as for `fill_keys`, what stands for
        null and NaN, and whether ``sign(x) * log(1 + |x|)`` is wanted in place of ``x``: the nearest float32
        but for a few in a million, the same on every machine; of an infinite number anything.
    out : (n, N) float32
        Written to.
    vectors : str or None
        As for `fill_keys`.

    Returns
    -------
    list of int
        Columns in which there is an infinite number, or one under a null.

    Raises
    ------
    ValueError
        When a type or length does not fit.
    """
    cdef Py_ssize_t count = len(columns), rows = len(out), j
    checked_target("out", out, _F32, (None, count))
    if not count or not rows:
        return []
    cdef int level = level_of(vectors)
    infinite = np.zeros(count, np.uint8)
    cdef PslibNumberColumn *all_of_them = <PslibNumberColumn *>calloc(count, sizeof(PslibNumberColumn))
    if all_of_them == NULL:
        raise MemoryError
    cdef float *first = <float *>cnp.PyArray_DATA(<cnp.ndarray>out)
    cdef uint8_t *flags = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>infinite)
    try:
        for j, (values, valid, first_bit, fill, log1p) in enumerate(columns):
            where = f"column {j}"
            all_of_them[j].type, all_of_them[j].level = type_of(where, values, _NUMBERS, rows), level
            all_of_them[j].values = cnp.PyArray_DATA(<cnp.ndarray>values)
            all_of_them[j].valid = bits_of(where, valid, first_bit, rows)
            all_of_them[j].first_bit = first_bit
            all_of_them[j].fill, all_of_them[j].log1p = fill, bool(log1p)
        with nogil:
            pslib_fill_numbers(all_of_them, count, rows, first, flags)
    finally:
        free(all_of_them)
    return np.flatnonzero(infinite).tolist()
