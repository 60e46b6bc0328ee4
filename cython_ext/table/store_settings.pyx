"""Settings of a Store: its parts and policies checked and put into its table in C; errors of a full table.

`cython_ext.table.store.Store` says what each of them means.
"""

from libc.stdint cimport int64_t

from cython_ext.common.checks cimport (
    checked_array,
    checked_counts,
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
    PSLIB_COUNTER_KINDS,
    PSLIB_COUNT_LAST_SEEN,
    PSLIB_COUNT_SHOWS,
    PSLIB_DIM_MAX,
    PSLIB_OK,
    PSLIB_PARTITION_FULL,
    PSLIB_PLAIN,
    PSLIB_ROWS_MAX,
    PSLIB_ROW_IDS,
    PSLIB_STORAGE_KINDS,
    PSLIB_TABLE_FULL,
    PslibPart,
    PslibRecord,
    PslibStatus,
    PslibTable,
    pslib_best_level,
    pslib_optimizer_catches_up,
    pslib_state_floats,
)

import os

import numpy as np

__all__ = ["vector_levels"]

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


cdef int chosen_level() except -1:
    levels = vector_levels()
    name = os.environ.get("PSLIB_VECTORS") or levels[len(levels) - 1]
    if name not in levels:
        raise ValueError(f"PSLIB_VECTORS: expected one of {', '.join(levels)} on this machine, got {name}")
    return _LEVELS[name]


cdef list set_part(PslibTable *table, int place, object numbers):
    """Fill in one part of a table; returns the arrays that it points into."""
    where = f"Store: part {place}"
    if len(numbers) != 9:
        raise ValueError(f"{where}: expected a tuple of 9, got {len(numbers)}")
    dim, kind, hyperparameters, modifiers, corrections = numbers[:5]
    initializer_kind, initializer, seed, state = numbers[5:]
    cdef PslibPart *part = &table.parts[place]
    part.dim = whole_number(f"{where}: dim", dim, 1, PSLIB_DIM_MAX)
    corrections = checked_array(f"{where}: corrections", corrections, _F32, (None, 2)).copy()
    set_optimizer(&part.optimizer, where, kind, hyperparameters, modifiers, corrections)
    set_initializer(&part.initializer, where, initializer_kind, initializer, seed)
    part.state_floats = pslib_state_floats(part.optimizer.kind, part.dim)
    if pslib_optimizer_catches_up(&part.optimizer) and not table.counters & PSLIB_COUNT_LAST_SEEN:
        raise ValueError(
            f"{where}: modifiers: expected counters with last_seen (bit 0) where rows catch up,"
            f" got counters={table.counters}"
        )
    state = checked_array(f"{where}: initial_state", state, _F32, (part.state_floats,)).copy()
    part.initial_state = floats_of(state)
    return [corrections, state]


cdef int set_policies(PslibTable *table, int narrow_parts, object storage, object counters, object admission,
                      object promotion, object score) except -1:
    """Fill in how weights lie, what rows count, and the policies of a table."""
    tuples = (("admission", admission, 3), ("promotion", promotion, 2), ("score", score, 2))
    for name, numbers, length in tuples:
        if not isinstance(numbers, tuple) or len(numbers) != length:
            raise ValueError(f"Store: {name}: expected a tuple of {length}, got {numbers!r}")
    table.storage = whole_number("Store: storage", storage, 0, PSLIB_STORAGE_KINDS - 1)
    table.counters = whole_number("Store: counters", counters, 0, PSLIB_COUNTER_KINDS - 1)
    set_admission(&table.policies.admission, "Store: admission", admission)
    set_promotion(&table.policies.promotion, "Store: promotion", promotion)
    if table.policies.promotion.kind and not (narrow_parts and counters & PSLIB_COUNT_SHOWS):
        raise ValueError(
            f"Store: promotion: expected narrow_parts above 0 and counters with shows (bit 1),"
            f" got {narrow_parts} and {counters}"
        )
    table.policies.nonclick = finite_number("Store: score: nonclick coefficient", score[0])
    table.policies.click = finite_number("Store: score: click coefficient", score[1])
    return 0


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


cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n):
    """Point a record (OUT) at the shows and clicks of n keys; returns the arrays, which must outlive it."""
    if shows is not None:
        shows = checked_counts(f"{method}: shows", shows, n, False)
    if clicks is not None:
        clicks = checked_counts(f"{method}: clicks", clicks, n, True)
    record.shows = NULL if shows is None else floats_of(shows)
    record.clicks = NULL if clicks is None else floats_of(clicks)
    return shows, clicks
