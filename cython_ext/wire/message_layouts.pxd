"""What writer and reader of messages know of each kind of message."""

cdef enum:
    FIELDS_MAX = 32
    DTYPES_MAX = 16

cdef enum Rule:
    INTEGER, FLOAT, BOOLEAN, TEXT, ARRAY, ARRAYS


cdef class Layout:
    """One kind of message."""

    cdef object cls
    cdef bytes start  # of its header, as far as it is always the same
    cdef list names
    cdef int count, values  # fields; those in the list of values
    cdef int rules[FIELDS_MAX]
    cdef unsigned int dtypes[FIELDS_MAX]  # bit n: place n among the dtypes is allowed
    cdef int ndims[FIELDS_MAX]


cdef class MessageLayouts:
    cdef unsigned char codes[DTYPES_MAX][2]
    cdef int type_numbers[DTYPES_MAX]
    cdef int sizes[DTYPES_MAX]
    cdef int dtype_count
    cdef list descriptors
    cdef Py_ssize_t frames_max, header_max, frame_max, small_max, small_room
    cdef unsigned long long message_max
    cdef bytes start
    cdef dict of_kind, of_bytes
    cdef bint native

    cdef Layout layout(self, object cls, str kind, object rules)
    cdef bint fits(self, object frames) except -1
