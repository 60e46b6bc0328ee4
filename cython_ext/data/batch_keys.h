/* batch_keys.h: the keys of some rows of a window, gathered and made distinct in one call.
 *
 * As `distinct.pyx`, with three differences. Keys of a window are mixed numbers already, so their low bits name the
 * cell: no key waits for the one before but by one addition, and the processor looks far ahead by itself. It cannot
 * foresee the rows, which are read in shuffled order from memory: those are prefetched. And lists are read here.
 *
 * Lists are copied 16 elements at a time whatever their lengths, and then made distinct together: a loop for each list
 * ends with a branch that cannot be predicted. Lists of integers are 2 or 4 bytes an element, less to wait for than
 * their keys, which are computed once the lists are contiguous.
 *
 * Tried on batches of sessions and of clicks and rejected: a table that begins small and grows with the keys that it
 * holds, for the L1 cache; it is fuller on the way, and mispredicted collisions cost twice the gain.
 */
#ifndef PSLIB_BATCH_KEYS_H
#define PSLIB_BATCH_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/mix.h"
#include "common/vectors.h"

/* Lists between the prefetch and the use of a list; of offsets three times as many. */
#define PSLIB_ROWS_AHEAD 32

/* Keys between the prefetch and the use of a row. */
#define PSLIB_KEYS_AHEAD 256

/* Keys that are made distinct together, and before that hashed by vectors where they are integers. */
#define PSLIB_KEYS_BLOCK 256

typedef struct {
    uint32_t *cells; /* room for mask + 1; 1-based places among the keys found so far, 0: empty */
    uint64_t mask;
    uint64_t *found; /* room for one key more than there are, and for one before them */
    uint32_t count;
    int level, open; /* open: the cells hold the keys found so far; else they are undefined */
    int bytes; /* of a cell, 2 or 4 */
} PslibSoFar;

/* Places of up to this number of keys fit in two bytes: such cells are half as much to clear and to keep in the
 * cache. */
#define PSLIB_NARROW_MAX 65535

PSLIB_INLINE uint32_t pslib_cell(const void *cells, uint64_t where, const int bytes)
{
    return bytes == 2 ? ((const uint16_t *)cells)[where] : ((const uint32_t *)cells)[where];
}

PSLIB_INLINE void pslib_set_cell(void *cells, uint64_t where, uint32_t cell, const int bytes)
{
    if (bytes == 2) {
        ((uint16_t *)cells)[where] = (uint16_t)cell;
    } else {
        ((uint32_t *)cells)[where] = cell;
    }
}

/* Fill the cells when the first key is looked up in them: see `pslib_place_small`. */
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

/* Widen cells of two bytes to four if `more` keys may not fit. */
static inline void pslib_widen_cells(PslibSoFar *so_far, int64_t more)
{
    uint8_t *const cells = (uint8_t *)so_far->cells;
    if (so_far->bytes == 4 || so_far->count + more <= PSLIB_NARROW_MAX) return;
    for (int64_t i = (int64_t)so_far->mask; i >= 0; i--) { /* from the last one on: in place */
        uint16_t cell;
        memcpy(&cell, cells + 2 * i, sizeof(cell));
        const uint32_t wide = cell;
        memcpy(cells + 4 * i, &wide, sizeof(wide));
    }
    so_far->bytes = 4;
}

/* Return the place of one key. A new key and a known one run the same instructions, see `distinct.pyx`. */
PSLIB_INLINE int32_t pslib_place_key(void *restrict cells, uint64_t *restrict found, const uint64_t mask,
                                     uint32_t *count, const uint64_t key, const int bytes)
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

/* Addresses that the next block will read, prefetched a few at a time while this block is processed: a processor has
 * some twenty outstanding misses, and stalls when more are requested. */
typedef struct {
    const uint8_t *at[2 * PSLIB_KEYS_BLOCK];
    int64_t count, prefetched;
} PslibUpcoming; /* NULL: nothing */

#define PSLIB_STRIDE 8 /* keys between prefetches */

PSLIB_INLINE void pslib_prefetch_some(PslibUpcoming *upcoming, int64_t pace)
{
    for (int64_t i = 0; upcoming && i < pace && upcoming->prefetched < upcoming->count; i++)
        PSLIB_PREFETCH(upcoming->at[upcoming->prefetched++]);
}

static inline int64_t pslib_pace(const PslibUpcoming *upcoming, int64_t n)
{
    const int64_t strides = (n + PSLIB_STRIDE - 1) / PSLIB_STRIDE;
    if (!upcoming) return 0;
    return (upcoming->count + strides - 1) / (strides > 0 ? strides : 1);
}

/* Places of one block in three passes. Most keys are known and are in the cell that they name: the first pass reads
 * that cell, prefetches its key, and writes nothing to the table, so that no look-up waits for an earlier store to an
 * unknown address; the second one compares; the last one places, in their order, the keys that were not found.
 *
 * An empty cell names the place before the first, which holds a copy of the first key: no key with an empty cell equals
 * it, because the cell of the first key is filled, so one comparison handles both cases. */
PSLIB_INLINE void pslib_place_block_as(PslibSoFar *so_far, const uint64_t *restrict keys, int64_t n,
                                       int32_t *restrict places, PslibUpcoming *upcoming, const int bytes)
{
    const int64_t pace = pslib_pace(upcoming, n);
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
        pslib_prefetch_some(upcoming, pace);
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
                                     PslibUpcoming *upcoming)
{
    pslib_widen_cells(so_far, n);
    if (so_far->bytes == 2) {
        pslib_place_block_as(so_far, keys, n, places, upcoming, 2);
    } else {
        pslib_place_block_as(so_far, keys, n, places, upcoming, 4);
    }
}

/* Places of contiguous keys. places: OUT, (n,). */
static inline void pslib_place_keys(PslibSoFar *so_far, const uint64_t *keys, int64_t n, int32_t *places)
{
    if (n == 0) return; /* without filling cells */
    pslib_open_cells(so_far);
    if (so_far->level == PSLIB_PLAIN) { /* not measured on ARM */
        pslib_place_in_turn(so_far, keys, n, places);
        return;
    }
    for (int64_t start = 0; start < n; start += PSLIB_KEYS_BLOCK) {
        const int64_t size = n - start < PSLIB_KEYS_BLOCK ? n - start : PSLIB_KEYS_BLOCK;
        pslib_place_block(so_far, keys + start, size, places + start, NULL);
    }
}

static inline void pslib_prefetch_keys(const uint64_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) PSLIB_PREFETCH(keys + i);
    if (n > 0) PSLIB_PREFETCH(keys + n - 1);
}

/* Places of the keys of rows of a matrix (lists, fields); each row is in range. */
static void pslib_place_rows_in_turn(PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows,
                                     int64_t count, int32_t *places)
{
    PslibSoFar mine = *so_far; /* stays in registers */
    const int64_t ahead = fields < PSLIB_KEYS_AHEAD / 4 ? PSLIB_KEYS_AHEAD / (fields + 1) : 4;
    for (int64_t k = 0; k < count; k++) {
        if (k + ahead < count) pslib_prefetch_keys(matrix + rows[k + ahead] * fields, fields);
        pslib_place_keys(&mine, matrix + rows[k] * fields, fields, places + k * fields);
    }
    *so_far = mine;
}

static void pslib_place_rows(PslibSoFar *so_far, const uint64_t *matrix, int64_t fields, const int64_t *rows,
                             int64_t count, int32_t *places)
{
    uint64_t keys[PSLIB_KEYS_BLOCK];
    PslibUpcoming upcoming;
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
        upcoming.count = upcoming.prefetched = 0;
        for (int64_t j = k + together; j < count && j < k + 2 * together; j++) {
            const uint8_t *row = (const uint8_t *)(matrix + rows[j] * fields);
            for (int64_t line = 0; line < fields * 8; line += 64) upcoming.at[upcoming.count++] = row + line;
            upcoming.at[upcoming.count++] = row + fields * 8 - 1;
        }
        pslib_place_block(so_far, keys, some * fields, places + k * fields, &upcoming);
    }
}

/* Copy rows of a matrix of `numbers` floats a row; each row is in range. to: OUT. */
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

/* --- lists
 *
 * Elements that are copied at once; buffers have as many more behind the last list. */
#define PSLIB_LIST_COPY 16

/* Number of values of an integer of two bytes. */
#define PSLIB_SMALL 65536

/* A list column: list i is values[offsets[i]] to values[offsets[i + 1]]. */
typedef struct {
    const void *values;
    int64_t size, lists;
    const void *offsets; /* int64_t or, `narrow`, int32_t: half as much to read */
    uint64_t base;
    int width; /* bytes of a value: 8, keys; 4 or 2, int32 or uint16 whose keys are mix64(value ^ base) */
    int narrow, level;
} PslibLists;

/* Starts of the lists of some rows: that of row k begins at firsts[k] among the values, and at starts[k] when the lists
 * are contiguous. */
typedef struct {
    int64_t *firsts, *starts;
} PslibPlaced;

#define PSLIB_OFFSET(offsets, i, narrow) \
    ((narrow) ? (int64_t)((const int32_t *)(offsets))[i] : ((const int64_t *)(offsets))[i])

PSLIB_INLINE void pslib_gather_as(const PslibLists *from, int64_t count, const PslibPlaced *placed,
                                  uint8_t *restrict flat, const int64_t width, const int64_t ahead)
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

/* Copy lists of rows one after the other. flat: OUT, with room for PSLIB_LIST_COPY elements more. alone: the lists were
 * not prefetched before. */
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

PSLIB_INLINE void pslib_hash_some_at(const PslibLists *lists, const void *flat, int64_t n, uint64_t *restrict keys,
                                     int level)
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

/* Places of up to PSLIB_KEYS_BLOCK integers of two bytes, the first keys of a batch, by a table that is indexed by them:
 * one read of 128 KB instead of two of more, and only a new integer is hashed. Two passes, as `pslib_place_block`. */
static inline void pslib_place_small(PslibSoFar *so_far, uint64_t base, const uint16_t *restrict values, int64_t n,
                                     int32_t *restrict places, PslibUpcoming *upcoming)
{
    const int64_t pace = pslib_pace(upcoming, n);
    uint8_t others[PSLIB_KEYS_BLOCK];
    uint16_t *const restrict known = (uint16_t *)so_far->cells;
    uint64_t *const restrict found = so_far->found;
    uint32_t count = so_far->count;
    int64_t other = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t stop = i + PSLIB_STRIDE < n ? i + PSLIB_STRIDE : n;
        pslib_prefetch_some(upcoming, pace);
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

/* Return 1 if that table fits into the memory of the cells, and its places into two bytes. */
static inline int pslib_is_small(const PslibSoFar *so_far, const PslibLists *lists, int64_t n)
{
    return lists->width == 2 && so_far->count == 0 && n < PSLIB_SMALL && 2 * (so_far->mask + 1) >= PSLIB_SMALL;
}

/* Places of lists, in groups of about PSLIB_KEYS_BLOCK elements, while the lists of the next group are prefetched. */
static void pslib_place_lists_by_block(PslibSoFar *so_far, const PslibLists *lists, int64_t count,
                                       const PslibPlaced *placed, void *flat, int32_t *places)
{
    const int64_t *const starts = placed->starts, width = lists->width;
    const int small = pslib_is_small(so_far, lists, starts[count]);
    uint64_t keys[PSLIB_KEYS_BLOCK];
    PslibUpcoming upcoming;
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
        upcoming.count = upcoming.prefetched = 0;
        for (int64_t j = next; j < count && j < 2 * next - k && j < next + PSLIB_KEYS_BLOCK; j++) {
            const uint8_t *list = (const uint8_t *)lists->values + placed->firsts[j] * width;
            upcoming.at[upcoming.count++] = list;
            upcoming.at[upcoming.count++] = list + PSLIB_LIST_COPY / 2 * width;
        }
        const int64_t n = starts[next] - starts[k];
        for (int64_t start = 0; start < n; start += PSLIB_KEYS_BLOCK) { /* more than once for a longer list only */
            const int64_t size = n - start < PSLIB_KEYS_BLOCK ? n - start : PSLIB_KEYS_BLOCK;
            const uint8_t *from = (const uint8_t *)flat + start * width;
            int32_t *to = places + starts[k] + start;
            if (small) {
                pslib_place_small(so_far, lists->base, (const uint16_t *)from, size, to, &upcoming);
                continue;
            }
            if (width < 8) pslib_hash_some(lists, from, size, keys);
            pslib_place_block(so_far, width < 8 ? keys : (const uint64_t *)from, size, to, &upcoming);
        }
    }
    if (small && so_far->count > 0) so_far->found[-1] = so_far->found[0]; /* as `pslib_place_block` expects */
}

/* Places of the elements of lists. flat: buffer for them and PSLIB_LIST_COPY more. places: OUT. */
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

PSLIB_INLINE int64_t pslib_place_starts_as(const PslibLists *from, const int64_t *rows, int64_t count,
                                           const PslibPlaced *placed, const int narrow)
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

/* Fill `placed` (OUT). Returns the first row that is out of range or whose offsets do not fit `size` values, or -1. */
static int64_t pslib_place_starts(const PslibLists *from, const int64_t *rows, int64_t count, const PslibPlaced *placed)
{
    return from->narrow ? pslib_place_starts_as(from, rows, count, placed, 1)
                        : pslib_place_starts_as(from, rows, count, placed, 0);
}

#endif
