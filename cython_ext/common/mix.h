/* mix.h: mix64, the 64-bit mixing function of all kernels, for one word and for vectors of words.
 *
 * Partitions, the key index, initial values of rows and the hashing of raw values start from it, so a key means the
 * same on every server and in every process. One changed bit makes every checkpoint unreadable: golden values are
 * tested (tests/values/test_hashing.py).
 *
 * "rrmxmx-light": two multiplications, three xor-shifts. Each step is a bijection of the 64-bit integers (xor-shift by
 * half the width, product with an odd number), hence so is the whole: two keys never share a mixed value. mix64(0) = 0.
 */
#ifndef PSLIB_MIX_H
#define PSLIB_MIX_H

#include <stdint.h>

#include "common/vectors.h"

#define PSLIB_MIX_MULTIPLIER UINT64_C(0xd6e8feb86659fd93)

PSLIB_INLINE uint64_t pslib_mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= PSLIB_MIX_MULTIPLIER;
    x ^= x >> 32;
    x *= PSLIB_MIX_MULTIPLIER;
    x ^= x >> 32;
    return x;
}

/* The top `bits` bits of a mixed key, 0 of 0 bits. Two shifts, because one by 64 is undefined in C. */
PSLIB_INLINE uint32_t pslib_partition_of_mixed(uint64_t mixed, int bits)
{
    return (uint32_t)(mixed >> 1 >> (63 - bits));
}

#if PSLIB_HAS_LEVELS
/* x m, of which the processor has products of 32 bits: low low + (high low + low high) 2^32. */
PSLIB_FOR_AVX2 static inline __m256i pslib_times_avx2(__m256i x, __m256i m)
{
    const __m256i high = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), m),
                                          _mm256_mul_epu32(x, _mm256_srli_epi64(m, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(x, m), _mm256_slli_epi64(high, 32));
}

PSLIB_FOR_AVX2 static inline __m256i pslib_mix64_avx2(__m256i x)
{
    const __m256i multiplier = _mm256_set1_epi64x((long long)PSLIB_MIX_MULTIPLIER);
    x = pslib_times_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 32)), multiplier);
    x = pslib_times_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 32)), multiplier);
    return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

PSLIB_FOR_AVX512 static inline __m512i pslib_mix64_avx512(__m512i x)
{
    const __m512i multiplier = _mm512_set1_epi64((long long)PSLIB_MIX_MULTIPLIER);
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 32)), multiplier);
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 32)), multiplier);
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
}

/* mix64 of four words. */
PSLIB_FOR_AVX512 static inline __m256i pslib_mix64_four_avx512(__m256i x)
{
    const __m256i multiplier = _mm256_set1_epi64x((long long)PSLIB_MIX_MULTIPLIER);
    x = _mm256_mullo_epi64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 32)), multiplier);
    x = _mm256_mullo_epi64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 32)), multiplier);
    return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}
#endif

#endif
