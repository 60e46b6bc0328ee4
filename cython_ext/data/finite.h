/* finite.h: find the first number that is not finite, or too large for a narrower type.
 *
 * The bits of a number without its sign, as an integer, order like its magnitude; infinity and NaN are the largest. So
 * a number that reaches a limit carries into the highest bit when 2^31 - limit is added: three instructions of any
 * vector unit, which is faster than memory.
 */
#ifndef PSLIB_FINITE_H
#define PSLIB_FINITE_H

#include <stdint.h>
#include <string.h>

#include "common/vectors.h"

enum { PSLIB_FINITE_RUN = 4096 /* numbers between two tests: they stay in the first cache */ };

typedef struct {
    const void *values;
    int bytes;      /* of a number: 4, or 2 */
    uint32_t limit; /* bits of the smallest number that is too large */
    int level;
} PslibLook;

/* Return 1 if one of n numbers from the place `start` on reaches the limit. */
PSLIB_INLINE int pslib_reaches_at(const PslibLook *look, int64_t start, int64_t n, int level)
{
    uint32_t found = 0, rest = 0x80000000u - look->limit;
    uint16_t found16 = 0, rest16 = (uint16_t)(0x8000u - look->limit);
    const float *wide = (const float *)look->values + start;
    const uint16_t *narrow = (const uint16_t *)look->values + start;
    (void)level;
    if (look->bytes == 2) {
        for (int64_t i = 0; i < n; i++) found16 |= (uint16_t)((narrow[i] & 0x7FFFu) + rest16);
        return found16 >> 15;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, wide + i, sizeof bits);
        found |= (bits & 0x7FFFFFFFu) + rest;
    }
    return (int)(found >> 31);
}

PSLIB_COPIES(int, pslib_reaches, look->level, (const PslibLook *look, int64_t start, int64_t n), look, start, n)

/* Return the place of the first of n numbers that reaches the limit; n where none does. */
static inline int64_t pslib_first_reaching(const PslibLook *look, int64_t n)
{
    for (int64_t start = 0; start < n; start += PSLIB_FINITE_RUN) {
        int64_t many = n - start < PSLIB_FINITE_RUN ? n - start : PSLIB_FINITE_RUN;
        if (!pslib_reaches(look, start, many)) continue;
        while (!pslib_reaches(look, start, 1)) start++;
        return start;
    }
    return n;
}

#endif
