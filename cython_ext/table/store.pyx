"""The partitions of one table that one shard thread owns: key index, rows, first values, optimizer steps.

The work is in C headers, each with its formulas and invariants above its loops: ``heap.h`` (memory in
huge pages), ``index_line.h`` (one cache line of the index), ``index_move.h`` (all of them when it grows),
``arena.h`` (where rows lie), ``partition.h`` (index over arenas), ``table.h``, ``strips.h``,
``strip_notes.h``, ``strip_loops.h`` and ``table_rows.h`` (batches), ``vectors.h`` (which instruction set),
``optimizer_steps.h``, ``initializers.h``, ``storage.h`` (types of weights, rounding) and ``row_io.h``
(what becomes of one row), ``policies.h``, ``admission.h``, ``promotion.h`` and ``eviction.h`` (which keys get
rows and which rows leave), ``tracking.h`` and ``images.h`` (the image of an instant while pushes go on). A
Store checks what comes in, takes memory for what goes out, and runs the loops without the interpreter lock;
``store_settings.pyx`` checks what it is made with.
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
    whole_number,
)
from cython_ext.table.store_settings cimport (
    chosen_level,
    counts_into,
    raise_unless_done,
    set_part,
    set_policies,
)
from cython_ext.table.table cimport (
    PSLIB_ADMIT_BLOOM,
    PSLIB_ADMIT_COUNT,
    PSLIB_COUNT_LAST_SEEN,
    PSLIB_COUNT_MAX,
    PSLIB_COUNT_SHOWS,
    PSLIB_EVICT_AGE,
    PSLIB_EVICT_NORM,
    PSLIB_EVICT_RULES,
    PSLIB_EVICT_SCORE,
    PSLIB_FORESEE_PUSH,
    PSLIB_NARROW,
    PSLIB_OK,
    PSLIB_PARTITION_BITS_MAX,
    PSLIB_PARTS_MAX,
    PSLIB_WIDE,
    PslibForesight,
    PslibPolicies,
    PslibRecord,
    PslibRowClass,
    PslibStats,
    PslibStatus,
    PslibTable,
    pslib_before_filter,
    pslib_before_keys,
    pslib_before_partition,
    pslib_counts_export,
    pslib_counts_import,
    pslib_filter_import,
    pslib_first_stranger,
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
    pslib_mix64,
    pslib_partition_counted,
    pslib_partition_rows,
    pslib_table_assign,
    pslib_table_close,
    pslib_table_decay,
    pslib_table_drop,
    pslib_table_erase,
    pslib_table_evict,
    pslib_table_evict_worst,
    pslib_table_export,
    pslib_table_first_broken,
    pslib_table_foresee,
    pslib_table_held,
    pslib_table_missing,
    pslib_table_open,
    pslib_table_promote,
    pslib_table_pull,
    pslib_table_push_at,
    pslib_table_shape,
    pslib_table_stats,
    pslib_tracking_bytes,
    pslib_tracking_close,
)

import math

import numpy as np

from cython_ext.table.steps import apply_dense, initial_rows
from cython_ext.table.store_settings import vector_levels

__all__ = ["Store", "apply_dense", "initial_rows", "vector_levels"]

cnp.import_array()

_U8 = np.dtype(np.uint8)
_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)
_ROWS_MAX = 1 << 40


cdef inline uint32_t *_numbers_of(object array):
    return <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef class Store:
    """The partitions of one table that one shard thread owns.

    A key's partition is the top ``partition_bits`` bits of its mixed value; a Store has a place for every
    partition of the table, and holds rows for those that its keys fall into. Every key is an ordinary key, 0
    and 2^64-1 too. What a row holds depends on what was done to its key, never on ``partition_bits``, on
    other keys or on the order in which keys came. Not thread safe: one thread at a time, except `stats`,
    `rows`, `partition_rows` and `partitions`, which may be read beside a thread that works and may then be a
    moment old. Methods run without the interpreter lock while they loop.

    Parameters
    ----------
    partition_bits : int
        0..20; an empty partition costs 64 bytes of address space, and no memory until it is touched.
    parts : sequence of tuples, 1..8
        One a part, in the order in which their floats stand in a row: ``(dim, optimizer_kind,
        hyperparameters (8,) float32, modifiers (4,) float32, corrections (steps, 2) float32,
        initializer_kind, initializer numbers (2,) float32, part_seed 0..2^64-1, initial_state (state_floats,)
        float32)``; dim is 1..4096. What the numbers mean stands in ``optimizer_steps.h`` and
        ``initializers.h``.
    narrow_parts : int
        Narrow rows hold the first ``narrow_parts`` parts, fewer than all; 0 means that there are none.
    storage : int
        How weights lie in memory: 0 float32, 1 bfloat16, 2 float16, 3 int8 with one float32 scale a part of
        a row. A push rounds stochastically by the random bits of its salt, so that small steps count on
        average; weights that are assigned or imported are rounded to the nearest value, those that a Store
        gave out come back unchanged. A finite weight stays finite.
    counters : int
        What a row counts, at the head of its state: bit 0 ``last_seen``, the largest ``now`` of its pushes;
        bit 1 ``shows`` and ``clicks``, sums over its pushes. Of int8, the scales of its parts follow.
    admission : (int, float, int)
        Which keys get rows: 0 all, 1 by exact count (1..65535), 2 by counting Bloom filter (count 1..255), 3
        with a probability (above 0, at most 1) at each push; the count or the probability; for 2 the
        counters of one partition's filter, a power of two in 2^6..2^27. Under 2, and only there, it depends
        on ``partition_bits`` which keys get rows early: never later than under 1.
    promotion : (int, float)
        When a narrow row becomes wide: 0 never by itself, 1 at so many shows, 2 at this score. Under 1 and 2
        new rows are narrow, and become wide at the end of a push. They need ``narrow_parts`` and shows.
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
    the Store); the message says how many of the keys, in their order, were done. Those are complete, the
    others have changed nothing, and the Store goes on working.

    An image is what the Store held when `image_begin` returned, whatever is pushed, erased, assigned or
    evicted after it. It is copied out by partitions in any order (`image_rows`, `image_counts`,
    `image_filters`), and `image_written` says that some are done with. It costs one branch a call where no
    image is being taken and none was taken with ``keep``.
    """

    # Not __init__, which a subclass may forget to call: there is no Store without a directory of partitions.
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
        self.table.level = chosen_level()
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

    cdef int class_of(self, str method, object narrow) except -1:
        if narrow and self.narrow_parts == 0:
            raise ValueError(f"{method}: expected narrow=False where narrow_parts is 0, got narrow=True")
        return PSLIB_NARROW if narrow else PSLIB_WIDE

    cdef object partition_number(self, str method, object partition):
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

    # --- policies -------------------------------------------------------------------------------------------

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
        """Count the ``keys``, (n,) uint64, that have no row; counted keys have none, repeated ones count."""
        keys = checked_array("missing: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            absent = pslib_table_missing(&self.table, key_data, n)
        return absent

    def foresee(self, keys, shows=None, clicks=None):
        """Foresee the rows and bytes that a push of these keys would take; nothing changes.

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
        return self._foreseen("foresee", keys, PSLIB_FORESEE_PUSH, &record)

    def foresee_rows(self, keys, narrow=False):
        """`foresee` for rows of one class that are assigned or imported."""
        keys = checked_array("foresee_rows: keys", keys, _U64, (None,))
        return self._foreseen("foresee_rows", keys, self.class_of("foresee_rows", narrow), NULL)

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

    # --- images ---------------------------------------------------------------------------------------------

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
        """Return whether the next image may be an increment of the last one."""
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
            When an image is being taken, or the marks of an increment were not kept.
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

    # --- the whole ------------------------------------------------------------------------------------------

    def partition_rows(self, partition):
        """Rows of both classes in one partition."""
        cdef uint32_t number = self.partition_number("partition_rows", partition)
        return pslib_partition_rows(&self.table.arenas[number])

    def partitions(self):
        """Numbers of the partitions that hold rows, counted keys or a filter, ascending, (k,) uint32."""
        cdef Py_ssize_t count = 1 << self.partition_bits, number
        held = np.zeros(count, bool)
        cdef uint8_t *held_data = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>held)
        cdef uint8_t **filters = self.table.policies.admission.filters
        with nogil:
            for number in range(count):
                held_data[number] = self.table.partitions[number].filled != 0
                if filters != NULL:
                    held_data[number] |= filters[number] != NULL
        return np.flatnonzero(held).astype(np.uint32)

    def stats(self):
        """Rows and memory.

        Returns
        -------
        dict of str to int
            ``rows`` and, of these, ``narrow_rows``; ``index_bytes`` of key indexes; ``row_bytes`` of row
            chunks and, of these, ``free_bytes`` that no row fills; ``directory_bytes``, of which partitions
            that were never touched take no memory; ``spare_bytes``, address space that the table holds for
            growth beside all these and that takes memory only where it was used before; ``filter_bytes`` of
            Bloom filters; ``resident_bytes``, what of all these has memory, at most. ``counted_keys`` have no
            row yet. Since the Store was made: ``turned_away`` keys of pushes that got no row, each time;
            rows ``admitted`` for keys that had to earn them, ``promoted`` to wide ones, and evicted:
            ``evicted_age``, ``evicted_norm``, ``evicted_score``, ``evicted_share``.
        """
        cdef PslibStats numbers
        cdef const PslibPolicies *policies = &self.table.policies
        with nogil:
            numbers = pslib_table_stats(&self.table)
        return {
            "rows": numbers.rows,
            "narrow_rows": numbers.narrow_rows,
            "index_bytes": numbers.index_bytes,
            "row_bytes": numbers.row_bytes,
            "free_bytes": numbers.free_bytes,
            "directory_bytes": numbers.directory_bytes,
            "spare_bytes": numbers.spare_bytes,
            "filter_bytes": numbers.filter_bytes,
            "resident_bytes": numbers.resident_bytes,
            "counted_keys": numbers.counted_keys,
            "turned_away": policies.admission.turned_away,
            "admitted": policies.admission.admitted,
            "promoted": policies.promotion.promoted,
            "evicted_age": policies.evicted[PSLIB_EVICT_AGE],
            "evicted_norm": policies.evicted[PSLIB_EVICT_NORM],
            "evicted_score": policies.evicted[PSLIB_EVICT_SCORE],
            "evicted_share": policies.evicted_share,
        }

    def check_consistency(self):
        """Look at every index cell and every row: does each lead to the other?

        Raises
        ------
        RuntimeError
            When not; the message names the partition. It means that memory was overwritten, or a fault here.
        """
        cdef int64_t broken
        with nogil:
            broken = pslib_table_first_broken(&self.table)
        if broken >= 0:
            raise RuntimeError(f"Store: expected index and rows of partition {broken} to agree; they do not")
        if broken != -1:
            raise RuntimeError(f"Store: expected {self.rows} rows in all partitions, found another number")
