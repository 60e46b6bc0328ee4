/* vectors.h: the instruction sets that kernels are compiled for; that of this machine is detected here and chosen in
 * checks.pyx (level_of); prefetches.
 *
 * A kernel is one always-inline body and a few copies of it (PSLIB_COPIES), each with a target attribute: the
 * compiler vectorises the same C for each instruction set. Sums have a fixed order and products are never fused with
 * additions (-ffp-contract=off), so all copies give the same bits.
 *
 * The wheel is built for the plainest processor of its kind (SSE2 on x86-64, NEON on ARM: level PLAIN); the copies for
 * newer ones are chosen when the program runs.
 */
#ifndef PSLIB_VECTORS_H
#define PSLIB_VECTORS_H

/* Parts of kernels must be inlined into each copy, or they would be compiled for the plainest instruction set. */
#define PSLIB_INLINE static inline __attribute__((always_inline))
#define PSLIB_NOINLINE static __attribute__((noinline, unused)) /* rare and long: kept out of the kernels */

enum { PSLIB_PLAIN = 0, PSLIB_AVX2 = 1, PSLIB_AVX512 = 2 };

#if defined(__x86_64__) && defined(__GNUC__)
#define PSLIB_HAS_LEVELS 1
#include <cpuid.h>
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

/* Define the function `name` with these parameters (in brackets, with types) and arguments: it runs the copy for
 * `level` of the always-inline name_at(arguments, level), which is compiled once for each level. */
#if PSLIB_HAS_LEVELS
#define PSLIB_COPIES(result, name, level, parameters, ...)                                                     \
    static result name##_plain parameters { return name##_at(__VA_ARGS__, PSLIB_PLAIN); }                      \
    PSLIB_FOR_AVX2 static result name##_avx2 parameters { return name##_at(__VA_ARGS__, PSLIB_AVX2); }         \
    PSLIB_FOR_AVX512 static result name##_avx512 parameters { return name##_at(__VA_ARGS__, PSLIB_AVX512); }   \
    static inline result name parameters                                                                       \
    {                                                                                                          \
        if ((level) == PSLIB_AVX512) return name##_avx512(__VA_ARGS__);                                        \
        return (level) == PSLIB_AVX2 ? name##_avx2(__VA_ARGS__) : name##_plain(__VA_ARGS__);                   \
    }
#else
#define PSLIB_COPIES(result, name, level, parameters, ...) \
    static result name parameters { return name##_at(__VA_ARGS__, PSLIB_PLAIN); }
#endif

#if PSLIB_HAS_LEVELS
/* Return 1 if the machine has the scalar instructions that every copy but the plain one may use. Virtual machines and
 * emulators can hide any of them and show AVX2. GCC before 11 has no name for lzcnt: bit 5 of ecx in leaf
 * 0x80000001. */
static inline int pslib_has_bit_tricks(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & 1u << 5) && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}
#endif

/* Return the highest level of which this machine has all instructions that the target attributes name. */
static inline int pslib_best_level(void)
{
#if PSLIB_HAS_LEVELS
    __builtin_cpu_init();
    if (!pslib_has_bit_tricks() || !__builtin_cpu_supports("avx2")) return PSLIB_PLAIN;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return PSLIB_AVX512;
    return PSLIB_AVX2;
#else
    return PSLIB_PLAIN;
#endif
}

/* Prefetch a cache line that lies in memory into the second-level cache (prefetcht1, on ARM pldl2keep). A core has few
 * outstanding misses of its first cache and more of its second, and beside the latency of memory the way from the
 * second cache to the first is nothing. AMD Zen 4, 10 million random lines of 64 bytes, ns a line: into the first
 * cache 7.9, into the second 5.2. Intel Sapphire Rapids and AMD Zen 3 make no difference.
 *
 * PSLIB_PREFETCH_NEAR: into the first cache, of data that lies in the second or third, as all of a batch does. Sums of
 * lists of rows take 8.1 ns an element with it and 12.1 with the other (AMD Zen 4), keys made distinct 5.9 and 6.4
 * ns. */
#if defined(__GNUC__) || defined(__clang__)
#define PSLIB_PREFETCH(address) __builtin_prefetch((address), 0, 2)
#define PSLIB_PREFETCH_NEAR(address) __builtin_prefetch(address)
#else
#define PSLIB_PREFETCH(address) ((void)0)
#define PSLIB_PREFETCH_NEAR(address) ((void)0)
#endif

#endif
