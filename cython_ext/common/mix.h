/* mix.h: the one 64-bit mixing function of the house.
 *
 * Placement (partition), the key index (line and tag), first values of rows and the hashing of raw
 * values all start from this function, so that a key means the same on every server and in every
 * process. Changing one bit of it makes every checkpoint unreadable: golden values are tested.
 *
 * "rrmxmx-light": two multiplications, three xor-shifts. Each step is a bijection of the 64-bit
 * integers (xor-shift by half the width, product with an odd number), hence so is the whole: two
 * keys never share a mixed value. mix64(0) = 0.
 */
#ifndef PSLIB_MIX_H
#define PSLIB_MIX_H

#include <stdint.h>

#define PSLIB_MIX_MULTIPLIER UINT64_C(0xd6e8feb86659fd93)

static inline __attribute__((always_inline)) uint64_t pslib_mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= PSLIB_MIX_MULTIPLIER;
    x ^= x >> 32;
    x *= PSLIB_MIX_MULTIPLIER;
    x ^= x >> 32;
    return x;
}

/* The top `bits` bits of a mixed key, 0 of 0 bits. Two shifts, because one by 64 is undefined in C. */
static inline __attribute__((always_inline)) uint32_t pslib_partition_of_mixed(uint64_t mixed, int bits)
{
    return (uint32_t)(mixed >> 1 >> (63 - bits));
}

#endif
