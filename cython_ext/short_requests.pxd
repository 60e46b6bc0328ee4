"""The fixed stretches of short requests and answers, for both ends of them."""

from cython_ext.msgpack_parts cimport In

cdef bytes PULL_TYPES, PULL_KEYS, PULL_BLOCKS, PULLED_REST
cdef bytes PUSH_MANNER, PUSH_KEYS, PUSH_GRADIENTS, PUSH_DENSE, PUSHED_REST

cdef double TIME_S_MAX

cdef object made_tuple(object cls, object first, object second)
cdef bint taken(In *source, bytes wanted) noexcept
