"""The partitions of one table that one shard thread owns: key index, rows, first values, optimizer steps.

The work is in C headers, each with its formulas and invariants above its loops: ``heap.h`` (memory in
huge pages), ``index_line.h`` (one cache line of the index), ``index_move.h`` (all of them when it grows),
``arena.h`` (where rows lie), ``partition.h`` (index over arenas), ``table.h``, ``strips.h``,
``strip_notes.h``, ``strip_loops.h`` and ``table_rows.h`` (batches), ``vectors.h`` (which instruction set),
``optimizer_steps.h``, ``initializers.h``, ``storage.h`` (types of weights, rounding) and ``row_io.h``
(what becomes of one row). The Cython files check what comes in, take memory for what goes out, and run
the loops without the interpreter lock: ``store_memory.pyx`` what a Store holds, ``store_rows.pyx`` its
rows, ``store_policies.pyx`` which keys get rows and which rows leave (``policies.h``, ``admission.h``,
``promotion.h``, ``eviction.h``), ``store_images.pyx`` the image of an instant while pushes go on
(``tracking.h``, ``images.h``), this one what is true of a whole Store.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t

from cython_ext.table.store_images cimport StoreImages
from cython_ext.table.table cimport (
    PSLIB_EVICT_AGE,
    PSLIB_EVICT_NORM,
    PSLIB_EVICT_SCORE,
    PslibPolicies,
    PslibStats,
    pslib_partition_rows,
    pslib_table_first_broken,
    pslib_table_stats,
)

import numpy as np

from cython_ext.table.steps import apply_dense, initial_rows
from cython_ext.table.store_memory import vector_levels

__all__ = ["Store", "apply_dense", "initial_rows", "vector_levels"]

cnp.import_array()


cdef class Store(StoreImages):
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
    """

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
