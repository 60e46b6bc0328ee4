/* floats.h: float32 as bits, and choices without a branch, so that the loops that use them are vectorised. */
#ifndef PSLIB_FLOATS_H
#define PSLIB_FLOATS_H

#include <stdint.h>
#include <string.h>

#include "common/vectors.h"

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

/* Return a if the condition is 1, b if it is 0. */
PSLIB_INLINE uint32_t pslib_choose(int condition, uint32_t a, uint32_t b)
{
    return b ^ ((a ^ b) & (0 - (uint32_t)condition));
}

/* Return 0 for a finite number, NaN for others. */
PSLIB_INLINE float pslib_zero_if_finite(float value)
{
    return value - value;
}

#endif
