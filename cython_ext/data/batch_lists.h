/* batch_lists.h: the keys of lists of some rows of a window, gathered and made distinct (`batch_keys.h`).
 *
 * Lists are copied 16 elements at a time whatever their lengths, and then made distinct together: a loop a list ends
 * with a branch that no predictor wins. Lists of integers come as they are, 2 or 4 bytes an element: less to wait for
 * than their keys, which are made once the lists stand one after the other.
 */
#ifndef PSLIB_BATCH_LISTS_H
#define PSLIB_BATCH_LISTS_H

#include "data/batch_keys.h"

/* Elements that are copied at once; the room behind the last list has as many more. */
#define PSLIB_LIST_COPY 16

/* How many values an integer of two bytes may have. */
#define PSLIB_SMALL 65536

/* A list column: list i is values[offsets[i]] to values[offsets[i + 1]]. */
typedef struct {
    const void *values;
    int64_t size, lists;
    const void *offsets; /* int64_t or, `narrow`, int32_t: half as much to wait for */
    uint64_t base;
    int width; /* bytes of a value: 8, keys; 4 or 2, int32 or uint16 whose keys are mix64(value ^ base) */
    int narrow, level;
} PslibLists;

/* Where the lists of some rows are: that of row k begins at firsts[k] among the values, and at starts[k] when the lists
 * of all of them stand one after the other. */
typedef struct {
    int64_t *firsts, *starts;
} PslibPlaced;

#define PSLIB_OFFSET(offsets, i, narrow) \
    ((narrow) ? (int64_t)((const int32_t *)(offsets))[i] : ((const int64_t *)(offsets))[i])

static inline __attribute__((always_inline)) void pslib_gather_as(const PslibLists *from, int64_t count,
                                                                  const PslibPlaced *placed, uint8_t *restrict flat,
                                                                  const int64_t width, const int64_t ahead)
{
    const uint8_t *const values = from->values;
    const int64_t *const restrict firsts = placed->firsts, *const restrict starts = placed->starts;
    flat -= starts[0] * width;
    for (int64_t k = 0; k < count; k++) {
        if (ahead > 0 && k + ahead < count) {
            const uint8_t *later = values + firsts[k + ahead] * width;
            PSLIB_PREFETCH(later);
            PSLIB_PREFETCH(later + 8 * width);
        }
        const int64_t first = firsts[k], length = starts[k + 1] - starts[k];
        if (length <= PSLIB_LIST_COPY && first + PSLIB_LIST_COPY <= from->size) {
            memcpy(flat + starts[k] * width, values + first * width, (size_t)(PSLIB_LIST_COPY * width));
        } else {
            memcpy(flat + starts[k] * width, values + first * width, (size_t)(length * width));
        }
    }
}

/* Lists of rows one after the other in `flat`, which has room for PSLIB_LIST_COPY elements more; `alone`: nobody has
 * asked for them before. */
static inline void pslib_gather_lists(const PslibLists *from, int64_t count, const PslibPlaced *placed, void *flat,
                                      int alone)
{
    const int64_t ahead = alone ? PSLIB_ROWS_AHEAD : 0;
    if (from->width == 2) {
        pslib_gather_as(from, count, placed, flat, 2, ahead);
    } else if (from->width == 4) {
        pslib_gather_as(from, count, placed, flat, 4, ahead);
    } else {
        pslib_gather_as(from, count, placed, flat, 8, ahead);
    }
}

static inline __attribute__((always_inline)) void pslib_hash_some_at(const PslibLists *lists, const void *flat,
                                                                     int64_t n, uint64_t *restrict keys, int level)
{
    const uint64_t base = lists->base;
    (void)level;
    if (lists->width == 2) {
        const uint16_t *values = flat;
        for (int64_t i = 0; i < n; i++) keys[i] = pslib_mix64((uint64_t)values[i] ^ base);
    } else {
        const int32_t *values = flat;
        for (int64_t i = 0; i < n; i++) keys[i] = pslib_mix64((uint64_t)(int64_t)values[i] ^ base);
    }
}

PSLIB_COPIES(void, pslib_hash_some, lists->level,
             (const PslibLists *lists, const void *flat, int64_t n, uint64_t *keys), lists, flat, n, keys)

/* Places of up to PSLIB_KEYS_BLOCK integers of two bytes, the first keys of a batch, by a table that the integers
 * themselves name: one look into 128 KB instead of two into more, and only an integer that was not there yet is hashed.
 * Two passes, as `pslib_place_block`. */
static inline void pslib_place_small(PslibSoFar *so_far, uint64_t base, const uint16_t *restrict values, int64_t n,
                                     int32_t *restrict places, PslibSoon *soon)
{
    const int64_t pace = pslib_pace(soon, n);
    uint8_t others[PSLIB_KEYS_BLOCK];
    uint16_t *const restrict known = (uint16_t *)so_far->cells;
    uint64_t *const restrict found = so_far->found;
    uint32_t count = so_far->count;
    int64_t other = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t stop = i + PSLIB_STRIDE < n ? i + PSLIB_STRIDE : n;
        pslib_ask(soon, pace);
        for (; i < stop; i++) {
            const uint32_t place = known[values[i]];
            places[i] = (int32_t)(place - 1);
            others[other] = (uint8_t)i;
            other += place == 0;
        }
    }
    for (int64_t j = 0; j < other; j++) {
        const uint16_t value = values[others[j]];
        const uint32_t there = known[value], place = there | ((count + 1) & (0u - (uint32_t)(there == 0)));
        found[count] = pslib_mix64((uint64_t)value ^ base);
        known[value] = (uint16_t)place;
        places[others[j]] = (int32_t)(place - 1);
        count += there == 0;
    }
    so_far->count = count;
}

/* Whether that table is no larger than the cells, in whose room it lies, and counts far enough. */
static inline int pslib_is_small(const PslibSoFar *so_far, const PslibLists *lists, int64_t n)
{
    return lists->width == 2 && so_far->count == 0 && n < PSLIB_SMALL && 2 * (so_far->mask + 1) >= PSLIB_SMALL;
}

/* The lists of some rows, of about PSLIB_KEYS_BLOCK elements together, while those of the next are asked for. */
static void pslib_place_lists_by_block(PslibSoFar *so_far, const PslibLists *lists, int64_t count,
                                       const PslibPlaced *placed, void *flat, int32_t *places)
{
    const int64_t *const starts = placed->starts, width = lists->width;
    const int small = pslib_is_small(so_far, lists, starts[count]);
    uint64_t keys[PSLIB_KEYS_BLOCK];
    PslibSoon soon;
    if (small) {
        memset(so_far->cells, 0, PSLIB_SMALL * sizeof(uint16_t));
        so_far->open = 0;
    } else {
        pslib_open_cells(so_far);
    }
    for (int64_t k = 0, next; k < count; k = next) {
        for (next = k + 1; next < count && starts[next + 1] - starts[k] <= PSLIB_KEYS_BLOCK;) next++;
        const PslibPlaced here = {placed->firsts + k, placed->starts + k};
        pslib_gather_lists(lists, next - k, &here, flat, 0);
        soon.count = soon.asked = 0;
        for (int64_t j = next; j < count && j < 2 * next - k && j < next + PSLIB_KEYS_BLOCK; j++) {
            const uint8_t *list = (const uint8_t *)lists->values + placed->firsts[j] * width;
            soon.at[soon.count++] = list;
            soon.at[soon.count++] = list + PSLIB_LIST_COPY / 2 * width;
        }
        const int64_t n = starts[next] - starts[k];
        for (int64_t start = 0; start < n; start += PSLIB_KEYS_BLOCK) { /* once, but for a list that is longer */
            const int64_t size = n - start < PSLIB_KEYS_BLOCK ? n - start : PSLIB_KEYS_BLOCK;
            const uint8_t *from = (const uint8_t *)flat + start * width;
            int32_t *to = places + starts[k] + start;
            if (small) {
                pslib_place_small(so_far, lists->base, (const uint16_t *)from, size, to, &soon);
                continue;
            }
            if (width < 8) pslib_hash_some(lists, from, size, keys);
            pslib_place_block(so_far, width < 8 ? keys : (const uint64_t *)from, size, to, &soon);
        }
    }
    if (small && so_far->count > 0) so_far->found[-1] = so_far->found[0]; /* as `pslib_place_block` wants it */
}

/* Places of the elements of lists; `flat` has room for them and for PSLIB_LIST_COPY more. */
static void pslib_place_lists(PslibSoFar *so_far, const PslibLists *lists, int64_t count, const PslibPlaced *placed,
                              void *flat, int32_t *places)
{
    const int64_t n = placed->starts[count];
    uint64_t keys[PSLIB_KEYS_BLOCK];
    if (n == 0) return;
    if (so_far->level != PSLIB_PLAIN) {
        pslib_place_lists_by_block(so_far, lists, count, placed, flat, places);
        return;
    }
    pslib_gather_lists(lists, count, placed, flat, 1);
    if (lists->width == 8) {
        pslib_place_keys(so_far, flat, n, places);
        return;
    }
    pslib_open_cells(so_far);
    PslibSoFar mine = *so_far; /* stays in registers */
    for (int64_t start = 0; start < n; start += PSLIB_KEYS_BLOCK) {
        const int64_t size = n - start < PSLIB_KEYS_BLOCK ? n - start : PSLIB_KEYS_BLOCK;
        pslib_hash_some(lists, (const uint8_t *)flat + start * lists->width, size, keys);
        pslib_place_in_turn(&mine, keys, size, places + start);
    }
    *so_far = mine;
}

static inline __attribute__((always_inline)) int64_t pslib_place_starts_as(const PslibLists *from, const int64_t *rows,
                                                                          int64_t count, const PslibPlaced *placed,
                                                                          const int narrow)
{
    const void *const offsets = from->offsets;
    const int64_t lists = from->lists, size = from->size;
    int64_t *const restrict firsts = placed->firsts, *const restrict starts = placed->starts;
    int64_t at = 0;
    starts[0] = 0;
    for (int64_t k = 0; k < count; k++) {
        if (k + 3 * PSLIB_ROWS_AHEAD < count) {
            const uint64_t later = (uint64_t)rows[k + 3 * PSLIB_ROWS_AHEAD];
            if (later < (uint64_t)lists) PSLIB_PREFETCH((const uint8_t *)offsets + later * (narrow ? 4 : 8));
        }
        if (rows[k] < 0 || rows[k] >= lists) return k; /* lists may be -1: no offsets at all */
        const int64_t first = PSLIB_OFFSET(offsets, rows[k], narrow), end = PSLIB_OFFSET(offsets, rows[k] + 1, narrow);
        if (first < 0 || end < first || end > size) return k;
        at += end - first;
        firsts[k] = first;
        starts[k + 1] = at;
    }
    return -1;
}

/* Fills `placed`; the first row that is not there or whose offsets do not fit `size` values, or -1. */
static int64_t pslib_place_starts(const PslibLists *from, const int64_t *rows, int64_t count, const PslibPlaced *placed)
{
    return from->narrow ? pslib_place_starts_as(from, rows, count, placed, 1)
                        : pslib_place_starts_as(from, rows, count, placed, 0);
}

#endif
