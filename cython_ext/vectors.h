/* vectors.h: which instruction set a kernel is compiled for, and which one this machine has.
 *
 * A kernel is one always-inline body and a few one-line copies of it, each with a target attribute: the
 * compiler vectorises the same C for each instruction set, and nothing has to be written or tested twice. Sums
 * have a fixed order and products are never fused with additions (-ffp-contract=off), so all copies give the
 * same bits.
 *
 * The wheel is built for the plainest processor of its kind (SSE2 on x86-64, NEON on ARM: level PLAIN); the
 * copies for newer ones are chosen when the program runs.
 */
#ifndef PSLIB_VECTORS_H
#define PSLIB_VECTORS_H

enum { PSLIB_PLAIN = 0, PSLIB_AVX2 = 1, PSLIB_AVX512 = 2, PSLIB_LEVELS = 3 };

#if defined(__x86_64__) && defined(__GNUC__)
#define PSLIB_HAS_LEVELS 1
#include <immintrin.h>
#define PSLIB_FOR_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#if defined(__clang__)
#define PSLIB_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt")))
#else
#define PSLIB_FOR_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")))
#endif
#else
#define PSLIB_HAS_LEVELS 0
#endif

/* The highest level that this machine has. */
static inline int pslib_best_level(void)
{
#if PSLIB_HAS_LEVELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2"))
        return PSLIB_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return PSLIB_AVX2;
#endif
    return PSLIB_PLAIN;
}

#endif
