"""Checks of arrays and numbers at the edge of the kernels, shared by them at C level.

Every refusal is a ValueError of one line that names the argument, what was expected and what came.
"""

import os

from libc.string cimport memcpy

from cython_ext.table.table cimport (
    PSLIB_ADAM,
    PSLIB_ADMISSION_KINDS,
    PSLIB_ADMIT_BLOOM,
    PSLIB_ADMIT_CHANCE,
    PSLIB_ADMIT_COUNT,
    PSLIB_COUNT_MAX,
    PSLIB_FILTER_COUNT_MAX,
    PSLIB_FILTER_MAX,
    PSLIB_FILTER_MIN,
    PSLIB_HYPERPARAMETERS,
    PSLIB_INITIALIZER_KINDS,
    PSLIB_MODIFIERS,
    PSLIB_OPTIMIZER_KINDS,
    PSLIB_PROMOTION_KINDS,
    PslibAdmission,
    PslibInitializer,
    PslibOptimizer,
    PslibPromotion,
)

import numpy as np

cnp.import_array()

cdef extern from "common/vectors.h" nogil:
    enum:
        PSLIB_PLAIN
        PSLIB_AVX2
        PSLIB_AVX512
    int pslib_best_level()

_LEVELS = {"plain": PSLIB_PLAIN, "avx2": PSLIB_AVX2, "avx512": PSLIB_AVX512}

CORRECTIONS_MAX = 1 << 24  # a float32 counts exactly so far

_F32 = np.dtype(np.float32)
_F32_MAX = float(np.finfo(np.float32).max)


cdef bint is_array_of(object array, object dtype, tuple shape) except -1:
    """Whether it has the dtype and shape and is C-contiguous; 0.1 us, of which short requests need ten."""
    cdef int place
    if not cnp.PyArray_Check(array):
        return False
    if cnp.PyArray_NDIM(<cnp.ndarray>array) != len(shape):
        return False
    for place in range(len(shape)):
        want = shape[place]
        if want is not None and <cnp.npy_intp>want != cnp.PyArray_DIM(<cnp.ndarray>array, place):
            return False
    return cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>array) and array.dtype == dtype


cdef object checked_array(str where, object array, object dtype, tuple shape):
    """`array` itself when it has the dtype and shape (None = any length) and is C-contiguous; aligned."""
    if not is_array_of(array, dtype, shape):
        lengths = ", ".join("n" if want is None else str(want) for want in shape)
        if isinstance(array, np.ndarray):
            order = "C-contiguous" if array.flags.c_contiguous else "strided"
            came = f"{order} {array.dtype} {array.shape}"
        else:
            came = type(array).__name__
        comma = "," if len(shape) == 1 else ""
        raise ValueError(f"{where}: expected C-contiguous {dtype} ({lengths}{comma}), got {came}")
    return array if cnp.PyArray_ISALIGNED(<cnp.ndarray>array) else array.copy()


cdef int level_of(object vectors) except -1:
    """The instruction set of this name; of None the best, or what ``PSLIB_VECTORS`` named at the start."""
    if vectors is None:
        return BEST
    levels = [name for name, level in _LEVELS.items() if level <= pslib_best_level()]
    if vectors not in levels:
        raise ValueError(f"vectors: expected one of {', '.join(levels)} on this machine, got {vectors}")
    return _LEVELS[vectors]


cdef int BEST = pslib_best_level()
if os.environ.get("PSLIB_VECTORS"):
    BEST = level_of(os.environ["PSLIB_VECTORS"])


cdef object checked_target(str where, object array, object dtype, tuple shape):
    """As `checked_array`, for an array that is written to: it can't be a copy."""
    same = checked_array(where, array, dtype, shape)
    if same is not array or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>array):
        raise ValueError(f"{where}: expected a writeable and aligned array, got one that is not")
    return array


cdef object whole_number(str where, object number, object low, object high):
    """A whole number in low..high."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not low <= number <= high:
        raise ValueError(f"{where}: expected a whole number in {low}..{high}, got {number!r}")
    return int(number)


cdef object finite_number(str where, object number):
    """A number that is finite as float32."""
    real = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not real or not abs(number) <= _F32_MAX:
        raise ValueError(f"{where}: expected a number that is finite as float32, got {number!r}")
    return float(number)


cdef object checked_counts(str where, object counts, object n, object zero):
    """Float32 counts of n keys: finite, and above 0 or, with `zero`, not below it."""
    counts = checked_array(where, counts, _F32, (n,))
    wrong = ~((counts >= 0 if zero else counts > 0) & (counts <= _F32_MAX))
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        least = "not below" if zero else "above"
        raise ValueError(f"{where}: expected finite counts {least} 0, got {counts[place]} at place {place}")
    return counts


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
    initializer.kind = whole_number(f"{where}: initializer_kind", kind, 0, PSLIB_INITIALIZER_KINDS - 1)
    numbers = checked_array(f"{where}: initializer numbers", numbers, _F32, (2,))
    memcpy(initializer.numbers, floats_of(numbers), 2 * sizeof(float))
    initializer.seed = whole_number(f"{where}: part_seed", seed, 0, 0xFFFFFFFFFFFFFFFF)
    return 0


cdef int set_admission(PslibAdmission *admission, str where, tuple numbers) except -1:
    """Fill `admission` from (kind, count or probability, filter counters)."""
    kind, number, filter_counters = numbers
    admission.kind = whole_number(f"{where}: kind", kind, 0, PSLIB_ADMISSION_KINDS - 1)
    number = finite_number(f"{where}: number", number)
    filter_counters = whole_number(f"{where}: filter counters", filter_counters, 0, PSLIB_FILTER_MAX)
    if admission.kind == PSLIB_ADMIT_CHANCE:
        if not 0 < number <= 1 or np.float32(number) == 0:
            raise ValueError(f"{where}: expected a probability above 0 and at most 1, got {number}")
        admission.chance = number
    if admission.kind in (PSLIB_ADMIT_COUNT, PSLIB_ADMIT_BLOOM):
        most = PSLIB_COUNT_MAX if admission.kind == PSLIB_ADMIT_COUNT else PSLIB_FILTER_COUNT_MAX
        if not number.is_integer():
            raise ValueError(f"{where}: count: expected a whole number in 1..{most}, got {number}")
        admission.count = whole_number(f"{where}: count", int(number), 1, most)
    if admission.kind == PSLIB_ADMIT_BLOOM:
        if filter_counters < PSLIB_FILTER_MIN or filter_counters & (filter_counters - 1):
            raise ValueError(
                f"{where}: filter counters: expected a power of two in"
                f" {PSLIB_FILTER_MIN}..{PSLIB_FILTER_MAX}, got {filter_counters}"
            )
        admission.filter_counters = filter_counters
    return 0


cdef int set_promotion(PslibPromotion *promotion, str where, tuple numbers) except -1:
    """Fill `promotion` from (kind, number)."""
    kind, number = numbers
    promotion.kind = whole_number(f"{where}: kind", kind, 0, PSLIB_PROMOTION_KINDS - 1)
    promotion.number = finite_number(f"{where}: number", number)
    return 0
