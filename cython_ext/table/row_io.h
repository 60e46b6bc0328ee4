/* row_io.h: one row read, initialized, stepped, copied in and out.
 *
 *     weights  of part 0, of part 1, ... in the storage type of the table (storage.h)
 *     state    [last_seen][shows, clicks][scale of each part][state of part 0][state of part 1] ...
 *
 * all float32. Counters exist when the table's policies need them, scales when weights are int8. A narrow row has the
 * same, for its own parts.
 *
 *     last_seen   the largest `now` of all pushes that touched the row; a row has missed the time from it to `now`
 *     shows       sum of the shows of these pushes; clicks likewise
 *
 * A push reads weights to float32, steps them, and stores them rounded stochastically; the first step of a new row
 * starts from its unrounded initial values, so that each push rounds once. Rows that are assigned or imported, and
 * parts that are initialized without a step (promotion), are rounded to the nearest value. Initial values of keys
 * without a row are pulled unrounded.
 */
#ifndef PSLIB_ROW_IO_H
#define PSLIB_ROW_IO_H

#include <float.h>

#include "table/table.h"

/* --- counters */

enum { PSLIB_COUNTER_FLOATS_MAX = 3 };

PSLIB_INLINE int pslib_shows_at(const PslibTable *table)
{
    return table->counters & PSLIB_COUNT_LAST_SEEN ? 1 : 0;
}

PSLIB_INLINE int64_t pslib_counter_floats(const PslibTable *table)
{
    return (table->counters & PSLIB_COUNT_LAST_SEEN) + (table->counters & PSLIB_COUNT_SHOWS);
}

/* Return the time since the last push of a row; 0 where it is not counted. */
PSLIB_INLINE float pslib_missed(const PslibTable *table, const float *state, float now)
{
    return table->counters & PSLIB_COUNT_LAST_SEEN && now > state[0] ? now - state[0] : 0.0f;
}

/* last_seen = max(last_seen, now);  shows += shows;  clicks += clicks, at most FLT_MAX.  state: INOUT. i: place of the
 * key in the record. */
PSLIB_INLINE void pslib_count(const PslibTable *table, float *state, int made, const PslibRecord *record, int64_t i)
{
    if (made)
        for (int64_t j = 0; j < pslib_counter_floats(table); j++) state[j] = 0;
    if (table->counters & PSLIB_COUNT_LAST_SEEN && (made || !(state[0] >= record->now))) state[0] = record->now;
    if ((table->counters & PSLIB_COUNT_SHOWS) == 0) return;
    float *counts = state + pslib_shows_at(table);
    const float shows = counts[0] + (record->shows == NULL ? 1.0f : record->shows[i]);
    const float clicks = counts[1] + (record->clicks == NULL ? 0.0f : record->clicks[i]);
    counts[0] = shows < FLT_MAX ? shows : FLT_MAX;
    counts[1] = clicks < FLT_MAX ? clicks : FLT_MAX;
}

/* --- rows */

/* Copy the floats of one row; common lengths are constants for the compiler. */
PSLIB_INLINE void pslib_copy_floats(float *restrict to, const float *restrict from, int64_t count)
{
    switch (count) {
    case 8: memcpy(to, from, 8 * sizeof(float)); break;
    case 16: memcpy(to, from, 16 * sizeof(float)); break;
    case 32: memcpy(to, from, 32 * sizeof(float)); break;
    default:
        for (int64_t j = 0; j < count; j++) to[j] = from[j];
    }
}

/* Read the weights of a row as float32. out: OUT, (weight_floats of the class,). */
PSLIB_INLINE void pslib_row_load(const PslibTable *table, const PslibRowClass *shape, int level, const void *weights,
                                 const float *state, float *out)
{
    if (table->storage == PSLIB_FLOAT32) {
        pslib_copy_floats(out, weights, shape->weight_floats);
        return;
    }
    if (table->storage != PSLIB_INT8) { /* parts lie side by side and have no scales */
        pslib_load_at(level, table->storage, shape->weight_floats, weights, 0, out);
        return;
    }
    const float *scales = state + pslib_counter_floats(table);
    const int8_t *from = weights;
    for (int p = 0; p < shape->part_count; p++) {
        pslib_load_at(level, PSLIB_INT8, table->parts[p].dim, from, scales[p], out);
        from += table->parts[p].dim;
        out += table->parts[p].dim;
    }
}

/* pslib_row_load at the time `now`: with the weight decay that the row has missed. */
PSLIB_INLINE void pslib_row_pull(const PslibTable *table, const PslibRowClass *shape, int level, const void *weights,
                                 const float *state, float now, float *out)
{
    pslib_row_load(table, shape, level, weights, state, out);
    if (!table->decays) return;
    const float missed = pslib_missed(table, state, now);
    for (int p = 0; p < shape->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        const float factor = pslib_decay_factor(&part->optimizer, missed);
        if (factor != 1.0f)
            for (int64_t j = 0; j < part->dim; j++) out[j] *= factor;
        out += part->dim;
    }
}

/* Overwrite a row. from: IN, (weight_floats of the class,). from_state: IN, (state_floats of the class,), or NULL: the
 * row keeps its state. */
static inline void pslib_row_put(PslibTable *table, const PslibRowClass *shape, const float *from,
                                 const float *from_state, void *weights, float *state)
{
    uint8_t *to = weights;
    if (shape->state_floats > 0 && from_state != NULL) memcpy(state, from_state, sizeof(float) * (size_t)shape->state_floats);
    float *scales = state + pslib_counter_floats(table), *own = state + shape->head_floats;
    for (int p = 0; p < shape->part_count; p++) {
        const int64_t dim = table->parts[p].dim;
        if (from_state != NULL) table->wild |= !pslib_state_is_tame(&table->parts[p].optimizer, dim, own);
        own += table->parts[p].state_floats;
        pslib_store_nearest(table->storage, dim, from, to, scales + p);
        to += (size_t)dim * pslib_storage_bytes(table->storage);
        from += dim;
    }
}

/* Initialize the parts of a row from first_part on: initial values, rounded to the nearest, and initial state. */
static inline void pslib_row_begin(const PslibTable *table, const PslibRowClass *shape, int first_part, uint64_t key,
                                   void *weights, float *state)
{
    float first[PSLIB_DIM_MAX];
    uint8_t *to = weights;
    float *scales = state + pslib_counter_floats(table), *own = state + shape->head_floats;
    for (int p = 0; p < shape->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        if (p >= first_part) {
            if (table->storage == PSLIB_INT8) scales[p] = 0;
            pslib_first_values(&part->initializer, key, part->dim, first);
            pslib_store_nearest(table->storage, part->dim, first, to, scales + p);
            if (part->state_floats > 0) memcpy(own, part->initial_state, sizeof(float) * (size_t)part->state_floats);
        }
        to += (size_t)part->dim * pslib_storage_bytes(table->storage);
        own += part->state_floats;
    }
}

/* Copy the common content of two rows of different classes: counters, and the parts of the one with fewer. */
static inline void pslib_row_copy_common(const PslibTable *table, const PslibRowClass *from_shape, uint32_t from_row,
                                         const PslibRowClass *to_shape, uint32_t to_row)
{
    const PslibRowClass *less = from_shape->part_count < to_shape->part_count ? from_shape : to_shape;
    const float *from = pslib_row_state(from_shape, from_row);
    float *to = pslib_row_state(to_shape, to_row);
    memcpy(pslib_row_weights(to_shape, to_row), pslib_row_weights(from_shape, from_row),
           (size_t)less->weight_floats * pslib_storage_bytes(table->storage));
    memcpy(to, from, sizeof(float) * (size_t)less->head_floats);
    memcpy(to + to_shape->head_floats, from + from_shape->head_floats,
           sizeof(float) * (size_t)(less->state_floats - less->head_floats));
}

/* --- pushes */

/* Initialize one part of a new row, unrounded. w: OUT, (dim,). state: OUT. */
PSLIB_INLINE void pslib_part_begin(const PslibPart *part, int level, uint64_t key, float *w, float *state)
{
    pslib_first_values_at(level, &part->initializer, key, part->dim, w);
    if (part->state_floats == 1) state[0] = part->initial_state[0]; /* a memcpy of variable length is a call */
    else if (part->state_floats > 0) memcpy(state, part->initial_state, sizeof(float) * (size_t)part->state_floats);
}

PSLIB_INLINE uint64_t pslib_rounding_base(const PslibPart *part, uint64_t key, const PslibRecord *record)
{
    return pslib_mix64(key ^ part->initializer.seed ^ record->rounding);
}

/* Return 1 if the step of a part is to be guarded: all of a table are, from its first gradient on that is not tame.
 * Row-wise Adagrad and FTRL look at their own sums. table: INOUT. */
PSLIB_INLINE int pslib_is_wild(PslibTable *table, const PslibPart *part, int level, int64_t dim, const float *gradient)
{
    const int guards = part->optimizer.kind == PSLIB_ROWWISE_ADAGRAD || part->optimizer.kind == PSLIB_FTRL;
    if (!guards && __builtin_expect(pslib_any_from_two_at(level, dim, gradient), 0))
        table->wild |= !pslib_gradients_are_tame(dim, gradient);
    return __builtin_expect(table->wild, 0);
}

/* A guarded step of one part. Not inlined: it is long, and rare. */
PSLIB_INLINE void pslib_wild_step_at(PslibTable *table, const PslibPart *part, float *w, float *state,
                                     const float *gradient, float shows, float missed, int level)
{
    (void)level;
    table->steps_refused += pslib_full_step(&part->optimizer, part->dim, w, state, gradient, shows, missed, 1);
}

PSLIB_COPIES(void, pslib_wild_step, table->level,
             (PslibTable *table, const PslibPart *part, float *w, float *state, const float *gradient, float shows,
              float missed),
             table, part, w, state, gradient, shows, missed)

/* One step of all parts of a row of any shape and storage type. made: the row is new and its bytes are undefined.
 * i: place of the key in the record. */
PSLIB_INLINE void pslib_row_push(PslibTable *table, const PslibRowClass *shape, int level, uint64_t key, int made,
                                 void *weights, float *state, const float *gradient, const PslibRecord *record,
                                 int64_t i)
{
    float buffer[PSLIB_DIM_MAX];
    const int storage = table->storage;
    uint8_t *at = weights;
    float *scales = state + pslib_counter_floats(table), *own = state + shape->head_floats;
    const float shows = record->shows == NULL ? 1.0f : record->shows[i];
    const float missed = made ? 0.0f : pslib_missed(table, state, record->now);
    if (table->counters != 0) pslib_count(table, state, made, record, i);
    for (int p = 0; p < shape->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        float *w = storage == PSLIB_FLOAT32 ? (float *)(void *)at : buffer;
        if (made) pslib_part_begin(part, level, key, w, own);
        else if (storage != PSLIB_FLOAT32)
            pslib_load_at(level, storage, part->dim, at, storage == PSLIB_INT8 ? scales[p] : 0, w);
        if (pslib_is_wild(table, part, level, part->dim, gradient))
            pslib_wild_step(table, part, w, own, gradient, shows, missed);
        else if (pslib_optimizer_is_plain(&part->optimizer))
            table->steps_refused += pslib_known_step(&part->optimizer, part->dim, w, own, gradient);
        else
            table->steps_refused += pslib_full_step(&part->optimizer, part->dim, w, own, gradient, shows, missed, 0);
        if (storage != PSLIB_FLOAT32)
            pslib_store_at(level, storage, part->dim, w, pslib_rounding_base(part, key, record), at, scales + p);
        at += (size_t)part->dim * pslib_storage_bytes(storage);
        own += part->state_floats;
        gradient += part->dim;
    }
}

/* Return 1 if a push is steps alone: float32, no counters, no clipping, no decay. */
static inline int pslib_rows_are_plain(const PslibTable *table)
{
    int plain = table->storage == PSLIB_FLOAT32 && table->counters == 0;
    for (int p = 0; p < table->part_count; p++) plain &= pslib_optimizer_is_plain(&table->parts[p].optimizer);
    return plain;
}

/* pslib_row_push for such tables, whose state begins with that of part 0. */
PSLIB_INLINE void pslib_row_push_plain(PslibTable *table, int level, uint64_t key, int made, float *w, float *state,
                                       const float *gradient)
{
    for (int p = 0; p < table->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        if (made) pslib_part_begin(part, level, key, w, state);
        if (pslib_is_wild(table, part, level, part->dim, gradient))
            pslib_wild_step(table, part, w, state, gradient, 1.0f, 0.0f);
        else table->steps_refused += pslib_known_step(&part->optimizer, part->dim, w, state, gradient);
        w += part->dim;
        state += part->state_floats;
        gradient += part->dim;
    }
}

#if PSLIB_HAS_LEVELS
/* w = initial value - (lr g) / divisor, 16 columns */
PSLIB_FOR_AVX2 static inline void pslib_uniform_step_avx2(const PslibPart *part, uint64_t key, float divisor,
                                                          const float *gradient, float *w)
{
    const uint64_t base = pslib_mix64(key ^ part->initializer.seed);
    const __m256 rate = _mm256_set1_ps(part->optimizer.numbers[0]);
    for (int j = 0; j < 16; j += 8) {
        const __m256 first = pslib_uniform_eight_avx2(base, part->initializer.numbers[0], j);
        const __m256 step = _mm256_mul_ps(rate, _mm256_loadu_ps(gradient + j));
        _mm256_storeu_ps(w + j, _mm256_sub_ps(first, _mm256_div_ps(step, _mm256_set1_ps(divisor))));
    }
}
#endif

/* Initialize and step a new row of the most common part, with each float stored once: stores retire in order and wait
 * for the line of a new row, so initial values are kept in registers. Returns 0, with nothing done, for other parts,
 * and where the step is to be guarded. */
PSLIB_INLINE int pslib_row_begin_and_step16(const PslibPart *part, int level, uint64_t key, const float *gradient,
                                            float *w, float *state)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX2 && part->initializer.kind == PSLIB_UNIFORM &&
        part->optimizer.kind == PSLIB_ROWWISE_ADAGRAD) {
        float a = part->initial_state[0];
        a = pslib_rowwise_sum(16, a, gradient);
        if (pslib_bits_of(a) > PSLIB_STATE_TAME) return 0;
        const float divisor = sqrtf(a) + part->optimizer.numbers[1];
        pslib_uniform_step_avx2(part, key, divisor, gradient, w);
        state[0] = a;
        return 1;
    }
#endif
    (void)part, (void)level, (void)key, (void)gradient, (void)w, (void)state;
    return 0;
}

/* pslib_row_push for one part of 16 without counters; storage: a constant for the compiler, not int8. */
PSLIB_INLINE void pslib_row_push_one16(PslibTable *table, int storage, int level, uint64_t key, int made,
                                       void *weights, float *state, const float *gradient, const PslibRecord *record)
{
    float buffer[16];
    const PslibPart *part = &table->parts[0];
    float *w = storage == PSLIB_FLOAT32 ? weights : buffer;
    const int wild = pslib_is_wild(table, part, level, 16, gradient);
    if (made && storage == PSLIB_FLOAT32 && !wild &&
        pslib_row_begin_and_step16(part, level, key, gradient, w, state)) return;
    if (made) pslib_part_begin(part, level, key, w, state);
    else if (storage != PSLIB_FLOAT32) pslib_load_at(level, storage, 16, weights, 0, w);
    if (wild) pslib_wild_step(table, part, w, state, gradient, 1.0f, 0.0f);
    else table->steps_refused += pslib_step(&part->optimizer, 16, w, state, gradient, 0);
    if (storage != PSLIB_FLOAT32)
        pslib_store_at(level, storage, 16, w, pslib_rounding_base(part, key, record), weights, NULL);
}

#endif
