/* pages.h: the values of one page of a Parquet column, decompressed.
 *
 * What most columns of numbers are, flat or lists, in the encodings that writers choose by themselves: levels as runs,
 * values plain or as places in a dictionary. Everything else is answered with -1, and then Arrow reads the column.
 * Arrow goes over levels, bitmaps and values in turn, for columns of any depth; here each is one pass.
 *
 * Pages come from files, and files may be damaged: every length is held to what there is before it is used.
 */
#ifndef PSLIB_PAGES_H
#define PSLIB_PAGES_H

#include <stdint.h>
#include <string.h>

#include "page_header.h"

/* Runs of one value each (`packed` NULL), or of values of `width` bits, 0 to 32, in groups of eight. */
typedef struct {
    const uint8_t *at, *end;
    int width;
    int64_t left; /* values of the run at hand */
    uint32_t value;
    const uint8_t *packed;
} PslibRuns;

/* The next run; 0, or -1 where there is none or it is cut off. */
static inline int pslib_next_run(PslibRuns *runs)
{
    uint64_t header;
    if (pslib_varint(&runs->at, runs->end, &header) || header >> 1 == 0 || header > UINT32_MAX) return -1;
    const int64_t room = runs->end - runs->at, count = (int64_t)(header >> 1);
    const int64_t bytes = header & 1 ? count * runs->width : (runs->width + 7) / 8;
    if (bytes > room) return -1;
    runs->left = header & 1 ? 8 * count : count;
    runs->packed = header & 1 ? runs->at : NULL;
    runs->value = 0;
    if (!(header & 1)) memcpy(&runs->value, runs->at, (size_t)bytes);
    runs->at += bytes;
    return 0;
}

/* Levels of a bit each, a byte each. */
static inline void pslib_spread_bits(const uint8_t *restrict packed, int64_t n, uint8_t *restrict levels)
{
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) { /* bit b of a byte to byte b of a word */
        uint64_t word = packed[k >> 3] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
        word = (word + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
        for (int b = 0; b < 8; b++) levels[k + b] = (uint8_t)(word >> (8 * b));
    }
    for (; k < n; k++) levels[k] = packed[k >> 3] >> (k & 7) & 1;
}

/* n levels, 0 to `most`, 1 to 3, a byte each; the level that all of them are, `most` + 1 where they differ, or -1. */
static int pslib_levels(const uint8_t *data, int64_t size, int most, int64_t n, uint8_t *restrict levels)
{
    PslibRuns runs = {data, data + size, most > 1 ? 2 : 1, 0, 0, NULL};
    int above = 0;
    for (int64_t i = 0; i < n;) {
        if (pslib_next_run(&runs)) return -1;
        const int64_t some = runs.left < n - i ? runs.left : n - i;
        if (!runs.packed) {
            if (runs.value > (uint32_t)most) return -1;
            memset(levels + i, (int)runs.value, (size_t)some);
            if (some == n) return (int)runs.value;
        } else if (runs.width == 1) {
            pslib_spread_bits(runs.packed, some, levels + i);
        } else {
            for (int64_t k = 0; k < some; k++) {
                levels[i + k] = runs.packed[k >> 2] >> (2 * (k & 3)) & 3;
                above |= levels[i + k] > most;
            }
        }
        i += some;
    }
    return above ? -1 : most + 1;
}

/* Value k of a packed run that ends at `end`: of the last ones no 8 bytes can be read. */
static inline uint32_t pslib_last_packed(const uint8_t *packed, const uint8_t *end, int64_t k, int width)
{
    const uint8_t *const first = packed + (k * width >> 3);
    uint64_t word = 0;
    memcpy(&word, first, (size_t)(end - first < 8 ? end - first : 8));
    return (uint32_t)(word >> (k * width & 7) & (((uint64_t)1 << width) - 1));
}

/* With a width that the compiler knows: eight values end where a byte does, so all shifts are known too. */
#define PSLIB_EACH_WIDTH(CASE)                                                                                         \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)        \
    CASE(14) CASE(15) CASE(16) CASE(17) CASE(18) CASE(19) CASE(20)

#define PSLIB_EIGHTS_CASE(WIDTH) \
    case WIDTH: return pslib_placed_eights(packed, n, WIDTH, bytes, table, known, to);

/* Packed values by their places in a dictionary, as long as there are eight of n; how many, or -1: a place is beyond
 * it. Of each value 8 bytes can be read. */
static inline __attribute__((always_inline)) int64_t pslib_placed_eights(const uint8_t *restrict packed, int64_t n,
                                                                         const int width, const int bytes,
                                                                         const void *restrict table, uint32_t known,
                                                                         void *restrict to)
{
    const uint64_t mask = ((uint64_t)1 << width) - 1;
    uint32_t wrong = 0;
    int64_t k = 0;
    for (; k + 8 <= n; k += 8, packed += width) {
        for (int j = 0; j < 8; j++) {
            uint64_t word;
            memcpy(&word, packed + (j * width >> 3), sizeof(word));
            const uint32_t read = (uint32_t)(word >> (j * width & 7) & mask), beyond = read >= known;
            const uint32_t place = beyond ? 0 : read;
            wrong |= beyond;
            if (bytes == 4) {
                ((uint32_t *)to)[k + j] = ((const uint32_t *)table)[place];
            } else {
                ((uint64_t *)to)[k + j] = ((const uint64_t *)table)[place];
            }
        }
    }
    return wrong ? -1 : k;
}

static inline __attribute__((always_inline)) int64_t pslib_placed_by_width(const uint8_t *packed, int64_t n, int width,
                                                                           const int bytes, const void *table,
                                                                           uint32_t known, void *to)
{
    switch (width) {
        PSLIB_EACH_WIDTH(PSLIB_EIGHTS_CASE)
    default: return pslib_placed_eights(packed, n, width, bytes, table, known, to);
    }
}

/* Values of one run, of a type of 4 or 8 bytes, by their places in a dictionary; 0, or -1: a place is beyond it. */
#define PSLIB_PLACED_RUN(NAME, TYPE)                                                                                   \
    static int NAME(const PslibRuns *runs, int64_t n, const TYPE *restrict table, uint32_t known, TYPE *restrict to)   \
    {                                                                                                                  \
        const uint8_t *const packed = runs->packed;                                                                    \
        const int width = runs->width;                                                                                 \
        const int64_t room = runs->end - packed;                                                                       \
        const int64_t whole = !packed || room < 8 ? 0 : width == 0 ? n : (8 * (room - 8) + 7) / width + 1;             \
        int64_t k = 0;                                                                                                 \
        if (!packed) {                                                                                                 \
            if (runs->value >= known) return -1;                                                                       \
            for (; k < n; k++) to[k] = table[runs->value];                                                             \
            return 0;                                                                                                  \
        }                                                                                                              \
        k = pslib_placed_by_width(packed, whole < n ? whole : n, width, (int)sizeof(TYPE), table, known, to);          \
        if (k < 0) return -1;                                                                                          \
        for (; k < n; k++) {                                                                                           \
            const uint32_t place = pslib_last_packed(packed, runs->end, k, width);                                     \
            if (place >= known) return -1;                                                                             \
            to[k] = table[place];                                                                                      \
        }                                                                                                              \
        return 0;                                                                                                      \
    }

PSLIB_PLACED_RUN(pslib_placed_run_4, uint32_t)
PSLIB_PLACED_RUN(pslib_placed_run_8, uint64_t)

typedef struct {
    const void *values;
    uint32_t count;
} PslibDictionary; /* NULL: values are plain */

/* n values of `width` bytes each, 4 or 8; 0 or -1. */
static int pslib_page_values(const uint8_t *data, int64_t size, int64_t n, const PslibDictionary *dictionary, int width,
                             uint8_t *out)
{
    if (n == 0) return 0;
    if (!dictionary->values) {
        if (n * width > size) return -1;
        memcpy(out, data, (size_t)(n * width));
        return 0;
    }
    if (size < 1 || data[0] > 32 || dictionary->count == 0) return -1;
    PslibRuns runs = {data + 1, data + size, data[0], 0, 0, NULL};
    for (int64_t i = 0; i < n;) {
        if (pslib_next_run(&runs)) return -1;
        const int64_t some = runs.left < n - i ? runs.left : n - i;
        const uint32_t known = dictionary->count;
        if (width == 4 ? pslib_placed_run_4(&runs, some, dictionary->values, known, (uint32_t *)out + i)
                       : pslib_placed_run_8(&runs, some, dictionary->values, known, (uint64_t *)out + i)) {
            return -1;
        }
        i += some;
    }
    return 0;
}

/* The bytes of a page after its levels, and the levels; of pages of version 1 each has its length before it. */
typedef struct {
    const uint8_t *at, *end;
} PslibBody;

static inline int pslib_level_part(PslibBody *body, int64_t told, const uint8_t **part, int64_t *size)
{
    uint32_t before;
    if (told < 0) {
        if (body->end - body->at < 4) return -1;
        memcpy(&before, body->at, 4);
        body->at += 4;
        told = before;
    }
    if (told > body->end - body->at) return -1;
    *part = body->at;
    *size = told;
    body->at += told;
    return 0;
}

/* values[i] of a page of which only those with level 1 are written down; `valid` are the levels. */
#define PSLIB_SPACED(NAME, TYPE)                                                                                       \
    static inline void NAME(const TYPE *restrict dense, const uint8_t *restrict valid, int64_t n, TYPE *restrict to)   \
    {                                                                                                                  \
        int64_t from = 0;                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            to[i] = dense[from];                                                                                       \
            from += valid[i];                                                                                          \
        }                                                                                                              \
    }

PSLIB_SPACED(pslib_spaced_4, uint32_t)
PSLIB_SPACED(pslib_spaced_8, uint64_t)

typedef struct {
    int64_t values, level_bytes, repeat_bytes;
    int optional, width; /* whether values may be null; bytes of one */
    PslibDictionary dictionary;
} PslibColumn;

/* A page of a flat column: n values of which those with valid[i] 0 hold anything. `dense` has room for n + 1 values.
 * How many are null, or -1. */
static int64_t pslib_flat_page(const PslibColumn *column, PslibBody body, uint8_t *out, uint8_t *valid, uint8_t *dense)
{
    const int64_t n = column->values;
    int64_t there = n, size;
    const uint8_t *levels;
    if (column->optional) {
        if (pslib_level_part(&body, column->level_bytes, &levels, &size)) return -1;
        const int same = pslib_levels(levels, size, 1, n, valid);
        if (same < 0) return -1;
        there = same == 0 ? 0 : n;
        if (same == 2) {
            there = 0;
            for (int64_t i = 0; i < n; i++) there += valid[i];
        }
    } else {
        memset(valid, 1, (size_t)n);
    }
    uint8_t *const to = there == n ? out : dense;
    if (pslib_page_values(body.at, body.end - body.at, there, &column->dictionary, column->width, to)) return -1;
    if (there == n) return 0;
    memset(dense + there * column->width, 0, (size_t)column->width); /* what nulls behind the last value hold */
    if (column->width == 4) {
        pslib_spaced_4((const uint32_t *)dense, valid, n, (uint32_t *)out);
    } else {
        pslib_spaced_8((const uint64_t *)dense, valid, n, (uint64_t *)out);
    }
    return n - there;
}

typedef struct {
    int most, empty; /* the level of an element, and the highest one of an entry without one */
    int64_t rows, elements; /* before this page, and after it */
} PslibListPage;

/* A page of a column of lists: ends[r] is where list r - 1 ends, ends[0] = 0; elements to `out` from the first one on.
 * `levels` has room for 2 n. 0, or -1, also where an element is null. */
static int pslib_list_page(const PslibColumn *column, PslibListPage *page, PslibBody body, uint8_t *out,
                           int32_t *restrict ends, uint8_t *levels)
{
    const int64_t n = column->values;
    uint8_t *const restrict repeated = levels, *const restrict defined = levels + n;
    const uint8_t *part;
    int64_t size, rows = page->rows, elements = page->elements;
    if (pslib_level_part(&body, column->repeat_bytes, &part, &size) || pslib_levels(part, size, 1, n, repeated) < 0) {
        return -1;
    }
    if (pslib_level_part(&body, column->level_bytes, &part, &size)) return -1;
    const int same = pslib_levels(part, size, page->most, n, defined);
    if (same < 0 || (n > 0 && rows == 0 && repeated[0])) return -1;
    if (same == page->most) {
        for (int64_t i = 0; i < n; i++) {
            rows += !repeated[i];
            ends[rows] = (int32_t)(++elements);
        }
    } else {
        int null = 0;
        for (int64_t i = 0; i < n; i++) {
            const int is = defined[i] == page->most;
            null |= !is & (defined[i] > page->empty || repeated[i]);
            rows += !repeated[i];
            elements += is;
            ends[rows] = (int32_t)elements;
        }
        if (null) return -1;
    }
    if (pslib_page_values(body.at, body.end - body.at, elements - page->elements, &column->dictionary, column->width,
                          out)) {
        return -1;
    }
    page->rows = rows;
    page->elements = elements;
    return 0;
}

/* n strings, each after its length, one after the other to `to`, which has room for what is left of the page without
 * n lengths; string i is ends[i] to ends[i + 1]. 0 or -1. */
static int pslib_plain_texts(PslibBody body, int64_t n, int32_t *restrict ends, uint8_t *restrict to)
{
    const uint8_t *at = body.at;
    int32_t stop = ends[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t length;
        const int64_t room = body.end - at - 4 * (n - i); /* without the lengths of those to come */
        if (room < 0) return -1;
        memcpy(&length, at, 4);
        at += 4;
        if (length > room) return -1;
        if (length <= 16 && room >= 16) { /* what is too much is written over again */
            memcpy(to + stop, at, 16);
        } else {
            memcpy(to + stop, at, length);
        }
        at += length;
        ends[i + 1] = stop += (int32_t)length;
    }
    return 0;
}

#endif
