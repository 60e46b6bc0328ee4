"""The mixing function, the partition of a key and the bases of keys, inlined into other kernels."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "common/mix.h" nogil:
    uint64_t pslib_mix64(uint64_t x)
    uint32_t pslib_partition_of_mixed(uint64_t mixed, int bits)


cdef inline uint32_t partition_number(uint64_t key, int partition_bits) noexcept nogil:
    """Return the partition of one key; ``partition_bits`` in 0..20."""
    return pslib_partition_of_mixed(pslib_mix64(key), partition_bits)


cdef inline uint64_t int_base(uint64_t salt) noexcept nogil:
    """Return the base of the keys of integers: key = mix64(value ^ base)."""
    return pslib_mix64(salt ^ 0x9E3779B97F4A7C15u)


cdef inline uint64_t null_key_of(uint64_t salt) noexcept nogil:
    """Return the key of null."""
    return pslib_mix64(salt ^ 0x165667B19E3779F9u)
