"""The edge of the kernels: what comes in from Python is checked by these, and only by these."""

cimport numpy as cnp
from libc.stdint cimport uint64_t

from cython_ext.table.table cimport PslibAdmission, PslibInitializer, PslibOptimizer, PslibPromotion


cdef object checked_array(str where, object array, object dtype, tuple shape)
cdef object checked_target(str where, object array, object dtype, tuple shape)
cdef int level_of(object vectors) except -1
cdef object whole_number(str where, object number, object low, object high)
cdef object finite_number(str where, object number)
cdef object checked_counts(str where, object counts, object n, object zero)
cdef int set_optimizer(PslibOptimizer *optimizer, str where, object kind, object hyperparameters,
                       object modifiers, object corrections) except -1
cdef int set_initializer(PslibInitializer *initializer, str where, object kind, object numbers,
                         object seed) except -1
cdef int set_admission(PslibAdmission *admission, str where, tuple numbers) except -1
cdef int set_promotion(PslibPromotion *promotion, str where, tuple numbers) except -1


cdef inline uint64_t *keys_of(object array):
    """The data of a uint64 array that has been checked."""
    return <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline float *floats_of(object array):
    """The data of a float32 array that has been checked."""
    return <float *>cnp.PyArray_DATA(<cnp.ndarray>array)
