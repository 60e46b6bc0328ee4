"""Selection of keys and rows of a request: by owner, by partition, and rows to and from their places.

Each function makes one pass over the keys and hashes each once: hashing takes most of its time (1 ns a key).
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cython_ext.common.checks cimport checked_array, checked_target
from cython_ext.common.hashing cimport partition_number
from cython_ext.common.hashing import check_partition_bits

import numpy as np

__all__ = ["first_of_others", "gather_rows", "group_by_owner", "partition_set", "scatter_rows"]

cnp.import_array()

cdef enum:
    # up to here each owner has four counters: additions to one alone would wait for each other
    OWNERS_SHORT = 64

cdef Py_ssize_t KEYS_MAX = 0x7FFFFFFF  # places are int32


cdef int check_owners(object keys, int partition_bits, object owners) except -1:
    check_partition_bits(partition_bits)
    if len(keys) > KEYS_MAX:
        raise ValueError(f"keys: expected at most {KEYS_MAX}, got {len(keys)}")
    if len(owners) != 1 << partition_bits:
        raise ValueError(f"owners: expected one a partition, {1 << partition_bits}, got {len(owners)}")
    return 0


def first_of_others(const uint64_t[::1] keys, int partition_bits, const uint16_t[::1] owners, uint16_t owner):
    """Return the place of the first key whose partition does not belong to ``owner``.

    Parameters
    ----------
    keys : (n,) uint64
    partition_bits : int
        0..20.
    owners : (2**partition_bits,) uint16
        Owner of each partition.
    owner : int

    Returns
    -------
    int
        n when all keys are the owner's.

    Raises
    ------
    ValueError
        When a number or length is out of range.
    """
    check_owners(keys, partition_bits, owners)
    cdef Py_ssize_t i = 0, n = keys.shape[0]
    with nogil:
        while i < n and owners[partition_number(keys[i], partition_bits)] == owner:
            i += 1
    return i


def partition_set(const uint64_t[::1] keys, int partition_bits):
    """Return the partitions of the keys as one integer, in which bit ``p`` is partition ``p``.

    Parameters
    ----------
    keys : (n,) uint64
    partition_bits : int
        0..20.

    Returns
    -------
    int
        Mask as of `pslib.table.partition_map.mask_of_units`.

    Raises
    ------
    ValueError
        When ``partition_bits`` is out of range.
    """
    check_partition_bits(partition_bits)
    cdef Py_ssize_t i, n = keys.shape[0], size = ((<Py_ssize_t> 1 << partition_bits) + 7) >> 3
    cdef uint32_t partition
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *data = <uint8_t *>PyBytes_AS_STRING(bits)
    with nogil:
        memset(data, 0, size)
        for i in range(n):
            partition = partition_number(keys[i], partition_bits)
            data[partition >> 3] |= <uint8_t>(1 << (partition & 7))
    return int.from_bytes(bits, "little")


cdef void place_keys(
    const uint64_t *keys, Py_ssize_t n, int partition_bits, const uint16_t *owners,
    uint16_t *owner_of_key,  # scratch, n
    int64_t *counters,  # scratch, 4 an owner, zeros
    Py_ssize_t owner_count,
    int64_t *starts,  # OUT, owner_count + 1
    int32_t *order,  # OUT, n
    uint64_t *grouped,  # OUT, n, or NULL
) noexcept nogil:
    """Counting sort: count the keys of each owner, then write each key to its place."""
    cdef Py_ssize_t i, way, ways = 4 if owner_count <= OWNERS_SHORT else 1
    cdef int64_t place = 0
    cdef uint16_t owner
    for i in range(n):
        owner = owners[partition_number(keys[i], partition_bits)]
        owner_of_key[i] = owner
        counters[(i & (ways - 1)) * owner_count + owner] += 1
    for i in range(owner_count):
        starts[i] = place
        for way in range(ways):
            place += counters[way * owner_count + i]
        counters[i] = starts[i]
    starts[owner_count] = place
    for i in range(n):
        place = counters[owner_of_key[i]]
        counters[owner_of_key[i]] = place + 1
        order[place] = <int32_t> i
        if grouped != NULL:
            grouped[place] = keys[i]


def group_by_owner(
    const uint64_t[::1] keys, int partition_bits, const uint16_t[::1] owners, int owner_count,
    uint64_t[::1] grouped=None
):
    """Sort keys by the owner of their partition: a stable counting sort.

    Parameters
    ----------
    keys : (n,) uint64
    partition_bits : int
        0..20.
    owners : (2**partition_bits,) uint16
        Owner of each partition, each below ``owner_count``.
    owner_count : int
        1..65536.
    grouped : (n,) uint64 or None
        The keys in their new order are written to it: ``keys[order]``.

    Returns
    -------
    order : (n,) int32
        ``keys[order[starts[o]:starts[o + 1]]]`` are the keys of owner ``o`` in their original order.
    starts : (owner_count + 1,) int64

    Raises
    ------
    ValueError
        When a number or length is out of range.
    """
    check_owners(keys, partition_bits, owners)
    if not 1 <= owner_count <= 65536:
        raise ValueError(f"owner_count must be in 1..65536, got {owner_count}")
    cdef Py_ssize_t i, n = keys.shape[0], partitions = owners.shape[0]
    cdef bint sound = True
    if grouped is not None and grouped.shape[0] != n:
        raise ValueError(f"grouped: expected room for {n} keys, got {grouped.shape[0]}")
    with nogil:
        for i in range(partitions):
            sound &= owners[i] < owner_count
    if not sound:
        raise ValueError(f"owners must be below owner_count {owner_count}, got {np.max(owners)}")
    order, owner_of_key = np.empty(n, np.int32), np.empty(n, np.uint16)
    starts, counters = np.zeros(owner_count + 1, np.int64), np.zeros(4 * owner_count, np.int64)
    cdef int32_t[::1] order_view = order
    cdef int64_t[::1] starts_view = starts, counters_view = counters
    cdef uint16_t[::1] owner_view = owner_of_key
    cdef uint64_t *grouped_keys = NULL if grouped is None or n == 0 else &grouped[0]
    if n:
        with nogil:
            place_keys(
                &keys[0], n, partition_bits, &owners[0], &owner_view[0], &counters_view[0], owner_count,
                &starts_view[0], &order_view[0], grouped_keys,
            )
    return order, starts


cdef object checked_places(str where, object places, Py_ssize_t rows):
    """Return places as int32, each checked to be a row of an array of ``rows`` rows."""
    places = checked_array(f"{where}: places", places, np.dtype(np.int32), (None,))
    cdef const int32_t *place = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>places)
    cdef Py_ssize_t i, n = len(places)
    cdef bint sound = True
    with nogil:
        for i in range(n):
            sound &= 0 <= place[i] < rows
    if not sound:
        raise ValueError(f"{where}: places: expected 0..{rows - 1}, got {np.min(places)}..{np.max(places)}")
    return places


cdef void copy_rows(
    const uint8_t *rows, uint8_t *out, const int32_t *places, Py_ssize_t n, Py_ssize_t size, bint scatter
) noexcept nogil:
    """Copy rows of ``size`` bytes: out[i] = rows[places[i]] or, with scatter, out[places[i]] = rows[i]."""
    cdef Py_ssize_t i
    if size == 64:  # a size that the compiler knows: 16 floats, the most common row
        for i in range(n):
            if scatter:
                memcpy(out + 64 * <Py_ssize_t> places[i], rows + 64 * i, 64)
            else:
                memcpy(out + 64 * i, rows + 64 * <Py_ssize_t> places[i], 64)
        return
    for i in range(n):
        if scatter:
            memcpy(out + size * places[i], rows + size * i, size)
        else:
            memcpy(out + size * i, rows + size * places[i], size)


def gather_rows(rows, places, out):
    """Copy the rows at ``places``: ``out[i] = rows[places[i]]``.

    Parameters
    ----------
    rows : (m, d), any dtype
    places : (n,) int32
        Each in 0..m-1.
    out : (n, d) of the same dtype, written to

    Raises
    ------
    ValueError
        When a place is out of range, or an array is not what it must be.
    """
    rows = checked_array("gather_rows: rows", rows, rows.dtype, (None, None))
    places = checked_places("gather_rows", places, len(rows))
    out = checked_target("gather_rows: out", out, rows.dtype, (len(places), rows.shape[1]))
    cdef Py_ssize_t n = len(places), size = rows.shape[1] * rows.itemsize
    cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
    cdef uint8_t *target = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>out)
    cdef const int32_t *place = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>places)
    with nogil:
        copy_rows(source, target, place, n, size, False)


def scatter_rows(rows, places, out):
    """Copy rows to ``places``: ``out[places[i]] = rows[i]``; of a repeated place the last row counts.

    Parameters
    ----------
    rows : (n, d), any dtype
    places : (n,) int32
        Each in 0..m-1.
    out : (m, d) of the same dtype, written to

    Raises
    ------
    ValueError
        When a place is out of range, or an array is not what it must be.
    """
    out = checked_target("scatter_rows: out", out, out.dtype, (None, None))
    places = checked_places("scatter_rows", places, len(out))
    rows = checked_array("scatter_rows: rows", rows, out.dtype, (len(places), out.shape[1]))
    cdef Py_ssize_t n = len(places), size = out.shape[1] * out.itemsize
    cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
    cdef uint8_t *target = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>out)
    cdef const int32_t *place = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>places)
    with nogil:
        copy_rows(source, target, place, n, size, True)
