"""Optimizer steps and initial values without a table, for dense blocks and for tests."""

cimport numpy as cnp
from libc.stdint cimport int64_t, intptr_t, uint64_t

from cython_ext.common.checks cimport (
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    level_of,
    whole_number,
)
from cython_ext.table.arguments cimport set_initializer, set_optimizer
from cython_ext.table.table cimport *

import numpy as np

cnp.import_array()

cdef extern from "table/optimizer_steps.h" nogil:
    int pslib_dense_step(int level, const PslibOptimizer *optimizer, int64_t dim, float *weights,
                         float *state, const float *gradient)

_U64 = np.dtype(np.uint64)
_F32 = np.dtype(np.float32)


def apply_dense_blocks(optimizer_kind, hyperparameters, modifiers, corrections, weights, states, gradient,
                       rate=1.0):
    """Take one optimizer step on dense vectors, in place; weights that decay do so by one step first.

    Parameters
    ----------
    optimizer_kind : int
        An elementwise optimizer: any but 2 (RowwiseAdagrad), whose sum would be over a whole block.
    hyperparameters : (8,) float32
    modifiers : (4,) float32
        Weight decay, clip norm, CowClip ratio and floor; 0 is off, and only weight decay may be on: norms are
        of rows, and a dense vector is cut into blocks anywhere.
    corrections : (steps, 2) float32
    weights : sequence of (n,) float32, changed
        Distinct arrays.
    states : sequence of (state floats,) float32, changed
        As for a row of n weights.
    gradient : (sum of all n,) float32
        Gradients of all vectors, side by side.
    rate : float
        Factor of the learning rate for this step, in float32; weights decay at their own rate.

    Returns
    -------
    int
        Vectors of which an element was refused, as its new weight or state would not be finite.

    Raises
    ------
    ValueError
        When a shape or dtype is wrong, or the optimizer mixes elements; nothing has changed then.
    """
    cdef PslibOptimizer optimizer
    corrections = checked_array("apply_dense: corrections", corrections, _F32, (None, 2))
    set_optimizer(&optimizer, "apply_dense", optimizer_kind, hyperparameters, modifiers, corrections)
    if optimizer.kind == PSLIB_ROWWISE_ADAGRAD:
        raise ValueError("apply_dense: expected an elementwise optimizer, got 2 (RowwiseAdagrad)")
    if pslib_optimizer_clips(&optimizer):
        raise ValueError("apply_dense: modifiers: expected no clipping of a dense vector: norms are of rows")
    cdef float factor = finite_number("apply_dense: rate", rate)
    pslib_set_rate(&optimizer, factor, False)
    cdef Py_ssize_t blocks = len(weights), i
    if len(states) != blocks:
        raise ValueError(f"apply_dense: state: expected one for each of {blocks} blocks, got {len(states)}")
    cdef int64_t[:, ::1] where = np.empty((blocks, 3), np.int64)
    cdef int64_t n, floats, total = 0, refused = 0
    for i in range(blocks):
        one = checked_target("apply_dense: weights", weights[i], _F32, (None,))
        n = len(one)
        floats = pslib_state_floats(optimizer.kind, n)
        state = checked_target("apply_dense: state", states[i], _F32, (floats,))
        where[i, 0], where[i, 1], where[i, 2] = n, <intptr_t> floats_of(one), <intptr_t> floats_of(state)
        total += n
    gradient = checked_array("apply_dense: gradient", gradient, _F32, (total,))
    cdef const float *gradient_data = floats_of(gradient)
    cdef int level = level_of(None)
    with nogil:
        for i in range(blocks):
            refused += pslib_dense_step(
                level, &optimizer, where[i, 0], <float *> <intptr_t> where[i, 1],
                <float *> <intptr_t> where[i, 2], gradient_data)
            gradient_data += where[i, 0]
    return refused


def apply_row(optimizer_kind, hyperparameters, modifiers, corrections, weights, state, gradient, shows,
              missed):
    """Do to one part of one row what a push does, in place: decay, clipping, step.

    Parameters
    ----------
    optimizer_kind : int
    hyperparameters : (8,) float32
    modifiers : (4,) float32
        Weight decay, clip norm, CowClip ratio and floor; 0 is off.
    corrections : (steps, 2) float32
    weights : (dim,) float32, changed
        dim is 1..4096.
    state : (state floats,) float32, changed
    gradient : (dim,) float32
    shows : float
        Examples of the batch that held the key; CowClip's bound is for one.
    missed : float
        Steps since the row's last push, for which its weights decay or L2 moves them; rounded down, NaN and
        negative numbers are 0.

    Returns
    -------
    bool
        Whether an element was refused, as its new weight or state would not be finite.

    Raises
    ------
    ValueError
        When a shape or dtype is wrong.
    """
    cdef PslibOptimizer optimizer
    corrections = checked_array("apply_row: corrections", corrections, _F32, (None, 2))
    set_optimizer(&optimizer, "apply_row", optimizer_kind, hyperparameters, modifiers, corrections)
    weights = checked_target("apply_row: weights", weights, _F32, (None,))
    cdef int64_t dim = whole_number("apply_row: dim", len(weights), 1, PSLIB_DIM_MAX)
    state = checked_target("apply_row: state", state, _F32, (pslib_state_floats(optimizer.kind, dim),))
    gradient = checked_array("apply_row: gradient", gradient, _F32, (dim,))
    return 0 != pslib_full_step(
        &optimizer, dim, floats_of(weights), floats_of(state), floats_of(gradient), shows, missed, True)


def initial_rows(keys, dim, initializer_kind, numbers, part_seed):
    """Return the initial values of one part, as a pull gives them for keys that have no row.

    Parameters
    ----------
    keys : (n,) uint64
    dim : int
        Columns of the part, 1..4096.
    initializer_kind : int
        0 Constant, 1 Uniform, 2 Normal.
    numbers : (2,) float32
        Constant: value. Uniform: bound. Normal: standard deviation. The second is unused.
    part_seed : int
        0..2^64-1.

    Returns
    -------
    (n, dim) float32
    """
    cdef PslibInitializer initializer
    keys = checked_array("initial_rows: keys", keys, _U64, (None,))
    cdef int64_t columns = whole_number("initial_rows: dim", dim, 1, PSLIB_DIM_MAX)
    set_initializer(&initializer, "initial_rows", initializer_kind, numbers, part_seed)
    out = np.empty((len(keys), columns), _F32)
    cdef int64_t n = len(keys), i
    cdef const uint64_t *key_data = keys_of(keys)
    cdef float *out_data = floats_of(out)
    with nogil:
        for i in range(n):
            pslib_first_values(&initializer, key_data[i], columns, out_data + i * columns)
    return out
