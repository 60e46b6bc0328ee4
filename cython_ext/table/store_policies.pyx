"""Which rows of a Store leave, how counts fade, and what is known of keys without rows."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.common.checks cimport checked_array, finite_number, keys_of, whole_number
from cython_ext.table.store_memory cimport raise_unless_done
from cython_ext.table.store_rows cimport StoreRows, counts_into
from cython_ext.table.table cimport (
    PSLIB_ADMIT_BLOOM,
    PSLIB_ADMIT_COUNT,
    PSLIB_COUNT_LAST_SEEN,
    PSLIB_COUNT_MAX,
    PSLIB_COUNT_SHOWS,
    PSLIB_EVICT_AGE,
    PSLIB_EVICT_RULES,
    PSLIB_EVICT_SCORE,
    PSLIB_FORESEE_PUSH,
    PSLIB_OK,
    PslibForesight,
    PslibRecord,
    PslibStatus,
    pslib_before_filter,
    pslib_before_keys,
    pslib_counts_export,
    pslib_counts_import,
    pslib_filter_import,
    pslib_partition_counted,
    pslib_table_decay,
    pslib_table_evict,
    pslib_table_evict_worst,
    pslib_table_foresee,
    pslib_table_held,
    pslib_table_missing,
)

import math

import numpy as np

__all__ = ["StorePolicies"]

cnp.import_array()

_U8 = np.dtype(np.uint8)
_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)


cdef inline uint32_t *_numbers_of(object array):
    return <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef class StorePolicies(StoreRows):
    """Admission, decay and eviction of a Store; made as `cython_ext.table.store.Store`."""

    cdef object _chosen(self, str method, object partitions):
        """Numbers of partitions, each once and ascending."""
        chosen = np.unique(checked_array(f"{method}: partitions", partitions, _U32, (None,)))
        if len(chosen) and chosen.max() >> self.partition_bits:
            raise ValueError(
                f"{method}: partitions: expected numbers in 0..{(1 << self.partition_bits) - 1},"
                f" got {chosen.max()}"
            )
        return chosen

    cdef int _require(self, str method, int rule) except -1:
        cdef int needed = 0
        if rule == PSLIB_EVICT_AGE:
            needed = PSLIB_COUNT_LAST_SEEN
        elif rule == PSLIB_EVICT_SCORE:
            needed = PSLIB_COUNT_SHOWS
        if self.table.counters & needed != needed:
            name = "last_seen (bit 0)" if rule == PSLIB_EVICT_AGE else "shows and clicks (bit 1)"
            came = self.table.counters
            raise ValueError(f"{method}: expected a Store whose rows count {name}, got counters={came}")
        return 0

    def decay(self, factor, partitions=None):
        """Let counts fade: of a day ago, they shall weigh less than those of today.

        Shows and clicks of all rows are multiplied by ``factor`` (float32). Counts of keys without rows,
        exact ones and those of filters, become floor(count * factor), the product rounded to float32; at 0
        the key is forgotten, and a filter of zeros gives its memory back.

        Parameters
        ----------
        factor : float
            0..1.
        partitions : (k,) uint32 or None
            Only these, each once; None means all.
        """
        cdef float number = finite_number("decay: factor", factor)
        if not 0 <= number <= 1:
            raise ValueError(f"decay: factor: expected a number in 0..1, got {factor}")
        cdef int64_t count = 0
        cdef const uint32_t *numbers = NULL
        if partitions is not None:
            partitions = self._chosen("decay", partitions)
            count = len(partitions)
            numbers = _numbers_of(partitions)
        with nogil:
            pslib_table_decay(&self.table, numbers, count, number)

    def evict(self, rule, number, now=0.0, partitions=None):
        """Forget all rows that a rule lets go, in the order of partitions and row numbers.

        A partition that has lost half its rows is put together and gives back what is left empty; while
        fewer have left, their places wait for new rows and memory stays as it was, or grows a little (1
        million rows in 4,096 partitions: 94 to at most 104 MB at 50 to 60 % gone, 55 MB at 70 %).

        Parameters
        ----------
        rule : int
            0 age: ``now - last_seen > number``. 1 norm: L2 norm of all weights ``< number``. 2 score:
            ``(shows - clicks) * nonclick + clicks * click < number``. All in float32.
        number : float
        now : float
            In the table's own unit of time.
        partitions : (k,) uint32 or None
            Only these, each once; None means all.

        Returns
        -------
        int
            How many rows left.

        Raises
        ------
        ValueError
            Also when rows do not count what the rule looks at.
        MemoryError
            When there is none for a byte a row of one partition; the message says how many rows have left.
        """
        cdef int kind = whole_number("evict: rule", rule, 0, PSLIB_EVICT_RULES - 1)
        cdef float limit = finite_number("evict: number", number), when = finite_number("evict: now", now)
        self._require("evict", kind)
        cdef int64_t count = 0, gone = 0
        cdef const uint32_t *numbers = NULL
        if partitions is not None:
            partitions = self._chosen("evict", partitions)
            count = len(partitions)
            numbers = _numbers_of(partitions)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict(&self.table, numbers, count, kind, limit, when, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict: no memory to mark the rows of a partition; {gone} of others have left")
        return gone

    def evict_share(self, order, share, keys=None):
        """Forget the worst rows, as many as ``share`` of all, rounded up; memory is given back.

        The number is exact. Of rows that are equally bad, those that leave are spread evenly over partitions.
        It depends on all rows of this Store, hence on what else lies in it: for memory limits, not for
        records that servers must follow alike.

        Parameters
        ----------
        order : int
            0 oldest ``last_seen`` first, 1 smallest L2 norm, 2 lowest score; NaN is the last to leave.
        share : float
            Above 0, at most 1.
        keys : OUT (rows that leave or more,) uint64 or None
            Their keys, in no order.

        Returns
        -------
        int
            How many rows left.

        Raises
        ------
        ValueError
            Also when rows do not count what the order looks at.
        MemoryError
            When there is none for 512 KiB and a byte a row of one partition.
        """
        cdef int kind = whole_number("evict_share: order", order, 0, PSLIB_EVICT_RULES - 1)
        share = finite_number("evict_share: share", share)
        if not 0 < share <= 1:
            raise ValueError(f"evict_share: share: expected a number above 0 and at most 1, got {share}")
        self._require("evict_share", kind)
        cdef int64_t wanted = math.ceil(share * self.rows), gone = 0
        if wanted == 0:
            return 0
        cdef uint64_t *left = NULL
        if keys is not None:
            keys = checked_array("evict_share: keys", keys, _U64, (None,))
            if len(keys) < wanted:
                raise ValueError(f"evict_share: keys: expected room for {wanted}, got {len(keys)}")
            left = keys_of(keys)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict_worst(&self.table, kind, wanted, left, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict_share: no memory to rank rows; {gone} of {wanted} have left")
        return gone

    def missing(self, keys):
        """How many of ``keys``, (n,) uint64, have no row; counted keys have none, repeated ones count"""
        keys = checked_array("missing: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            absent = pslib_table_missing(&self.table, key_data, n)
        return absent

    def foresee(self, keys, shows=None, clicks=None):
        """What a push of these keys would take; nothing changes.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.
        shows, clicks : (n,) float32 or None
            As for `push`.

        Returns
        -------
        made : int
            Keys without a row, as if admission let all of them in.
        widened : int
            Narrow rows, those of new keys among them, that would be wide after it.
        row_bytes : int
            Of memory for rows, beyond the places that rows have left.

        Raises
        ------
        MemoryError
            When there is none for eight bytes a partition.
        """
        keys = checked_array("foresee: keys", keys, _U64, (None,))
        cdef PslibRecord record
        record.salt = record.rounding = 0
        record.now = 0
        shows, clicks = counts_into(&record, "foresee", shows, clicks, len(keys))
        return _foreseen(self, "foresee", keys, PSLIB_FORESEE_PUSH, &record)

    def foresee_rows(self, keys, narrow=False):
        """`foresee` for rows of one class that are assigned or imported."""
        keys = checked_array("foresee_rows: keys", keys, _U64, (None,))
        return _foreseen(self, "foresee_rows", keys, self.class_of("foresee_rows", narrow), NULL)

    def held(self):
        """In how many partitions there is an index, memory for wide rows, and for narrow ones: three int."""
        cdef int64_t[3] counts
        with nogil:
            pslib_table_held(&self.table, counts)
        return counts[0], counts[1], counts[2]

    def export_counts(self, partition):
        """Copy the counted keys of a partition, those that exact count has given no row yet.

        Returns
        -------
        keys : (c,) uint64, ascending
        counts : (c,) uint32
            Each 1..65535.
        """
        cdef uint32_t number = self.partition_number("export_counts", partition)
        counted = pslib_partition_counted(&self.table, number)
        keys, counts = np.empty(counted, _U64), np.empty(counted, _U32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef uint32_t *count_data = _numbers_of(counts)
        with nogil:
            pslib_counts_export(&self.table, number, key_data, count_data)
        order = np.argsort(keys)
        return keys[order], counts[order]

    def import_counts(self, partition, keys, counts):
        """Set the counts of keys of a partition; a key with a row keeps it and is not counted.

        Parameters
        ----------
        partition : int
        keys : (c,) uint64
            All of this partition, else ValueError and nothing has changed.
        counts : (c,) uint32
            Each 1..65535.
        """
        cdef uint32_t number = self.partition_number("import_counts", partition)
        keys = checked_array("import_counts: keys", keys, _U64, (None,))
        counts = checked_array("import_counts: counts", counts, _U32, (len(keys),))
        if len(keys) == 0:
            return
        if self.table.policies.admission.kind != PSLIB_ADMIT_COUNT:
            raise ValueError("import_counts: expected a Store with admission by exact count, got another one")
        if counts.min() < 1 or counts.max() > PSLIB_COUNT_MAX:
            raise ValueError(
                f"import_counts: counts: expected 1..{PSLIB_COUNT_MAX}, got {counts.min()}..{counts.max()}"
            )
        self.refuse_strangers("import_counts", number, keys)
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const uint32_t *count_data = _numbers_of(counts)
        cdef PslibStatus status
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_keys(&self.table, key_data, n, False)
            status = pslib_counts_import(&self.table, number, key_data, count_data, n, &done)
        raise_unless_done("import_counts", status, done, n)

    def export_filter(self, partition):
        """Copy the Bloom filter of a partition, (m,) uint8; empty where it has none."""
        cdef uint32_t number = self.partition_number("export_filter", partition)
        cdef uint8_t *filter = NULL
        if self.table.policies.admission.kind == PSLIB_ADMIT_BLOOM:
            filter = self.table.policies.admission.filters[number]
        counters = np.zeros(self.table.policies.admission.filter_counters if filter != NULL else 0, _U8)
        if filter != NULL:
            memcpy(cnp.PyArray_DATA(<cnp.ndarray>counters), filter, len(counters))
        return counters

    def import_filter(self, partition, counters):
        """Add a Bloom filter to that of a partition: counter + counter, at most 255.

        No count is estimated below what it was in either, so that of two partitions, or of the one that both
        were before, the filters can be joined.

        Parameters
        ----------
        partition : int
        counters : (m,) uint8
            As long as this Store's filters, or empty.
        """
        cdef uint32_t number = self.partition_number("import_filter", partition)
        counters = checked_array("import_filter: counters", counters, _U8, (None,))
        if len(counters) == 0:
            return
        if len(counters) != self.table.policies.admission.filter_counters:
            raise ValueError(
                f"import_filter: counters: expected as many as this Store's filters have,"
                f" {self.table.policies.admission.filter_counters}, got {len(counters)}"
            )
        cdef const uint8_t *data = <const uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>counters)
        cdef PslibStatus status
        with nogil:
            if self.table.tracking != NULL:
                pslib_before_filter(&self.table, number)
            status = pslib_filter_import(&self.table, number, data)
        if status != PSLIB_OK:
            raise MemoryError(f"import_filter: no memory for a filter of {len(counters)} bytes")


cdef object _foreseen(
    StorePolicies store, str method, object keys, int row_class, const PslibRecord *record
):
    cdef int64_t n = len(keys)
    cdef const uint64_t *key_data = keys_of(keys)
    cdef PslibForesight seen
    cdef PslibStatus status
    with nogil:
        status = pslib_table_foresee(&store.table, key_data, n, row_class, record, &seen)
    if status != PSLIB_OK:
        raise MemoryError(f"{method}: no memory to count the keys of each partition")
    return seen.made, seen.widened, seen.bytes
