/* storage.h: the types in which weights lie in memory, and how a float32 is rounded to them.
 *
 *     float32    4 bytes
 *     bfloat16   2 bytes   sign, 8 bits of exponent, 7 of fraction: the high half of a float32
 *     float16    2 bytes   sign, 5 bits of exponent, 10 of fraction; subnormals below 2^-14, at most 65504
 *     int8       1 byte    w = q * scale, q in [-127, 127], with one float32 scale a part of a row
 *
 * Rounding a weight of a row after each step to the nearest value would lose every step that is smaller than
 * half the distance of two values. Stochastic rounding (Gupta et al. 2015, arXiv:1502.02551, section 2) goes up
 * with the probability of what is cut off, so that the mean is right:
 *
 *     q = floor(|w| / ulp(w) + u),  u = 16 bits * 2^-16          value = sign(w) * q * ulp(w)
 *
 * where ulp is the distance of two values of the type at w. Rounding to the nearest value, ties to even, is for
 * weights that come from outside. Both saturate: a finite weight never becomes infinite. Infinity and NaN stay
 * what they are; a NaN becomes a quiet one.
 *
 *     int8:  scale = max|w| / 127;  q = floor(|w| / scale + u), at most 127          value = sign(w) * q * scale
 *
 * A part that holds infinity or NaN gets the scale NaN, and with that all of it reads as NaN.
 *
 * The 16 bits of column j:  word = mix64(base + (j / 4) GOLDEN),  its 16 bits number j % 4 from below, with
 * base = mix64(key ^ part_seed ^ mix64(salt)). A push has one salt; the same push gives the same bits.
 *
 * Plain C over 16 columns at a time, which the compiler turns into vectors; no conversion instructions, so that
 * all levels give the same bits. rounding.h says the same in AVX2 and AVX-512, which pushes and pulls go by.
 */
#ifndef PSLIB_STORAGE_H
#define PSLIB_STORAGE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "table/initializers.h"

enum { PSLIB_FLOAT32 = 0, PSLIB_BFLOAT16 = 1, PSLIB_FLOAT16 = 2, PSLIB_INT8 = 3, PSLIB_STORAGE_KINDS = 4 };
enum { PSLIB_COLUMNS = 16, PSLIB_INT8_MAX = 127 };
#define PSLIB_SCALE_MAX 0x1.02040p121f /* 2^128 / 127, a little less */

/* Four words that go to memory together, so that they can be read as a vector without waiting. */
typedef uint64_t PslibWords __attribute__((vector_size(32)));

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "16-bit fields of a word are read in memory order");

static inline size_t pslib_storage_bytes(int storage)
{
    return storage == PSLIB_FLOAT32 ? 4 : storage == PSLIB_INT8 ? 1 : 2;
}

PSLIB_INLINE uint32_t pslib_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

PSLIB_INLINE float pslib_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* a where the condition is 1, b where it is 0: without a branch, or the loops below would be no vectors. */
PSLIB_INLINE uint32_t pslib_choose(int condition, uint32_t a, uint32_t b)
{
    return b ^ ((a ^ b) & (0 - (uint32_t)condition));
}

/* --- one column; the types in the low bits of 32 */

PSLIB_INLINE float pslib_from_bfloat16(uint32_t stored)
{
    return pslib_float_of(stored << 16);
}

/* random: 0..65535, what is added below the last bit that stays. */
PSLIB_INLINE uint32_t pslib_to_bfloat16(float value, uint32_t random)
{
    const uint32_t bits = pslib_bits_of(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sum = (magnitude + random) >> 16;
    const uint32_t finite = pslib_choose((int32_t)sum < 0x7F7F, sum, 0x7F7F);
    const uint32_t other = (magnitude >> 16) | pslib_choose((int32_t)magnitude > 0x7F800000, 0x40, 0);
    return (bits >> 16 & 0x8000) | pslib_choose((int32_t)magnitude < 0x7F800000, finite, other);
}

PSLIB_INLINE uint32_t pslib_nearest_bfloat16(float value)
{
    return 0x7FFF + (pslib_bits_of(value) >> 16 & 1);
}

PSLIB_INLINE float pslib_from_float16(uint32_t stored)
{
    const uint32_t magnitude = stored & 0x7FFF, sign = (stored & 0x8000) << 16;
    const uint32_t special = pslib_choose((int32_t)magnitude >= 0x7C00, UINT32_C(112) << 23, 0);
    const uint32_t normal = (magnitude << 13) + (UINT32_C(112) << 23) + special;
    const uint32_t small = pslib_bits_of((float)(int32_t)magnitude * 0x1p-24f);
    return pslib_float_of(sign | pslib_choose((int32_t)magnitude < 0x400, small, normal));
}

/* Normal: 13 bits are cut. Subnormal: |w| 2^24 is cut to a whole number, and what is cut off, a float32 without
 * any rounding, goes up where it is at least `threshold` = 1 - u. */
PSLIB_INLINE uint32_t pslib_to_float16(float value, uint32_t random13, float threshold)
{
    const uint32_t bits = pslib_bits_of(value), magnitude = bits & 0x7FFFFFFF;
    const int is_small = (int32_t)magnitude < 0x38800000;
    const uint32_t normal = ((magnitude + random13) >> 13) - (UINT32_C(112) << 10);
    const uint32_t high = pslib_choose((int32_t)normal < 0x7BFF, normal, 0x7BFF);
    const float scaled = pslib_float_of(pslib_choose(is_small, magnitude, 0)) * 0x1p24f;
    const int32_t whole = (int32_t)scaled;
    const uint32_t small = (uint32_t)(whole + (scaled - (float)whole >= threshold));
    const uint32_t is_nan = pslib_choose((int32_t)magnitude > 0x7F800000, 0x200, 0);
    const uint32_t other = 0x7C00 | (magnitude >> 13 & 0x3FF) | is_nan;
    const uint32_t finite = pslib_choose(is_small, small, high);
    return (bits >> 16 & 0x8000) | pslib_choose((int32_t)magnitude < 0x7F800000, finite, other);
}

PSLIB_INLINE uint32_t pslib_nearest_float16(float value)
{
    const uint32_t magnitude = pslib_bits_of(value) & 0x7FFFFFFF;
    const int32_t whole = (int32_t)(magnitude < 0x38800000 ? pslib_float_of(magnitude) * 0x1p24f : 0);
    return pslib_to_float16(value, 0xFFF + (magnitude >> 13 & 1), whole & 1 ? 0.5f : 0x1.000002p-1f);
}

/* |w / scale|, at most 127 */
PSLIB_INLINE float pslib_in_scales(float value, float scale)
{
    const uint32_t magnitude = pslib_bits_of(value / scale) & 0x7FFFFFFF, most = 0x42FE0000;
    return pslib_float_of(pslib_choose((int32_t)magnitude < (int32_t)most, magnitude, most));
}

/* floor(x + u) as whole + (fraction >= threshold), threshold = 1 - u, which rounds nothing */
PSLIB_INLINE int32_t pslib_to_int8(float value, float scale, float threshold)
{
    const float x = pslib_in_scales(value, scale);
    const int32_t whole = (int32_t)x, sign = (int32_t)(pslib_bits_of(value) >> 31);
    const int32_t q = whole + (x - (float)whole >= threshold);
    return (q ^ -sign) + sign;
}

PSLIB_INLINE int32_t pslib_nearest_int8(float value, float scale)
{
    return pslib_to_int8(value, scale, (int32_t)pslib_in_scales(value, scale) & 1 ? 0.5f : 0x1.000002p-1f);
}

/* --- the scale of int8 */

/* max|w|, or infinity or NaN where there is one: bits of magnitudes order like their values. */
PSLIB_INLINE float pslib_largest(int64_t dim, const float *w)
{
    const int64_t whole = dim - dim % PSLIB_COLUMNS;
    int32_t largest = 0;
    for (int64_t j = whole; j < dim; j++) {
        const int32_t magnitude = (int32_t)(pslib_bits_of(w[j]) & 0x7FFFFFFF);
        largest = largest > magnitude ? largest : magnitude;
    }
    if (whole == 0) return pslib_float_of((uint32_t)largest);
    int32_t lanes[PSLIB_COLUMNS] = {0};
    for (int64_t j = 0; j < whole; j += PSLIB_COLUMNS)
        for (int i = 0; i < PSLIB_COLUMNS; i++) {
            const int32_t magnitude = (int32_t)(pslib_bits_of(w[j + i]) & 0x7FFFFFFF);
            lanes[i] = lanes[i] > magnitude ? lanes[i] : magnitude;
        }
    for (int i = 0; i < PSLIB_COLUMNS; i++) largest = largest > lanes[i] ? largest : lanes[i];
    return pslib_float_of((uint32_t)largest);
}

/* The scale of a part whose largest weight this is; `given` is taken where it is one: above 0 and at most
 * PSLIB_SCALE_MAX, so that 127 scales are finite. NaN where a weight is not finite. */
PSLIB_INLINE float pslib_scale_from(float largest, float given)
{
    if (!(largest < INFINITY)) return NAN;
    if (given > 0 && given <= PSLIB_SCALE_MAX) return given;
    const float scale = largest / (float)PSLIB_INT8_MAX;
    return scale < PSLIB_SCALE_MAX ? scale : PSLIB_SCALE_MAX;
}

PSLIB_INLINE float pslib_scale_of(int64_t dim, const float *w, float given)
{
    return pslib_scale_from(pslib_largest(dim, w), given);
}

/* --- columns of one part */

/* The random bits of 16 columns from `first` on, a multiple of 16; one word serves four columns. */
PSLIB_INLINE void pslib_random_columns(uint64_t base, int64_t first, uint16_t *out)
{
    const uint64_t start = base + (uint64_t)first / 4 * PSLIB_GOLDEN;
    const PslibWords words = {pslib_mix64(start), pslib_mix64(start + PSLIB_GOLDEN),
                              pslib_mix64(start + 2 * PSLIB_GOLDEN), pslib_mix64(start + 3 * PSLIB_GOLDEN)};
    memcpy(out, &words, sizeof words);
}

PSLIB_INLINE float pslib_threshold(uint32_t random)
{
    return (float)(int32_t)(0x10000 - random) * 0x1p-16f;
}

/* w: OUT, (dim,). scale: of int8. */
PSLIB_INLINE void pslib_load(int storage, int64_t dim, const void *from, float scale, float *restrict w)
{
    const uint16_t *restrict half = from;
    const int8_t *restrict small = from;
    if (storage == PSLIB_BFLOAT16)
        for (int64_t j = 0; j < dim; j++) w[j] = pslib_from_bfloat16(half[j]);
    else if (storage == PSLIB_FLOAT16)
        for (int64_t j = 0; j < dim; j++) w[j] = pslib_from_float16(half[j]);
    else if (storage == PSLIB_INT8)
        for (int64_t j = 0; j < dim; j++) w[j] = (float)small[j] * scale;
    else
        memcpy(w, from, sizeof(float) * (size_t)dim);
}

/* Round `count` columns, at most 16, stochastically. to: OUT. Narrowed in a loop of its own: or the compiler
 * narrows each of the values on the way, and packs them all. */
PSLIB_INLINE void pslib_round_columns(int storage, int count, const float *restrict w, float scale,
                                      const uint16_t *restrict random, void *to)
{
    uint32_t bits[PSLIB_COLUMNS], wide[PSLIB_COLUMNS];
    uint16_t *restrict half = to;
    int8_t *restrict small = to;
    for (int j = 0; j < count; j++) bits[j] = random[j];
    if (storage == PSLIB_BFLOAT16)
        for (int j = 0; j < count; j++) wide[j] = pslib_to_bfloat16(w[j], bits[j]);
    else if (storage == PSLIB_FLOAT16)
        for (int j = 0; j < count; j++) wide[j] = pslib_to_float16(w[j], bits[j] >> 3, pslib_threshold(bits[j]));
    else
        for (int j = 0; j < count; j++) wide[j] = (uint32_t)pslib_to_int8(w[j], scale, pslib_threshold(bits[j]));
    if (storage == PSLIB_INT8)
        for (int j = 0; j < count; j++) small[j] = (int8_t)(int32_t)wide[j];
    else
        for (int j = 0; j < count; j++) half[j] = (uint16_t)wide[j];
}

/* Store a part after a step, rounded stochastically. to: OUT; scale: OUT, of int8. */
PSLIB_INLINE void pslib_store(int storage, int64_t dim, const float *restrict w, uint64_t base, void *to,
                              float *scale)
{
    uint16_t random[PSLIB_COLUMNS];
    const size_t bytes = storage == PSLIB_INT8 ? 1 : 2;
    float divisor = 0;
    if (storage == PSLIB_FLOAT32) {
        memcpy(to, w, sizeof(float) * (size_t)dim);
        return;
    }
    if (storage == PSLIB_INT8) {
        divisor = *scale = pslib_scale_of(dim, w, 0);
        if (!(divisor > 0)) { /* all weights are 0, or not all are finite */
            memset(to, 0, (size_t)dim);
            return;
        }
    }
    const int64_t whole = dim - dim % PSLIB_COLUMNS;
    for (int64_t j = 0; j < whole; j += PSLIB_COLUMNS) {
        pslib_random_columns(base, j, random);
        pslib_round_columns(storage, PSLIB_COLUMNS, w + j, divisor, random, (uint8_t *)to + bytes * (size_t)j);
    }
    if (whole == dim) return;
    pslib_random_columns(base, whole, random);
    pslib_round_columns(storage, (int)(dim - whole), w + whole, divisor, random, (uint8_t *)to + bytes * (size_t)whole);
}

/* Store a part that comes from outside, rounded to the nearest values. to: OUT. scale: INOUT, of int8: taken as it
 * is where it is finite and above 0. */
static inline void pslib_store_nearest(int storage, int64_t dim, const float *w, void *to, float *scale)
{
    uint16_t *half = to;
    int8_t *small = to;
    if (storage == PSLIB_FLOAT32) memcpy(to, w, sizeof(float) * (size_t)dim);
    if (storage == PSLIB_BFLOAT16)
        for (int64_t j = 0; j < dim; j++) half[j] = (uint16_t)pslib_to_bfloat16(w[j], pslib_nearest_bfloat16(w[j]));
    if (storage == PSLIB_FLOAT16)
        for (int64_t j = 0; j < dim; j++) half[j] = (uint16_t)pslib_nearest_float16(w[j]);
    if (storage != PSLIB_INT8) return;
    *scale = pslib_scale_of(dim, w, *scale);
    for (int64_t j = 0; j < dim; j++) small[j] = (int8_t)(*scale > 0 ? pslib_nearest_int8(w[j], *scale) : 0);
}

#endif
