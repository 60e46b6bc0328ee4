"""Arguments of a Store and of an optimizer step, checked and put into C structures; errors of full tables.

`cython_ext.table.store.Store` documents each of them.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.common.checks cimport (
    checked_array,
    checked_counts,
    finite_number,
    floats_of,
    keys_of,
    whole_number,
)
from cython_ext.table.table cimport *

import numpy as np

_U32 = np.dtype(np.uint32)
_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)

cdef enum:
    CORRECTIONS_MAX = 1 << 24  # a float32 counts steps exactly up to here


cdef int set_optimizer(PslibOptimizer *optimizer, str where, object kind, object hyperparameters,
                       object modifiers, object corrections) except -1:
    """Fill `optimizer`; it borrows `corrections`, which must outlive it."""
    optimizer.kind = whole_number(f"{where}: optimizer_kind", kind, 0, PSLIB_OPTIMIZER_KINDS - 1)
    numbers = checked_array(f"{where}: hyperparameters", hyperparameters, _F32, (PSLIB_HYPERPARAMETERS,))
    memcpy(optimizer.numbers, floats_of(numbers), PSLIB_HYPERPARAMETERS * sizeof(float))
    numbers = checked_array(f"{where}: modifiers", modifiers, _F32, (PSLIB_MODIFIERS,))
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f"{where}: modifiers: expected finite numbers >= 0, got {numbers.tolist()}")
    optimizer.weight_decay, optimizer.clip_norm, optimizer.cowclip_ratio, optimizer.cowclip_floor = numbers
    optimizer.decay_rate = optimizer.numbers[0]
    steps = len(corrections)
    if optimizer.kind == PSLIB_ADAM and not 2 <= steps <= CORRECTIONS_MAX:
        raise ValueError(f"{where}: corrections: expected 2..{CORRECTIONS_MAX} rows for Adam, got {steps}")
    optimizer.corrections = floats_of(corrections)
    optimizer.last_step = steps - 1
    return 0


cdef int set_initializer(PslibInitializer *initializer, str where, object kind, object numbers,
                         object seed) except -1:
    """Fill `initializer`; seed: of the part."""
    initializer.kind = whole_number(f"{where}: initializer_kind", kind, 0, PSLIB_INITIALIZER_KINDS - 1)
    numbers = checked_array(f"{where}: initializer numbers", numbers, _F32, (2,))
    memcpy(initializer.numbers, floats_of(numbers), 2 * sizeof(float))
    initializer.seed = whole_number(f"{where}: part_seed", seed, 0, 0xFFFFFFFFFFFFFFFF)
    return 0


cdef list set_part(PslibTable *table, int place, object numbers):
    """Fill one part of a table; return the arrays that it borrows."""
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
    """Fill the storage type, the counters of rows and the policies of a table."""
    tuples = (("admission", admission, 3), ("promotion", promotion, 2), ("score", score, 2))
    for name, numbers, length in tuples:
        if not isinstance(numbers, tuple) or len(numbers) != length:
            raise ValueError(f"Store: {name}: expected a tuple of {length}, got {numbers!r}")
    table.storage = whole_number("Store: storage", storage, 0, PSLIB_STORAGE_KINDS - 1)
    table.counters = whole_number("Store: counters", counters, 0, PSLIB_COUNTER_KINDS - 1)
    set_admission(&table.policies.admission, admission[0], admission[1], admission[2])
    kind, number = promotion
    kind = whole_number("Store: promotion: kind", kind, 0, PSLIB_PROMOTION_KINDS - 1)
    table.policies.promotion.kind = kind
    table.policies.promotion.number = finite_number("Store: promotion: number", number)
    if kind and not (narrow_parts and counters & PSLIB_COUNT_SHOWS):
        raise ValueError(
            f"Store: promotion: expected narrow_parts above 0 and counters with shows (bit 1),"
            f" got {narrow_parts} and {counters}"
        )
    table.policies.nonclick = finite_number("Store: score: nonclick coefficient", score[0])
    table.policies.click = finite_number("Store: score: click coefficient", score[1])
    return 0


cdef int set_admission(PslibAdmission *admission, object kind, object number,
                       object filter_counters) except -1:
    """Fill `admission`; number: the count or the probability."""
    admission.kind = whole_number("Store: admission: kind", kind, 0, PSLIB_ADMISSION_KINDS - 1)
    number = finite_number("Store: admission: number", number)
    filter_counters = whole_number("Store: admission: filter counters", filter_counters, 0, PSLIB_FILTER_MAX)
    if admission.kind == PSLIB_ADMIT_CHANCE:
        if not 0 < number <= 1 or np.float32(number) == 0:
            raise ValueError(f"Store: admission: expected a probability above 0 and at most 1, got {number}")
        admission.chance = number
    if admission.kind in (PSLIB_ADMIT_COUNT, PSLIB_ADMIT_BLOOM):
        most = PSLIB_COUNT_MAX if admission.kind == PSLIB_ADMIT_COUNT else PSLIB_FILTER_COUNT_MAX
        if not number.is_integer():
            raise ValueError(f"Store: admission: count: expected a whole number in 1..{most}, got {number}")
        admission.count = whole_number("Store: admission: count", int(number), 1, most)
    if admission.kind == PSLIB_ADMIT_BLOOM:
        if filter_counters < PSLIB_FILTER_MIN or filter_counters & (filter_counters - 1):
            raise ValueError(
                f"Store: admission: filter counters: expected a power of two in"
                f" {PSLIB_FILTER_MIN}..{PSLIB_FILTER_MAX}, got {filter_counters}"
            )
        admission.filter_counters = filter_counters
    return 0


cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n):
    """Point a record (OUT) at the shows and clicks of n keys; return the arrays, which must outlive it."""
    if shows is not None:
        shows = checked_counts(f"{method}: shows", shows, n, False)
    if clicks is not None:
        clicks = checked_counts(f"{method}: clicks", clicks, n, True)
    record.shows = NULL if shows is None else floats_of(shows)
    record.clicks = NULL if clicks is None else floats_of(clicks)
    return shows, clicks


cdef int raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1:
    """Raise the error of a push or an assignment that stopped after `done` of n keys."""
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


cdef object checked_keys(str method, object keys):
    """Return the keys as an array of uint64."""
    return checked_array(f"{method}: keys", keys, _U64, (None,))


cdef object partition_number(const PslibTable *table, str method, object partition):
    """Return the number of a partition of the table."""
    return whole_number(f"{method}: partition", partition, 0, (1 << table.partition_bits) - 1)


cdef object partition_numbers(const PslibTable *table, str method, object partitions):
    """Return numbers of partitions, uint32, each once and ascending; None: all."""
    if partitions is None:
        return np.arange(1 << table.partition_bits, dtype=_U32)
    chosen = np.unique(checked_array(f"{method}: partitions", partitions, _U32, (None,)))
    if len(chosen) and chosen.max() >> table.partition_bits:
        last = (1 << table.partition_bits) - 1
        raise ValueError(f"{method}: partitions: expected numbers in 0..{last}, got {chosen.max()}")
    return chosen


cdef int class_of(const PslibTable *table, str method, object narrow) except -1:
    """Return the class of rows that are made; raise ValueError for a narrow one that the table has not."""
    if narrow and table.classes[PSLIB_NARROW].part_count == 0:
        raise ValueError(f"{method}: expected narrow=False where narrow_parts is 0, got narrow=True")
    return PSLIB_NARROW if narrow else PSLIB_WIDE


cdef int require_partition(const PslibTable *table, str method, uint32_t partition, object keys) except -1:
    """Raise ValueError unless all keys are of the partition."""
    cdef int64_t n = len(keys), foreign
    cdef const uint64_t *key_data = keys_of(keys)
    with nogil:
        foreign = pslib_first_foreign(table, partition, key_data, n)
    if foreign >= 0:
        got = f"{keys[foreign]} of another one at place {foreign}"
        raise ValueError(f"{method}: expected keys of partition {partition}, got {got}")
    return 0


cdef int require_counters(const PslibTable *table, str method, int rule) except -1:
    """Raise ValueError unless rows have the counters that an eviction rule reads."""
    if rule == PSLIB_EVICT_AGE and not table.counters & PSLIB_COUNT_LAST_SEEN:
        name = "last_seen (bit 0)"
    elif rule == PSLIB_EVICT_SCORE and not table.counters & PSLIB_COUNT_SHOWS:
        name = "shows and clicks (bit 1)"
    else:
        return 0
    raise ValueError(f"{method}: expected a Store whose rows count {name}, got counters={table.counters}")


cdef tuple empty_rows(const PslibTable *table, int row_class, int64_t count):
    """Return arrays for keys, weights and state of rows of a class."""
    cdef const PslibRowClass *shape = &table.classes[row_class]
    weights = np.empty((count, shape.weight_floats), _F32)
    return np.empty(count, _U64), weights, np.empty((count, shape.state_floats), _F32)
