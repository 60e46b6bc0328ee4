/* examples.h: columns of a file become examples, a row each.
 *
 * PSLIB_EXAMPLES_BLOCK rows of all columns at a time: each column's values are computed side by side by vectors, and
 * then written with a stride to a block of examples that stays in the L1 cache until its last column is written. Half
 * the time of one pass that makes an array of keys of each column and another that transposes them.
 *
 * sign(x) * log(1 + |x|) of float32 has the same bits on every machine: it is computed in doubles by plain operations,
 * so that the compiler vectorises it. 1 + x is exact there for all floats from 2^-29 to 2^52, and the rest is below the
 * precision of float32. With 1 + x = 2^e m and s = (m - 1) / (m + 1), where m lies between sqrt(1/2) and sqrt(2), hence
 * |s| < 0.172:
 *
 *     log(1 + x) = e log(2) + 2 (s + s^3 / 3 + ... + s^15 / 15)
 *
 * The truncated terms are below 5e-14 of it, so all but a few in a million are the nearest float32. libm's log1pf,
 * which NumPy calls where there is no AVX-512, took 18 ns a number; this takes 2 (AMD EPYC, Zen 3).
 */
#ifndef PSLIB_EXAMPLES_H
#define PSLIB_EXAMPLES_H

#include <stdint.h>
#include <string.h>

#include "common/mix.h"
#include "common/vectors.h"

PSLIB_INLINE double pslib_double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

PSLIB_INLINE uint64_t pslib_bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* log(1 + x) for finite x >= 0. */
PSLIB_INLINE double pslib_log1p(double x)
{
    const uint64_t root_half = UINT64_C(0x3fe6a09e667f3bcd);
    const uint64_t bits = pslib_bits_of_double(1.0 + x);
    const uint64_t exponent = (bits - root_half) >> 52;
    const double m = pslib_double_of(bits - (exponent << 52));
    /* Few processors convert vectors of 64-bit integers to doubles; below 2^52 the bits can be composed. */
    const double e = pslib_double_of(exponent | UINT64_C(0x4330000000000000)) - 0x1p52;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    const double even = 1.0 + z * z * (1.0 / 5 + z * z * (1.0 / 9 + z * z * (1.0 / 13)));
    const double odd = z * (1.0 / 3 + z * z * (1.0 / 7 + z * z * (1.0 / 11 + z * z * (1.0 / 15))));
    const double large = e * 0.69314718055994530942 + 2.0 * s * (even + odd);
    const double small = x - x * x * (0.5 - x * (1.0 / 3)); /* where 1 + x would lose bits of x */
    const uint64_t mask = 0 - (uint64_t)(x < 0x1p-14); /* branch-free, so that it is vectorised */
    return pslib_double_of((pslib_bits_of_double(small) & mask) | (pslib_bits_of_double(large) & ~mask));
}

PSLIB_INLINE float pslib_squeezed(float value)
{
    uint32_t bits, sign;
    memcpy(&bits, &value, sizeof(bits));
    sign = bits & UINT32_C(0x80000000);
    bits &= UINT32_C(0x7fffffff);
    memcpy(&value, &bits, sizeof(value));
    value = (float)pslib_log1p((double)value);
    memcpy(&bits, &value, sizeof(bits));
    bits |= sign;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

#define PSLIB_EXAMPLES_BLOCK 128

enum {
    PSLIB_I8, PSLIB_I16, PSLIB_I32, PSLIB_I64, PSLIB_U8, PSLIB_U16, PSLIB_U32, PSLIB_U64, PSLIB_F32, PSLIB_F64
};

/* Ways to make keys of a column: integers are hashed, places are looked up in a table, keys are copied. */
enum { PSLIB_HASHED, PSLIB_LOOKED_UP, PSLIB_GIVEN };

typedef struct {
    const void *values;
    const uint8_t *valid; /* Arrow's bitmap, from bit `first_bit` on; NULL: there is no null */
    int64_t first_bit;
    int type, way, level;
    uint64_t base, null_key;
    const uint64_t *table; /* of PSLIB_LOOKED_UP */
    uint64_t table_size;
} PslibKeyColumn;

typedef struct {
    const void *values;
    const uint8_t *valid;
    int64_t first_bit;
    int type, level, log1p;
    float fill;
} PslibNumberColumn;

/* Bits of a bitmap that are read as one word: a vector of them is shifts of the same word. */
#define PSLIB_WORD 32

static inline uint32_t pslib_word_of_bits(const uint8_t *bits, int64_t place, int64_t count)
{
    const int64_t bytes = ((place & 7) + count + 7) >> 3;
    uint64_t word = 0;
    for (int64_t k = 0; k < bytes; k++) word |= (uint64_t)bits[(place >> 3) + k] << (8 * k);
    return (uint32_t)(word >> (place & 7));
}

/* second ? b : a, without a branch */
static inline float pslib_one_of(float a, float b, int second)
{
    uint32_t bits_a, bits_b;
    memcpy(&bits_a, &a, 4);
    memcpy(&bits_b, &b, 4);
    const uint32_t mask = 0u - (uint32_t)second;
    bits_a = (bits_a & ~mask) | (bits_b & mask);
    memcpy(&a, &bits_a, 4);
    return a;
}

#define PSLIB_KEY_LOOP(TYPE, WIDE)                                                                                     \
    do {                                                                                                               \
        const TYPE *values = (const TYPE *)column->values + start;                                                     \
        if (column->way == PSLIB_HASHED) {                                                                             \
            for (int64_t i = 0; i < rows; i++) keys[i] = pslib_mix64((uint64_t)(WIDE)values[i] ^ base);                \
        } else {                                                                                                       \
            for (int64_t i = 0; i < rows; i++) {                                                                       \
                const uint64_t place = (uint64_t)(WIDE)values[i]; /* undefined for a null */                   \
                keys[i] = place < size ? table[place] : null_key;                                                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Keys of `rows` rows of one column from `start` on. keys: OUT, (rows,). */
PSLIB_INLINE void pslib_keys_of_block_at(const PslibKeyColumn *column, int64_t start, int64_t rows,
                                         uint64_t *restrict keys, int level)
{
    const uint64_t base = column->base, null_key = column->null_key, size = column->table_size;
    const uint64_t *table = column->table;
    const uint8_t *valid = column->valid;
    const int64_t first_bit = column->first_bit + start;
    (void)level;
    if (column->way == PSLIB_GIVEN) {
        memcpy(keys, (const uint64_t *)column->values + start, (size_t)rows * sizeof(uint64_t));
        return;
    }
    switch (column->type) {
    case PSLIB_I8: PSLIB_KEY_LOOP(int8_t, int64_t); break;
    case PSLIB_I16: PSLIB_KEY_LOOP(int16_t, int64_t); break;
    case PSLIB_I32: PSLIB_KEY_LOOP(int32_t, int64_t); break;
    case PSLIB_U8: PSLIB_KEY_LOOP(uint8_t, uint64_t); break;
    case PSLIB_U16: PSLIB_KEY_LOOP(uint16_t, uint64_t); break;
    case PSLIB_U32: PSLIB_KEY_LOOP(uint32_t, uint64_t); break;
    default: PSLIB_KEY_LOOP(uint64_t, uint64_t); break; /* signed ones by the same bits */
    }
    if (valid) { /* branch-free: nulls are unpredictable */
        for (int64_t first = 0; first < rows; first += PSLIB_WORD) {
            const int64_t size = rows - first < PSLIB_WORD ? rows - first : PSLIB_WORD;
            const uint32_t word = pslib_word_of_bits(valid, first_bit + first, size);
            for (int64_t i = 0; i < size; i++) {
                const uint64_t mask = (uint64_t)(word >> i & 1) - 1;
                keys[first + i] = (keys[first + i] & ~mask) | (null_key & mask);
            }
        }
    }
}

PSLIB_COPIES(void, pslib_keys_of_block, column->level,
             (const PslibKeyColumn *column, int64_t start, int64_t rows, uint64_t *keys), column, start, rows, keys)

/* Prefetch `bytes` at a place that will be written to. A column's values are written with a stride, which the hardware
 * prefetcher follows badly: stores would wait for lines one by one, longer than hashing takes. */
PSLIB_INLINE void pslib_written_soon(const void *place, int64_t bytes)
{
#if defined(__GNUC__) || defined(__clang__)
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)place + at, 1);
#else
    (void)place, (void)bytes;
#endif
}

static void pslib_fill_keys(const PslibKeyColumn *columns, int64_t count, int64_t rows, uint64_t *out)
{
    uint64_t keys[PSLIB_EXAMPLES_BLOCK];
    if (count == 1) { /* the elements of lists */
        pslib_keys_of_block(columns, 0, rows, out);
        return;
    }
    for (int64_t start = 0; start < rows; start += PSLIB_EXAMPLES_BLOCK) {
        const int64_t size = rows - start < PSLIB_EXAMPLES_BLOCK ? rows - start : PSLIB_EXAMPLES_BLOCK;
        for (int64_t j = 0; j < count; j++) {
            uint64_t *at = out + start * count + j;
            if (start + 2 * PSLIB_EXAMPLES_BLOCK <= rows) { /* each column prefetches a part of the next block */
                pslib_written_soon(out + (start + PSLIB_EXAMPLES_BLOCK) * count + j * PSLIB_EXAMPLES_BLOCK, sizeof(keys));
            }
            pslib_keys_of_block(&columns[j], start, size, keys);
            for (int64_t i = 0; i < size; i++, at += count) *at = keys[i];
        }
    }
}

#define PSLIB_NUMBER_LOOP(TYPE)                                                                                        \
    do {                                                                                                               \
        const TYPE *values = (const TYPE *)column->values + start;                                                     \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const float value = (float)values[i];                                                                      \
            const int nan = value != value;                                                                            \
            infinite |= (value - value != 0.0f) & !nan;                                                                \
            numbers[i] = pslib_one_of(value, fill, nan);                                                               \
        }                                                                                                              \
    } while (0)

/* Numbers of `rows` rows of one column. numbers: OUT. Returns 1 if one of them, or a value under a null, is
 * infinite. */
PSLIB_INLINE int pslib_numbers_of_block_at(const PslibNumberColumn *column, int64_t start, int64_t rows,
                                           float *restrict numbers, int level)
{
    const float fill = column->fill;
    const uint8_t *valid = column->valid;
    const int64_t first_bit = column->first_bit + start;
    int infinite = 0;
    (void)level;
    switch (column->type) {
    case PSLIB_I8: PSLIB_NUMBER_LOOP(int8_t); break;
    case PSLIB_I16: PSLIB_NUMBER_LOOP(int16_t); break;
    case PSLIB_I32: PSLIB_NUMBER_LOOP(int32_t); break;
    case PSLIB_I64: PSLIB_NUMBER_LOOP(int64_t); break;
    case PSLIB_U8: PSLIB_NUMBER_LOOP(uint8_t); break;
    case PSLIB_U16: PSLIB_NUMBER_LOOP(uint16_t); break;
    case PSLIB_U32: PSLIB_NUMBER_LOOP(uint32_t); break;
    case PSLIB_U64: PSLIB_NUMBER_LOOP(uint64_t); break;
    case PSLIB_F32: PSLIB_NUMBER_LOOP(float); break;
    default: PSLIB_NUMBER_LOOP(double); break;
    }
    if (valid) {
        for (int64_t first = 0; first < rows; first += PSLIB_WORD) {
            const int64_t size = rows - first < PSLIB_WORD ? rows - first : PSLIB_WORD;
            const uint32_t word = pslib_word_of_bits(valid, first_bit + first, size);
            for (int64_t i = 0; i < size; i++) {
                numbers[first + i] = pslib_one_of(numbers[first + i], fill, !(word >> i & 1));
            }
        }
    }
    if (column->log1p) {
        for (int64_t i = 0; i < rows; i++) numbers[i] = pslib_squeezed(numbers[i]);
    }
    return infinite;
}

PSLIB_COPIES(int, pslib_numbers_of_block, column->level,
             (const PslibNumberColumn *column, int64_t start, int64_t rows, float *numbers), column, start, rows, numbers)

/* infinite[j] says whether column j may hold an infinite number. */
static void pslib_fill_numbers(const PslibNumberColumn *columns, int64_t count, int64_t rows, float *out,
                               uint8_t *infinite)
{
    float numbers[PSLIB_EXAMPLES_BLOCK];
    for (int64_t start = 0; start < rows; start += PSLIB_EXAMPLES_BLOCK) {
        const int64_t size = rows - start < PSLIB_EXAMPLES_BLOCK ? rows - start : PSLIB_EXAMPLES_BLOCK;
        for (int64_t j = 0; j < count; j++) {
            float *at = out + start * count + j;
            if (start + 2 * PSLIB_EXAMPLES_BLOCK <= rows) {
                pslib_written_soon(out + (start + PSLIB_EXAMPLES_BLOCK) * count + j * PSLIB_EXAMPLES_BLOCK, sizeof(numbers));
            }
            infinite[j] |= (uint8_t)pslib_numbers_of_block(&columns[j], start, size, numbers);
            for (int64_t i = 0; i < size; i++, at += count) *at = numbers[i];
        }
    }
}

#endif
