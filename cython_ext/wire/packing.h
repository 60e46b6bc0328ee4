/* packing.h: rows and gradients packed for the wire: 2 bytes or 1 byte a number instead of 4.
 *
 *     bfloat16   uint16        the nearest value, ties to even                         (kinds: see storage.h)
 *     float16    float16       the nearest of w * factor; factor is a power of two for all rows of a message
 *     int8       int8, scale   w = q * scale, one float32 scale a row; q = nearest(w / scale), or stochastic:
 *                              q = floor(|w| / scale + u), whose mean is |w| / scale, with the 16 random bits of
 *                              (base, column) that storage.h takes for weights
 *
 * Finite numbers stay finite (the largest one of the type at most), infinity and NaN stay what they are in 16 bits
 * and make the whole row NaN in int8.
 *
 * With error feedback (Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019, arXiv:1901.09847) the rounding error
 * is added to the next gradient:
 *
 *     sum = gradient + residual;   out = nearest(sum);   residual = sum - out          0 where sum is not finite
 *
 * One always-inline body, compiled for each level of vectors.h; plain C, so that all levels give the same bits.
 */
#ifndef PSLIB_PACKING_H
#define PSLIB_PACKING_H

#include "table/storage.h"
#include "common/vectors.h"

PSLIB_INLINE uint32_t pslib_nearest16(int kind, float value)
{
    return kind == PSLIB_BFLOAT16 ? pslib_to_bfloat16(value, pslib_nearest_bfloat16(value))
                                  : pslib_nearest_float16(value);
}

PSLIB_INLINE float pslib_from16(int kind, uint32_t stored)
{
    return kind == PSLIB_BFLOAT16 ? pslib_from_bfloat16(stored) : pslib_from_float16(stored);
}

/* to: OUT, (n,). */
PSLIB_INLINE void pslib_pack16(int kind, int64_t n, const float *restrict from, float factor, uint16_t *restrict to)
{
    if (kind == PSLIB_BFLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = (uint16_t)pslib_nearest16(PSLIB_BFLOAT16, from[i] * factor);
    else
        for (int64_t i = 0; i < n; i++) to[i] = (uint16_t)pslib_nearest16(PSLIB_FLOAT16, from[i] * factor);
}

/* residual: INOUT, (n,); to: OUT, (n,). */
PSLIB_INLINE void pslib_feedback16(int kind, int64_t n, const float *restrict from, float *restrict residual,
                                   uint16_t *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        const float sum = from[i] + residual[i];
        const uint32_t stored = pslib_nearest16(kind, sum);
        const float rest = sum - pslib_from16(kind, stored);
        const uint32_t is_finite = (pslib_bits_of(rest) & 0x7FFFFFFF) < 0x7F800000;
        to[i] = (uint16_t)stored;
        residual[i] = pslib_float_of(pslib_choose((int)is_finite, pslib_bits_of(rest), 0));
    }
}

/* `count` columns, at most 16, to the nearest; narrowed in a loop of its own, as storage.h does. to: OUT. */
PSLIB_INLINE void pslib_nearest_columns(int count, const float *restrict w, float scale, int8_t *restrict to)
{
    int32_t wide[PSLIB_COLUMNS];
    for (int j = 0; j < count; j++) wide[j] = pslib_nearest_int8(w[j], scale);
    for (int j = 0; j < count; j++) to[j] = (int8_t)wide[j];
}

/* Packs one row; base: of its random bits, used if `stochastic`. to: OUT, (dim,). Returns the scale. */
PSLIB_INLINE float pslib_pack8(int64_t dim, const float *restrict w, int stochastic, uint64_t base,
                               int8_t *restrict to)
{
    const float scale = pslib_scale_of(dim, w, 0);
    uint16_t random[PSLIB_COLUMNS];
    if (!(scale > 0)) { /* all numbers are 0, or not all are finite */
        memset(to, 0, (size_t)dim);
        return scale;
    }
    const int64_t whole = dim - dim % PSLIB_COLUMNS;
    for (int64_t j = 0; j < whole; j += PSLIB_COLUMNS) {
        if (stochastic) pslib_random_columns(base, j, random);
        if (stochastic)
            pslib_round_columns(PSLIB_INT8, PSLIB_COLUMNS, w + j, scale, random, to + j);
        else
            pslib_nearest_columns(PSLIB_COLUMNS, w + j, scale, to + j);
    }
    if (whole == dim) return scale;
    if (stochastic) pslib_random_columns(base, whole, random);
    if (stochastic)
        pslib_round_columns(PSLIB_INT8, (int)(dim - whole), w + whole, scale, random, to + whole);
    else
        pslib_nearest_columns((int)(dim - whole), w + whole, scale, to + whole);
    return scale;
}

/* Parameters of packing and unpacking. places: the place of row i among the packed rows when packing, among the
 * floats when unpacking; NULL: i. scales: (n,) of int8; (1,) or NULL of the others. bases: of stochastic
 * rounding, or NULL. */
typedef struct {
    int kind, level;
    int64_t n, dim;
    const int32_t *places;
    const uint64_t *bases;
    float factor;
} PslibPacking;

/* rows: (n, dim). to, scales: OUT. */
PSLIB_INLINE void pslib_pack_rows(const PslibPacking *how, const float *restrict rows, void *to, float *scales)
{
    const int64_t dim = how->dim;
    if (how->kind != PSLIB_INT8 && how->places == NULL) {
        pslib_pack16(how->kind, how->n * dim, rows, how->factor, to);
        return;
    }
    for (int64_t i = 0; i < how->n; i++) {
        const int64_t at = how->places == NULL ? i : how->places[i];
        if (how->kind != PSLIB_INT8)
            pslib_pack16(how->kind, dim, rows + i * dim, how->factor, (uint16_t *)to + at * dim);
        else if (how->bases == NULL)
            scales[at] = pslib_pack8(dim, rows + i * dim, 0, 0, (int8_t *)to + at * dim);
        else
            scales[at] = pslib_pack8(dim, rows + i * dim, 1, how->bases[i], (int8_t *)to + at * dim);
    }
}

PSLIB_INLINE void pslib_unpack16(int kind, int64_t n, const uint16_t *restrict from, float factor, float *restrict to)
{
    if (kind == PSLIB_BFLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = pslib_from_bfloat16(from[i]) * factor;
    else
        for (int64_t i = 0; i < n; i++) to[i] = pslib_from_float16(from[i]) * factor;
}

/* rows: OUT. */
PSLIB_INLINE void pslib_unpack_rows(const PslibPacking *how, const void *from, const float *restrict scales,
                                    float *restrict rows)
{
    const int64_t dim = how->dim;
    if (how->kind != PSLIB_INT8 && how->places == NULL) {
        pslib_unpack16(how->kind, how->n * dim, from, how->factor, rows);
        return;
    }
    for (int64_t i = 0; i < how->n; i++) {
        const int64_t at = how->places == NULL ? i : how->places[i];
        float *restrict row = rows + at * dim;
        const int8_t *restrict small = (const int8_t *)from + i * dim;
        if (how->kind != PSLIB_INT8)
            pslib_unpack16(how->kind, dim, (const uint16_t *)from + i * dim, how->factor, row);
        else
            for (int64_t j = 0; j < dim; j++) row[j] = (float)small[j] * scales[i];
    }
}

/* --- a copy for each level; rows, to, scales as above */

PSLIB_INLINE void pslib_pack_at(const PslibPacking *how, const float *rows, void *to, float *scales, int level)
{
    (void)level;
    pslib_pack_rows(how, rows, to, scales);
}

PSLIB_INLINE void pslib_unpack_at(const PslibPacking *how, const void *from, const float *scales, float *rows,
                                  int level)
{
    (void)level;
    pslib_unpack_rows(how, from, scales, rows);
}

PSLIB_INLINE void pslib_feedback_at(const PslibPacking *how, const float *from, float *residual, uint16_t *to,
                                    int level)
{
    (void)level;
    if (how->kind == PSLIB_BFLOAT16)
        pslib_feedback16(PSLIB_BFLOAT16, how->n, from, residual, to);
    else
        pslib_feedback16(PSLIB_FLOAT16, how->n, from, residual, to);
}

PSLIB_COPIES(void, pslib_pack, how->level,
             (const PslibPacking *how, const float *rows, void *to, float *scales), how, rows, to, scales)
PSLIB_COPIES(void, pslib_unpack, how->level,
             (const PslibPacking *how, const void *from, const float *scales, float *rows), how, from, scales, rows)
PSLIB_COPIES(void, pslib_feedback, how->level,
             (const PslibPacking *how, const float *from, float *residual, uint16_t *to), how, from, residual, to)

#endif
