"""The pieces of msgpack that messages are made of, written and read one after the other.

Numbers are 0..2^64-1, texts at most 255 bytes of UTF-8, lists at most 65,535 items. Writing takes the
shortest form of each, as msgpack's own packer does, and reading takes every form of an unsigned number.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef extern from *:
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    TEXT_BYTES_MAX = 255


cdef struct Out:
    uint8_t *data
    Py_ssize_t size, room


cdef inline int put(Out *out, const void *data, Py_ssize_t size) except -1:
    cdef void *grown
    if out.size + size > out.room:
        out.room = 2 * (out.size + size) + 256
        grown = realloc(out.data, out.room)
        if grown == NULL:
            raise MemoryError()
        out.data = <uint8_t *>grown
    if size:
        memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline int put_tagged(Out *out, uint8_t tag, uint64_t number, int size) except -1:
    """A tag and the last ``size`` bytes of a number, most significant first."""
    cdef uint8_t data[9]
    cdef int i
    data[0] = tag
    for i in range(size):
        data[1 + i] = <uint8_t>(number >> (8 * (size - 1 - i)))
    return put(out, data, 1 + size)


cdef inline int put_number(Out *out, uint64_t number) except -1:
    if number < 0x80:
        return put_tagged(out, <uint8_t>number, 0, 0)
    if number < 0x100:
        return put_tagged(out, 0xCC, number, 1)
    if number < 0x10000:
        return put_tagged(out, 0xCD, number, 2)
    if number < 0x100000000:
        return put_tagged(out, 0xCE, number, 4)
    return put_tagged(out, 0xCF, number, 8)


cdef inline int put_list(Out *out, uint64_t length) except -1:
    if length < 16:
        return put_tagged(out, <uint8_t>(0x90 | length), 0, 0)
    return put_tagged(out, 0xDC, length, 2)


cdef inline int put_binary_start(Out *out, uint64_t size) except -1:
    """What says that ``size`` bytes follow."""
    if size < 0x100:
        return put_tagged(out, 0xC4, size, 1)
    if size < 0x10000:
        return put_tagged(out, 0xC5, size, 2)
    return put_tagged(out, 0xC6, size, 4)


cdef inline int put_binary(Out *out, const void *data, uint64_t size) except -1:
    put_binary_start(out, size)
    return put(out, data, size)


cdef inline bint put_text(Out *out, object text) except -1:
    """False for what is not a short text."""
    cdef Py_ssize_t size
    cdef const char *data
    if type(text) is not str:
        return False
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if size > TEXT_BYTES_MAX:
        return False
    if size < 32:
        put_tagged(out, <uint8_t>(0xA0 | size), 0, 0)
    else:
        put_tagged(out, 0xD9, size, 1)
    put(out, data, size)
    return True


cdef struct In:
    const uint8_t *at
    const uint8_t *end


cdef inline bint take_big_endian(In *source, int size, uint64_t *number) noexcept:
    cdef int i
    if source.end - source.at < size:
        return False
    number[0] = 0
    for i in range(size):
        number[0] = (number[0] << 8) | source.at[i]
    source.at += size
    return True


cdef inline bint take_number(In *source, uint64_t *number) noexcept:
    cdef uint8_t tag
    if source.at >= source.end:
        return False
    tag = source.at[0]
    source.at += 1
    if tag < 0x80:
        number[0] = tag
        return True
    return 0xCC <= tag <= 0xCF and take_big_endian(source, 1 << (tag - 0xCC), number)


cdef inline Py_ssize_t take_list(In *source) noexcept:
    """Length of a list; -1 when there is none."""
    cdef uint64_t length
    cdef uint8_t tag
    if source.at >= source.end:
        return -1
    tag = source.at[0]
    source.at += 1
    if tag & 0xF0 == 0x90:
        return tag & 0x0F
    return <Py_ssize_t>length if tag == 0xDC and take_big_endian(source, 2, &length) else -1


cdef inline bint take_text(In *source, const uint8_t **text, Py_ssize_t *size) noexcept:
    cdef uint64_t length
    cdef uint8_t tag
    if source.at >= source.end:
        return False
    tag = source.at[0]
    source.at += 1
    if tag & 0xE0 == 0xA0:
        length = tag & 0x1F
    elif tag != 0xD9 or not take_big_endian(source, 1, &length):
        return False
    if <uint64_t>(source.end - source.at) < length:
        return False
    text[0], size[0] = source.at, <Py_ssize_t>length
    source.at += length
    return True


cdef inline Py_ssize_t take_binary(In *source) noexcept:
    """Length of the binary that ends where the source ends; -1 when it does not."""
    cdef uint64_t length
    cdef uint8_t tag
    if source.at >= source.end:
        return -1
    tag = source.at[0]
    source.at += 1
    if not 0xC4 <= tag <= 0xC6 or not take_big_endian(source, 1 << (tag - 0xC4), &length):
        return -1
    return <Py_ssize_t>length if <uint64_t>(source.end - source.at) == length else -1
