"""The partitions of one table that one shard thread owns: key index, rows, initial values, optimizer steps.

The work is in C headers, each with its formulas and invariants: memory in ``memory/`` (heap, arenas, index
over arenas) and ``table.h``; values in ``initializers.h``, ``optimizer_steps.h``, ``storage.h`` (types of
weights) and ``row_io.h``; then ``images.h``, ``policies.h``, ``strips.h`` (loops over batches) and
``table_rows.h``. A Store checks arguments (``arguments.pyx``) and allocates results; ``images.pyx`` copies
its content at one instant.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cython_ext.common.checks cimport (
    bytes_of,
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    level_of,
    numbers_of,
    whole_number,
)
from cython_ext.table.arguments cimport (
    checked_keys,
    class_of,
    counts_into,
    empty_rows,
    partition_number,
    partition_numbers,
    raise_unless_done,
    require_counters,
    require_partition,
    set_part,
    set_policies,
)
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


cdef int _assign(PslibTable *table, str method, object keys, object weights, object state,
                 int row_class) except -1:
    """Make or overwrite the rows of a class."""
    cdef const PslibRowClass *shape = &table.classes[row_class]
    weights = checked_array(f"{method}: weights", weights, _F32, (len(keys), shape.weight_floats))
    if state is not None:
        state = checked_array(f"{method}: state", state, _F32, (len(keys), shape.state_floats))
    cdef int64_t n = len(keys), done = 0
    cdef const uint64_t *key_data = keys_of(keys)
    cdef const float *weight_data = floats_of(weights)
    cdef const float *state_data = NULL if state is None else floats_of(state)
    cdef PslibStatus status
    with nogil:
        status = pslib_table_assign(table, key_data, n, weight_data, state_data, row_class, &done)
    return raise_unless_done(method, status, done, n)


cdef object _foreseen(const PslibTable *table, str method, object keys, int row_class,
                      const PslibRecord *record):
    """Return the new rows, the widened ones and the bytes of a push, or of an assignment (record: NULL)."""
    cdef int64_t n = len(keys)
    cdef const uint64_t *key_data = keys_of(keys)
    cdef PslibForesight seen
    cdef PslibStatus status
    with nogil:
        status = pslib_table_foresee(table, key_data, n, row_class, record, &seen)
    if status != PSLIB_OK:
        raise MemoryError(f"{method}: no memory to count the keys of each partition")
    return seen.made, seen.widened, seen.bytes


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
    """

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

        Returns
        -------
        int
            Keys without a row.
        """
        keys = checked_keys("pull", keys)
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
        keys = checked_keys("push", keys)
        gradients = checked_array("push: gradients", gradients, _F32, (len(keys), self.dim))
        cdef int row_class = class_of(&self.table, "push", narrow)
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
        """Erase the rows of keys, and the counts of counted ones.

        Absent keys are an ordinary case. A Bloom filter cannot forget: the key shares its counters. A
        partition that has lost most of its rows frees memory; its other rows get new numbers in their order.

        Parameters
        ----------
        keys : (n,) uint64

        Returns
        -------
        int
            Rows erased.
        """
        keys = checked_keys("erase", keys)
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
        _assign(&self.table, "assign", checked_keys("assign", keys), weights, state, PSLIB_WIDE)

    def export_partition(self, partition, narrow=False):
        """Copy all rows of one class out of a partition, by ascending row number.

        Parameters
        ----------
        partition : int
        narrow : bool
            The narrow rows instead of the wide ones.

        Returns
        -------
        keys : (r,) uint64
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        """
        cdef uint32_t number = partition_number(&self.table, "export_partition", partition)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        cdef int64_t live = self.table.arenas[number].of[row_class].live
        keys, weights, state = empty_rows(&self.table, row_class, live)
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

        Parameters
        ----------
        partition : int
        keys : (r,) uint64
        weights : (r, dim of the class) float32
        state : (r, state floats of the class) float32
        narrow : bool
            They are narrow rows.

        Raises
        ------
        ValueError
            When a key is of another partition, or an array has another dtype or shape; nothing has changed.
        """
        cdef uint32_t number = partition_number(&self.table, "import_partition", partition)
        keys = checked_keys("import_partition", keys)
        require_partition(&self.table, "import_partition", number, keys)
        cdef int row_class = PSLIB_NARROW if narrow else PSLIB_WIDE
        if len(keys):
            row_class = class_of(&self.table, "import_partition", narrow)
        _assign(&self.table, "import_partition", keys, weights, state, row_class)

    def drop_partition(self, partition):
        """Erase all rows, counts and the filter of a partition.

        Parameters
        ----------
        partition : int

        Returns
        -------
        int
            Rows erased.
        """
        cdef uint32_t number = partition_number(&self.table, "drop_partition", partition)
        cdef int64_t rows
        with nogil:
            rows = pslib_table_drop(&self.table, number)
        return rows

    # --- policies -------------------------------------------------------------------------------------------

    def decay(self, factor, partitions=None):
        """Multiply shows and clicks of all rows by a factor, in float32, so that old ones weigh less.

        Counts of keys without rows, exact ones and those of filters, become floor(count * factor), the
        product rounded to float32; at 0 the key is erased, and a filter of zeros is freed.

        Parameters
        ----------
        factor : float
            0..1.
        partitions : (k,) uint32 or None
            Only these; None means all.
        """
        cdef float number = finite_number("decay: factor", factor)
        if not 0 <= number <= 1:
            raise ValueError(f"decay: factor: expected a number in 0..1, got {factor}")
        partitions = partition_numbers(&self.table, "decay", partitions)
        cdef int64_t count = len(partitions)
        cdef const uint32_t *numbers = numbers_of(partitions)
        with nogil:
            pslib_table_decay(&self.table, numbers, count, number)

    def evict(self, rule, number, now=0.0, partitions=None):
        """Evict all rows that a rule selects.

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

        Returns
        -------
        int
            Rows evicted.

        Raises
        ------
        ValueError
            Also when rows do not have the counters that the rule reads.
        MemoryError
            When there is none for a byte a row of one partition; the message tells the rows evicted so far.
        """
        cdef int kind = whole_number("evict: rule", rule, 0, PSLIB_EVICT_RULES - 1)
        cdef float limit = finite_number("evict: number", number), when = finite_number("evict: now", now)
        require_counters(&self.table, "evict", kind)
        partitions = partition_numbers(&self.table, "evict", partitions)
        cdef int64_t count = len(partitions), gone = 0
        cdef const uint32_t *numbers = numbers_of(partitions)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict(&self.table, numbers, count, kind, limit, when, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict: no memory to mark the rows of a partition; {gone} of others have left")
        return gone

    def evict_share(self, order, share, keys=None):
        """Evict the worst rows, exactly ``share`` of all, rounded up, and free memory.

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

        Returns
        -------
        int
            Rows evicted.

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
        require_counters(&self.table, "evict_share", kind)
        cdef int64_t wanted = math.ceil(share * self.rows), gone = 0
        if wanted == 0:
            return 0
        cdef uint64_t *left = NULL
        if keys is not None:
            keys = checked_keys("evict_share", keys)
            if len(keys) < wanted:
                raise ValueError(f"evict_share: keys: expected room for {wanted}, got {len(keys)}")
            left = keys_of(keys)
        partitions = partition_numbers(&self.table, "evict_share", None)
        cdef const uint32_t *numbers = numbers_of(partitions)
        cdef int64_t count = len(partitions)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_evict_worst(&self.table, numbers, count, kind, wanted, left, &gone)
        if status != PSLIB_OK:
            raise MemoryError(f"evict_share: no memory to rank rows; {gone} of {wanted} have left")
        return gone

    def missing(self, keys):
        """Count the keys that have no row; counted keys have none.

        Parameters
        ----------
        keys : (n,) uint64
            Repeated ones count each time.

        Returns
        -------
        int
        """
        keys = checked_keys("missing", keys)
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            absent = pslib_table_missing(&self.table, key_data, n)
        return absent

    def foresee(self, keys, shows=None, clicks=None):
        """Estimate the rows and bytes that a push would take; nothing changes.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.
        shows, clicks : (n,) float32 or None
            As in `push`.

        Returns
        -------
        made : int
            Keys without a row, as if admission let in all of them.
        widened : int
            Narrow rows, those of new keys among them, that would be wide after it.
        row_bytes : int
            Of memory for rows, beyond the free places.
        """
        keys = checked_keys("foresee", keys)
        cdef PslibRecord record
        record.salt = record.rounding = 0
        record.now = 0
        shows, clicks = counts_into(&record, "foresee", shows, clicks, len(keys))
        return _foreseen(&self.table, "foresee", keys, PSLIB_FORESEE_PUSH, &record)

    def foresee_rows(self, keys, narrow=False):
        """Estimate the rows and bytes that assigned or imported rows of one class would take.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.
        narrow : bool
            They are narrow rows.

        Returns
        -------
        made, widened, row_bytes : int
            As of `foresee`.
        """
        keys = checked_keys("foresee_rows", keys)
        cdef int row_class = class_of(&self.table, "foresee_rows", narrow)
        return _foreseen(&self.table, "foresee_rows", keys, row_class, NULL)

    def held(self):
        """Count the partitions that hold memory.

        Returns
        -------
        with_index, with_wide_rows, with_narrow_rows : int
        """
        cdef int64_t[3] counts
        with nogil:
            pslib_table_held(&self.table, counts)
        return counts[0], counts[1], counts[2]

    def export_counts(self, partition):
        """Copy the counted keys of a partition, and their counts.

        Parameters
        ----------
        partition : int

        Returns
        -------
        keys : (c,) uint64
            Ascending.
        counts : (c,) uint32
        """
        cdef uint32_t number = partition_number(&self.table, "export_counts", partition)
        counted = pslib_partition_counted(&self.table, number)
        keys, counts = np.empty(counted, _U64), np.empty(counted, _U32)
        cdef uint64_t *key_data = keys_of(keys)
        cdef uint32_t *count_data = numbers_of(counts)
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
        counts : (c,) uint32
            1..65535.

        Raises
        ------
        ValueError
            When a key is of another partition, or an array has another dtype or shape; nothing has changed.
        """
        cdef uint32_t number = partition_number(&self.table, "import_counts", partition)
        keys = checked_keys("import_counts", keys)
        counts = checked_array("import_counts: counts", counts, _U32, (len(keys),))
        if len(keys) == 0:
            return
        if self.table.policies.admission.kind != PSLIB_ADMIT_COUNT:
            raise ValueError("import_counts: expected a Store with admission by exact count, got another one")
        if counts.min() < 1 or counts.max() > PSLIB_COUNT_MAX:
            raise ValueError(
                f"import_counts: counts: expected 1..{PSLIB_COUNT_MAX}, got {counts.min()}..{counts.max()}"
            )
        require_partition(&self.table, "import_counts", number, keys)
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const uint32_t *count_data = numbers_of(counts)
        cdef PslibStatus status
        with nogil:
            status = pslib_counts_import(&self.table, number, key_data, count_data, n, &done)
        raise_unless_done("import_counts", status, done, n)

    def export_filter(self, partition):
        """Copy the Bloom filter of a partition.

        Parameters
        ----------
        partition : int

        Returns
        -------
        (m,) uint8
            Empty where it has none.
        """
        cdef uint32_t number = partition_number(&self.table, "export_filter", partition)
        cdef const PslibAdmission *admission = &self.table.policies.admission
        if admission.kind != PSLIB_ADMIT_BLOOM or admission.filters[number] == NULL:
            return np.empty(0, _U8)
        counters = np.empty(admission.filter_counters, _U8)
        memcpy(bytes_of(counters), admission.filters[number], len(counters))
        return counters

    def import_filter(self, partition, counters):
        """Add a Bloom filter to that of a partition: counter + counter, at most 255.

        No estimate is below that of either filter, so the filters of two partitions can be joined.

        Parameters
        ----------
        partition : int
        counters : (m,) uint8
            Or empty: nothing is added.
        """
        cdef uint32_t number = partition_number(&self.table, "import_filter", partition)
        counters = checked_array("import_filter: counters", counters, _U8, (None,))
        cdef uint32_t expected = self.table.policies.admission.filter_counters
        if len(counters) == 0:
            return
        if len(counters) != expected:
            raise ValueError(f"import_filter: counters: expected length {expected}, got {len(counters)}")
        cdef const uint8_t *data = bytes_of(counters)
        cdef PslibStatus status
        with nogil:
            status = pslib_filter_import(&self.table, number, data)
        if status != PSLIB_OK:
            raise MemoryError(f"import_filter: no memory for a filter of {len(counters)} bytes")

    # --- the whole ------------------------------------------------------------------------------------------

    @property
    def tracking_bytes(self):
        """Bytes of copied rows, flags of changes, and keys of erased rows (`images.pyx`)."""
        return pslib_tracking_bytes(&self.table)

    @property
    def keeps_changes(self):
        """Return True if the next image may be an increment of the last one."""
        return self.table.tracking != NULL and self.table.tracking.keeps != 0

    def partition_rows(self, partition):
        """Count the rows of both classes in one partition.

        Parameters
        ----------
        partition : int

        Returns
        -------
        int
        """
        cdef uint32_t number = partition_number(&self.table, "partition_rows", partition)
        return pslib_partition_rows(&self.table.arenas[number])

    def partitions(self):
        """Return the partitions that hold rows, counted keys or a filter.

        Returns
        -------
        (k,) uint32
            Ascending.
        """
        cdef Py_ssize_t count = 1 << self.partition_bits, number
        held = np.zeros(count, bool)
        cdef uint8_t *held_data = bytes_of(held)
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
