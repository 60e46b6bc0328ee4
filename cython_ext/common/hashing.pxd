"""The mixing function and the partition of a key, for other kernels of this package to inline."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "common/mix.h" nogil:
    uint64_t pslib_mix64(uint64_t x)
    uint32_t pslib_partition_of_mixed(uint64_t mixed, int bits)


cdef inline uint32_t partition_number(uint64_t key, int partition_bits) noexcept nogil:
    """Partition of one key; ``partition_bits`` in 0..20."""
    return pslib_partition_of_mixed(pslib_mix64(key), partition_bits)
