/* batch_keys.h: the keys of some rows of a window, gathered and made distinct in one call.
 *
 * As `distinct.pyx`, with three differences. Keys of a window are mixed numbers already, so their low bits name the
 * cell: without a mix in between, and with nothing but one addition from key to key that waits for the key before, the
 * processor looks far enough ahead by itself. What it can't foresee are the rows, which come in shuffled order out of
 * memory: those are prefetched. And lists are copied 16 elements at a time whatever their lengths, and then made
 * distinct in one loop: a loop a list ends with a branch that no predictor wins. Lists of integers come as they are, 4
 * bytes an element: less to wait for than their keys, which are made once the lists stand one after the other.
 *
 * A dead end, measured on batches of sessions and of clicks: a table that begins small and grows with the keys that it
 * holds, for the L1 cache; it is fuller on the way, and what its collisions cost in wrong guesses is twice the gain.
 */
#ifndef PSLIB_BATCH_KEYS_H
#define PSLIB_BATCH_KEYS_H

#include <stdint.h>
#include <string.h>

#include "mix.h"
#include "vectors.h"

#if defined(__GNUC__) || defined(__clang__)
#define PSLIB_SOON(address) __builtin_prefetch(address)
#else
#define PSLIB_SOON(address) ((void)0)
#endif

/* Lists ahead of the one at hand that are asked for; their offsets three times as far. */
#define PSLIB_ROWS_AHEAD 32

/* Keys ahead of those at hand that are asked for, in whole rows. */
#define PSLIB_KEYS_AHEAD 256

/* Elements that are copied at once; the room behind the last list has as many more. */
#define PSLIB_LIST_COPY 16

/* Integers that are hashed side by side before they are made distinct. */
#define PSLIB_LIST_BLOCK 256

typedef struct {
    uint32_t *cells; /* mask + 1 of them; 1-based places among the keys found so far, 0: empty */
    uint64_t mask;
    uint64_t *found; /* room for one key more than there are */
    uint32_t count;
} PslibSoFar;

/* Places of keys that follow each other. A new key and a known one run the same instructions, see `distinct.pyx`. */
static inline void pslib_place_keys(PslibSoFar *so_far, const uint64_t *restrict keys, int64_t n,
                                    int32_t *restrict places)
{
    uint32_t *const restrict cells = so_far->cells;
    uint64_t *const restrict found = so_far->found;
    const uint64_t mask = so_far->mask;
    uint32_t count = so_far->count;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t key = keys[i];
        uint64_t where = key & mask;
        uint32_t there, cell;
        found[count] = key;
        for (;;) {
            there = cells[where];
            cell = there | ((count + 1) & (0u - (uint32_t)(there == 0)));
            if (found[cell - 1] == key) break;
            where = (where + 1) & mask;
        }
        cells[where] = cell;
        places[i] = (int32_t)(cell - 1);
        count += there == 0;
    }
    so_far->count = count;
}

static inline void pslib_soon(const uint64_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) PSLIB_SOON(keys + i);
    if (n > 0) PSLIB_SOON(keys + n - 1);
}

/* Rows of a matrix (lists, fields); each row is in range. */
static void pslib_place_rows(PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows,
                             int64_t count, int32_t *places)
{
    PslibSoFar mine = *so_far; /* stays in registers */
    const int64_t ahead = fields < PSLIB_KEYS_AHEAD / 4 ? PSLIB_KEYS_AHEAD / (fields + 1) : 4;
    for (int64_t k = 0; fields > 0 && k < count; k++) {
        if (k + ahead < count) pslib_soon(matrix + rows[k + ahead] * fields, fields);
        pslib_place_keys(&mine, matrix + rows[k] * fields, fields, places + k * fields);
    }
    *so_far = mine;
}

/* A list column: list i is values[offsets[i]] to values[offsets[i + 1]]. */
typedef struct {
    const void *values;
    int64_t size, lists;
    const void *offsets; /* int64_t or, `narrow`, int32_t: half as much to wait for */
    uint64_t base;
    int hashed; /* 1: values are int32 and their keys mix64(value ^ base); 0: they are keys, uint64 */
    int narrow, level;
} PslibLists;

#define PSLIB_OFFSET(offsets, i, narrow) \
    ((narrow) ? (int64_t)((const int32_t *)(offsets))[i] : ((const int64_t *)(offsets))[i])

static inline __attribute__((always_inline)) void pslib_gather_as(const PslibLists *from, const int64_t *rows,
                                                                  int64_t count, const int64_t *starts,
                                                                  uint8_t *restrict flat, const int64_t width,
                                                                  const int narrow)
{
    const uint8_t *const values = from->values;
    const void *const offsets = from->offsets;
    for (int64_t k = 0; k < count; k++) {
        if (k + PSLIB_ROWS_AHEAD < count) {
            const uint8_t *later = values + PSLIB_OFFSET(offsets, rows[k + PSLIB_ROWS_AHEAD], narrow) * width;
            PSLIB_SOON(later);
            PSLIB_SOON(later + 8 * width);
        }
        const int64_t first = PSLIB_OFFSET(offsets, rows[k], narrow), length = starts[k + 1] - starts[k];
        if (length <= PSLIB_LIST_COPY && first + PSLIB_LIST_COPY <= from->size) {
            memcpy(flat + starts[k] * width, values + first * width, (size_t)(PSLIB_LIST_COPY * width));
        } else {
            memcpy(flat + starts[k] * width, values + first * width, (size_t)(length * width));
        }
    }
}

/* Lists of rows one after the other in `flat`, which has room for PSLIB_LIST_COPY elements more; `starts` is where
 * each begins there. */
static void pslib_gather_lists(const PslibLists *from, const int64_t *rows, int64_t count, const int64_t *starts,
                               void *flat)
{
    if (from->hashed && from->narrow) {
        pslib_gather_as(from, rows, count, starts, flat, sizeof(int32_t), 1);
    } else if (from->hashed) {
        pslib_gather_as(from, rows, count, starts, flat, sizeof(int32_t), 0);
    } else if (from->narrow) {
        pslib_gather_as(from, rows, count, starts, flat, sizeof(uint64_t), 1);
    } else {
        pslib_gather_as(from, rows, count, starts, flat, sizeof(uint64_t), 0);
    }
}

static inline __attribute__((always_inline)) void pslib_hash_some_at(const PslibLists *lists, const int32_t *values,
                                                                     int64_t n, uint64_t *restrict keys, int level)
{
    const uint64_t base = lists->base;
    (void)level;
    for (int64_t i = 0; i < n; i++) keys[i] = pslib_mix64((uint64_t)(int64_t)values[i] ^ base);
}

PSLIB_COPIES(void, pslib_hash_some, lists->level,
             (const PslibLists *lists, const int32_t *values, int64_t n, uint64_t *keys), lists, values, n, keys)

/* Places of what `pslib_gather_lists` left in `flat`. */
static void pslib_place_lists(PslibSoFar *so_far, const PslibLists *lists, const void *flat, int64_t n,
                              int32_t *places)
{
    uint64_t keys[PSLIB_LIST_BLOCK];
    PslibSoFar mine = *so_far;
    if (!lists->hashed) {
        pslib_place_keys(&mine, flat, n, places);
        n = 0;
    }
    for (int64_t start = 0; start < n; start += PSLIB_LIST_BLOCK) {
        const int64_t size = n - start < PSLIB_LIST_BLOCK ? n - start : PSLIB_LIST_BLOCK;
        pslib_hash_some(lists, (const int32_t *)flat + start, size, keys);
        pslib_place_keys(&mine, keys, size, places + start);
    }
    *so_far = mine;
}

static inline __attribute__((always_inline)) int64_t pslib_list_starts_as(const PslibLists *from, const int64_t *rows,
                                                                         int64_t count, int64_t *starts,
                                                                         const int narrow)
{
    const void *const offsets = from->offsets;
    const int64_t lists = from->lists, size = from->size;
    int64_t at = 0;
    starts[0] = 0;
    for (int64_t k = 0; k < count; k++) {
        if (k + 3 * PSLIB_ROWS_AHEAD < count) {
            const uint64_t later = (uint64_t)rows[k + 3 * PSLIB_ROWS_AHEAD];
            if (later < (uint64_t)lists) PSLIB_SOON((const uint8_t *)offsets + later * (narrow ? 4 : 8));
        }
        if ((uint64_t)rows[k] >= (uint64_t)lists) return k;
        const int64_t first = PSLIB_OFFSET(offsets, rows[k], narrow), end = PSLIB_OFFSET(offsets, rows[k] + 1, narrow);
        if (first < 0 || end < first || end > size) return k;
        at += end - first;
        starts[k + 1] = at;
    }
    return -1;
}

/* Where the list of each row begins when they stand one after the other; the first row that is not there or whose
 * offsets do not fit `size` values, or -1. */
static int64_t pslib_list_starts(const PslibLists *from, const int64_t *rows, int64_t count, int64_t *starts)
{
    return from->narrow ? pslib_list_starts_as(from, rows, count, starts, 1)
                        : pslib_list_starts_as(from, rows, count, starts, 0);
}

/* Rows of a matrix of `numbers` floats a row; each row is in range. */
static void pslib_take_rows(const float *matrix, int64_t numbers, const int64_t *rows, int64_t count, float *to)
{
    for (int64_t k = 0; k < count; k++) {
        if (k + PSLIB_ROWS_AHEAD < count) {
            const float *later = matrix + rows[k + PSLIB_ROWS_AHEAD] * numbers;
            PSLIB_SOON(later);
            PSLIB_SOON(later + numbers - 1);
        }
        if (numbers == 1) {
            to[k] = matrix[rows[k]];
        } else {
            memcpy(to + k * numbers, matrix + rows[k] * numbers, (size_t)numbers * sizeof(float));
        }
    }
}

#endif
