/* examples.h: columns of a file become examples, a row each.
 *
 * PSLIB_EXAMPLES_BLOCK rows of all columns at a time: each column's values are worked on side by side, as wide as the
 * processor can, and then written with a stride, to a block of examples that stays in a core's L1 cache until the last
 * column of it is written. Against one pass that makes an array of keys of each column and another that turns them:
 * half the time.
 */
#ifndef PSLIB_EXAMPLES_H
#define PSLIB_EXAMPLES_H

#include <stdint.h>
#include <string.h>

#include "data/logarithm.h"
#include "common/mix.h"
#include "common/vectors.h"

#define PSLIB_EXAMPLES_BLOCK 128
#define PSLIB_BODY static inline __attribute__((always_inline))

enum {
    PSLIB_I8, PSLIB_I16, PSLIB_I32, PSLIB_I64, PSLIB_U8, PSLIB_U16, PSLIB_U32, PSLIB_U64, PSLIB_F32, PSLIB_F64
};

/* How a column becomes keys: integers are hashed, places are looked up, keys are taken as they are. */
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

/* Up to PSLIB_WORD bits of a bitmap: a vector of them is one shift of the same word each. */
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
                const uint64_t place = (uint64_t)(WIDE)values[i]; /* of a null it may be anything */                   \
                keys[i] = place < size ? table[place] : null_key;                                                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Keys of `rows` rows of one column from `start` on, side by side. */
PSLIB_BODY void pslib_keys_of_block_at(const PslibKeyColumn *column, int64_t start, int64_t rows,
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
    if (valid) { /* whether a value is null is a coin toss, so there is no branch */
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

/* Asks for `bytes` at a place that will be written to soon. A column's values are written with a stride, which the
 * processor foresees badly: stores wait for a line of memory one by one, longer than hashing takes. */
PSLIB_BODY void pslib_written_soon(const void *place, int64_t bytes)
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
            if (start + 2 * PSLIB_EXAMPLES_BLOCK <= rows) { /* a part of the next block, of which each column asks for one */
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

/* The same for numbers; whether one of them, or what stands under a null, is infinite. */
PSLIB_BODY int pslib_numbers_of_block_at(const PslibNumberColumn *column, int64_t start, int64_t rows,
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
