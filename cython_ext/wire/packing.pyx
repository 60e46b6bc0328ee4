"""Packing of rows for the wire: bfloat16 (as uint16), float16, or int8 with one float32 scale a row.

The arithmetic is in `packing.h`; the dtype of the packed array selects it. All instruction sets give the same
bits.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

from cython_ext.common.checks cimport (
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    level_of,
)
from cython_ext.common.hashing cimport pslib_mix64

import numpy as np

cnp.import_array()

__all__ = ["first_beyond", "pack", "pack_with_feedback", "rounding_bases", "unpack"]

cdef extern from "wire/packing.h" nogil:
    enum:
        PSLIB_BFLOAT16
        PSLIB_FLOAT16
        PSLIB_INT8

    ctypedef struct PslibPacking:
        int kind
        int level
        int64_t n
        int64_t dim
        const int32_t *places
        const uint64_t *bases
        float factor

    void pslib_pack(const PslibPacking *how, const float *rows, void *to, float *scales)
    void pslib_unpack(const PslibPacking *how, const void *packed, const float *scales, float *rows)
    void pslib_feedback(const PslibPacking *how, const float *gradient, float *residual, uint16_t *to)

cdef extern from "data/finite.h" nogil:
    ctypedef struct PslibLook:
        const void *values
        int bytes
        uint32_t limit
        int level

    int64_t pslib_first_reaching(const PslibLook *look, int64_t n)

_F32 = np.dtype(np.float32)
_I32 = np.dtype(np.int32)
_U64 = np.dtype(np.uint64)
_KINDS = {
    np.dtype(np.uint16): PSLIB_BFLOAT16,
    np.dtype(np.float16): PSLIB_FLOAT16,
    np.dtype(np.int8): PSLIB_INT8,
}

_INFINITE = {_F32: 0x7F800000, np.dtype(np.uint16): 0x7F80, np.dtype(np.float16): 0x7C00}

# Below this many numbers the scan takes less time than to release the interpreter lock and take it again.
cdef int64_t ALONE = 1 << 14

# The least float32 whose nearest bfloat16 is infinite, 3.3961e38; float16 and int8 have scales and hold more.
cdef uint32_t NARROW_BEYOND = 0x7F7F8000

cdef uint64_t ROUNDING_TAG = 0x8CB92BA72F3D8DD7u  # other bits than those by which a table rounds its weights


cdef object kind_of(str where, object packed):
    dtype = getattr(packed, "dtype", None)
    kind = _KINDS.get(dtype)
    if kind is None:
        raise ValueError(f"{where}: expected uint16 (bfloat16), float16 or int8, got {dtype}")
    return kind


cdef int set_places(PslibPacking *how, str where, object places, int64_t n, int64_t room) except -1:
    """Check and set the places of n rows among `room` rows: NULL for rows that lie one after the other."""
    cdef int32_t low = 0, high = -1
    cdef int64_t i
    how.places = NULL
    if places is None:
        if n != room:
            raise ValueError(f"{where}: expected {n} rows, got {room}")
        return 0
    how.places = <const int32_t *> cnp.PyArray_DATA(<cnp.ndarray> places)
    with nogil:
        for i in range(n):
            low = min(low, how.places[i])
            high = max(high, how.places[i])
    if low < 0 or high >= room:
        raise ValueError(f"{where}: places must be in 0..{room - 1}, got {low if low < 0 else high}")
    return 0


def pack(rows, out, scales=None, places=None, bases=None, factor=1.0, *, vectors=None):
    """Round rows to the type of ``out``: to the nearest value or, int8 with ``bases``, stochastically.

    Parameters
    ----------
    rows : (n, dim) float32
    out : (m, dim) uint16, float16 or int8, written to
        uint16 holds bfloat16. m = n without ``places``.
    scales : (m,) float32, written to
        One a row; int8 only.
    places : (n,) int32 or None
        Row of ``out`` to which each row goes; None: one after the other.
    bases : (n,) uint64 or None
        Random bits of each row, from `rounding_bases`; int8 only.
    factor : float
        Factor applied to every number first; 16 bits only. A power of two changes no digit.
    vectors : str or None
        Instruction set, of `vector_levels`; None takes the best.

    Raises
    ------
    ValueError
        When an array has another type or shape, or a place is out of range.
    """
    cdef PslibPacking how
    how.kind = kind_of("pack: out", out)
    rows = checked_array("pack: rows", rows, _F32, (None, None))
    out = checked_target("pack: out", out, out.dtype, (None, rows.shape[1]))
    how.n, how.dim = rows.shape
    how.factor = finite_number("pack: factor", factor)
    cdef float *scale_data = NULL
    if how.kind == PSLIB_INT8:
        scale_data = floats_of(checked_target("pack: scales", scales, _F32, (len(out),)))
    if places is not None:
        places = checked_array("pack: places", places, _I32, (how.n,))
    set_places(&how, "pack: out", places, how.n, len(out))
    how.bases = NULL
    if bases is not None:
        bases = checked_array("pack: bases", bases, _U64, (how.n,))
        how.bases = keys_of(bases)
    cdef const float *row_data = floats_of(rows)
    cdef void *out_data = cnp.PyArray_DATA(<cnp.ndarray> out)
    how.level = level_of(vectors)
    with nogil:
        pslib_pack(&how, row_data, out_data, scale_data)


def unpack(packed, scales, out, places=None, *, vectors=None):
    """Read packed rows back as float32.

    Parameters
    ----------
    packed : (n, dim) uint16, float16 or int8
    scales : (n,), (1,), (0,) float32 or None
        One a row of int8, which must be there; of 16 bits one for all rows, or none.
    out : (m, dim) float32, written to
        m = n without ``places``.
    places : (n,) int32 or None
        Row of ``out`` to which each row goes; None: one after the other.
    vectors : str or None
        As for `pack`.

    Raises
    ------
    ValueError
        When an array has another type or shape, or a place is out of range.
    """
    cdef PslibPacking how
    how.kind = kind_of("unpack: packed", packed)
    packed = checked_array("unpack: packed", packed, packed.dtype, (None, None))
    out = checked_target("unpack: out", out, _F32, (None, packed.shape[1]))
    how.n, how.dim = packed.shape
    how.bases = NULL
    how.factor = 1
    cdef const float *scale_data = NULL
    if how.kind == PSLIB_INT8:
        scales = checked_array("unpack: scales", scales, _F32, (how.n,))
        scale_data = floats_of(scales)
    elif scales is not None and len(scales):
        how.factor = checked_array("unpack: scales", scales, _F32, (1,))[0]
    if places is not None:
        places = checked_array("unpack: places", places, _I32, (how.n,))
    set_places(&how, "unpack: out", places, how.n, len(out))
    cdef const void *packed_data = cnp.PyArray_DATA(<cnp.ndarray> packed)
    cdef float *out_data = floats_of(out)
    how.level = level_of(vectors)
    with nogil:
        pslib_unpack(&how, packed_data, scale_data, out_data)


def pack_with_feedback(gradient, residual, out, *, vectors=None):
    """Round ``gradient + residual`` to 16 bits, and write the rounding error to ``residual``.

    Parameters
    ----------
    gradient : (n,) float32
    residual : (n,) float32, read and written to
        Zeros at first; 0 afterwards where a sum is not finite.
    out : (n,) uint16 (bfloat16) or float16, written to
    vectors : str or None
        As for `pack`.

    Raises
    ------
    ValueError
        When an array has another type or shape.
    """
    cdef PslibPacking how
    how.kind = kind_of("pack_with_feedback: out", out)
    if how.kind == PSLIB_INT8:
        raise ValueError("pack_with_feedback: out: expected uint16 (bfloat16) or float16, got int8")
    gradient = checked_array("pack_with_feedback: gradient", gradient, _F32, (None,))
    how.n = len(gradient)
    residual = checked_target("pack_with_feedback: residual", residual, _F32, (how.n,))
    out = checked_target("pack_with_feedback: out", out, out.dtype, (how.n,))
    cdef const float *gradient_data = floats_of(gradient)
    cdef float *residual_data = floats_of(residual)
    cdef uint16_t *out_data = <uint16_t *> cnp.PyArray_DATA(<cnp.ndarray> out)
    how.level = level_of(vectors)
    with nogil:
        pslib_feedback(&how, gradient_data, residual_data, out_data)


def first_beyond(values, *, narrow=False, vectors=None):
    """Return the place of the first number that is NaN or infinite, or would be infinite in a narrower type.

    Parameters
    ----------
    values : contiguous float32, uint16 (bfloat16) or float16 of any shape
    narrow : bool
        True if float32 will travel as a narrower type, in which the largest numbers round up to infinity.
    vectors : str or None
        As for `pack`.

    Returns
    -------
    int
        Counted through all of them, row by row; ``values.size`` where all are finite.

    Raises
    ------
    ValueError
        When the array has another type or is not contiguous.
    """
    limit = _INFINITE.get(getattr(values, "dtype", None))
    if limit is None:
        raise ValueError("first_beyond: values: expected float32, uint16 (bfloat16) or float16")
    values = checked_array("first_beyond: values", values, values.dtype, (None,) * values.ndim)
    cdef PslibLook look
    cdef int64_t place, n = values.size
    look.values = cnp.PyArray_DATA(<cnp.ndarray> values)
    look.bytes, look.level = values.itemsize, level_of(vectors)
    look.limit = NARROW_BEYOND if narrow and look.bytes == 4 else limit
    if n < ALONE:
        return pslib_first_reaching(&look, n)
    with nogil:
        place = pslib_first_reaching(&look, n)
    return place


def rounding_bases(const uint64_t[::1] keys, salt):
    """Return random bits for each row of a push: a function of its key and of the push's name alone.

    Parameters
    ----------
    keys : (n,) uint64
    salt : int
        0..2^64-1, of the push.

    Returns
    -------
    (n,) uint64
        ``mix64(key ^ mix64(salt ^ 0x8CB92BA72F3D8DD7))``, so that a row gets the same bits in every retry.
    """
    cdef uint64_t mixed = pslib_mix64(<uint64_t> salt ^ ROUNDING_TAG)
    cdef Py_ssize_t i, n = keys.shape[0]
    bases = np.empty(n, np.uint64)
    cdef uint64_t[::1] out = bases
    with nogil:
        for i in range(n):
            out[i] = pslib_mix64(keys[i] ^ mixed)
    return bases
