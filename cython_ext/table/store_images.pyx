"""The image of a Store at one instant, copied out while pushes go on; and what has changed since.

``tracking.h`` says how rows that are about to change are copied aside, and which bits a row has for it.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.common.checks cimport floats_of, keys_of, whole_number
from cython_ext.table.store_policies cimport StorePolicies
from cython_ext.table.table cimport (
    PSLIB_ADMIT_BLOOM,
    PSLIB_NARROW,
    PSLIB_OK,
    PSLIB_WIDE,
    PslibRowClass,
    PslibStatus,
    pslib_image_begin,
    pslib_image_bound,
    pslib_image_counted_bound,
    pslib_image_counts,
    pslib_image_end,
    pslib_image_filter,
    pslib_image_rows,
    pslib_image_settle,
    pslib_image_stop,
    pslib_image_written,
    pslib_tracking_bytes,
    pslib_tracking_close,
)

import numpy as np

__all__ = ["StoreImages"]

cnp.import_array()

_U8 = np.dtype(np.uint8)
_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)
_ROWS_MAX = 1 << 40


cdef class StoreImages(StorePolicies):
    """Images of a Store; made as `cython_ext.table.store.Store`.

    An image is what the Store held when `image_begin` returned, whatever is pushed, erased, assigned or
    evicted after it. It is copied out by partitions in any order (`image_rows`, `image_counts`,
    `image_filters`), and `image_written` says that some are done with. It costs one branch a call where no
    image is being taken and none was taken with ``keep``.
    """

    cdef int _require_image(self, str method) except -1:
        if self.table.tracking == NULL or self.table.tracking.pending == NULL:
            raise ValueError(f"{method}: expected an image that has begun: call image_begin first")
        if self.table.tracking.broken:
            raise MemoryError(f"{method}: no memory to copy a row that was about to change; call image_end")
        return 0

    cdef object _range(self, str method, object first, object stop):
        count = 1 << self.partition_bits
        first = whole_number(f"{method}: first", first, 0, count)
        return first, whole_number(f"{method}: stop", stop, first, count)

    @property
    def tracking_bytes(self):
        """Memory of copies, of bits that say what has changed, and of keys that have left."""
        return pslib_tracking_bytes(&self.table)

    @property
    def keeps_changes(self):
        """Whether the next image may be an increment of the last one."""
        return self.table.tracking != NULL and self.table.tracking.keeps != 0

    def image_begin(self, increment=False, keep=False):
        """Remember this instant.

        Parameters
        ----------
        increment : bool
            Only rows that have changed since the instant of the last image that was settled as committed.
        keep : bool
            From here on note what changes, so that the next image may be an increment.

        Raises
        ------
        ValueError
            When an image is being taken, or nobody has kept what an increment needs.
        MemoryError
            When there is none for a byte a row and some for each partition.
        """
        if self.table.tracking != NULL and self.table.tracking.pending != NULL:
            raise ValueError("image_begin: expected no image that is being taken: call image_end first")
        if increment and not self.keeps_changes:
            raise ValueError("image_begin: expected an image with keep before the first increment")
        cdef bint only = increment, keeps = keep
        cdef PslibStatus status
        with nogil:
            status = pslib_image_begin(&self.table, only, keeps)
        if status != PSLIB_OK:
            self.image_end()
            raise MemoryError("image_begin: no memory for a byte a row")

    def image_stop(self, first, rows):
        """Where a piece of about ``rows`` rows ends that begins with partition ``first``, which it has"""
        self._require_image("image_stop")
        cdef uint32_t start = self._range("image_stop", first, 1 << self.partition_bits)[0]
        cdef int64_t wanted = whole_number("image_stop: rows", rows, 1, _ROWS_MAX)
        cdef uint32_t stop
        with nogil:
            stop = pslib_image_stop(&self.table, start, wanted)
        return stop

    def image_rows(self, first, stop, narrow=False):
        """Rows of one class of the partitions from ``first`` to below ``stop``, as they were at the instant.

        Returns
        -------
        keys : (r,) uint64
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        """
        self._require_image("image_rows")
        cdef uint32_t start, end
        start, end = self._range("image_rows", first, stop)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        cdef const PslibRowClass *shape = &self.table.classes[row_class]
        cdef int64_t bound = 0, done = 0, count = 0
        cdef uint32_t number
        for number in range(start, end):
            bound += pslib_image_bound(&self.table, number, row_class)
        keys = np.empty(bound, _U64)
        weights = np.empty((bound, shape.weight_floats), _F32)
        state = np.empty((bound, shape.state_floats), _F32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef float *weight_data = floats_of(weights)
        cdef float *state_data = floats_of(state)
        cdef PslibStatus status = PSLIB_OK
        with nogil:
            for number in range(start, end):
                if pslib_image_bound(&self.table, number, row_class) == 0:
                    continue
                status = pslib_image_rows(
                    &self.table,
                    number,
                    row_class,
                    key_data + done,
                    weight_data + done * shape.weight_floats,
                    state_data + done * shape.state_floats,
                    &count,
                )
                if status != PSLIB_OK:
                    break
                done += count
        if status != PSLIB_OK:
            raise MemoryError("image_rows: no memory to list the rows of a partition")
        return keys[:done], weights[:done], state[:done]

    def image_counts(self, first, stop):
        """Counted keys of these partitions at the instant, (c,) uint64, and their counts, (c,) uint32."""
        self._require_image("image_counts")
        cdef uint32_t start, end
        start, end = self._range("image_counts", first, stop)
        cdef int64_t bound = 0, done = 0
        cdef uint32_t number
        for number in range(start, end):
            bound += pslib_image_counted_bound(&self.table, number)
        keys, counts = np.empty(bound, _U64), np.empty(bound, _U32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef uint32_t *count_data = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>counts)
        with nogil:
            for number in range(start, end):
                if pslib_image_counted_bound(&self.table, number) != 0:
                    done += pslib_image_counts(&self.table, number, key_data + done, count_data + done)
        return keys[:done], counts[:done]

    def image_filters(self, first, stop):
        """Bloom filters of these partitions at the instant.

        Returns
        -------
        partitions : (k,) uint32
            Those that had a filter.
        counters : (k, m) uint8
        """
        self._require_image("image_filters")
        cdef uint32_t start, end, number
        start, end = self._range("image_filters", first, stop)
        cdef Py_ssize_t width = self.table.policies.admission.filter_counters
        if self.table.policies.admission.kind != PSLIB_ADMIT_BLOOM:
            return np.empty(0, _U32), np.empty((0, width), _U8)
        held = [number for number in range(start, end) if pslib_image_filter(&self.table, number) != NULL]
        counters = np.empty((len(held), width), _U8)
        cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>counters)
        for number in held:
            memcpy(to, pslib_image_filter(&self.table, number), width)
            to += width
        return np.array(held, _U32), counters

    def image_gone(self):
        """Keys, (g,) uint64, whose rows left after the last committed image; some may be back."""
        self._require_image("image_gone")
        cdef int64_t count = self.table.tracking.gone_before
        keys = np.empty(count, _U64)
        if count:
            memcpy(keys_of(keys), self.table.tracking.gone, count * sizeof(uint64_t))
        return np.unique(keys)

    def image_written(self, first, stop):
        """These partitions are copied out: what was copied aside for them is forgotten."""
        self._require_image("image_written")
        cdef uint32_t start, end, number
        start, end = self._range("image_written", first, stop)
        with nogil:
            for number in range(start, end):
                pslib_image_written(&self.table, number)

    def image_end(self):
        """No more of this image is wanted: its copies are given back. Without an image, nothing happens."""
        with nogil:
            pslib_image_end(&self.table)

    def image_settle(self, committed):
        """Say what has become of the last image, when it has ended: increments count from the last good one.

        Until then, and where it is never said, the next increment holds what that image held too.
        """
        if self.table.tracking != NULL and self.table.tracking.pending != NULL:
            raise ValueError("image_settle: expected no image that is being taken: call image_end first")
        cdef bint good = committed
        with nogil:
            pslib_image_settle(&self.table, good)

    def image_stop_keeping(self):
        """Give up the image that is being taken, and note no more what changes."""
        with nogil:
            pslib_tracking_close(&self.table)
