/* initializers.h: the first values of a row, a pure function of (key, part seed, column in the part).
 *
 * Nothing is remembered and no generator advances, so a key has the same first value on every server,
 * in any order, and whether or not its row exists yet.
 *
 * For column j the bits are  h(i) = mix64(mix64(key ^ seed) + (4 j + i) * GOLDEN),  i = 0..3, all modulo 2^64:
 * four independent words a column, of which Uniform uses one and Normal three.
 * No libm and one rounding an operation: every machine gives the same bits.
 */
#ifndef PSLIB_INITIALIZERS_H
#define PSLIB_INITIALIZERS_H

#include <stdint.h>

#include "index_line.h"
#include "mix.h"

#define PSLIB_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

enum {
    PSLIB_CONSTANT = 0,
    PSLIB_UNIFORM = 1,
    PSLIB_NORMAL = 2,
    PSLIB_INITIALIZER_KINDS = 3
};

typedef struct {
    int32_t kind;
    float numbers[2]; /* Constant: value. Uniform: bound. Normal: std. The second is spare. */
    uint64_t seed;
} PslibInitializer;

PSLIB_INLINE uint64_t pslib_column_word(uint64_t base, int64_t column, uint64_t which)
{
    return pslib_mix64(base + ((uint64_t)column * 4 + which) * PSLIB_GOLDEN);
}

/* The sum of the four 16-bit fields of one word. */
PSLIB_INLINE int32_t pslib_field_sum(uint64_t word)
{
    return (int32_t)((word & 0xFFFF) + ((word >> 16) & 0xFFFF) + ((word >> 32) & 0xFFFF) + (word >> 48));
}

/* u = 24 top bits * 2^-24, exact, in [0, 1);  value = (2 u - 1) * bound  in [-bound, bound) */
PSLIB_INLINE void pslib_uniform_values(uint64_t base, float bound, int64_t dim, float *out)
{
    for (int64_t j = 0; j < dim; j++) {
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

PSLIB_INLINE void pslib_first_values(const PslibInitializer *initializer, uint64_t key, int64_t dim, float *out)
{
    const uint64_t base = pslib_mix64(key ^ initializer->seed);
    switch (initializer->kind) {
    case PSLIB_UNIFORM:
        pslib_uniform_values(base, initializer->numbers[0], dim, out);
        break;
    case PSLIB_NORMAL:
        pslib_normal_values(base, initializer->numbers[0], dim, out);
        break;
    default:
        for (int64_t j = 0; j < dim; j++) out[j] = initializer->numbers[0];
    }
}

#endif
