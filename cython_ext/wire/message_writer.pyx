"""Small messages to bytes without Python objects in between.

The grammar stands in ``docs/design/wire.md``, its definition in ``pslib/wire/codec.py``. What is
here knows the common case only: fields that are numbers, texts and arrays. For all else (nested values, a
wrong type, a limit that is passed) `encode` returns None, and the definition does the work or finds the
words for the refusal.

The header of a push takes 0.7 us, and 10 us by the definition; with 128 servers that is most of a step.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject, PyObject_GenericGetAttr
from libc.math cimport isfinite
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from cython_ext.wire.message_layouts cimport ARRAY, ARRAYS, BOOLEAN, FLOAT, INTEGER, Layout, MessageLayouts
from cython_ext.wire.msgpack_parts cimport (
    Out,
    put,
    put_binary,
    put_list,
    put_number,
    put_tagged,
    put_text,
)

import numpy as np

__all__ = ["MessageWriter"]

cnp.import_array()

cdef extern from *:
    unsigned long long PyLong_AsUnsignedLongLong(object number) except? 0xFFFFFFFFFFFFFFFF


cdef class MessageWriter(MessageLayouts):
    """Encoder of the common messages of one cluster; see `MessageLayouts`."""

    def encode(self, request_id, kind, message):
        """Frames of a message, the first of them bytes; None when it is not a common one.

        Parameters
        ----------
        request_id : int
        kind : str
            Of the message.
        message : object
            Of the kind's class.
        """
        cdef Out values, about, small
        memset(&values, 0, sizeof(Out))
        memset(&about, 0, sizeof(Out))
        memset(&small, 0, sizeof(Out))
        try:
            return self.write(request_id, kind, message, &values, &about, &small)
        except Exception:  # the definition says what is wrong
            return None
        finally:
            free(values.data)
            free(about.data)
            free(small.data)

    cdef list write(self, request_id, kind, message, Out *values, Out *about, Out *small):
        cdef Layout layout = self.of_kind.get(kind)
        cdef int place, arrays = 0
        cdef list frames = [None]
        cdef Out whole
        if layout is None or not self.native or type(request_id) is not int:
            return None
        for place in range(layout.count):
            value = PyObject_GenericGetAttr(message, layout.names[place])
            if layout.rules[place] == ARRAY:
                if not self.put_array(value, layout, place, about, small, frames):
                    return None
                arrays += 1
            elif layout.rules[place] == ARRAYS:
                if type(value) is not dict:
                    return None
                if not self.put_arrays(value, layout, place, values, about, small, frames):
                    return None
                arrays += len(value)
            elif not put_value(values, layout.rules[place], value):
                return None
        if 1 + arrays > self.frames_max:
            return None
        memset(&whole, 0, sizeof(Out))
        try:
            put(&whole, PyBytes_AS_STRING(layout.start), len(layout.start))
            put_number(&whole, PyLong_AsUnsignedLongLong(request_id))
            put_list(&whole, layout.values)
            put(&whole, values.data, values.size)
            put_list(&whole, arrays)
            put(&whole, about.data, about.size)
            put_binary(&whole, small.data, small.size)
            frames[0] = PyBytes_FromStringAndSize(<char *>whole.data, whole.size)
        finally:
            free(whole.data)
        return frames if self.fits(frames) else None

    cdef bint put_arrays(
        self, dict named, Layout layout, int place, Out *values, Out *about, Out *small, list frames
    ) except -1:
        cdef Py_ssize_t at = 0
        cdef PyObject *name
        cdef PyObject *array
        put_list(values, len(named))
        while PyDict_Next(named, &at, &name, &array):
            if not put_text(values, <object>name):
                return False
            if not self.put_array(<object>array, layout, place, about, small, frames):
                return False
        return True

    cdef bint put_array(
        self, object given, Layout layout, int place, Out *about, Out *small, list frames
    ) except -1:
        """Describe an array, and put its bytes behind the header or into a frame of their own."""
        cdef cnp.ndarray array
        cdef int dtype, ndim, i
        cdef Py_ssize_t size, start
        cdef uint64_t zeros = 0
        if not cnp.PyArray_Check(given):
            return False
        array = given
        dtype, ndim = self.dtype_of(array), cnp.PyArray_NDIM(array)
        if dtype < 0 or ndim != layout.ndims[place] or not layout.dtypes[place] >> dtype & 1:
            return False
        put_list(about, 1 + ndim)
        put_tagged(about, 0xA2, 0, 0)
        put(about, self.codes[dtype], 2)
        for i in range(ndim):
            put_number(about, cnp.PyArray_DIM(array, i))
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            array = np.ascontiguousarray(array)
        size, start = cnp.PyArray_NBYTES(array), (small.size + 7) & ~7
        if size > self.small_max or start + size > self.small_room:
            frames.append(array.reshape(-1).view(np.uint8).data)
        elif size:
            put(small, &zeros, start - small.size)
            put(small, cnp.PyArray_DATA(array), size)
        return True

    cdef int dtype_of(self, cnp.ndarray array) except -2:
        """Place among the dtypes; -1 when it is none of them."""
        cdef int number = cnp.PyArray_TYPE(array), dtype
        for dtype in range(self.dtype_count):
            if self.type_numbers[dtype] == number:
                return dtype if cnp.PyArray_ISNOTSWAPPED(array) else -1
        return -1


cdef bint put_value(Out *out, int kind, object value) except -1:
    """False when the value is not what its field holds."""
    cdef double number
    cdef uint64_t bits
    if kind == INTEGER:
        if type(value) is not int:
            return False
        put_number(out, PyLong_AsUnsignedLongLong(value))
    elif kind == FLOAT:
        if type(value) is not float or not isfinite(value):
            return False
        number = value
        memcpy(&bits, &number, 8)
        put_tagged(out, 0xCB, bits, 8)
    elif kind == BOOLEAN:
        if type(value) is not bool:
            return False
        put_tagged(out, 0xC3 if value else 0xC2, 0, 0)
    else:
        return put_text(out, value)
    return True
