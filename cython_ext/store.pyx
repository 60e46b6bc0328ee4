"""The partitions of one table that one shard thread owns: key index, rows, first values, optimizer steps.

The work is in C headers, each with its formulas and invariants above its loops: ``heap.h`` (memory in huge
pages), ``index_line.h`` (one cache line of the index), ``arena.h`` (where rows lie), ``partition.h`` (index
over arenas), ``table.h``, ``table_loops.h`` and ``table_rows.h`` (batches), ``vectors.h`` (which instruction
set), ``optimizer_steps.h`` and ``initializers.h``. This file checks what comes in,
takes memory for what goes out, and runs the loops without the interpreter lock.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from cython_ext.checks cimport (
    checked_array,
    checked_target,
    floats_of,
    keys_of,
    set_initializer,
    set_optimizer,
    whole_number,
)
from cython_ext.table cimport (
    PSLIB_AVX2,
    PSLIB_AVX512,
    PSLIB_DIM_MAX,
    PSLIB_NARROW,
    PSLIB_OK,
    PSLIB_PARTITION_BITS_MAX,
    PSLIB_PARTITION_FULL,
    PSLIB_PARTS_MAX,
    PSLIB_PLAIN,
    PSLIB_ROW_IDS,
    PSLIB_ROWS_MAX,
    PSLIB_TABLE_FULL,
    PSLIB_WIDE,
    PslibPart,
    PslibRowClass,
    PslibStats,
    PslibStatus,
    PslibTable,
    pslib_best_level,
    pslib_first_stranger,
    pslib_state_floats,
    pslib_table_assign,
    pslib_table_close,
    pslib_table_drop,
    pslib_table_erase,
    pslib_table_export,
    pslib_table_first_broken,
    pslib_table_open,
    pslib_table_promote,
    pslib_table_pull,
    pslib_table_push,
    pslib_table_shape,
    pslib_table_stats,
)

import os

import numpy as np

from cython_ext.steps import apply_dense, initial_rows

__all__ = ["Store", "apply_dense", "initial_rows", "vector_levels"]

cnp.import_array()

_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)


_LEVELS = {"plain": PSLIB_PLAIN, "avx2": PSLIB_AVX2, "avx512": PSLIB_AVX512}


def vector_levels():
    """Instruction sets for which this machine can run the loops of a Store, plainest first.

    ``plain`` is what every processor of the kind has: SSE2 on x86-64, NEON on ARM. A Store takes the last
    one, or the one that the environment variable ``PSLIB_VECTORS`` names when the Store is made. All give the
    same bits.

    Returns
    -------
    tuple of str
        Some of ``plain``, ``avx2``, ``avx512``.
    """
    best = pslib_best_level()
    return tuple(name for name, level in _LEVELS.items() if level <= best)


cdef int _level() except -1:
    levels = vector_levels()
    name = os.environ.get("PSLIB_VECTORS") or levels[len(levels) - 1]
    if name not in levels:
        raise ValueError(f"PSLIB_VECTORS: expected one of {', '.join(levels)} on this machine, got {name}")
    return _LEVELS[name]


cdef int _raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1:
    if status == PSLIB_OK:
        return 0
    rest = f"the first {done} of {n} keys are done, the others have changed nothing"
    if status == PSLIB_PARTITION_FULL:
        raise OverflowError(
            f"{method}: a partition holds its limit of {PSLIB_ROWS_MAX} rows; {rest}; use more partition_bits"
        )
    if status == PSLIB_TABLE_FULL:
        raise OverflowError(
            f"{method}: a table holds its limit of {PSLIB_ROW_IDS} rows; {rest}; use more shard threads"
        )
    raise MemoryError(f"{method}: no memory for one more row; {rest}")


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
        hyperparameters (8,) float32, corrections (steps, 2) float32, initializer_kind, initializer numbers
        (2,) float32, part_seed 0..2^64-1, initial_state (state_floats,) float32)``; dim is 1..4096. What the
        numbers mean stands in ``optimizer_steps.h`` and ``initializers.h``.
    narrow_parts : int
        Narrow rows hold the first ``narrow_parts`` parts, fewer than all; 0 means that there are none.

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
    """

    cdef PslibTable table
    cdef list borrowed  # arrays that `table` points into
    cdef readonly int partition_bits
    cdef readonly int narrow_parts

    def __cinit__(self):
        memset(&self.table, 0, sizeof(PslibTable))

    def __init__(self, partition_bits, parts, narrow_parts=0):
        if self.table.partitions != NULL:
            raise ValueError("Store: expected to be initialised once")
        bits = whole_number("Store: partition_bits", partition_bits, 0, PSLIB_PARTITION_BITS_MAX)
        count = whole_number("Store: number of parts", len(parts), 1, PSLIB_PARTS_MAX)
        self.narrow_parts = whole_number("Store: narrow_parts", narrow_parts, 0, count - 1)
        self.partition_bits = bits
        self.table.level = _level()
        self.borrowed = []
        for place, part in enumerate(parts):
            self._set_part(place, part)
        pslib_table_shape(&self.table, count, self.narrow_parts)
        if pslib_table_open(&self.table, self.partition_bits) != PSLIB_OK:
            raise MemoryError(f"Store: no memory for a directory of {1 << self.partition_bits} partitions")

    def __dealloc__(self):
        pslib_table_close(&self.table)

    cdef int _set_part(self, int place, object numbers) except -1:
        where = f"Store: part {place}"
        if len(numbers) != 8:
            raise ValueError(f"{where}: expected a tuple of 8, got {len(numbers)}")
        dim, kind, hyperparameters, corrections, initializer_kind, initializer, seed, state = numbers
        cdef PslibPart *part = &self.table.parts[place]
        part.dim = whole_number(f"{where}: dim", dim, 1, PSLIB_DIM_MAX)
        corrections = checked_array(f"{where}: corrections", corrections, _F32, (None, 2)).copy()
        set_optimizer(&part.optimizer, where, kind, hyperparameters, corrections)
        set_initializer(&part.initializer, where, initializer_kind, initializer, seed)
        part.state_floats = pslib_state_floats(part.optimizer.kind, part.dim)
        state = checked_array(f"{where}: initial_state", state, _F32, (part.state_floats,)).copy()
        part.initial_state = floats_of(state)
        self.borrowed += [corrections, state]
        return 0

    cdef int _class(self, str method, object narrow) except -1:
        if narrow and self.narrow_parts == 0:
            raise ValueError(f"{method}: expected narrow=False where narrow_parts is 0, got narrow=True")
        return PSLIB_NARROW if narrow else PSLIB_WIDE

    cdef object _partition(self, str method, object partition):
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
    def narrow_dim(self):
        """Weights of a narrow row."""
        return self.table.classes[PSLIB_NARROW].weight_floats

    @property
    def narrow_state_floats(self):
        """Floats of state of a narrow row."""
        return self.table.classes[PSLIB_NARROW].state_floats

    @property
    def rows(self):
        """Rows of both classes in all partitions."""
        return self.table.rows[PSLIB_WIDE] + self.table.rows[PSLIB_NARROW]

    def pull(self, keys, out):
        """Read the weights of all parts of each key; nothing is made.

        A key without a row gives its first values, and so do the wide parts of a key with a narrow row.

        Parameters
        ----------
        keys : (n,) uint64
            May repeat.
        out : (n, dim) float32, written to

        Returns
        -------
        int
            How many of ``keys`` have no row; repeated ones count each time.
        """
        keys = checked_array("pull: keys", keys, _U64, (None,))
        out = checked_target("pull: out", out, _F32, (len(keys), self.dim))
        cdef int64_t n = len(keys), absent
        cdef const uint64_t *key_data = keys_of(keys)
        cdef float *out_data = floats_of(out)
        with nogil:
            absent = pslib_table_pull(&self.table, key_data, n, out_data)
        return absent

    def push(self, keys, gradients, narrow=False):
        """Make absent rows, then take one optimizer step a part for each key.

        A key that occurs more than once takes one step for each occurrence, in their order: sum the gradients
        of a key first where one step is meant. A narrow row takes steps for the parts that it has and ignores
        the gradients of the others; a wide row stays wide, whatever ``narrow`` says. A gradient that is NaN
        or infinite is applied as it is: that row (no other) holds NaN from then on.

        Parameters
        ----------
        keys : (n,) uint64
        gradients : (n, dim) float32
            Of all parts side by side, also for narrow rows.
        narrow : bool
            Which class rows get that are made here.
        """
        keys = checked_array("push: keys", keys, _U64, (None,))
        gradients = checked_array("push: gradients", gradients, _F32, (len(keys), self.dim))
        cdef int row_class = self._class("push", narrow)
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const float *gradient_data = floats_of(gradients)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_push(&self.table, key_data, n, gradient_data, row_class, &done)
        _raise_unless_done("push", status, done, n)

    def erase(self, keys):
        """Forget the rows of these keys; a key without a row is an ordinary case.

        A partition that has lost most of its rows gives memory back; the rows that it keeps then get new row
        numbers in their old order.

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
            erased = pslib_table_erase(&self.table, key_data, n)
        return erased

    def assign(self, keys, weights, state):
        """Make or overwrite whole rows; they are wide afterwards. Of a repeated key the last one counts.

        Parameters
        ----------
        keys : (n,) uint64
        weights : (n, dim) float32
        state : (n, state_floats) float32
        """
        keys = checked_array("assign: keys", keys, _U64, (None,))
        self._assign("assign", keys, weights, state, PSLIB_WIDE)

    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1:
        cdef const PslibRowClass *shape = &self.table.classes[row_class]
        weights = checked_array(f"{method}: weights", weights, _F32, (len(keys), shape.weight_floats))
        state = checked_array(f"{method}: state", state, _F32, (len(keys), shape.state_floats))
        cdef int64_t n = len(keys), done = 0
        cdef const uint64_t *key_data = keys_of(keys)
        cdef const float *weight_data = floats_of(weights)
        cdef const float *state_data = floats_of(state)
        cdef PslibStatus status
        with nogil:
            status = pslib_table_assign(&self.table, key_data, n, weight_data, state_data, row_class, &done)
        return _raise_unless_done(method, status, done, n)

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
        cdef uint32_t number = self._partition("export_partition", partition)
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
        cdef uint32_t number = self._partition("import_partition", partition)
        keys = checked_array("import_partition: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), stranger
        cdef const uint64_t *key_data = keys_of(keys)
        with nogil:
            stranger = pslib_first_stranger(&self.table, number, key_data, n)
        if stranger >= 0:
            raise ValueError(
                f"import_partition: expected keys of partition {partition},"
                f" got {keys[stranger]} of another one at place {stranger}"
            )
        row_class = self._class("import_partition", narrow) if n else (PSLIB_NARROW if narrow else PSLIB_WIDE)
        self._assign("import_partition", keys, weights, state, row_class)

    def drop_partition(self, partition):
        """Forget all rows of a partition and give back its memory.

        Returns
        -------
        int
            How many rows there were.
        """
        cdef uint32_t number = self._partition("drop_partition", partition)
        cdef int64_t rows
        with nogil:
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
            status = pslib_table_promote(&self.table, key_data, n, &promoted, &done)
        _raise_unless_done("promote", status, done, n)
        return promoted

    def partition_rows(self, partition):
        """Rows of both classes in one partition."""
        cdef uint32_t number = self._partition("partition_rows", partition)
        return self.table.partitions[number].rows

    def partitions(self):
        """Numbers of the partitions that hold rows, ascending, (k,) uint32."""
        cdef Py_ssize_t count = 1 << self.partition_bits, number
        held = np.zeros(count, bool)
        cdef uint8_t *held_data = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>held)
        with nogil:
            for number in range(count):
                held_data[number] = self.table.partitions[number].rows != 0
        return np.flatnonzero(held).astype(np.uint32)

    def stats(self):
        """Rows and memory.

        Returns
        -------
        dict of str to int
            ``rows`` and, of these, ``narrow_rows``; ``index_bytes`` of key indexes; ``row_bytes`` of row
            chunks and, of these, ``free_bytes`` that no row fills; ``directory_bytes``, of which partitions
            that were never touched take no memory; ``spare_bytes``, address space that the table holds for
            growth beside all these and that takes memory only where it was used before.
        """
        cdef PslibStats numbers
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
