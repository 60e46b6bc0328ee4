/* initializers.h: the initial values of a row, a pure function of (key, part seed, column in the part).
 *
 * No state and no generator: a key has the same initial value on every server, in any order of keys, and also before
 * its row exists.
 *
 * For column j the bits are  h(i) = mix64(mix64(key ^ seed) + (4 j + i) * GOLDEN),  i = 0..3, all modulo 2^64:
 * four independent words a column, of which Uniform uses one and Normal three.
 * No libm and one rounding an operation: every machine gives the same bits.
 */
#ifndef PSLIB_INITIALIZERS_H
#define PSLIB_INITIALIZERS_H

#include <stdint.h>

#include "common/mix.h"
#include "common/vectors.h"

#define PSLIB_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

enum {
    PSLIB_CONSTANT = 0,
    PSLIB_UNIFORM = 1,
    PSLIB_NORMAL = 2,
    PSLIB_INITIALIZER_KINDS = 3
};

typedef struct {
    int32_t kind;
    float numbers[2]; /* Constant: value. Uniform: bound. Normal: std. The second is unused. */
    uint64_t seed;
} PslibInitializer;

PSLIB_INLINE uint64_t pslib_column_word(uint64_t base, int64_t column, uint64_t which)
{
    return pslib_mix64(base + ((uint64_t)column * 4 + which) * PSLIB_GOLDEN);
}

/* Return the sum of the four 16-bit fields of a word. */
PSLIB_INLINE int32_t pslib_field_sum(uint64_t word)
{
    return (int32_t)((word & 0xFFFF) + ((word >> 16) & 0xFFFF) + ((word >> 32) & 0xFFFF) + (word >> 48));
}

/* u = 24 top bits * 2^-24, exact, in [0, 1);  value = (2 u - 1) * bound  in [-bound, bound) */
PSLIB_INLINE void pslib_uniform_values(uint64_t base, float bound, int64_t first, int64_t dim, float *out)
{
    for (int64_t j = first; j < dim; j++) {
        const float u = (float)(int32_t)(pslib_column_word(base, j, 0) >> 40) * 0x1p-24f;
        out[j] = (u * 2.0f - 1.0f) * bound;
    }
}

/* s = sum of twelve 16-bit uniforms, mean 12 * 65535 / 2 = 393210, standard deviation 65536 (to 1e-10);
 * value = ((s - 393210) / 65536) * std,  within 6 std */
PSLIB_INLINE void pslib_normal_values(uint64_t base, float std, int64_t dim, float *out)
{
    for (int64_t j = 0; j < dim; j++) {
        const int32_t sum = pslib_field_sum(pslib_column_word(base, j, 0)) +
                            pslib_field_sum(pslib_column_word(base, j, 1)) +
                            pslib_field_sum(pslib_column_word(base, j, 2));
        out[j] = ((float)(sum - 393210) * 0x1p-16f) * std;
    }
}

#if PSLIB_HAS_LEVELS
/* Return the high halves of mix64 of four words, in the high halves of the result. They are those of the second
 * product, of which only the high half is computed: 11 instructions where the compiler needs 20. */
PSLIB_FOR_AVX2 static inline __m256i pslib_mixed_tops_avx2(__m256i x)
{
    const uint64_t m = PSLIB_MIX_MULTIPLIER;
    const __m256i straight = _mm256_set1_epi64x((long long)m), high = _mm256_set1_epi64x((long long)(UINT64_MAX << 32));
    const __m256i swapped = _mm256_set1_epi64x((long long)(m << 32 | m >> 32));
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
    __m256i crossed = _mm256_mullo_epi32(x, swapped); /* low x high of m, and high x low */
    __m256i product = _mm256_add_epi64(_mm256_mul_epu32(x, straight), _mm256_slli_epi64(crossed, 32));
    x = _mm256_add_epi32(product, _mm256_and_si256(crossed, high));
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
    crossed = _mm256_mullo_epi32(x, swapped);
    product = _mm256_add_epi32(_mm256_mul_epu32(x, straight), _mm256_slli_epi64(crossed, 32));
    return _mm256_add_epi32(product, crossed);
}

/* pslib_uniform_values for eight columns from `first` on. */
PSLIB_FOR_AVX2 static inline __m256 pslib_uniform_eight_avx2(uint64_t base, float bound, int64_t first)
{
    const uint64_t golden = 4 * PSLIB_GOLDEN;
    const __m256i some = _mm256_setr_epi64x(0, (long long)golden, (long long)(4 * golden), (long long)(5 * golden));
    const __m256i more = _mm256_add_epi64(some, _mm256_set1_epi64x((long long)(2 * golden)));
    const __m256i start = _mm256_set1_epi64x((long long)(base + (uint64_t)first * golden));
    const __m256i a = pslib_mixed_tops_avx2(_mm256_add_epi64(start, some)); /* columns 0, 1, 4, 5 */
    const __m256i b = pslib_mixed_tops_avx2(_mm256_add_epi64(start, more)); /* columns 2, 3, 6, 7 */
    const __m256 tops = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD);
    const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(tops), 8);
    const __m256 u = _mm256_mul_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(0x1p-24f));
    const __m256 centred = _mm256_sub_ps(_mm256_mul_ps(u, _mm256_set1_ps(2.0f)), _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(centred, _mm256_set1_ps(bound));
}

/* pslib_uniform_values for the whole eights of the columns. Returns the number of columns done. */
PSLIB_FOR_AVX2 static inline int64_t pslib_uniform_values_avx2(uint64_t base, float bound, int64_t dim, float *out)
{
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8) _mm256_storeu_ps(out + j, pslib_uniform_eight_avx2(base, bound, j));
    return j;
}
#endif

/* Compute the initial values of one part. out: OUT, (dim,). level: that of the kernel which this is inlined into. */
PSLIB_INLINE void pslib_first_values_at(int level, const PslibInitializer *initializer, uint64_t key, int64_t dim,
                                        float *out)
{
    const uint64_t base = pslib_mix64(key ^ initializer->seed);
    int64_t done = 0;
    switch (initializer->kind) {
    case PSLIB_UNIFORM:
#if PSLIB_HAS_LEVELS
        if (level == PSLIB_AVX2) done = pslib_uniform_values_avx2(base, initializer->numbers[0], dim, out);
#endif
        if (done < dim) pslib_uniform_values(base, initializer->numbers[0], done, dim, out);
        break;
    case PSLIB_NORMAL:
        pslib_normal_values(base, initializer->numbers[0], dim, out);
        break;
    default:
        for (int64_t j = 0; j < dim; j++) out[j] = initializer->numbers[0];
    }
    (void)level;
}

PSLIB_INLINE void pslib_first_values(const PslibInitializer *initializer, uint64_t key, int64_t dim, float *out)
{
    pslib_first_values_at(PSLIB_PLAIN, initializer, key, dim, out);
}

#endif
