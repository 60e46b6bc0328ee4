"""Rows of a Store by key (read, step, forget, overwrite) and by partition (copy out, put in, drop)."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t

from cython_ext.common.checks cimport (
    checked_array,
    checked_counts,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    whole_number,
)
from cython_ext.table.store_memory cimport StoreMemory, raise_unless_done
from cython_ext.table.table cimport (
    PSLIB_NARROW,
    PSLIB_OK,
    PSLIB_WIDE,
    PslibRecord,
    PslibRowClass,
    PslibStatus,
    pslib_before_keys,
    pslib_before_partition,
    pslib_first_stranger,
    pslib_mix64,
    pslib_table_assign,
    pslib_table_drop,
    pslib_table_erase,
    pslib_table_export,
    pslib_table_promote,
    pslib_table_pull,
    pslib_table_push_at,
)

import numpy as np

__all__ = ["StoreRows"]

cnp.import_array()

_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)


cdef class StoreRows(StoreMemory):
    """Rows of a Store by key and by partition; made as `cython_ext.table.store.Store`."""

    def pull(self, keys, out, now=0.0):
        """Read the weights of all parts of each key; nothing is made.

        A key without a row, as one that was turned away so far, gives its first values, and so do the wide
        parts of a key with a narrow row.

        Parameters
        ----------
        keys : (n,) uint64
            May repeat.
        out : (n, dim) float32, written to
        now : float
            In the table's own unit of time; finite.

        Returns
        -------
        int
            How many of ``keys`` have no row; repeated ones count each time.
        """
        keys = checked_array("pull: keys", keys, _U64, (None,))
        out = checked_target("pull: out", out, _F32, (len(keys), self.dim))
        cdef float when = finite_number("pull: now", now)
        return self.read_rows(keys_of(keys), len(keys), when, floats_of(out))

    cdef int64_t read_rows(self, const uint64_t *keys, int64_t n, float now, float *rows) except -1:
        """`pull` of what has been checked."""
        cdef int64_t absent
        with nogil:
            absent = pslib_table_pull(&self.table, keys, n, now, rows)
        return absent

    def push(self, keys, gradients, narrow=False, *, salt=0, now=0.0, shows=None, clicks=None, rate=1.0,
             delta=False):
        """Make absent rows, as admission lets them in, then take one optimizer step a part for each key.

        A key that occurs more than once takes one step for each occurrence, in their order: sum the gradients
        of a key first where one step is meant. A narrow row takes steps for the parts that it has and ignores
        the gradients of the others; a wide row stays wide, whatever ``narrow`` says. A gradient that is NaN
        or infinite is applied as it is: that row (no other) holds NaN from then on.

        Of a key that is turned away the gradient is dropped; each time that it occurs counts. A count takes
        its shows, rounded down but at least 1, and the push that reaches the table's count makes the row and
        is its first step. Narrow rows that prove themselves here are wide afterwards.

        Parameters
        ----------
        keys : (n,) uint64
        gradients : (n, dim) float32
            Of all parts side by side, also for narrow rows.
        narrow : bool
            Which class rows get that are made here; always the narrow one where rows prove themselves.
        salt : int
            0..2^64-1; random bits of this push are a function of key, part, column and salt alone.
        now : float
            In the table's own unit of time; finite.
        shows : (n,) float32 or None
            How often each key was shown; finite and above 0, fractions too. None means 1 each.
        clicks : (n,) float32 or None
            How often each key was clicked; finite and not below 0, also above its shows. None means 0 each.
        rate : float
            Times the learning rate of each part, in float32, for this push; weights decay at their own rate.
            FTRL, whose weights are made anew from sums, knows one rate only.
        delta : bool
            Add ``gradients`` to the weights, and take no step: no state of an optimizer changes.
        """
        keys = checked_array("push: keys", keys, _U64, (None,))
        gradients = checked_array("push: gradients", gradients, _F32, (len(keys), self.dim))
        cdef int row_class = self.class_of("push", narrow)
        cdef PslibRecord record
        record.salt = whole_number("push: salt", salt, 0, 0xFFFFFFFFFFFFFFFF)
        record.rounding = pslib_mix64(record.salt)
        record.now = finite_number("push: now", now)
        shows, clicks = counts_into(&record, "push", shows, clicks, len(keys))
        cdef float factor = finite_number("push: rate", rate)
        self._step(keys_of(keys), len(keys), floats_of(gradients), row_class, &record, factor, delta)

    cdef int step_rows(
        self, const uint64_t *keys, int64_t n, const float *gradients, uint64_t salt, float now
    ) except -1:
        """`push` of what has been checked, plainly."""
        cdef PslibRecord record
        record.salt, record.rounding, record.now = salt, pslib_mix64(salt), now
        record.shows = record.clicks = NULL
        return self._step(keys, n, gradients, PSLIB_WIDE, &record, 1.0, False)

    cdef int _step(
        self, const uint64_t *keys, int64_t n, const float *gradients, int row_class,
        const PslibRecord *record, float rate, bint delta
    ) except -1:
        cdef int64_t done = 0
        cdef PslibStatus status
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_keys(&self.table, keys, n, False)
            status = pslib_table_push_at(
                &self.table, keys, n, gradients, row_class, record, rate, delta, &done
            )
        return raise_unless_done("push", status, done, n)

    def erase(self, keys):
        """Forget the rows of these keys, and the counts of counted ones; others are an ordinary case.

        A Bloom filter cannot forget: the key shares its counters with others. A partition that has lost most
        of its rows gives memory back; the rows that it keeps then get new row numbers in their old order.

        Parameters
        ----------
        keys : (n,) uint64

        Returns
        -------
        int
            How many rows there were.
        """
        keys = checked_array("erase: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), erased
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_keys(&self.table, key_data, n, True)
            erased = pslib_table_erase(&self.table, key_data, n)
        return erased

    def assign(self, keys, weights, state=None):
        """Make or overwrite whole rows; they are wide afterwards. Of a repeated key the last one counts.

        Parameters
        ----------
        keys : (n,) uint64
        weights : (n, dim) float32
        state : (n, state_floats) float32 or None
            None: rows keep their own; new ones begin with the state of a row that was never pushed.
        """
        keys = checked_array("assign: keys", keys, _U64, (None,))
        self._assign("assign", keys, weights, state, PSLIB_WIDE)

    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1:
        cdef const PslibRowClass *shape = &self.table.classes[row_class]
        weights = checked_array(f"{method}: weights", weights, _F32, (len(keys), shape.weight_floats))
        if state is not None:
            state = checked_array(f"{method}: state", state, _F32, (len(keys), shape.state_floats))
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const float *weight_data = floats_of(weights)
        cdef const float *state_data = NULL if state is None else floats_of(state)
        cdef PslibStatus status
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_keys(&self.table, key_data, n, False)
            status = pslib_table_assign(&self.table, key_data, n, weight_data, state_data, row_class, &done)
        return raise_unless_done(method, status, done, n)

    def export_partition(self, partition, narrow=False):
        """Copy all rows of one class out of a partition, by ascending row number.

        Parameters
        ----------
        partition : int
        narrow : bool
            Which class; a Store without narrow rows gives empty arrays for them.

        Returns
        -------
        keys : (r,) uint64
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        """
        cdef uint32_t number = self.partition_number("export_partition", partition)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        cdef const PslibRowClass *shape = &self.table.classes[row_class]
        rows = self.table.arenas[number].of[row_class].live
        keys = np.empty(rows, _U64)
        weights = np.empty((rows, shape.weight_floats), _F32)
        state = np.empty((rows, shape.state_floats), _F32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef float *weight_data = floats_of(weights)
        cdef float *state_data = floats_of(state)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_export(&self.table, number, row_class, key_data, weight_data, state_data)
        if status != PSLIB_OK:
            raise MemoryError(f"export_partition: no memory to list the rows of partition {partition}")
        return keys, weights, state

    def import_partition(self, partition, keys, weights, state, narrow=False):
        """Add rows of one class to a partition; rows of the same keys are replaced, whatever their class.

        Parameters
        ----------
        partition : int
        keys : (r,) uint64
            All of this partition, else ValueError and nothing has changed.
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        narrow : bool
        """
        cdef uint32_t number = self.partition_number("import_partition", partition)
        keys = checked_array("import_partition: keys", keys, _U64, (None,))
        self.refuse_strangers("import_partition", number, keys)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        if len(keys):
            row_class = self.class_of("import_partition", narrow)
        self._assign("import_partition", keys, weights, state, row_class)

    cdef int refuse_strangers(self, str method, uint32_t partition, object keys) except -1:
        cdef int64_t n = len(keys), stranger
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            stranger = pslib_first_stranger(&self.table, partition, key_data, n)
        if stranger >= 0:
            raise ValueError(
                f"{method}: expected keys of partition {partition},"
                f" got {keys[stranger]} of another one at place {stranger}"
            )
        return 0

    def drop_partition(self, partition):
        """Forget all rows, counts and the filter of a partition and give back its memory.

        Returns
        -------
        int
            How many rows there were.
        """
        cdef uint32_t number = self.partition_number("drop_partition", partition)
        cdef int64_t rows
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_partition(&self.table, number, True)
            rows = pslib_table_drop(&self.table, number)
        return rows

    def promote(self, keys):
        """Make narrow rows wide: parts that they have keep weights and state, the others begin.

        Keys without a row, or with a wide one, are left as they are.

        Parameters
        ----------
        keys : (n,) uint64

        Returns
        -------
        int
            How many rows became wide.
        """
        keys = checked_array("promote: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), promoted = 0, done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef PslibStatus status
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_keys(&self.table, key_data, n, False)
            status = pslib_table_promote(&self.table, key_data, n, &promoted, &done)
        raise_unless_done("promote", status, done, n)
        return promoted


cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n):
    """Point a record (OUT) at the shows and clicks of n keys; returns the arrays, which must outlive it."""
    if shows is not None:
        shows = checked_counts(f"{method}: shows", shows, n, False)
    if clicks is not None:
        clicks = checked_counts(f"{method}: clicks", clicks, n, True)
    record.shows = NULL if shows is None else floats_of(shows)
    record.clicks = NULL if clicks is None else floats_of(clicks)
    return shows, clicks
