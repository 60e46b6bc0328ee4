/* index_line.h: one cache line of a partition's index.
 *
 *     byte  0..39   the keys of cells 0..4; 0 in an empty cell
 *     byte 40..59   the places of the rows of these keys, + 1;   0 = the cell is empty;
 *                   0xFFFF0000 + c = the key has no row yet, it is a counted key (admission.h)
 *     byte 60..63   passed: how many keys of the index went by this line because it was full
 *
 * The whole key stands in the cell, so that a look-up reads one line of the index and then the row, and
 * nothing else: with a short tag here and the key in the row, a row of 16 floats would lie across two lines.
 * An entry costs 12.8 bytes instead of 4, and the row 8 to 12 less.
 */
#ifndef PSLIB_INDEX_LINE_H
#define PSLIB_INDEX_LINE_H

#include <stdint.h>

#include "common/vectors.h"

/* Kernels are compiled once for each instruction set (vectors.h); what they are made of must become part of
 * them, or it would be compiled for the plainest one. */
#define PSLIB_INLINE static inline __attribute__((always_inline))
#define PSLIB_APART static __attribute__((noinline, unused)) /* rare and long: kept out of the kernels */

enum {
    PSLIB_CELLS = 5,            /* of one line */
    PSLIB_FILLED_PERCENT = 75,         /* of all cells at most: fuller, and look-ups pass many full lines */
    PSLIB_SPARING_FILLED_PERCENT = 78, /* where rows are short beside their cells */
    PSLIB_ROW_BITS = 31
};
#define PSLIB_ROW_IDS (UINT32_C(1) << PSLIB_ROW_BITS) /* rows of one class in a table, and then some */
#define PSLIB_COUNTED UINT32_C(0xFFFF0000) /* no row id reaches a place from here on */
#define PSLIB_COUNT_MAX UINT32_C(0xFFFF)   /* what a cell can count to */

typedef struct {
    uint64_t key[PSLIB_CELLS];
    uint32_t place[PSLIB_CELLS];
    uint32_t passed;
} PslibLine;

/* Home line: bits 8..39 of the mixed key scaled to 0..line_count-1, so that line_count need not be a power
 * of two (growth by half wastes less memory than doubling). The partition is bits 44..63. */
PSLIB_INLINE uint32_t pslib_home_line(uint64_t mixed, uint32_t line_count)
{
    return (uint32_t)(((uint64_t)(uint32_t)(mixed >> 8) * line_count) >> 32);
}

PSLIB_INLINE uint32_t pslib_next_line(uint32_t line, uint32_t line_count)
{
    return line + 1 == line_count ? 0 : line + 1;
}

/* Bit i is set where cell i holds this key. Whether it is there is a coin toss for the processor, so every
 * cell is looked at and nothing branches. */
PSLIB_INLINE uint32_t pslib_line_mask(const PslibLine *line, uint64_t key)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++)
        mask |= (uint32_t)((line->key[cell] == key) & (line->place[cell] != 0)) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
/* The same. As 32-bit words the places of a line are words 10 to 14. */
PSLIB_FOR_AVX512 static inline uint32_t pslib_line_mask_avx512(const PslibLine *line, uint64_t key)
{
    const __m512i words = _mm512_load_si512((const void *)line);
    const uint32_t same = _mm512_cmpeq_epi64_mask(words, _mm512_set1_epi64((long long)key));
    return same & (_mm512_test_epi32_mask(words, words) >> 10) & 0x1F;
}

PSLIB_FOR_AVX2 static inline uint32_t pslib_line_mask_avx2(const PslibLine *line, uint64_t key)
{
    const __m256i keys = _mm256_load_si256((const __m256i *)(const void *)line);
    const __m256i same = _mm256_cmpeq_epi64(keys, _mm256_set1_epi64x((long long)key));
    const uint32_t last = (line->key[4] == key) & (line->place[4] != 0);
    const __m128i places = _mm_loadu_si128((const __m128i *)(const void *)line->place);
    const __m128i empty = _mm_cmpeq_epi32(places, _mm_setzero_si128());
    const uint32_t filled = ~(uint32_t)_mm_movemask_ps(_mm_castsi128_ps(empty));
    return ((uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same)) & filled) | last << 4;
}
#endif

/* By the copy of this level, which the kernel it becomes part of is compiled for. */
PSLIB_INLINE uint32_t pslib_line_mask_at(int level, const PslibLine *line, uint64_t key)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) return pslib_line_mask_avx512(line, key);
    if (level == PSLIB_AVX2) return pslib_line_mask_avx2(line, key);
#endif
    (void)level;
    return pslib_line_mask(line, key);
}

/* Bit i is set where the key in cell i is this one: also where the cell is empty and the key is 0, because empty
 * cells hold key 0. */
PSLIB_INLINE uint32_t pslib_line_same(const PslibLine *line, uint64_t key)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++) mask |= (uint32_t)(line->key[cell] == key) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX512 static inline uint32_t pslib_line_same_avx512(const PslibLine *line, uint64_t key)
{
    const __m512i keys = _mm512_load_si512((const void *)line);
    return _mm512_cmpeq_epi64_mask(keys, _mm512_set1_epi64((long long)key)) & 0x1F;
}

PSLIB_FOR_AVX2 static inline uint32_t pslib_line_same_avx2(const PslibLine *line, uint64_t key)
{
    const __m256i keys = _mm256_load_si256((const __m256i *)(const void *)line);
    const __m256i same = _mm256_cmpeq_epi64(keys, _mm256_set1_epi64x((long long)key));
    return (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same)) | (uint32_t)(line->key[4] == key) << 4;
}
#endif

PSLIB_INLINE uint32_t pslib_line_same_at(int level, const PslibLine *line, uint64_t key)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) return pslib_line_same_avx512(line, key);
    if (level == PSLIB_AVX2) return pslib_line_same_avx2(line, key);
#endif
    (void)level;
    return pslib_line_same(line, key);
}

/* Bit i is set where cell i is empty. */
PSLIB_INLINE uint32_t pslib_line_empty(const PslibLine *line)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++) mask |= (uint32_t)(line->place[cell] == 0) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX2 static inline uint32_t pslib_line_empty_avx2(const PslibLine *line)
{
    const __m128i places = _mm_loadu_si128((const __m128i *)(const void *)line->place);
    const __m128i empty = _mm_cmpeq_epi32(places, _mm_setzero_si128());
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(empty)) | (uint32_t)(line->place[4] == 0) << 4;
}
#endif

PSLIB_INLINE uint32_t pslib_line_empty_at(int level, const PslibLine *line)
{
#if PSLIB_HAS_LEVELS
    if (level >= PSLIB_AVX2) return pslib_line_empty_avx2(line);
#endif
    (void)level;
    return pslib_line_empty(line);
}

PSLIB_INLINE int pslib_lowest_cell(uint32_t mask)
{
    return __builtin_ctz(mask);
}

/* A place names a row of one class; it is never 0. */
PSLIB_INLINE uint32_t pslib_place(int row_class, uint32_t row)
{
    return (((uint32_t)row_class << PSLIB_ROW_BITS) | row) + 1;
}

/* Whether a cell with this place holds a row: it is neither empty nor a counted key. */
PSLIB_INLINE int pslib_place_is_row(uint32_t place)
{
    return place - 1 < PSLIB_COUNTED - 1;
}

PSLIB_INLINE int pslib_place_class(uint32_t place)
{
    return (int)((place - 1) >> PSLIB_ROW_BITS);
}

PSLIB_INLINE uint32_t pslib_place_row(uint32_t place)
{
    return (place - 1) & (PSLIB_ROW_IDS - 1);
}

#endif
