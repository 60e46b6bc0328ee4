"""For short requests (``short_requests.pyx``)."""


cdef class StreamMarks:
    cdef public object floor, epoch
    cdef public dict applied


cdef class PushMarks:
    cdef readonly dict streams
    cdef public object done_below

    cpdef object fresh(self, object stream, object number, object epoch, object units)
    cpdef object record(self, object stream, object number, object units)
    cpdef object raise_floor(self, object stream, object below)
    cdef StreamMarks marks_of(self, object stream)
