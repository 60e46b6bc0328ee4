/* batch_keys.h: the keys of some rows of a window, gathered and made distinct in one call.
 *
 * As `distinct.pyx`, with three differences. Keys of a window are mixed numbers already, so their low bits name the
 * cell: without a mix in between, and with nothing but one addition from key to key that waits for the key before, the
 * processor looks far enough ahead by itself. What it can't foresee are the rows, which come in shuffled order out of
 * memory: those are prefetched. And elements of lists come as they are (`batch_lists.h`).
 *
 * A dead end, measured on batches of sessions and of clicks: a table that begins small and grows with the keys that it
 * holds, for the L1 cache; it is fuller on the way, and what its collisions cost in wrong guesses is twice the gain.
 */
#ifndef PSLIB_BATCH_KEYS_H
#define PSLIB_BATCH_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/mix.h"
#include "common/prefetch.h"
#include "common/vectors.h"

/* Lists ahead of the one at hand that are asked for; their offsets three times as far. */
#define PSLIB_ROWS_AHEAD 32

/* Keys ahead of those at hand that are asked for, in whole rows. */
#define PSLIB_KEYS_AHEAD 256

/* Keys that are made distinct together, and before that hashed side by side where they are integers. */
#define PSLIB_KEYS_BLOCK 256

typedef struct {
    uint32_t *cells; /* room for mask + 1; 1-based places among the keys found so far, 0: empty */
    uint64_t mask;
    uint64_t *found; /* room for one key more than there are, and for one before them */
    uint32_t count;
    int level, open; /* open: the cells hold what was found so far; else they hold anything */
    int bytes; /* of a cell, 2 or 4 */
} PslibSoFar;

/* So many keys have places of two bytes: cells of half the size are half as much to clear and to keep in the cache. */
#define PSLIB_NARROW_MAX 65535

static inline __attribute__((always_inline)) uint32_t pslib_cell(const void *cells, uint64_t where, const int bytes)
{
    return bytes == 2 ? ((const uint16_t *)cells)[where] : ((const uint32_t *)cells)[where];
}

static inline __attribute__((always_inline)) void pslib_set_cell(void *cells, uint64_t where, uint32_t cell,
                                                                 const int bytes)
{
    if (bytes == 2) {
        ((uint16_t *)cells)[where] = (uint16_t)cell;
    } else {
        ((uint32_t *)cells)[where] = cell;
    }
}

/* The cells are made ready when the first key is looked for there: see `pslib_place_small`. */
static inline void pslib_open_cells(PslibSoFar *so_far)
{
    if (so_far->open) return;
    so_far->bytes = so_far->level != PSLIB_PLAIN && so_far->count <= PSLIB_NARROW_MAX ? 2 : 4;
    memset(so_far->cells, 0, (size_t)(so_far->mask + 1) * (size_t)so_far->bytes);
    for (uint32_t i = 0; i < so_far->count; i++) {
        uint64_t where = so_far->found[i] & so_far->mask;
        while (pslib_cell(so_far->cells, where, so_far->bytes)) where = (where + 1) & so_far->mask;
        pslib_set_cell(so_far->cells, where, i + 1, so_far->bytes);
    }
    so_far->open = 1;
}

/* Cells of two bytes become cells of four where `more` keys may not have places any more. */
static inline void pslib_widen_cells(PslibSoFar *so_far, int64_t more)
{
    uint8_t *const cells = (uint8_t *)so_far->cells;
    if (so_far->bytes == 4 || so_far->count + more <= PSLIB_NARROW_MAX) return;
    for (int64_t i = (int64_t)so_far->mask; i >= 0; i--) { /* from the last one on: they lie in the same room */
        uint16_t cell;
        memcpy(&cell, cells + 2 * i, sizeof(cell));
        const uint32_t wide = cell;
        memcpy(cells + 4 * i, &wide, sizeof(wide));
    }
    so_far->bytes = 4;
}

/* Place of one key. A new key and a known one run the same instructions, see `distinct.pyx`. */
static inline __attribute__((always_inline)) int32_t pslib_place_key(void *restrict cells, uint64_t *restrict found,
                                                                     const uint64_t mask, uint32_t *count,
                                                                     const uint64_t key, const int bytes)
{
    uint64_t where = key & mask;
    uint32_t there, cell;
    found[*count] = key;
    for (;;) {
        there = pslib_cell(cells, where, bytes);
        cell = there | ((*count + 1) & (0u - (uint32_t)(there == 0)));
        if (found[cell - 1] == key) break;
        where = (where + 1) & mask;
    }
    pslib_set_cell(cells, where, cell, bytes);
    *count += there == 0;
    return (int32_t)(cell - 1);
}

static inline void pslib_place_in_turn(PslibSoFar *so_far, const uint64_t *restrict keys, int64_t n,
                                       int32_t *restrict places)
{
    uint32_t *const restrict cells = so_far->cells;
    uint64_t *const restrict found = so_far->found;
    const uint64_t mask = so_far->mask;
    uint32_t count = so_far->count;
    for (int64_t i = 0; i < n; i++) places[i] = pslib_place_key(cells, found, mask, &count, keys[i], 4);
    so_far->count = count;
}

/* What the block after this one will want, asked for a little at a time while this one is worked on: a processor waits
 * for some twenty lines of memory at once, and asked for more it does nothing else. */
typedef struct {
    const uint8_t *at[2 * PSLIB_KEYS_BLOCK];
    int64_t count, asked;
} PslibSoon; /* NULL: nothing */

#define PSLIB_STRIDE 8 /* keys between which something is asked for */

static inline __attribute__((always_inline)) void pslib_ask(PslibSoon *soon, int64_t pace)
{
    for (int64_t i = 0; soon && i < pace && soon->asked < soon->count; i++) PSLIB_PREFETCH(soon->at[soon->asked++]);
}

static inline int64_t pslib_pace(const PslibSoon *soon, int64_t n)
{
    const int64_t strides = (n + PSLIB_STRIDE - 1) / PSLIB_STRIDE;
    if (!soon) return 0;
    return (soon->count + strides - 1) / (strides > 0 ? strides : 1);
}

/* The same in three passes over a block. Most keys are known and stand in the cell that they name: the first pass looks
 * there, asks for the key that stands in it, and writes nothing to the table, so that no look-up waits for a store
 * before it, which it may or may not hit; the second one compares; the last one takes, in their order, the keys that
 * were not found.
 *
 * What an empty cell names is the place before the first, where the first key stands once more: its cell is not empty,
 * so that it is no key that finds its cell empty, and one comparison tells both. */
static inline __attribute__((always_inline)) void pslib_place_block_as(PslibSoFar *so_far,
                                                                       const uint64_t *restrict keys, int64_t n,
                                                                       int32_t *restrict places, PslibSoon *soon,
                                                                       const int bytes)
{
    const int64_t pace = pslib_pace(soon, n);
    uint8_t others[PSLIB_KEYS_BLOCK];
    const void *const cells = so_far->cells; /* not restrict: they are written through so_far below */
    const uint64_t *const found = so_far->found - 1;
    const uint64_t mask = so_far->mask;
    uint32_t count = so_far->count;
    int64_t other = 0;
    if (count == 0 && n > 0) {
        places[0] = pslib_place_key(so_far->cells, so_far->found, mask, &count, keys[0], bytes);
        so_far->found[-1] = keys[0];
    }
    for (int64_t i = 0; i < n;) {
        const int64_t stop = i + PSLIB_STRIDE < n ? i + PSLIB_STRIDE : n;
        pslib_ask(soon, pace);
        for (; i < stop; i++) {
            const uint32_t cell = pslib_cell(cells, keys[i] & mask, bytes);
            places[i] = (int32_t)(cell - 1);
            PSLIB_PREFETCH(&found[cell]);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        others[other] = (uint8_t)i;
        other += found[(uint32_t)(places[i] + 1)] != keys[i];
    }
    for (int64_t j = 0; j < other; j++) {
        const int64_t i = others[j];
        places[i] = pslib_place_key(so_far->cells, so_far->found, mask, &count, keys[i], bytes);
    }
    so_far->count = count;
}

static inline void pslib_place_block(PslibSoFar *so_far, const uint64_t *keys, int64_t n, int32_t *places,
                                     PslibSoon *soon)
{
    pslib_widen_cells(so_far, n);
    if (so_far->bytes == 2) {
        pslib_place_block_as(so_far, keys, n, places, soon, 2);
    } else {
        pslib_place_block_as(so_far, keys, n, places, soon, 4);
    }
}

/* Places of keys that follow each other. */
static inline void pslib_place_keys(PslibSoFar *so_far, const uint64_t *keys, int64_t n, int32_t *places)
{
    if (n == 0) return; /* nor are cells made ready for nothing */
    pslib_open_cells(so_far);
    if (so_far->level == PSLIB_PLAIN) { /* on ARM not measured */
        pslib_place_in_turn(so_far, keys, n, places);
        return;
    }
    for (int64_t start = 0; start < n; start += PSLIB_KEYS_BLOCK) {
        const int64_t size = n - start < PSLIB_KEYS_BLOCK ? n - start : PSLIB_KEYS_BLOCK;
        pslib_place_block(so_far, keys + start, size, places + start, NULL);
    }
}

static inline void pslib_soon(const uint64_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) PSLIB_PREFETCH(keys + i);
    if (n > 0) PSLIB_PREFETCH(keys + n - 1);
}

/* Rows of a matrix (lists, fields); each row is in range. */
static void pslib_place_rows_in_turn(PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows,
                                     int64_t count, int32_t *places)
{
    PslibSoFar mine = *so_far; /* stays in registers */
    const int64_t ahead = fields < PSLIB_KEYS_AHEAD / 4 ? PSLIB_KEYS_AHEAD / (fields + 1) : 4;
    for (int64_t k = 0; k < count; k++) {
        if (k + ahead < count) pslib_soon(matrix + rows[k + ahead] * fields, fields);
        pslib_place_keys(&mine, matrix + rows[k] * fields, fields, places + k * fields);
    }
    *so_far = mine;
}

static void pslib_place_rows(PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows,
                             int64_t count, int32_t *places)
{
    uint64_t keys[PSLIB_KEYS_BLOCK];
    PslibSoon soon;
    if (fields == 0 || count == 0) return;
    pslib_open_cells(so_far);
    const int64_t together = PSLIB_KEYS_BLOCK / fields;
    if (so_far->level == PSLIB_PLAIN || together < 2) {
        pslib_place_rows_in_turn(so_far, matrix, fields, rows, count, places);
        return;
    }
    for (int64_t k = 0; k < count; k += together) {
        const int64_t some = count - k < together ? count - k : together;
        for (int64_t j = 0; j < some; j++) {
            memcpy(keys + j * fields, matrix + rows[k + j] * fields, (size_t)fields * sizeof(uint64_t));
        }
        soon.count = soon.asked = 0;
        for (int64_t j = k + together; j < count && j < k + 2 * together; j++) {
            const uint8_t *row = (const uint8_t *)(matrix + rows[j] * fields);
            for (int64_t line = 0; line < fields * 8; line += 64) soon.at[soon.count++] = row + line;
            soon.at[soon.count++] = row + fields * 8 - 1;
        }
        pslib_place_block(so_far, keys, some * fields, places + k * fields, &soon);
    }
}

/* Rows of a matrix of `numbers` floats a row; each row is in range. */
static void pslib_take_rows(const float *matrix, int64_t numbers, const int64_t *rows, int64_t count, float *to)
{
    for (int64_t k = 0; k < count; k++) {
        if (k + PSLIB_ROWS_AHEAD < count) {
            const float *later = matrix + rows[k + PSLIB_ROWS_AHEAD] * numbers;
            PSLIB_PREFETCH(later);
            PSLIB_PREFETCH(later + numbers - 1);
        }
        if (numbers == 1) {
            to[k] = matrix[rows[k]];
        } else {
            memcpy(to + k * numbers, matrix + rows[k] * numbers, (size_t)numbers * sizeof(float));
        }
    }
}

#endif
