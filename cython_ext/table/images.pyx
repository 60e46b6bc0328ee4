"""Image of a Store: its content at one instant, copied out by partitions while the Store goes on changing.

The image is the content when `image_begin` returned, whatever is pushed, erased, assigned or evicted after
it. `image_rows`, `image_counts` and `image_filters` copy ranges of partitions in any order, and
`image_written` frees the copies of a range. A call of the Store costs one branch more where no image is being
taken and none was taken with ``keep``. ``images.h`` has the invariants.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.common.checks cimport bytes_of, floats_of, keys_of, numbers_of, whole_number
from cython_ext.table.arguments cimport empty_rows
from cython_ext.table.store cimport Store
from cython_ext.table.table cimport *

import numpy as np

cnp.import_array()

_U8 = np.dtype(np.uint8)
_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)


cdef bint _is_taken(const PslibTable *table):
    return table.tracking != NULL and table.tracking.pending != NULL


cdef int _require_image(const PslibTable *table, str method) except -1:
    """Raise unless an image is being taken, and has lost nothing."""
    if not _is_taken(table):
        raise ValueError(f"{method}: expected an image that has begun: call image_begin first")
    if table.tracking.broken:
        raise MemoryError(f"{method}: no memory to copy a row before it changed; call image_end")
    return 0


cdef tuple _range(const PslibTable *table, str method, object first, object stop):
    """Return two numbers of partitions, ``first <= stop``; raise unless an image is being taken."""
    _require_image(table, method)
    count = 1 << table.partition_bits
    first = whole_number(f"{method}: first", first, 0, count)
    return first, whole_number(f"{method}: stop", stop, first, count)


def image_begin(Store store not None, increment=False, keep=False):
    """Begin an image of this instant.

    Parameters
    ----------
    store : Store
    increment : bool
        Only rows changed since the instant of the last image that was settled as committed.
    keep : bool
        Track changes from here on, so that the next image may be an increment.

    Raises
    ------
    ValueError
        When an image is being taken, or changes were not tracked for an increment.
    MemoryError
        When there is none for a byte a row and some bytes for each partition.
    """
    if _is_taken(&store.table):
        raise ValueError("image_begin: expected no image that is being taken: call image_end first")
    if increment and not store.keeps_changes:
        raise ValueError("image_begin: expected an image with keep before the first increment")
    cdef bint only = increment, keeps = keep
    cdef PslibStatus status
    with nogil:
        status = pslib_image_begin(&store.table, only, keeps)
    if status != PSLIB_OK:
        image_end(store)
        raise MemoryError("image_begin: no memory for a byte a row")


def image_stop(Store store not None, first, rows):
    """Return the end of a range of partitions that has about so many rows.

    Parameters
    ----------
    store : Store
    first : int
        First partition of the range, which has at least this one.
    rows : int

    Returns
    -------
    int
    """
    cdef uint32_t start = _range(&store.table, "image_stop", first, 1 << store.partition_bits)[0]
    cdef int64_t wanted = whole_number("image_stop: rows", rows, 1, 1 << 40)
    cdef uint32_t stop
    with nogil:
        stop = pslib_image_stop(&store.table, start, wanted)
    return stop


def image_rows(Store store not None, first, stop, narrow=False):
    """Copy the rows of a range of partitions at the instant.

    Parameters
    ----------
    store : Store
    first, stop : int
        Partitions ``first`` to ``stop - 1``.
    narrow : bool
        The narrow rows instead of the wide ones.

    Returns
    -------
    keys : (r,) uint64
    weights : (r, dim of the class) float32
    state : (r, state floats of the class) float32
    """
    cdef uint32_t start, end
    start, end = _range(&store.table, "image_rows", first, stop)
    cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
    cdef int64_t bound = pslib_image_bound(&store.table, start, end, row_class), count = 0
    keys, weights, state = empty_rows(&store.table, row_class, bound)
    cdef uint64_t *key_data = keys_of(keys)
    cdef float *weight_data = floats_of(weights)
    cdef float *state_data = floats_of(state)
    cdef PslibStatus status
    with nogil:
        status = pslib_image_rows(
            &store.table, start, end, row_class, key_data, weight_data, state_data, &count
        )
    if status != PSLIB_OK:
        raise MemoryError("image_rows: no memory to list the rows of a partition")
    return keys[:count], weights[:count], state[:count]


def image_counts(Store store not None, first, stop):
    """Copy the counted keys of a range of partitions at the instant, and their counts.

    Parameters
    ----------
    store : Store
    first, stop : int
        Partitions ``first`` to ``stop - 1``.

    Returns
    -------
    keys : (c,) uint64
    counts : (c,) uint32
    """
    cdef uint32_t start, end
    start, end = _range(&store.table, "image_counts", first, stop)
    cdef int64_t bound = pslib_image_counted_bound(&store.table, start, end), count
    keys, counts = np.empty(bound, _U64), np.empty(bound, _U32)
    cdef uint64_t *key_data = keys_of(keys)
    cdef uint32_t *count_data = numbers_of(counts)
    with nogil:
        count = pslib_image_counts(&store.table, start, end, key_data, count_data)
    return keys[:count], counts[:count]


def image_filters(Store store not None, first, stop):
    """Copy the Bloom filters of a range of partitions at the instant.

    Parameters
    ----------
    store : Store
    first, stop : int
        Partitions ``first`` to ``stop - 1``.

    Returns
    -------
    partitions : (k,) uint32
        Those that had one.
    counters : (k, m) uint8
    """
    cdef uint32_t start, end, number
    start, end = _range(&store.table, "image_filters", first, stop)
    cdef Py_ssize_t width = store.table.policies.admission.filter_counters
    if store.table.policies.admission.kind != PSLIB_ADMIT_BLOOM:
        return np.empty(0, _U32), np.empty((0, width), _U8)
    held = [number for number in range(start, end) if pslib_image_filter(&store.table, number) != NULL]
    counters = np.empty((len(held), width), _U8)
    cdef uint8_t *to = bytes_of(counters)
    for number in held:
        memcpy(to, pslib_image_filter(&store.table, number), width)
        to += width
    return np.array(held, _U32), counters


def image_gone(Store store not None):
    """Return the keys erased after the last committed image; some may be back.

    Parameters
    ----------
    store : Store

    Returns
    -------
    (g,) uint64
    """
    _require_image(&store.table, "image_gone")
    cdef int64_t count = store.table.tracking.gone_before
    keys = np.empty(count, _U64)
    if count:
        memcpy(keys_of(keys), store.table.tracking.gone, count * sizeof(uint64_t))
    return np.unique(keys)


def image_written(Store store not None, first, stop):
    """Mark a range of partitions as written, and free their copies.

    Parameters
    ----------
    store : Store
    first, stop : int
        Partitions ``first`` to ``stop - 1``.
    """
    cdef uint32_t start, end, number
    start, end = _range(&store.table, "image_written", first, stop)
    with nogil:
        for number in range(start, end):
            pslib_image_written(&store.table, number)


def image_end(Store store not None):
    """End the image and free its copies; without an image nothing happens.

    Parameters
    ----------
    store : Store
    """
    with nogil:
        pslib_image_end(&store.table)


def image_settle(Store store not None, committed):
    """Tell if the last image was committed: if not, the next increment holds its rows too.

    Parameters
    ----------
    store : Store
    committed : bool

    Raises
    ------
    ValueError
        When an image is being taken.
    """
    if _is_taken(&store.table):
        raise ValueError("image_settle: expected no image that is being taken: call image_end first")
    cdef bint good = committed
    with nogil:
        pslib_image_settle(&store.table, good)


def image_stop_keeping(Store store not None):
    """Abandon the image that is being taken, and stop tracking changes.

    Parameters
    ----------
    store : Store
    """
    with nogil:
        pslib_tracking_close(&store.table)
