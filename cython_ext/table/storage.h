/* storage.h: the types in which weights lie in memory, and how float32 is rounded to them.
 *
 *     float32    4 bytes
 *     bfloat16   2 bytes   sign, 8 bits of exponent, 7 of fraction: the high half of a float32
 *     float16    2 bytes   sign, 5 bits of exponent, 10 of fraction; subnormals below 2^-14, at most 65504
 *     int8       1 byte    w = q * scale, q in [-127, 127], with one float32 scale for each part of a row
 *
 * Rounding a weight after each step to the nearest value would lose every step smaller than half the distance of two
 * values. Stochastic rounding (Gupta et al. 2015, arXiv:1502.02551, section 2) rounds up with the probability of the
 * part that is cut off, so the mean is right:
 *
 *     q = floor(|w| / ulp(w) + u),  u = 16 bits * 2^-16          value = sign(w) * q * ulp(w)
 *
 * where ulp is the distance of two values of the type at w. Weights from outside are rounded to the nearest value,
 * ties to even. Both saturate: a finite weight never becomes infinite. Infinity stays infinity, NaN becomes a quiet
 * NaN.
 *
 *     int8:  scale = max|w| / 127;  q = floor(|w| / scale + u), at most 127          value = sign(w) * q * scale
 *
 * A part that holds infinity or NaN gets the scale NaN, and then all of it reads as NaN.
 *
 * The 16 bits of column j:  word = mix64(base + (j / 4) GOLDEN),  its 16 bits number j % 4 from below, with
 * base = mix64(key ^ part_seed ^ mix64(salt)). A push has one salt; the same push gives the same bits.
 *
 * First the definition for one column, in plain C without conversion instructions, then loops of it that the compiler
 * vectorises, then the same in AVX2 and AVX-512 for 16, 8 or 4 columns with the same bits: the compiler vectorises
 * only lengths that it knows, and never the random words. AMD Zen 4, rows in the cache, load + row-wise Adagrad +
 * store, ns, plain loops and vectors:
 *
 *     floats              8            16            32            64            128
 *     AVX-512 bfloat16   19.3  14.7   19.9  13.0    34.4  22.1    60.5  35.3   116.2   60.4
 *             float16    30.1  19.4   28.4  17.2    48.0  30.6    87.3  50.9   165.7   89.5
 *             int8       28.8  21.8   48.2  20.7    54.2  32.4    81.3  54.9   135.7   87.4
 *     AVX2    bfloat16   25.4  14.3   25.2  17.9    48.5  35.5    80.8  52.9   146.4   92.3
 *             float16    29.0  19.6   30.0  28.2    58.7  53.7    99.4  84.4   185.2  153.1
 *             int8       33.4  21.3   46.9  27.1    73.5  53.9   117.2  76.7   201.8  123.5
 *
 * Fewer than four columns are rounded one by one, except the last two or three of a longer bfloat16 or int8 part with
 * AVX-512: loading a vector stalls when single floats of it were just stored.
 */
#ifndef PSLIB_STORAGE_H
#define PSLIB_STORAGE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/floats.h"
#include "common/mix.h"
#include "common/vectors.h"
#include "table/initializers.h"

enum { PSLIB_FLOAT32 = 0, PSLIB_BFLOAT16 = 1, PSLIB_FLOAT16 = 2, PSLIB_INT8 = 3, PSLIB_STORAGE_KINDS = 4 };
enum { PSLIB_COLUMNS = 16, PSLIB_INT8_MAX = 127 };
#define PSLIB_SCALE_MAX 0x1.02040p121f /* 2^128 / 127, a little less */

/* Four words stored together, so that they can be read as a vector without waiting. */
typedef uint64_t PslibWords __attribute__((vector_size(32)));

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "16-bit fields of a word are read in memory order");

static inline size_t pslib_storage_bytes(int storage)
{
    return storage == PSLIB_FLOAT32 ? 4 : storage == PSLIB_INT8 ? 1 : 2;
}

/* --- one column; the types in the low bits of 32 */

PSLIB_INLINE float pslib_from_bfloat16(uint32_t stored)
{
    return pslib_float_of(stored << 16);
}

/* random: 0..65535, added below the last bit that is kept. */
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

/* Normal: 13 bits are cut. Subnormal: |w| 2^24 is cut to a whole number, which is incremented where the fraction, exact
 * in float32, is at least `threshold` = 1 - u. */
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

/* Return max|w|, or infinity or NaN where there is one: bits of magnitudes order like their values. */
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

/* Return the scale of a part with this largest weight; `given` if that is a scale: above 0 and at most PSLIB_SCALE_MAX,
 * so that 127 scales are finite. NaN where a weight is not finite. */
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

/* Compute the random bits of 16 columns from `first` on, a multiple of 16; one word for four columns. out: OUT,
 * (16,). */
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

/* Read a part as float32. w: OUT, (dim,). scale: IN, of int8. */
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

/* Round `count` columns, at most 16, stochastically. to: OUT. Narrowing has its own loop, or the compiler narrows each
 * intermediate value. */
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

/* Store a part rounded to the nearest values. to: OUT. scale: INOUT, of int8: kept where it is finite and above 0. */
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

/* --- vectors
 *
 * Round at most three columns, those of one random word, one by one. to: OUT. */
PSLIB_INLINE void pslib_round_few(int storage, int64_t count, const float *w, uint64_t word, float scale, uint8_t *to)
{
    for (int64_t i = 0; i < count; i++, word >>= 16) {
        const uint32_t random = (uint32_t)word & 0xFFFF;
        if (storage == PSLIB_INT8) {
            const int8_t small = (int8_t)pslib_to_int8(w[i], scale, pslib_threshold(random));
            memcpy(to + i, &small, 1);
            continue;
        }
        const uint16_t half = (uint16_t)(storage == PSLIB_BFLOAT16
                                             ? pslib_to_bfloat16(w[i], random)
                                             : pslib_to_float16(w[i], random >> 3, pslib_threshold(random)));
        memcpy(to + 2 * i, &half, 2);
    }
}

#if PSLIB_HAS_LEVELS
/* --- eight columns */

PSLIB_FOR_AVX2 static inline __m256i pslib_where_avx2(__m256i condition, __m256i a, __m256i b)
{
    return _mm256_blendv_epi8(b, a, condition);
}

PSLIB_FOR_AVX2 static inline __m256i pslib_magnitude_avx2(__m256i bits)
{
    return _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
}

/* Compute the random words of 16 columns from `first` on. */
PSLIB_FOR_AVX2 static inline __m256i pslib_random_words_avx2(uint64_t base, int64_t first)
{
    const __m256i some = _mm256_setr_epi64x(0, (long long)PSLIB_GOLDEN, (long long)(2 * PSLIB_GOLDEN),
                                            (long long)(3 * PSLIB_GOLDEN));
    const uint64_t start = base + (uint64_t)first / 4 * PSLIB_GOLDEN;
    return pslib_mix64_avx2(_mm256_add_epi64(_mm256_set1_epi64x((long long)start), some));
}

PSLIB_FOR_AVX2 static inline __m256 pslib_threshold_avx2(__m256i random)
{
    const __m256i left = _mm256_sub_epi32(_mm256_set1_epi32(0x10000), random);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(left), _mm256_set1_ps(0x1p-16f));
}

/* floor(x) + (x - floor(x) >= threshold), of x >= 0 */
PSLIB_FOR_AVX2 static inline __m256i pslib_whole_avx2(__m256 x, __m256i random)
{
    const __m256i whole = _mm256_cvttps_epi32(x);
    const __m256 cut = _mm256_sub_ps(x, _mm256_cvtepi32_ps(whole));
    const __m256 up = _mm256_cmp_ps(cut, pslib_threshold_avx2(random), _CMP_GE_OQ);
    return _mm256_sub_epi32(whole, _mm256_castps_si256(up));
}

/* Select `finite` where the magnitude is finite, else `cut`: infinity, or NaN made quiet; with the sign. */
PSLIB_FOR_AVX2 static inline __m256i pslib_sealed_avx2(__m256i bits, __m256i finite, __m256i cut, int quiet_bit)
{
    const __m256i infinity = _mm256_set1_epi32(0x7F800000), magnitude = pslib_magnitude_avx2(bits);
    const __m256i quiet = _mm256_and_si256(_mm256_cmpgt_epi32(magnitude, infinity), _mm256_set1_epi32(quiet_bit));
    const __m256i other = _mm256_or_si256(cut, quiet);
    const __m256i value = pslib_where_avx2(_mm256_cmpgt_epi32(infinity, magnitude), finite, other);
    return _mm256_or_si256(value, _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000)));
}

PSLIB_FOR_AVX2 static inline __m256i pslib_to_bfloat16_avx2(__m256i bits, __m256i random)
{
    const __m256i magnitude = pslib_magnitude_avx2(bits);
    const __m256i sum = _mm256_srli_epi32(_mm256_add_epi32(magnitude, random), 16);
    const __m256i finite = _mm256_min_epi32(sum, _mm256_set1_epi32(0x7F7F));
    return pslib_sealed_avx2(bits, finite, _mm256_srli_epi32(magnitude, 16), 0x40);
}

PSLIB_FOR_AVX2 static inline __m256i pslib_to_float16_avx2(__m256i bits, __m256i random)
{
    const __m256i magnitude = pslib_magnitude_avx2(bits);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x38800000), magnitude);
    const __m256i sum = _mm256_srli_epi32(_mm256_add_epi32(magnitude, _mm256_srli_epi32(random, 3)), 13);
    const __m256i normal = _mm256_sub_epi32(sum, _mm256_set1_epi32(112 << 10));
    const __m256i high = _mm256_min_epi32(normal, _mm256_set1_epi32(0x7BFF));
    const __m256 below = _mm256_castsi256_ps(_mm256_and_si256(is_small, magnitude));
    const __m256i small = pslib_whole_avx2(_mm256_mul_ps(below, _mm256_set1_ps(0x1p24f)), random);
    const __m256i cut = _mm256_and_si256(_mm256_srli_epi32(magnitude, 13), _mm256_set1_epi32(0x3FF));
    return pslib_sealed_avx2(bits, pslib_where_avx2(is_small, small, high),
                             _mm256_or_si256(cut, _mm256_set1_epi32(0x7C00)), 0x200);
}

PSLIB_FOR_AVX2 static inline __m256i pslib_to_int8_avx2(__m256 w, __m256i random, float scale)
{
    const __m256i magnitude = pslib_magnitude_avx2(_mm256_castps_si256(_mm256_div_ps(w, _mm256_set1_ps(scale))));
    const __m256i most = _mm256_min_epi32(magnitude, _mm256_set1_epi32(0x42FE0000)); /* 127 */
    const __m256i q = pslib_whole_avx2(_mm256_castsi256_ps(most), random);
    const __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(w), 31);
    return _mm256_sub_epi32(_mm256_xor_si256(q, sign), sign);
}

/* random: 16 bits of each column. */
PSLIB_FOR_AVX2 static inline __m256i pslib_rounded_avx2(int storage, __m256 w, __m128i random, float scale)
{
    const __m256i bits = _mm256_castps_si256(w), wide = _mm256_cvtepu16_epi32(random);
    if (storage == PSLIB_BFLOAT16) return pslib_to_bfloat16_avx2(bits, wide);
    return storage == PSLIB_FLOAT16 ? pslib_to_float16_avx2(bits, wide) : pslib_to_int8_avx2(w, wide, scale);
}

/* Narrow eight columns to 16 bytes, of int8 to the first 8. */
PSLIB_FOR_AVX2 static inline __m128i pslib_narrowed_avx2(int storage, __m256i wide)
{
    const __m128i low = _mm256_castsi256_si128(wide), high = _mm256_extracti128_si256(wide, 1);
    if (storage != PSLIB_INT8) return _mm_packus_epi32(low, high);
    const __m128i words = _mm_packs_epi32(low, high);
    return _mm_packs_epi16(words, words);
}

PSLIB_FOR_AVX2 static inline void pslib_round_eight_avx2(int storage, const float *w, __m128i random, float scale,
                                                         uint8_t *to)
{
    const __m128i some = pslib_narrowed_avx2(storage, pslib_rounded_avx2(storage, _mm256_loadu_ps(w), random, scale));
    if (storage == PSLIB_INT8) _mm_storel_epi64((__m128i *)(void *)to, some);
    else _mm_storeu_si128((__m128i *)(void *)to, some);
}

PSLIB_FOR_AVX2 static inline void pslib_round_four_avx2(int storage, const float *w, uint64_t word, float scale,
                                                        uint8_t *to)
{
    const __m128i random = _mm_cvtsi64_si128((long long)word);
    const __m256 row = _mm256_insertf128_ps(_mm256_setzero_ps(), _mm_loadu_ps(w), 0);
    const __m128i some = pslib_narrowed_avx2(storage, pslib_rounded_avx2(storage, row, random, scale));
    if (storage != PSLIB_INT8) {
        _mm_storel_epi64((__m128i *)(void *)to, some);
        return;
    }
    const int32_t four = _mm_cvtsi128_si32(some);
    memcpy(to, &four, sizeof four);
}

/* Columns from `first` on, a multiple of 16. to: OUT, of column 0. */
PSLIB_FOR_AVX2 static inline void pslib_round_from_avx2(int storage, int64_t first, int64_t dim, const float *w,
                                                        uint64_t base, float scale, uint8_t *to)
{
    const int64_t bytes = storage == PSLIB_INT8 ? 1 : 2;
    int64_t j = first;
    for (; j + 16 <= dim; j += 16) {
        const __m256i words = pslib_random_words_avx2(base, j);
        pslib_round_eight_avx2(storage, w + j, _mm256_castsi256_si128(words), scale, to + bytes * j);
        pslib_round_eight_avx2(storage, w + j + 8, _mm256_extracti128_si256(words, 1), scale, to + bytes * (j + 8));
    }
    if (j + 8 <= dim) {
        const uint64_t at = base + (uint64_t)j / 4 * PSLIB_GOLDEN;
        const __m128i words = _mm_set_epi64x((long long)pslib_mix64(at + PSLIB_GOLDEN), (long long)pslib_mix64(at));
        pslib_round_eight_avx2(storage, w + j, words, scale, to + bytes * j);
        j += 8;
    }
    for (; j < dim; j += 4) { /* at last dim & 3: of an unknown number the compiler makes vector loops */
        const uint64_t word = pslib_mix64(base + (uint64_t)j / 4 * PSLIB_GOLDEN);
        if (j + 4 <= dim) pslib_round_four_avx2(storage, w + j, word, scale, to + bytes * j);
        else pslib_round_few(storage, dim & 3, w + j, word, scale, to + bytes * j);
    }
}

PSLIB_FOR_AVX2 static inline float pslib_largest_avx2(int64_t dim, const float *w)
{
    __m256i lanes = _mm256_setzero_si256();
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8)
        lanes = _mm256_max_epi32(lanes, pslib_magnitude_avx2(_mm256_castps_si256(_mm256_loadu_ps(w + j))));
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1));
    int32_t largest = _mm_cvtsi128_si32(most);
    for (; j < dim; j++) {
        const int32_t magnitude = (int32_t)(pslib_bits_of(w[j]) & 0x7FFFFFFF);
        largest = largest > magnitude ? largest : magnitude;
    }
    return pslib_float_of((uint32_t)largest);
}

PSLIB_FOR_AVX2 static inline __m256i pslib_from_float16_avx2(__m256i stored)
{
    const __m256i magnitude = _mm256_and_si256(stored, _mm256_set1_epi32(0x7FFF)), bias = _mm256_set1_epi32(112 << 23);
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(stored, magnitude), 16);
    const __m256i special = _mm256_and_si256(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7BFF)), bias);
    const __m256i normal = _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(magnitude, 13), bias), special);
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-24f));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), magnitude);
    return _mm256_or_si256(sign, pslib_where_avx2(is_small, _mm256_castps_si256(small), normal));
}

/* some: eight columns, as pslib_narrowed_avx2. */
PSLIB_FOR_AVX2 static inline __m256 pslib_widened_avx2(int storage, __m128i some, float scale)
{
    if (storage == PSLIB_INT8)
        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(some)), _mm256_set1_ps(scale));
    const __m256i wide = _mm256_cvtepu16_epi32(some);
    return _mm256_castsi256_ps(storage == PSLIB_BFLOAT16 ? _mm256_slli_epi32(wide, 16) : pslib_from_float16_avx2(wide));
}

PSLIB_FOR_AVX2 static inline void pslib_load_from_avx2(int storage, int64_t first, int64_t dim, const uint8_t *from,
                                                       float scale, float *w)
{
    const int64_t bytes = storage == PSLIB_INT8 ? 1 : 2;
    int64_t j = first;
    for (; j + 8 <= dim; j += 8) {
        const __m128i *some = (const __m128i *)(const void *)(from + bytes * j);
        const __m128i row = storage == PSLIB_INT8 ? _mm_loadl_epi64(some) : _mm_loadu_si128(some);
        _mm256_storeu_ps(w + j, pslib_widened_avx2(storage, row, scale));
    }
    if (j + 4 <= dim) {
        uint64_t four = 0;
        memcpy(&four, from + bytes * j, storage == PSLIB_INT8 ? 4 : 8);
        const __m128i row = _mm_cvtsi64_si128((long long)four);
        _mm_storeu_ps(w + j, _mm256_castps256_ps128(pslib_widened_avx2(storage, row, scale)));
        j += 4;
    }
    if (j < dim) pslib_load(storage, dim & 3, from + bytes * j, scale, w + j);
}

/* --- sixteen columns */

PSLIB_FOR_AVX512 static inline __m512i pslib_random_avx512(uint64_t base, int64_t first)
{
    const __m256i some = _mm256_setr_epi64x(0, (long long)PSLIB_GOLDEN, (long long)(2 * PSLIB_GOLDEN),
                                            (long long)(3 * PSLIB_GOLDEN));
    const uint64_t start = base + (uint64_t)first / 4 * PSLIB_GOLDEN;
    const __m256i words = pslib_mix64_four_avx512(_mm256_add_epi64(_mm256_set1_epi64x((long long)start), some));
    return _mm512_cvtepu16_epi32(words);
}

PSLIB_FOR_AVX512 static inline __m512i pslib_whole_avx512(__m512 x, __m512i random)
{
    const __m512i left = _mm512_sub_epi32(_mm512_set1_epi32(0x10000), random);
    const __m512 threshold = _mm512_mul_ps(_mm512_cvtepi32_ps(left), _mm512_set1_ps(0x1p-16f));
    const __m512i whole = _mm512_cvttps_epi32(x);
    const __m512 cut = _mm512_sub_ps(x, _mm512_cvtepi32_ps(whole));
    return _mm512_mask_add_epi32(whole, _mm512_cmp_ps_mask(cut, threshold, _CMP_GE_OQ), whole, _mm512_set1_epi32(1));
}

PSLIB_FOR_AVX512 static inline __m512i pslib_sealed_avx512(__m512i bits, __m512i finite, __m512i cut, int quiet_bit)
{
    const __m512i infinity = _mm512_set1_epi32(0x7F800000);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, infinity);
    const __m512i other = _mm512_mask_or_epi32(cut, is_nan, cut, _mm512_set1_epi32(quiet_bit));
    const __m512i value = _mm512_mask_mov_epi32(other, _mm512_cmplt_epi32_mask(magnitude, infinity), finite);
    return _mm512_or_si512(value, _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000)));
}

PSLIB_FOR_AVX512 static inline __m512i pslib_to_bfloat16_avx512(__m512i bits, __m512i random)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i sum = _mm512_srli_epi32(_mm512_add_epi32(magnitude, random), 16);
    const __m512i finite = _mm512_min_epi32(sum, _mm512_set1_epi32(0x7F7F));
    return pslib_sealed_avx512(bits, finite, _mm512_srli_epi32(magnitude, 16), 0x40);
}

PSLIB_FOR_AVX512 static inline __m512i pslib_to_float16_avx512(__m512i bits, __m512i random)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x38800000));
    const __m512i sum = _mm512_srli_epi32(_mm512_add_epi32(magnitude, _mm512_srli_epi32(random, 3)), 13);
    const __m512i normal = _mm512_sub_epi32(sum, _mm512_set1_epi32(112 << 10));
    const __m512i high = _mm512_min_epi32(normal, _mm512_set1_epi32(0x7BFF));
    const __m512 below = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(is_small, magnitude));
    const __m512i small = pslib_whole_avx512(_mm512_mul_ps(below, _mm512_set1_ps(0x1p24f)), random);
    const __m512i cut = _mm512_and_si512(_mm512_srli_epi32(magnitude, 13), _mm512_set1_epi32(0x3FF));
    return pslib_sealed_avx512(bits, _mm512_mask_mov_epi32(high, is_small, small),
                               _mm512_or_si512(cut, _mm512_set1_epi32(0x7C00)), 0x200);
}

PSLIB_FOR_AVX512 static inline __m512i pslib_to_int8_avx512(__m512 w, __m512i random, float scale)
{
    const __m512i ratio = _mm512_castps_si512(_mm512_div_ps(w, _mm512_set1_ps(scale)));
    const __m512i magnitude = _mm512_and_si512(ratio, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i most = _mm512_min_epi32(magnitude, _mm512_set1_epi32(0x42FE0000)); /* 127 */
    const __m512i q = pslib_whole_avx512(_mm512_castsi512_ps(most), random);
    return _mm512_mask_sub_epi32(q, _mm512_movepi32_mask(_mm512_castps_si512(w)), _mm512_setzero_si512(), q);
}

PSLIB_FOR_AVX512 static inline __m512i pslib_rounded_avx512(int storage, __m512 w, __m512i random, float scale)
{
    const __m512i bits = _mm512_castps_si512(w);
    if (storage == PSLIB_BFLOAT16) return pslib_to_bfloat16_avx512(bits, random);
    return storage == PSLIB_FLOAT16 ? pslib_to_float16_avx512(bits, random) : pslib_to_int8_avx512(w, random, scale);
}

/* The rest after sixteens is rounded by fours, or, where that would leave two or three single columns, by a mask: 0.72
 * to 0.98 of the time in spite of the wait. For float16 it would be 0.9 to 1.18. */
PSLIB_FOR_AVX512 static inline void pslib_round_avx512(int storage, int64_t dim, const float *w, uint64_t base,
                                                       float scale, uint8_t *to)
{
    int64_t j = 0;
    for (; j + 16 <= dim; j += 16) {
        const __m512 row = _mm512_loadu_ps(w + j);
        const __m512i wide = pslib_rounded_avx512(storage, row, pslib_random_avx512(base, j), scale);
        if (storage == PSLIB_INT8) _mm_storeu_si128((__m128i *)(void *)(to + j), _mm512_cvtepi32_epi8(wide));
        else _mm256_storeu_si256((__m256i *)(void *)(to + 2 * j), _mm512_cvtepi32_epi16(wide));
    }
    if (j == dim) return;
    if ((dim & 3) < 2 || storage == PSLIB_FLOAT16) {
        pslib_round_from_avx2(storage, j, dim, w, base, scale, to);
        return;
    }
    const __mmask16 some = (__mmask16)((1u << (dim & 15)) - 1);
    const __m512 row = _mm512_maskz_loadu_ps(some, w + j);
    const __m512i wide = pslib_rounded_avx512(storage, row, pslib_random_avx512(base, j), scale);
    if (storage == PSLIB_INT8) _mm512_mask_cvtepi32_storeu_epi8(to + j, some, wide);
    else _mm512_mask_cvtepi32_storeu_epi16(to + 2 * j, some, wide);
}

/* VCVTPH2PS is exact, and a NaN in a row is quiet already. */
PSLIB_FOR_AVX512 static inline void pslib_load_avx512(int storage, int64_t dim, const uint8_t *from, float scale,
                                                      float *w)
{
    int64_t j = 0;
    for (; j + 16 <= dim; j += 16) {
        if (storage == PSLIB_INT8) {
            const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from + j)));
            _mm512_storeu_ps(w + j, _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(scale)));
            continue;
        }
        const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(from + 2 * j));
        if (storage == PSLIB_FLOAT16) _mm512_storeu_ps(w + j, _mm512_cvtph_ps(halves));
        else _mm512_storeu_si512((void *)(w + j), _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    if (j < dim) pslib_load_from_avx2(storage, j, dim, from, scale, w);
}
#endif

/* --- any number of columns */

/* pslib_load, by the vectors of this level. Of whole sixteens the compiler's own for AVX2 are as fast or faster. */
PSLIB_INLINE void pslib_load_at(int level, int storage, int64_t dim, const void *from, float scale, float *w)
{
#if PSLIB_HAS_LEVELS
    if (storage != PSLIB_FLOAT32 && dim >= 4 && (level == PSLIB_AVX512 || (level == PSLIB_AVX2 && dim % 16 != 0))) {
        if (level == PSLIB_AVX512) pslib_load_avx512(storage, dim, from, scale, w);
        else pslib_load_from_avx2(storage, 0, dim, from, scale, w);
        return;
    }
#endif
    (void)level;
    pslib_load(storage, dim, from, scale, w);
}

PSLIB_INLINE float pslib_largest_at(int level, int64_t dim, const float *w)
{
#if PSLIB_HAS_LEVELS
    if (level != PSLIB_PLAIN && dim >= 8) return pslib_largest_avx2(dim, w);
#endif
    (void)level;
    return pslib_largest(dim, w);
}

/* pslib_store, by the vectors of this level. */
PSLIB_INLINE void pslib_store_at(int level, int storage, int64_t dim, const float *w, uint64_t base, void *to,
                                 float *scale)
{
    float divisor = 0;
    if (storage == PSLIB_FLOAT32 || (level == PSLIB_PLAIN && dim >= 4)) {
        pslib_store(storage, dim, w, base, to, scale);
        return;
    }
    if (storage == PSLIB_INT8) {
        divisor = *scale = pslib_scale_from(pslib_largest_at(level, dim, w), 0);
        if (!(divisor > 0)) { /* as pslib_store */
            memset(to, 0, (size_t)dim);
            return;
        }
    }
    if (dim < 4) {
        pslib_round_few(storage, dim, w, pslib_mix64(base), divisor, to);
        return;
    }
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) pslib_round_avx512(storage, dim, w, base, divisor, to);
    else pslib_round_from_avx2(storage, 0, dim, w, base, divisor, to);
#endif
}

#endif
