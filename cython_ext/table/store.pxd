"""One table's partitions, for modules that read and step its rows without Python objects."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cython_ext.table.table cimport PslibRecord, PslibTable


cdef class Store:
    cdef PslibTable table
    cdef list borrowed  # arrays that `table` points into
    cdef readonly int partition_bits
    cdef readonly int narrow_parts

    cdef int class_of(self, str method, object narrow) except -1
    cdef object partition_number(self, str method, object partition)
    cdef int refuse_strangers(self, str method, uint32_t partition, object keys) except -1
    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1
    cdef int64_t read_rows(self, const uint64_t *keys, int64_t n, float now, float *rows) except -1
    cdef int step_rows(
        self, const uint64_t *keys, int64_t n, const float *gradients, uint64_t salt, float now
    ) except -1
    cdef int _step(
        self, const uint64_t *keys, int64_t n, const float *gradients, int row_class,
        const PslibRecord *record, float rate, bint delta
    ) except -1
    cdef object _chosen(self, str method, object partitions)
    cdef int _require(self, str method, int rule) except -1
    cdef object _foreseen(self, str method, object keys, int row_class, const PslibRecord *record)
    cdef int _require_image(self, str method) except -1
    cdef object _range(self, str method, object first, object stop)
