/* index_line.h: one cache line of a partition's index.
 *
 * 16 cells of 32 bits each: an 8-bit tag and a 24-bit place (the row class in the top bit, the row number
 * below it). The tags of a line lie together, so one 16-byte compare finds all candidates:
 *
 *     byte  0..15   tag of cell 0..15        0 = the cell is empty
 *     byte 16..47   bits 0..15 of the places
 *     byte 48..63   bits 16..23 of the places
 *
 * A mask has bit i set for cell i. The vector versions give the mask of the plain one, bit for bit.
 */
#ifndef PSLIB_INDEX_LINE_H
#define PSLIB_INDEX_LINE_H

#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

enum {
    PSLIB_CELLS = 16,        /* of one line */
    PSLIB_CELLS_FILLED = 13, /* of them on average at most: fuller, and look-ups pass many full lines */
    PSLIB_ROW_BITS = 23
};
#define PSLIB_ROWS_MAX (UINT32_C(1) << PSLIB_ROW_BITS) /* of one class in one partition */

typedef struct {
    uint8_t tag[PSLIB_CELLS];
    uint16_t low[PSLIB_CELLS];
    uint8_t high[PSLIB_CELLS];
} PslibLine;

/* Tag: the lowest 8 bits of the mixed key, which neither partition nor line use; 0 means empty, so it
 * shares tag 1. */
static inline uint8_t pslib_tag(uint64_t mixed)
{
    const uint8_t tag = (uint8_t)mixed;
    return (uint8_t)(tag + (tag == 0));
}

/* Home line: bits 8..39 of the mixed key scaled to 0..line_count-1, so that line_count need not be a power
 * of two (growth by half wastes less memory than doubling). The partition is bits 44..63. */
static inline uint32_t pslib_home_line(uint64_t mixed, uint32_t line_count)
{
    return (uint32_t)(((uint64_t)(uint32_t)(mixed >> 8) * line_count) >> 32);
}

static inline uint32_t pslib_line_mask_plain(const PslibLine *line, uint8_t tag)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++) mask |= (uint32_t)(line->tag[cell] == tag) << cell;
    return mask;
}

/* Cells of the line that hold this tag; tag 0: the empty cells. */
static inline uint32_t pslib_line_mask(const PslibLine *line, uint8_t tag)
{
#if defined(__SSE2__)
    const __m128i tags = _mm_load_si128((const __m128i *)line->tag);
    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag)));
#elif defined(__aarch64__) && defined(__ARM_NEON)
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t equal = vceqq_u8(vld1q_u8(line->tag), vdupq_n_u8(tag));
    const uint8x16_t bits = vandq_u8(equal, vld1q_u8(weights));
    return (uint32_t)vaddv_u8(vget_low_u8(bits)) | ((uint32_t)vaddv_u8(vget_high_u8(bits)) << 8);
#else
    return pslib_line_mask_plain(line, tag);
#endif
}

static inline int pslib_lowest_cell(uint32_t mask)
{
    return __builtin_ctz(mask);
}

static inline uint32_t pslib_cell_place(const PslibLine *line, int cell)
{
    return (uint32_t)line->low[cell] | ((uint32_t)line->high[cell] << 16);
}

static inline void pslib_cell_set(PslibLine *line, int cell, uint8_t tag, uint32_t place)
{
    line->tag[cell] = tag;
    line->low[cell] = (uint16_t)place;
    line->high[cell] = (uint8_t)(place >> 16);
}

/* A place names a row of one class. */
static inline uint32_t pslib_place(int row_class, uint32_t row_number)
{
    return ((uint32_t)row_class << PSLIB_ROW_BITS) | row_number;
}

static inline int pslib_place_class(uint32_t place)
{
    return (int)(place >> PSLIB_ROW_BITS);
}

static inline uint32_t pslib_place_row(uint32_t place)
{
    return place & (PSLIB_ROWS_MAX - 1);
}

#endif
