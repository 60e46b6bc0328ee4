"""Checks of arrays and numbers at the edge of the kernels, and the choice of the instruction set.

Each check raises ValueError in one line that names the argument, what was expected and what came.
"""

from libc.stdlib cimport getenv

import numpy as np

cnp.import_array()

cdef extern from "common/vectors.h" nogil:
    enum:
        PSLIB_PLAIN
        PSLIB_AVX2
        PSLIB_AVX512
    int pslib_best_level()

_LEVELS = {"plain": PSLIB_PLAIN, "avx2": PSLIB_AVX2, "avx512": PSLIB_AVX512}
cdef int BEST_LEVEL = pslib_best_level()  # asking the processor traps in a virtual machine: 13 us a call
_F32 = np.dtype(np.float32)
_F32_MAX = float(np.finfo(np.float32).max)


def vector_levels():
    """Return the instruction sets for which this machine can run the kernels, plainest first.

    ``plain`` is what every processor of the kind has: SSE2 on x86-64, NEON on ARM. Kernels take the last one,
    or the one that the environment variable ``PSLIB_VECTORS`` names. All give the same bits.

    Returns
    -------
    tuple of str
        Some of ``plain``, ``avx2``, ``avx512``.
    """
    return tuple(name for name, level in _LEVELS.items() if level <= BEST_LEVEL)


cdef int level_of(object vectors) except -1:
    """Return the level of vectors.h that is named; None: that of ``PSLIB_VECTORS``, else the best."""
    cdef const char* asked = getenv("PSLIB_VECTORS")
    name = vectors or (asked.decode() if asked else None)
    if not name:
        return BEST_LEVEL
    levels = vector_levels()
    if name not in levels:
        where = "vectors" if vectors else "PSLIB_VECTORS"
        raise ValueError(f"{where}: expected one of {', '.join(levels)} on this machine, got {name}")
    return _LEVELS[name]


cdef bint is_array_of(object array, object dtype, tuple shape) except -1:
    """Return True if the array has the dtype and shape and is C-contiguous."""
    cdef int place
    if not cnp.PyArray_Check(array):
        return False
    if cnp.PyArray_NDIM(<cnp.ndarray>array) != len(shape):
        return False
    for place in range(len(shape)):
        want = shape[place]
        if want is not None and <cnp.npy_intp>want != cnp.PyArray_DIM(<cnp.ndarray>array, place):
            return False
    return cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>array) and array.dtype == dtype


cdef object checked_array(str where, object array, object dtype, tuple shape):
    """Return a C-contiguous array of this dtype and shape (None = any length), copied if not aligned."""
    if not is_array_of(array, dtype, shape):
        lengths = ", ".join("n" if want is None else str(want) for want in shape)
        if isinstance(array, np.ndarray):
            order = "C-contiguous" if array.flags.c_contiguous else "strided"
            came = f"{order} {array.dtype} {array.shape}"
        else:
            came = type(array).__name__
        comma = "," if len(shape) == 1 else ""
        raise ValueError(f"{where}: expected C-contiguous {dtype} ({lengths}{comma}), got {came}")
    return array if cnp.PyArray_ISALIGNED(<cnp.ndarray>array) else array.copy()


cdef object checked_target(str where, object array, object dtype, tuple shape):
    """As `checked_array`, for an array that is written to: never a copy."""
    same = checked_array(where, array, dtype, shape)
    if same is not array or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>array):
        raise ValueError(f"{where}: expected a writeable and aligned array, got one that is not")
    return array


cdef object whole_number(str where, object number, object low, object high):
    """Return a whole number in low..high."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not low <= number <= high:
        raise ValueError(f"{where}: expected a whole number in {low}..{high}, got {number!r}")
    return int(number)


cdef object finite_number(str where, object number):
    """Return a number that is finite as float32."""
    real = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not real or not abs(number) <= _F32_MAX:
        raise ValueError(f"{where}: expected a number that is finite as float32, got {number!r}")
    return float(number)


cdef object checked_counts(str where, object counts, object n, object zero):
    """Return float32 counts, (n,), that are finite and above 0 or, with `zero`, at least 0."""
    counts = checked_array(where, counts, _F32, (n,))
    wrong = ~((counts >= 0 if zero else counts > 0) & (counts <= _F32_MAX))
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        least = "not below" if zero else "above"
        raise ValueError(f"{where}: expected finite counts {least} 0, got {counts[place]} at place {place}")
    return counts
