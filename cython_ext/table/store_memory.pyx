"""What one Store holds: its table in C, the parts of its rows, its policies; and the errors of a full one.

Everything that a caller passes when a Store is made is checked here; `cython_ext.table.store.Store` says what it
means.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from cython_ext.common.checks cimport (
    checked_array,
    finite_number,
    floats_of,
    set_admission,
    set_initializer,
    set_optimizer,
    set_promotion,
    whole_number,
)
from cython_ext.table.table cimport (
    PSLIB_AVX2,
    PSLIB_AVX512,
    PSLIB_COUNT_LAST_SEEN,
    PSLIB_COUNT_SHOWS,
    PSLIB_COUNTER_KINDS,
    PSLIB_DIM_MAX,
    PSLIB_NARROW,
    PSLIB_OK,
    PSLIB_PARTITION_BITS_MAX,
    PSLIB_PARTITION_FULL,
    PSLIB_PARTS_MAX,
    PSLIB_PLAIN,
    PSLIB_ROW_IDS,
    PSLIB_ROWS_MAX,
    PSLIB_STORAGE_KINDS,
    PSLIB_TABLE_FULL,
    PSLIB_WIDE,
    PslibPart,
    PslibStatus,
    pslib_best_level,
    pslib_optimizer_catches_up,
    pslib_state_floats,
    pslib_table_close,
    pslib_table_open,
    pslib_table_shape,
    pslib_tracking_close,
)

import os

import numpy as np

__all__ = ["StoreMemory", "vector_levels"]

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


cdef int raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1:
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


cdef class StoreMemory:
    """What a Store holds; made as `cython_ext.table.store.Store`."""

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
        self.table.level = _level()
        self._set_policies(storage, counters, admission, promotion, score)
        self.borrowed = []
        for place, part in enumerate(parts):
            self._set_part(place, part)
        pslib_table_shape(&self.table, count, self.narrow_parts)
        if pslib_table_open(&self.table, self.partition_bits) != PSLIB_OK:
            raise MemoryError(f"Store: no memory for a directory of {1 << self.partition_bits} partitions")

    def __dealloc__(self):
        pslib_tracking_close(&self.table)
        pslib_table_close(&self.table)

    cdef int _set_part(self, int place, object numbers) except -1:
        where = f"Store: part {place}"
        if len(numbers) != 9:
            raise ValueError(f"{where}: expected a tuple of 9, got {len(numbers)}")
        dim, kind, hyperparameters, modifiers, corrections = numbers[:5]
        initializer_kind, initializer, seed, state = numbers[5:]
        cdef PslibPart *part = &self.table.parts[place]
        part.dim = whole_number(f"{where}: dim", dim, 1, PSLIB_DIM_MAX)
        corrections = checked_array(f"{where}: corrections", corrections, _F32, (None, 2)).copy()
        set_optimizer(&part.optimizer, where, kind, hyperparameters, modifiers, corrections)
        set_initializer(&part.initializer, where, initializer_kind, initializer, seed)
        part.state_floats = pslib_state_floats(part.optimizer.kind, part.dim)
        if pslib_optimizer_catches_up(&part.optimizer) and not self.table.counters & PSLIB_COUNT_LAST_SEEN:
            raise ValueError(
                f"{where}: modifiers: expected counters with last_seen (bit 0) where rows catch up,"
                f" got counters={self.table.counters}"
            )
        state = checked_array(f"{where}: initial_state", state, _F32, (part.state_floats,)).copy()
        part.initial_state = floats_of(state)
        self.borrowed += [corrections, state]
        return 0

    cdef int _set_policies(self, object storage, object counters, object admission, object promotion,
                           object score) except -1:
        tuples = (("admission", admission, 3), ("promotion", promotion, 2), ("score", score, 2))
        for name, numbers, length in tuples:
            if not isinstance(numbers, tuple) or len(numbers) != length:
                raise ValueError(f"Store: {name}: expected a tuple of {length}, got {numbers!r}")
        self.table.storage = whole_number("Store: storage", storage, 0, PSLIB_STORAGE_KINDS - 1)
        self.table.counters = whole_number("Store: counters", counters, 0, PSLIB_COUNTER_KINDS - 1)
        set_admission(&self.table.policies.admission, "Store: admission", admission)
        set_promotion(&self.table.policies.promotion, "Store: promotion", promotion)
        if self.table.policies.promotion.kind and not (self.narrow_parts and counters & PSLIB_COUNT_SHOWS):
            raise ValueError(
                f"Store: promotion: expected narrow_parts above 0 and counters with shows (bit 1),"
                f" got {self.narrow_parts} and {counters}"
            )
        self.table.policies.nonclick = finite_number("Store: score: nonclick coefficient", score[0])
        self.table.policies.click = finite_number("Store: score: click coefficient", score[1])
        return 0

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
