"""The fixed stretches of short requests and answers, for both ends of them."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t

from cython_ext.msgpack_parts cimport In

cdef enum:
    BYTES_MAX = 8192  # of an array in a header: more travels as a frame of its own
    KEYS_MAX = BYTES_MAX // 8
    FLOATS_MAX = BYTES_MAX // 4

cdef bytes PULL_TYPES, PULL_KEYS, PULL_BLOCKS, PULLED_REST
cdef bytes PUSH_MANNER, PUSH_KEYS, PUSH_GRADIENTS, PUSH_DENSE, PUSHED_REST

cdef double TIME_S_MAX

cdef struct Request:
    uint64_t request_id, step
    double time_s
    const uint8_t *name  # of the only table, as it stands in the header
    Py_ssize_t name_size
    const uint8_t *text  # and without what says how long it is
    Py_ssize_t text_size
    uint64_t count  # keys
    const uint8_t *data  # of the arrays


cdef tuple heads_of(version, cluster)
cdef object made_tuple(object cls, object first, object second)
cdef bint taken(In *source, bytes wanted) noexcept


cdef class ShortRequests:
    cdef bytes pull, push, pulled, pushed  # headers up to the number of the request
    cdef uint64_t rows_max
    cdef object shard  # the last one, and what it has for life:
    cdef dict stores, tables
    cdef cnp.ndarray kinds
    cdef int partition_bits
    cdef uint64_t partitions

    cdef int meet(self, object shard) except -1
    cdef int64_t partitions_mine(self, const uint64_t *keys, uint64_t count, uint8_t *bits) noexcept
    cdef float now_of(self, str name, Request *request) except? -1
    cdef bytes answer(self, object shard, bytes frame)
    cdef bytes answer_pull(self, object shard, In *source)
    cdef bytes rows_answer(self, Request *request, uint64_t dim, const float *rows, uint64_t pushes_before)
    cdef bytes answer_push(self, object shard, In *source)
    cdef bint apply(
        self, object shard, Request *request, const uint64_t *named, const uint64_t *keys,
        const float *gradients, uint64_t dim, uint64_t *pushes_before
    ) except -1
    cdef bytes applied_answer(self, uint64_t request_id, uint64_t pushes_before)
    cdef bint taken_count(self, In *source, Request *request) noexcept
