"""Scratch memory of a thread, shared by the kernels of this folder."""

from libc.stdint cimport uint8_t


cdef uint8_t[::1] scratch_of(Py_ssize_t size)
