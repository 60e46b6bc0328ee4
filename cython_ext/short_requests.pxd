"""The fixed stretches of short requests and answers, for both ends of them."""

from cython_ext.msgpack_parts cimport In

cdef enum:
    BYTES_MAX = 8192  # of an array in a header: more travels as a frame of its own
    KEYS_MAX = BYTES_MAX // 8
    FLOATS_MAX = BYTES_MAX // 4

cdef bytes PULL_TYPES, PULL_KEYS, PULL_BLOCKS, PULLED_REST
cdef bytes PUSH_MANNER, PUSH_KEYS, PUSH_GRADIENTS, PUSH_DENSE, PUSHED_REST

cdef double TIME_S_MAX

cdef tuple heads_of(version, cluster)
cdef object made_tuple(object cls, object first, object second)
cdef bint taken(In *source, bytes wanted) noexcept
