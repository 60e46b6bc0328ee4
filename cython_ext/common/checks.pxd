"""Checks of arrays and numbers that come from Python, shared by the kernels at C level."""

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef object checked_array(str where, object array, object dtype, tuple shape)
cdef object checked_target(str where, object array, object dtype, tuple shape)
cdef object checked_counts(str where, object counts, object n, object zero)
cdef object whole_number(str where, object number, object low, object high)
cdef object finite_number(str where, object number)
cdef int level_of(object vectors) except -1


cdef inline uint64_t *keys_of(object array):
    """Return the data of a uint64 array that has been checked."""
    return <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline float *floats_of(object array):
    """Return the data of a float32 array that has been checked."""
    return <float *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline uint32_t *numbers_of(object array):
    """Return the data of a uint32 array that has been checked."""
    return <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline uint8_t *bytes_of(object array):
    """Return the data of a uint8 or bool array that has been checked."""
    return <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>array)
