"""The partitions of one table that one shard thread owns: key index, rows, initial values, optimizer steps.

The work is in C headers, each with its formulas and invariants: memory in ``heap.h``, ``arena.h``,
``partition.h`` (index over arenas) and ``table.h``; values in ``initializers.h``, ``optimizer_steps.h``,
``storage.h`` (types of weights) and ``row_io.h``; then ``images.h``, ``policies.h``, ``strips.h`` (loops over
batches) and ``table_rows.h``. A Store checks arguments and allocates results.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cython_ext.common.checks cimport (
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    level_of,
    whole_number,
)
from cython_ext.table.settings cimport counts_into, raise_unless_done, set_part, set_policies
from cython_ext.table.table cimport *

import math

import numpy as np

from cython_ext.common.checks import vector_levels
from cython_ext.table.steps import initial_rows

__all__ = ["Store", "initial_rows", "vector_levels"]

cnp.import_array()

_U8 = np.dtype(np.uint8)
_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)


cdef inline uint32_t *_numbers_of(object array):
    """Return the data of a uint32 array that has been checked."""
    return <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline uint8_t *_bytes_of(object array):
    """Return the data of a uint8 or bool array that has been checked."""
    return <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline object _keys(str method, object keys):
    return checked_array(f"{method}: keys", keys, _U64, (None,))


cdef class Store:
    """The partitions of one table that one shard thread owns.

    A key's partition is the top ``partition_bits`` bits of its mixed value; a Store has a directory entry for
    every partition of the table. Every key is legal, 0 and 2^64-1 too. The content of a row depends on the
    operations on its key, never on ``partition_bits``, on other keys or on the order of keys. Not thread
    safe: one thread at a time, except `stats`, `rows`, `partition_rows` and `partitions`, which may be read
    beside a thread that works and may then be slightly stale. Loops run without the interpreter lock.

    Parameters
    ----------
    partition_bits : int
        0..20; an empty partition takes 64 bytes of address space, and no memory until it is touched.
    parts : sequence of tuples, 1..8
        One for each part, in the order of their floats in a row: ``(dim, optimizer_kind,
        hyperparameters (8,) float32, modifiers (4,) float32, corrections (steps, 2) float32,
        initializer_kind, initializer numbers (2,) float32, part_seed 0..2^64-1, initial_state (state_floats,)
        float32)``; dim is 1..4096. ``optimizer_steps.h`` and ``initializers.h`` define the numbers.
    narrow_parts : int
        Narrow rows hold the first ``narrow_parts`` parts, fewer than all; 0: no narrow rows.
    storage : int
        Type of weights in memory: 0 float32, 1 bfloat16, 2 float16, 3 int8 with one float32 scale for each
        part of a row. A push rounds stochastically by the random bits of its salt, so that small steps count
        on average; weights that are assigned or imported are rounded to the nearest value, exported ones are
        imported unchanged. A finite weight stays finite.
    counters : int
        Counters at the head of a row's state: bit 0 ``last_seen``, the largest ``now`` of its pushes; bit 1
        ``shows`` and ``clicks``, sums over its pushes. For int8 the scales of its parts follow.
    admission : (int, float, int)
        Keys that get rows: 0 all, 1 by exact count (1..65535), 2 by counting Bloom filter (count 1..255), 3
        with a probability (above 0, at most 1) at each push; the count or the probability; for 2 the
        counters of one partition's filter, a power of two in 2^6..2^27. Only under 2 the keys that get rows
        early depend on ``partition_bits``; none gets its row later than under 1.
    promotion : (int, float)
        When a narrow row becomes wide: 0 never, 1 at this number of shows, 2 at this score. Under 1 and 2
        new rows are narrow, and become wide at the end of a push; ``narrow_parts`` and shows are needed.
    score : (float, float)
        ``nonclick`` and ``click``: score = (shows - clicks) * nonclick + clicks * click, in float32.

    Raises
    ------
    ValueError
        When a number is out of its range or an array has another dtype or shape; the message names both.
    MemoryError
        When there is none for the directory of partitions.

    Notes
    -----
    Methods that make rows raise MemoryError or OverflowError (2^23 rows of one class in a partition, 2^31 in
    the Store); the message tells the number of keys, in their order, that were done. Those are complete, the
    others have changed nothing, and the Store can be used further.

    An image is the content of the Store when `image_begin` returned, whatever is pushed, erased, assigned or
    evicted after it. It is copied out by partitions in any order (`image_rows`, `image_counts`,
    `image_filters`), and `image_written` frees their copies. It costs one branch a call where no image is
    being taken and none was taken with ``keep``.
    """

    cdef PslibTable table
    cdef list borrowed  # arrays that `table` points into
    cdef readonly int partition_bits
    cdef readonly int narrow_parts

    # Not __init__, which a subclass may forget to call: a Store always has its directory of partitions.
    def __cinit__(
        self,
        partition_bits,
        parts,
        narrow_parts=0,
        *,
        storage=0,
        counters=0,
        admission=(0, 0.0, 0),
        promotion=(0, 0.0),
        score=(0.0, 0.0),
    ):
        memset(&self.table, 0, sizeof(PslibTable))
        bits = whole_number("Store: partition_bits", partition_bits, 0, PSLIB_PARTITION_BITS_MAX)
        count = whole_number("Store: number of parts", len(parts), 1, PSLIB_PARTS_MAX)
        self.narrow_parts = whole_number("Store: narrow_parts", narrow_parts, 0, count - 1)
        self.partition_bits = bits
        self.table.level = level_of(None)
        set_policies(&self.table, self.narrow_parts, storage, counters, admission, promotion, score)
        self.borrowed = []
        for place, part in enumerate(parts):
            self.borrowed += set_part(&self.table, place, part)
        pslib_table_shape(&self.table, count, self.narrow_parts)
        if pslib_table_open(&self.table, self.partition_bits) != PSLIB_OK:
            raise MemoryError(f"Store: no memory for a directory of {1 << self.partition_bits} partitions")

    def __dealloc__(self):
        pslib_tracking_close(&self.table)
        pslib_table_close(&self.table)

    cdef int _class_of(self, str method, object narrow) except -1:
        if narrow and self.narrow_parts == 0:
            raise ValueError(f"{method}: expected narrow=False where narrow_parts is 0, got narrow=True")
        return PSLIB_NARROW if narrow else PSLIB_WIDE

    cdef tuple _empty_rows(self, int row_class, int64_t count):
        cdef const PslibRowClass *shape = &self.table.classes[row_class]
        weights = np.empty((count, shape.weight_floats), _F32)
        return np.empty(count, _U64), weights, np.empty((count, shape.state_floats), _F32)

    cdef object _partition_number(self, str method, object partition):
        return whole_number(f"{method}: partition", partition, 0, (1 << self.partition_bits) - 1)

    @property
    def dim(self):
        """Weights of a wide row: the width of pulled rows and pushed gradients."""
        return self.table.classes[PSLIB_WIDE].weight_floats

    @property
    def state_floats(self):
        """Floats of state of a wide row."""
        return self.table.classes[PSLIB_WIDE].state_floats

    @property
    def rows(self):
        """Rows of both classes in all partitions."""
        return self.table.rows[PSLIB_WIDE] + self.table.rows[PSLIB_NARROW]

    # --- rows -----------------------------------------------------------------------------------------------

    def pull(self, keys, out, now=0.0):
        """Read the weights of all parts of each key, and count the keys that have no row; no row is made.

        A key without a row gives its initial values, and so do the wide parts of a key with a narrow row.

        Parameters
        ----------
        keys : (n,) uint64
            May repeat; repeated ones count each time.
        out : (n, dim) float32, written to
        now : float
            In the table's own unit of time; finite.
        """
        keys = _keys("pull", keys)
        out = checked_target("pull: out", out, _F32, (len(keys), self.dim))
        cdef float when = finite_number("pull: now", now)
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        cdef float *rows = floats_of(out)
        with nogil:
            absent = pslib_table_pull(&self.table, key_data, n, when, rows)
        return absent

    def push(self, keys, gradients, narrow=False, *, salt=0, now=0.0, shows=None, clicks=None, rate=1.0,
             delta=False):
        """Make absent rows, as admission allows, then take one optimizer step for each key and part.

        A key that occurs more than once takes one step for each occurrence, in their order: sum the gradients
        of a key first where one step is meant. A narrow row takes steps for its parts and ignores the
        gradients of the others; a wide row stays wide, whatever ``narrow`` says. An element whose new weight
        or state would be NaN or infinite is refused: it keeps both.

        The gradient of a key that is turned away is dropped, and each occurrence counts by its shows, rounded
        down but at least 1; the push that reaches the table's count makes the row and is its first step.
        Narrow rows that are due for promotion are wide afterwards.

        Parameters
        ----------
        keys : (n,) uint64
        gradients : (n, dim) float32
            Of all parts side by side, also for narrow rows.
        narrow : bool
            Class of rows that are made here; always narrow in a table with promotion.
        salt : int
            0..2^64-1; random bits of this push are a function of key, part, column and salt alone.
        now : float
            In the table's own unit of time; finite.
        shows : (n,) float32 or None
            Examples that showed each key; finite and above 0, fractions allowed. None means 1 each.
        clicks : (n,) float32 or None
            Examples that clicked each key; finite and not below 0, also above its shows. None means 0 each.
        rate : float
            Factor of the learning rate of each part, in float32, for this push; weights decay at their own
            rate. FTRL, whose weights are computed from sums, should be pushed with one rate only.
        delta : bool
            Add ``gradients`` to the weights instead of steps: no state of an optimizer changes.

        Returns
        -------
        int
            Steps of parts of rows that have refused an element.
        """
        keys = _keys("push", keys)
        gradients = checked_array("push: gradients", gradients, _F32, (len(keys), self.dim))
        cdef int row_class = self._class_of("push", narrow)
        cdef PslibRecord record
        record.salt = whole_number("push: salt", salt, 0, 0xFFFFFFFFFFFFFFFF)
        record.rounding = pslib_mix64(record.salt)
        record.now = finite_number("push: now", now)
        shows, clicks = counts_into(&record, "push", shows, clicks, len(keys))
        cdef float factor = finite_number("push: rate", rate)
        cdef bint adds = delta
        cdef int64_t n = len(keys), done = 0, refused = self.table.steps_refused
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const float *gradient_data = floats_of(gradients)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_push_at(
                &self.table, key_data, n, gradient_data, row_class, &record, factor, adds, &done
            )
        raise_unless_done("push", status, done, n)
        return self.table.steps_refused - refused

    def erase(self, keys):
        """Erase the rows of ``keys``, (n,) uint64, and counts of counted ones; return the number of rows.

        Absent keys are an ordinary case. A Bloom filter cannot forget: the key shares its counters. A
        partition that has lost most of its rows frees memory; its other rows get new numbers in their order.
        """
        keys = _keys("erase", keys)
        cdef int64_t n = len(keys), erased
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            erased = pslib_table_erase(&self.table, key_data, n)
        return erased

    def assign(self, keys, weights, state=None):
        """Make or overwrite whole rows; they are wide afterwards. Of a repeated key the last row counts.

        Parameters
        ----------
        keys : (n,) uint64
        weights : (n, dim) float32
        state : (n, state_floats) float32 or None
            None: rows keep their state; new ones get the initial state.
        """
        self._assign("assign", _keys("assign", keys), weights, state, PSLIB_WIDE)

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
            status = pslib_table_assign(&self.table, key_data, n, weight_data, state_data, row_class, &done)
        return raise_unless_done(method, status, done, n)

    def export_partition(self, partition, narrow=False):
        """Copy all rows of one class out of a partition, by ascending row number.

        Returns
        -------
        keys : (r,) uint64
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        """
        cdef uint32_t number = self._partition_number("export_partition", partition)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        keys, weights, state = self._empty_rows(row_class, self.table.arenas[number].of[row_class].live)
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
        """Add rows, as `export_partition` gives them, to a partition; rows of the same keys are replaced.

        Raises
        ------
        ValueError
            When a key is of another partition, or an array has another dtype or shape; nothing has changed.
        """
        cdef uint32_t number = self._partition_number("import_partition", partition)
        keys = _keys("import_partition", keys)
        self._require_partition("import_partition", number, keys)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        if len(keys):
            row_class = self._class_of("import_partition", narrow)
        self._assign("import_partition", keys, weights, state, row_class)

    cdef int _require_partition(self, str method, uint32_t partition, object keys) except -1:
        """Raise ValueError unless all keys are of the partition."""
        cdef int64_t n = len(keys), foreign
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            foreign = pslib_first_foreign(&self.table, partition, key_data, n)
        if foreign >= 0:
            got = f"{keys[foreign]} of another one at place {foreign}"
            raise ValueError(f"{method}: expected keys of partition {partition}, got {got}")
        return 0

    def drop_partition(self, partition):
        """Erase all rows, counts and the filter of a partition; return its number of rows."""
        cdef uint32_t number = self._partition_number("drop_partition", partition)
        cdef int64_t rows
        with nogil:
            rows = pslib_table_drop(&self.table, number)
        return rows

    # --- policies -------------------------------------------------------------------------------------------

    cdef object _chosen(self, str method, object partitions):
        """Return numbers of partitions, uint32, each once and ascending; None: all."""
        if partitions is None:
            return np.arange(1 << self.partition_bits, dtype=_U32)
        chosen = np.unique(checked_array(f"{method}: partitions", partitions, _U32, (None,)))
        if len(chosen) and chosen.max() >> self.partition_bits:
            last = (1 << self.partition_bits) - 1
            raise ValueError(f"{method}: partitions: expected numbers in 0..{last}, got {chosen.max()}")
        return chosen

    cdef int _require_counters(self, str method, int rule) except -1:
        """Raise ValueError unless rows have the counters that an eviction rule reads."""
        cdef int came = self.table.counters
        if rule == PSLIB_EVICT_AGE and not came & PSLIB_COUNT_LAST_SEEN:
            name = "last_seen (bit 0)"
        elif rule == PSLIB_EVICT_SCORE and not came & PSLIB_COUNT_SHOWS:
            name = "shows and clicks (bit 1)"
        else:
            return 0
        raise ValueError(f"{method}: expected a Store whose rows count {name}, got counters={came}")

    def decay(self, factor, partitions=None):
        """Multiply shows and clicks of all rows by ``factor``, 0..1, in float32, so that old ones weigh less.

        Counts of keys without rows, exact ones and those of filters, become floor(count * factor), the
        product rounded to float32; at 0 the key is erased, and a filter of zeros is freed. ``partitions``,
        (k,) uint32: only these; None means all.
        """
        cdef float number = finite_number("decay: factor", factor)
        if not 0 <= number <= 1:
            raise ValueError(f"decay: factor: expected a number in 0..1, got {factor}")
        partitions = self._chosen("decay", partitions)
        cdef int64_t count = len(partitions)
        cdef const uint32_t *numbers = _numbers_of(partitions)
        with nogil:
            pslib_table_decay(&self.table, numbers, count, number)

    def evict(self, rule, number, now=0.0, partitions=None):
        """Evict all rows that a rule selects, and return their number.

        A partition that has lost half its rows is compacted and frees memory; while fewer are evicted, their
        places wait for new rows and memory stays as it was, or grows a little (1 million rows in 4,096
        partitions: 94 to at most 104 MB at 50 to 60 % evicted, 55 MB at 70 %).

        Parameters
        ----------
        rule : int
            0 age: ``now - last_seen > number``. 1 norm: L2 norm of all weights ``< number``. 2 score:
            ``(shows - clicks) * nonclick + clicks * click < number``. All in float32.
        number : float
        now : float
            In the table's own unit of time.
        partitions : (k,) uint32 or None
            Only these; None means all.

        Raises
        ------
        ValueError
            Also when rows do not have the counters that the rule reads.
        MemoryError
            When there is none for a byte a row of one partition; the message tells the rows evicted so far.
        """
        cdef int kind = whole_number("evict: rule", rule, 0, PSLIB_EVICT_RULES - 1)
        cdef float limit = finite_number("evict: number", number), when = finite_number("evict: now", now)
        self._require_counters("evict", kind)
        partitions = self._chosen("evict", partitions)
        cdef int64_t count = len(partitions), gone = 0
        cdef const uint32_t *numbers = _numbers_of(partitions)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict(&self.table, numbers, count, kind, limit, when, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict: no memory to mark the rows of a partition; {gone} of others have left")
        return gone

    def evict_share(self, order, share, keys=None):
        """Evict the worst rows, exactly ``share`` of all, rounded up, free memory, and return their number.

        Of equally bad rows, those evicted are spread evenly over partitions. The choice depends on all rows
        of this Store: for memory limits, not for records that servers must apply alike.

        Parameters
        ----------
        order : int
            0 oldest ``last_seen`` first, 1 smallest L2 norm, 2 lowest score; NaN is evicted last.
        share : float
            Above 0, at most 1.
        keys : OUT (rows evicted or more,) uint64 or None
            Their keys, in no order.

        Raises
        ------
        ValueError
            Also when rows do not have the counters that the order reads.
        MemoryError
            When there is none for 512 KiB and a byte a row of one partition.
        """
        cdef int kind = whole_number("evict_share: order", order, 0, PSLIB_EVICT_RULES - 1)
        share = finite_number("evict_share: share", share)
        if not 0 < share <= 1:
            raise ValueError(f"evict_share: share: expected a number above 0 and at most 1, got {share}")
        self._require_counters("evict_share", kind)
        cdef int64_t wanted = math.ceil(share * self.rows), gone = 0
        if wanted == 0:
            return 0
        cdef uint64_t *left = NULL
        if keys is not None:
            keys = _keys("evict_share", keys)
            if len(keys) < wanted:
                raise ValueError(f"evict_share: keys: expected room for {wanted}, got {len(keys)}")
            left = keys_of(keys)
        partitions = self._chosen("evict_share", None)
        cdef const uint32_t *numbers = _numbers_of(partitions)
        cdef int64_t count = len(partitions)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict_worst(&self.table, numbers, count, kind, wanted, left, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict_share: no memory to rank rows; {gone} of {wanted} have left")
        return gone

    def missing(self, keys):
        """Count the ``keys``, (n,) uint64, that have no row; counted keys have none, repeated ones count."""
        keys = _keys("missing", keys)
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            absent = pslib_table_missing(&self.table, key_data, n)
        return absent

    def foresee(self, keys, shows=None, clicks=None):
        """Estimate the rows and bytes that a push of distinct keys would take; nothing changes.

        Returns
        -------
        made : int
            Keys without a row, as if admission let in all of them.
        widened : int
            Narrow rows, those of new keys among them, that would be wide after it.
        row_bytes : int
            Of memory for rows, beyond the free places.
        """
        keys = _keys("foresee", keys)
        cdef PslibRecord record
        record.salt = record.rounding = 0
        record.now = 0
        shows, clicks = counts_into(&record, "foresee", shows, clicks, len(keys))
        return self._foreseen("foresee", keys, PSLIB_FORESEE_PUSH, &record)

    def foresee_rows(self, keys, narrow=False):
        """`foresee` for rows of one class that are assigned or imported."""
        keys = _keys("foresee_rows", keys)
        return self._foreseen("foresee_rows", keys, self._class_of("foresee_rows", narrow), NULL)

    cdef object _foreseen(self, str method, object keys, int row_class, const PslibRecord *record):
        cdef int64_t n = len(keys)
        cdef const uint64_t *key_data = keys_of(keys)
        cdef PslibForesight seen
        cdef PslibStatus status
        with nogil:
            status = pslib_table_foresee(&self.table, key_data, n, row_class, record, &seen)
        if status != PSLIB_OK:
            raise MemoryError(f"{method}: no memory to count the keys of each partition")
        return seen.made, seen.widened, seen.bytes

    def held(self):
        """Count the partitions that have an index, memory for wide rows, and for narrow ones: three int."""
        cdef int64_t[3] counts
        with nogil:
            pslib_table_held(&self.table, counts)
        return counts[0], counts[1], counts[2]

    def export_counts(self, partition):
        """Copy the counted keys of a partition, (c,) uint64 ascending, and their counts, (c,) uint32."""
        cdef uint32_t number = self._partition_number("export_counts", partition)
        counted = pslib_partition_counted(&self.table, number)
        keys, counts = np.empty(counted, _U64), np.empty(counted, _U32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef uint32_t *count_data = _numbers_of(counts)
        with nogil:
            pslib_counts_export(&self.table, number, key_data, count_data)
        order = np.argsort(keys)
        return keys[order], counts[order]

    def import_counts(self, partition, keys, counts):
        """Set the counts, (c,) uint32 of 1..65535, of keys, (c,) uint64, of a partition.

        A key with a row keeps it and is not counted. A key of another partition is a ValueError and changes
        nothing.
        """
        cdef uint32_t number = self._partition_number("import_counts", partition)
        keys = _keys("import_counts", keys)
        counts = checked_array("import_counts: counts", counts, _U32, (len(keys),))
        if len(keys) == 0:
            return
        if self.table.policies.admission.kind != PSLIB_ADMIT_COUNT:
            raise ValueError("import_counts: expected a Store with admission by exact count, got another one")
        if counts.min() < 1 or counts.max() > PSLIB_COUNT_MAX:
            raise ValueError(
                f"import_counts: counts: expected 1..{PSLIB_COUNT_MAX}, got {counts.min()}..{counts.max()}"
            )
        self._require_partition("import_counts", number, keys)
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const uint32_t *count_data = _numbers_of(counts)
        cdef PslibStatus status
        with nogil:
            status = pslib_counts_import(&self.table, number, key_data, count_data, n, &done)
        raise_unless_done("import_counts", status, done, n)

    def export_filter(self, partition):
        """Copy the Bloom filter of a partition, (m,) uint8; empty where it has none."""
        cdef uint32_t number = self._partition_number("export_filter", partition)
        cdef const PslibAdmission *admission = &self.table.policies.admission
        if admission.kind != PSLIB_ADMIT_BLOOM or admission.filters[number] == NULL:
            return np.empty(0, _U8)
        counters = np.empty(admission.filter_counters, _U8)
        memcpy(_bytes_of(counters), admission.filters[number], len(counters))
        return counters

    def import_filter(self, partition, counters):
        """Add a Bloom filter, (m,) uint8 or empty, to that of a partition: counter + counter, at most 255.

        No estimate is below that of either filter, so the filters of two partitions can be joined.
        """
        cdef uint32_t number = self._partition_number("import_filter", partition)
        counters = checked_array("import_filter: counters", counters, _U8, (None,))
        cdef uint32_t expected = self.table.policies.admission.filter_counters
        if len(counters) == 0:
            return
        if len(counters) != expected:
            raise ValueError(f"import_filter: counters: expected length {expected}, got {len(counters)}")
        cdef const uint8_t *data = _bytes_of(counters)
        cdef PslibStatus status
        with nogil:
            status = pslib_filter_import(&self.table, number, data)
        if status != PSLIB_OK:
            raise MemoryError(f"import_filter: no memory for a filter of {len(counters)} bytes")

    # --- images ---------------------------------------------------------------------------------------------

    cdef bint _has_image(self):
        return self.table.tracking != NULL and self.table.tracking.pending != NULL

    cdef int _require_image(self, str method) except -1:
        if not self._has_image():
            raise ValueError(f"{method}: expected an image that has begun: call image_begin first")
        if self.table.tracking.broken:
            raise MemoryError(f"{method}: no memory to copy a row before it changed; call image_end")
        return 0

    cdef tuple _image_range(self, str method, object first, object stop):
        """Return two numbers of partitions, ``first <= stop``; raise unless an image is being taken."""
        self._require_image(method)
        count = 1 << self.partition_bits
        first = whole_number(f"{method}: first", first, 0, count)
        return first, whole_number(f"{method}: stop", stop, first, count)

    @property
    def tracking_bytes(self):
        """Bytes of copied rows, flags of changes, and keys of erased rows."""
        return pslib_tracking_bytes(&self.table)

    @property
    def keeps_changes(self):
        """Return True if the next image may be an increment of the last one."""
        return self.table.tracking != NULL and self.table.tracking.keeps != 0

    def image_begin(self, increment=False, keep=False):
        """Begin an image of this instant.

        Parameters
        ----------
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
        if self._has_image():
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
        """Return the end of a range of partitions from ``first`` on, at least one, of about ``rows`` rows."""
        cdef uint32_t start = self._image_range("image_stop", first, 1 << self.partition_bits)[0]
        cdef int64_t wanted = whole_number("image_stop: rows", rows, 1, 1 << 40)
        cdef uint32_t stop
        with nogil:
            stop = pslib_image_stop(&self.table, start, wanted)
        return stop

    def image_rows(self, first, stop, narrow=False):
        """Return rows of partitions ``first`` to ``stop - 1`` at the instant, as `export_partition`."""
        cdef uint32_t start, end
        start, end = self._image_range("image_rows", first, stop)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        cdef int64_t bound = pslib_image_bound(&self.table, start, end, row_class), count = 0
        keys, weights, state = self._empty_rows(row_class, bound)
        cdef uint64_t *key_data = keys_of(keys)
        cdef float *weight_data = floats_of(weights)
        cdef float *state_data = floats_of(state)
        cdef PslibStatus status
        with nogil:
            status = pslib_image_rows(
                &self.table, start, end, row_class, key_data, weight_data, state_data, &count
            )
        if status != PSLIB_OK:
            raise MemoryError("image_rows: no memory to list the rows of a partition")
        return keys[:count], weights[:count], state[:count]

    def image_counts(self, first, stop):
        """Return counted keys of these partitions at the instant, (c,) uint64, and counts, (c,) uint32."""
        cdef uint32_t start, end
        start, end = self._image_range("image_counts", first, stop)
        cdef int64_t bound = pslib_image_counted_bound(&self.table, start, end), count
        keys, counts = np.empty(bound, _U64), np.empty(bound, _U32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef uint32_t *count_data = _numbers_of(counts)
        with nogil:
            count = pslib_image_counts(&self.table, start, end, key_data, count_data)
        return keys[:count], counts[:count]

    def image_filters(self, first, stop):
        """Return the partitions that had a Bloom filter, (k,) uint32, and their counters, (k, m) uint8."""
        cdef uint32_t start, end, number
        start, end = self._image_range("image_filters", first, stop)
        cdef Py_ssize_t width = self.table.policies.admission.filter_counters
        if self.table.policies.admission.kind != PSLIB_ADMIT_BLOOM:
            return np.empty(0, _U32), np.empty((0, width), _U8)
        held = [number for number in range(start, end) if pslib_image_filter(&self.table, number) != NULL]
        counters = np.empty((len(held), width), _U8)
        cdef uint8_t *to = _bytes_of(counters)
        for number in held:
            memcpy(to, pslib_image_filter(&self.table, number), width)
            to += width
        return np.array(held, _U32), counters

    def image_gone(self):
        """Return keys, (g,) uint64, erased after the last committed image; some may be back."""
        self._require_image("image_gone")
        cdef int64_t count = self.table.tracking.gone_before
        keys = np.empty(count, _U64)
        if count:
            memcpy(keys_of(keys), self.table.tracking.gone, count * sizeof(uint64_t))
        return np.unique(keys)

    def image_written(self, first, stop):
        """Mark these partitions as written, and free their copies."""
        cdef uint32_t start, end, number
        start, end = self._image_range("image_written", first, stop)
        with nogil:
            for number in range(start, end):
                pslib_image_written(&self.table, number)

    def image_end(self):
        """End the image and free its copies; without an image nothing happens."""
        with nogil:
            pslib_image_end(&self.table)

    def image_settle(self, committed):
        """Tell if the last image was committed: if not, the next increment holds its rows too."""
        if self._has_image():
            raise ValueError("image_settle: expected no image that is being taken: call image_end first")
        cdef bint good = committed
        with nogil:
            pslib_image_settle(&self.table, good)

    def image_stop_keeping(self):
        """Abandon the image that is being taken, and stop tracking changes."""
        with nogil:
            pslib_tracking_close(&self.table)

    # --- the whole ------------------------------------------------------------------------------------------

    def partition_rows(self, partition):
        """Return the number of rows of both classes in one partition."""
        cdef uint32_t number = self._partition_number("partition_rows", partition)
        return pslib_partition_rows(&self.table.arenas[number])

    def partitions(self):
        """Return the partitions that hold rows, counted keys or a filter, ascending, (k,) uint32."""
        cdef Py_ssize_t count = 1 << self.partition_bits, number
        held = np.zeros(count, bool)
        cdef uint8_t *held_data = _bytes_of(held)
        cdef uint8_t **filters = self.table.policies.admission.filters
        with nogil:
            for number in range(count):
                held_data[number] = self.table.partitions[number].filled != 0
                if filters != NULL:
                    held_data[number] |= filters[number] != NULL
        return np.flatnonzero(held).astype(np.uint32)

    def stats(self):
        """Return rows and memory.

        Returns
        -------
        dict of str to int
            ``rows`` and, of these, ``narrow_rows``; ``index_bytes`` of key indexes; ``row_bytes`` of units of
            rows and, of these, ``free_bytes`` that no row fills; ``directory_bytes``, of which partitions
            that were never touched take no memory; ``spare_bytes``, address space that the table holds for
            growth and that takes memory only where it was used before; ``filter_bytes`` of Bloom filters;
            ``resident_bytes``, an upper bound of the memory of all these; ``counted_keys`` without a row.
            Since the Store was made: ``turned_away`` occurrences of keys in pushes that got no row; rows
            ``admitted`` under a policy, ``promoted`` to wide ones, and evicted: ``evicted_age``,
            ``evicted_norm``, ``evicted_score``, ``evicted_share``; ``steps_refused``, steps of parts of rows
            that have refused an element.
        """
        cdef PslibStats numbers
        cdef const PslibPolicies *policies = &self.table.policies
        with nogil:
            numbers = pslib_table_stats(&self.table)
        return <object>numbers | {
            "turned_away": policies.admission.turned_away,
            "admitted": policies.admission.admitted,
            "promoted": policies.promotion.promoted,
            "evicted_age": policies.evicted[PSLIB_EVICT_AGE],
            "evicted_norm": policies.evicted[PSLIB_EVICT_NORM],
            "evicted_score": policies.evicted[PSLIB_EVICT_SCORE],
            "evicted_share": policies.evicted_share,
            "steps_refused": self.table.steps_refused,
        }

    def check_consistency(self):
        """Raise RuntimeError unless every index cell names a row and every row has its cell."""
        cdef int64_t broken
        with nogil:
            broken = pslib_table_first_broken(&self.table)
        if broken >= 0:
            raise RuntimeError(f"Store: expected index and rows of partition {broken} to agree; they do not")
        if broken != -1:
            raise RuntimeError(f"Store: expected {self.rows} rows in all partitions, found another number")
