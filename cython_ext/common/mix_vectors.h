/* mix_vectors.h: mix64 of the words of a vector. */
#ifndef PSLIB_MIX_VECTORS_H
#define PSLIB_MIX_VECTORS_H

#include <stdint.h>

#include "common/mix.h"
#include "common/vectors.h"

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
