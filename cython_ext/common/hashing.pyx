"""Keys from raw values, and partitions from keys.

Definitions (all arithmetic modulo 2^64; ``mix`` is ``mix64``, a bijection)::

    int_base    = mix(salt ^ 0x9E3779B97F4A7C15)
    string_base = mix(salt ^ 0xC2B2AE3D27D4EB4F)
    null_key    = mix(salt ^ 0x165667B19E3779F9)

    key of an integer v     = mix(v ^ int_base)
    key of bytes of length n:
        h = mix(string_base + n * 0x9E3779B97F4A7C15)
        for every 8 bytes, read as a little-endian integer w (the last one padded with zeros):
            h = mix(h ^ w)

Since ``mix`` is a bijection, two integers of one vocabulary never share a key, nor do two
strings of equal length up to 8 bytes. Longer strings collide as random 64-bit numbers do: among 10^8 values
of one vocabulary about one chance in 3,700. Checkpoints hold the keys, so these formulas never change
(`tests/values/test_hashing.py` holds golden values).
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef uint64_t STRING_TAG = 0xC2B2AE3D27D4EB4Fu
cdef uint64_t LENGTH_FACTOR = 0x9E3779B97F4A7C15u

ctypedef fused offset_t:
    int32_t
    int64_t

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define PSLIB_LITTLE64(w) __builtin_bswap64(w)
    #else
    #define PSLIB_LITTLE64(w) (w)
    #endif
    """
    uint64_t PSLIB_LITTLE64(uint64_t word) nogil


def mix64(const uint64_t[::1] keys):
    """Mix the bits of each key: every bit affects every other.

    Parameters
    ----------
    keys : (n,) uint64

    Returns
    -------
    (n,) uint64
        ``x ^= x >> 32; x *= C; x ^= x >> 32; x *= C; x ^= x >> 32``, ``C = 0xd6e8feb86659fd93``: a bijection
        mapping 0 to 0, a light relative of Pelle Evensen's rrmxmx.
    """
    cdef Py_ssize_t i, n = keys.shape[0]
    mixed = np.empty(n, np.uint64)
    cdef uint64_t[::1] out = mixed
    with nogil:
        for i in range(n):
            out[i] = pslib_mix64(keys[i])
    return mixed


def mix64_of(uint64_t number):
    """Mix one number as `mix64` does.

    Parameters
    ----------
    number : int
        0..2^64-1.

    Returns
    -------
    int
        0..2^64-1.
    """
    return pslib_mix64(number)


def partition_of(const uint64_t[::1] keys, int partition_bits):
    """Return the partition of each key: the top bits of the mixed key.

    Parameters
    ----------
    keys : (n,) uint64
    partition_bits : int
        0..20; the table has ``2**partition_bits`` partitions.

    Returns
    -------
    (n,) uint32

    Raises
    ------
    ValueError
        When ``partition_bits`` is out of range.
    """
    check_partition_bits(partition_bits)
    cdef Py_ssize_t i, n = keys.shape[0]
    partitions = np.empty(n, np.uint32)
    cdef uint32_t[::1] out = partitions
    with nogil:
        for i in range(n):
            out[i] = partition_number(keys[i], partition_bits)
    return partitions


def check_partition_bits(int partition_bits):
    """Check the number of partitions of a table.

    Parameters
    ----------
    partition_bits : int
        The table has ``2**partition_bits`` partitions.

    Raises
    ------
    ValueError
        Unless 0 <= partition_bits <= 20.
    """
    if not 0 <= partition_bits <= 20:
        raise ValueError(f"partition_bits must be in 0..20, got {partition_bits}")


cdef uint64_t as_salt(object salt) except? 0:
    if not 0 <= salt < 1 << 64:
        raise ValueError(f"salt must be in 0..2**64-1, got {salt}")
    return <uint64_t> salt


cdef const uint8_t* validity(const uint8_t[::1] valid, Py_ssize_t n) except? NULL:
    """Return a pointer to the first flag, or NULL when all values are valid."""
    if valid is None:
        return NULL
    if valid.shape[0] != n:
        raise ValueError(f"valid must hold one flag a value: expected {n}, got {valid.shape[0]}")
    return &valid[0] if n else NULL


def null_key(salt):
    """Return the key of null in a vocabulary.

    Parameters
    ----------
    salt : int
        Salt of the vocabulary, 0..2^64-1.

    Returns
    -------
    int
        0..2^64-1.
    """
    return null_key_of(as_salt(salt))


def hash_ints(const int64_t[::1] values, salt, const uint8_t[::1] valid=None):
    """Return the keys of integers of one vocabulary.

    Parameters
    ----------
    values : (n,) int64
        Unsigned 64-bit values come as the int64 of the same bits.
    salt : int
        The vocabulary's salt, 0..2^64-1.
    valid : (n,) uint8 or None
        0 marks null; None means that all are valid.

    Returns
    -------
    (n,) uint64
        Different integers of one salt never share a key.

    Raises
    ------
    ValueError
        When the salt is out of range or ``valid`` has another length.
    """
    cdef uint64_t seed = as_salt(salt)
    cdef uint64_t base = int_base(seed), null = null_key_of(seed)
    cdef Py_ssize_t i, n = values.shape[0]
    cdef const uint8_t* flags = validity(valid, n)
    hashed = np.empty(n, np.uint64)
    cdef uint64_t[::1] out = hashed
    with nogil:
        for i in range(n):
            out[i] = pslib_mix64(<uint64_t> values[i] ^ base)
        if flags != NULL:
            for i in range(n):
                if not flags[i]:
                    out[i] = null
    return hashed


cdef inline uint64_t hash_bytes(const uint8_t* text, Py_ssize_t size, uint64_t base) noexcept nogil:
    cdef uint64_t word, state = pslib_mix64(base + <uint64_t> size * LENGTH_FACTOR)
    while size >= 8:
        memcpy(&word, text, 8)
        state = pslib_mix64(state ^ PSLIB_LITTLE64(word))
        text += 8
        size -= 8
    if size > 0:
        word = 0
        while size > 0:  # byte by byte: reading 8 could cross the end of the buffer
            size -= 1
            word = (word << 8) | text[size]
        state = pslib_mix64(state ^ word)
    return state


def hash_strings(const uint8_t[::1] data, const offset_t[::1] offsets, salt, const uint8_t[::1] valid=None):
    """Return the keys of strings of bytes of one vocabulary.

    Parameters
    ----------
    data : (m,) uint8
        All strings one after the other (Arrow's data buffer).
    offsets : (n + 1,) int32 or int64
        String ``i`` is ``data[offsets[i]:offsets[i + 1]]``; the first offset need not be 0 (a slice).
    salt : int
        The vocabulary's salt, 0..2^64-1.
    valid : (n,) uint8 or None
        0 marks null; None means that all are valid.

    Returns
    -------
    (n,) uint64
        The empty string differs from null, and "5" from the integer 5.

    Raises
    ------
    ValueError
        When offsets are empty, decrease or leave ``data``, the salt is out of range, or ``valid`` has another
        length.
    """
    if offsets.shape[0] == 0:
        raise ValueError("offsets must hold one number more than there are strings; got none")
    cdef uint64_t seed = as_salt(salt)
    cdef uint64_t base = pslib_mix64(seed ^ STRING_TAG), null = null_key_of(seed)
    cdef Py_ssize_t i, n = offsets.shape[0] - 1, size = data.shape[0]
    cdef const uint8_t* flags = validity(valid, n)
    cdef const uint8_t* text = &data[0] if size else NULL
    cdef bint sound = offsets[0] >= 0 and offsets[n] <= size
    hashed = np.empty(n, np.uint64)
    cdef uint64_t[::1] out = hashed
    with nogil:
        for i in range(n):
            sound &= offsets[i] <= offsets[i + 1]
        if sound:
            for i in range(n):
                if flags != NULL and not flags[i]:
                    out[i] = null
                else:
                    out[i] = hash_bytes(text + offsets[i], offsets[i + 1] - offsets[i], base)
    if not sound:
        raise ValueError(f"offsets must rise within 0..{size}, the bytes of data")
    return hashed
