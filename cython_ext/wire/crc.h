/* crc.h: CRC-32 of zlib, gzip and PNG, by carry-less products.
 *
 * A CRC is the rest of a division of polynomials over GF(2), written with the coefficient of x^0 in the highest bit.
 * Bytes that stand n bits before others may be replaced by anything with the same rest times x^n:
 *
 *     (a x^64 + b) x^n  has the rest of  a (x^(n+64) mod P) + b (x^n mod P)
 *
 * so 16 bytes are folded onto the 16 that come n bits later by two products. Four such sums run side by side (one
 * product takes 3 to 7 cycles, and one may begin every cycle), then they are folded into one, and the table takes
 * the rest of those 16 bytes and of the few that are left. V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel 2009.
 */
#ifndef PSLIB_CRC_H
#define PSLIB_CRC_H

#include <stdint.h>
#include <string.h>

#include "common/vectors.h"

#define PSLIB_CRC_POLYNOMIAL 0xEDB88320u
#define PSLIB_CRC_FOLDED_MIN 64 /* bytes; four sums of 16 */

static uint32_t pslib_crc_table[256];

static inline void pslib_crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? PSLIB_CRC_POLYNOMIAL : 0);
        pslib_crc_table[byte] = rest;
    }
}

static inline uint32_t pslib_crc_bytes(uint32_t rest, const uint8_t *data, int64_t size)
{
    for (int64_t i = 0; i < size; i++) rest = rest >> 8 ^ pslib_crc_table[(rest ^ data[i]) & 0xFF];
    return rest;
}

#if PSLIB_HAS_LEVELS
#define PSLIB_FOR_PCLMUL __attribute__((target("pclmul,sse2")))

static inline int pslib_crc_folds(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") != 0;
}

PSLIB_FOR_PCLMUL static inline __m128i pslib_crc_fold(__m128i before, __m128i by, __m128i onto)
{
    const __m128i low = _mm_clmulepi64_si128(before, by, 0x00), high = _mm_clmulepi64_si128(before, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* IN rest, data[size], size >= PSLIB_CRC_FOLDED_MIN. The rest after these bytes. */
PSLIB_FOR_PCLMUL static uint32_t pslib_crc_folded(uint32_t rest, const uint8_t *data, int64_t size)
{
    /* x^(n+32) and x^(n-32) mod P for n = 512 and 128, as 33 reversed bits: 64 reversed bits times these
     * give, in 128 bits, the x^(n+64) and x^n of above. */
    const __m128i by_64 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const __m128i *from = (const __m128i *)data;
    __m128i sums[4];
    uint8_t folded[16];
    for (int i = 0; i < 4; i++) sums[i] = _mm_loadu_si128(from++);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)rest));
    for (size -= 64; size >= 64; size -= 64)
        for (int i = 0; i < 4; i++) sums[i] = pslib_crc_fold(sums[i], by_64, _mm_loadu_si128(from++));
    for (int i = 1; i < 4; i++) sums[i] = pslib_crc_fold(sums[i - 1], by_16, sums[i]);
    for (; size >= 16; size -= 16) sums[3] = pslib_crc_fold(sums[3], by_16, _mm_loadu_si128(from++));
    _mm_storeu_si128((__m128i *)folded, sums[3]);
    return pslib_crc_bytes(pslib_crc_bytes(0, folded, 16), (const uint8_t *)from, size);
}

static inline uint32_t pslib_crc(uint32_t crc, const uint8_t *data, int64_t size)
{
    return ~(size < PSLIB_CRC_FOLDED_MIN ? pslib_crc_bytes(~crc, data, size) : pslib_crc_folded(~crc, data, size));
}
#else
static inline int pslib_crc_folds(void) { return 0; }
static inline uint32_t pslib_crc(uint32_t crc, const uint8_t *data, int64_t size)
{
    return ~pslib_crc_bytes(~crc, data, size);
}
#endif

#endif
