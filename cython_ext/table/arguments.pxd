"""Arguments checked and put into C structures, arrays for results, and errors of full tables."""

from libc.stdint cimport int64_t, uint32_t

from cython_ext.table.table cimport PslibInitializer, PslibOptimizer, PslibRecord, PslibStatus, PslibTable


cdef int set_optimizer(PslibOptimizer *optimizer, str where, object kind, object hyperparameters,
                       object modifiers, object corrections) except -1
cdef int set_initializer(PslibInitializer *initializer, str where, object kind, object numbers,
                         object seed) except -1
cdef list set_part(PslibTable *table, int place, object numbers)
cdef int set_policies(PslibTable *table, int narrow_parts, object storage, object counters, object admission,
                      object promotion, object score) except -1
cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n)
cdef int raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1
cdef object checked_keys(str method, object keys)
cdef object partition_number(const PslibTable *table, str method, object partition)
cdef object partition_numbers(const PslibTable *table, str method, object partitions)
cdef int class_of(const PslibTable *table, str method, object narrow) except -1
cdef int require_partition(const PslibTable *table, str method, uint32_t partition, object keys) except -1
cdef int require_counters(const PslibTable *table, str method, int rule) except -1
cdef tuple empty_rows(const PslibTable *table, int row_class, int64_t count)
