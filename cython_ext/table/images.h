/* images.h: the image of a table at an instant, partition by partition, while pushes go on (tracking.h). */
#ifndef PSLIB_IMAGES_H
#define PSLIB_IMAGES_H

#include "table/eviction.h"

enum { PSLIB_IMAGE_AHEAD = 16 }; /* rows whose memory is asked for before they are read */

static inline void pslib_image_forget(PslibTracking *tracking, size_t partitions)
{
    for (int c = 0; c < PSLIB_CLASSES; c++) pslib_copies_close(&tracking->rows[c]);
    pslib_copies_close(&tracking->counted);
    free(tracking->places);
    tracking->places = NULL;
    tracking->place_count = 0;
    for (size_t i = 0; tracking->filters != NULL && i < partitions; i++) free(tracking->filters[i]);
    free(tracking->filters);
    free(tracking->pending);
    tracking->filters = NULL;
    tracking->pending = NULL;
    tracking->filter_bytes = 0;
    tracking->increment = 0;
}

/* Nobody asks any more. */
static inline void pslib_tracking_close(PslibTable *table)
{
    if (table->tracking == NULL) return;
    pslib_image_forget(table->tracking, (size_t)1 << table->partition_bits);
    free(table->tracking->gone);
    free(table->tracking);
    table->tracking = NULL;
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        free(table->classes[c].flags);
        table->classes[c].flags = NULL;
    }
}

static inline int pslib_tracking_open(PslibTable *table)
{
    if (table->tracking != NULL) return 1;
    table->tracking = calloc(1, sizeof *table->tracking);
    int made = table->tracking != NULL;
    for (int c = 0; made && c < PSLIB_CLASSES; c++) {
        const size_t rows = (size_t)table->classes[c].slab_capacity << table->classes[c].slab_shift;
        table->classes[c].flags = calloc(rows + 1, 1);
        made = table->classes[c].flags != NULL;
    }
    if (!made) pslib_tracking_close(table);
    return made;
}

/* New flags of all rows: one bit, CHANGED or DIRTY, where the old ones have any of `of`. */
static inline void pslib_flags_become(PslibTable *table, uint8_t bit, uint8_t of)
{
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const size_t rows = (size_t)table->classes[c].slab_count << table->classes[c].slab_shift;
        uint8_t *flags = table->classes[c].flags;
        for (size_t i = 0; i < rows; i++) flags[i] = flags[i] & of ? bit : 0;
    }
}

/* The instant. keeps: there will be increments from here on. On failure there is no image. */
static inline PslibStatus pslib_image_begin(PslibTable *table, int increment, int keeps)
{
    const size_t partitions = (size_t)1 << table->partition_bits;
    if (!pslib_tracking_open(table)) return PSLIB_NO_MEMORY;
    PslibTracking *tracking = table->tracking;
    tracking->pending = malloc(partitions);
    tracking->filters = calloc(partitions, sizeof *tracking->filters);
    int made = tracking->pending != NULL && tracking->filters != NULL;
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const PslibRowClass *shape = &table->classes[c];
        const size_t content = shape->weight_bytes + sizeof(float) * (size_t)shape->state_floats;
        made = pslib_copies_open(&tracking->rows[c], content, partitions) && made;
    }
    made = pslib_copies_open(&tracking->counted, 0, partitions) && made;
    if (!made) {
        pslib_image_forget(tracking, partitions);
        return PSLIB_NO_MEMORY;
    }
    memset(tracking->pending, PSLIB_PENDING, partitions);
    tracking->increment = increment;
    tracking->broken = 0;
    tracking->keeps |= keeps;
    tracking->gone_before = tracking->gone_count;
    pslib_flags_become(table, PSLIB_ROW_DIRTY, PSLIB_ROW_CHANGED | PSLIB_ROW_DIRTY);
    return PSLIB_OK;
}

/* All of it is written, or it is given up. */
static inline void pslib_image_end(PslibTable *table)
{
    if (table->tracking == NULL) return;
    pslib_image_forget(table->tracking, (size_t)1 << table->partition_bits);
    if (!table->tracking->keeps) pslib_tracking_close(table);
}

/* The image is committed: the next increment holds what has changed since its instant. Or it is not: that, and
 * what this one held. */
static inline void pslib_image_settle(PslibTable *table, int committed)
{
    PslibTracking *tracking = table->tracking;
    if (tracking == NULL) return;
    pslib_flags_become(table, PSLIB_ROW_CHANGED, PSLIB_ROW_CHANGED | (committed ? 0 : PSLIB_ROW_DIRTY));
    if (committed) {
        tracking->gone_count -= tracking->gone_before;
        memmove(tracking->gone, tracking->gone + tracking->gone_before,
                (size_t)tracking->gone_count * sizeof *tracking->gone);
    }
    tracking->gone_before = 0;
}

/* Rows of one class that a partition's image has at most. */
static inline int64_t pslib_image_bound(const PslibTable *table, uint32_t number, int row_class)
{
    return (int64_t)table->arenas[number].of[row_class].live + table->tracking->rows[row_class].counts[number];
}

/* The first partition from `first` on with which there would be more than `rows` rows; first + 1 at least. */
static inline uint32_t pslib_image_stop(const PslibTable *table, uint32_t first, int64_t rows)
{
    const uint32_t partitions = UINT32_C(1) << table->partition_bits;
    uint32_t stop = first;
    for (int64_t sum = 0; stop < partitions; stop++) {
        for (int c = 0; c < PSLIB_CLASSES; c++) sum += pslib_image_bound(table, stop, c);
        if (sum > rows && stop > first) break;
    }
    return stop;
}

PSLIB_INLINE int pslib_image_has(const PslibTracking *tracking, uint32_t flags)
{
    if (flags & PSLIB_ROW_CHANGED) return 0;
    return !tracking->increment || flags & PSLIB_ROW_DIRTY;
}

/* Rows of one class that have not changed since the instant. ranks: INOUT, new numbers of live rows; those that do
 * not belong to the image become erased. Returns how many there are. */
static inline uint32_t pslib_image_ranks(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                         uint32_t *ranks)
{
    const uint32_t units = pslib_arena_units(arena, shape);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < units; i++) { /* units lie anywhere: what is read of each is asked for together */
        PSLIB_PREFETCH(&shape->flags[arena->units[i] << shape->unit_shift]);
        PSLIB_PREFETCH(pslib_unit_position(shape, arena->units[i]));
    }
    for (uint32_t number = 0; number < arena->next; number++) {
        if (ranks[number] == PSLIB_ERASED) continue;
        const uint32_t flags = shape->flags[pslib_arena_row(arena, shape, number)];
        ranks[number] = pslib_image_has(table->tracking, flags) ? kept++ : PSLIB_ERASED;
    }
    return kept;
}

static inline void pslib_image_keys(const PslibTable *table, uint32_t number, int row_class, const uint32_t *ranks,
                                    uint64_t *keys)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibPartition *partition = &table->partitions[number];
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            if (!pslib_place_is_row(line->place[cell]) || pslib_place_class(line->place[cell]) != row_class) continue;
            const uint32_t rank = ranks[pslib_row_number(shape, pslib_place_row(line->place[cell]))];
            if (rank != PSLIB_ERASED) keys[rank] = line->key[cell];
        }
    }
}

/* Where the rows of an image go, one after the other. */
typedef struct {
    uint64_t *keys;
    float *weights, *state;
} PslibImageOut;

/* A row, also one that was copied aside. */
PSLIB_INLINE void pslib_image_put(const PslibTable *table, const PslibRowClass *shape, const void *weights,
                                  const float *state, PslibImageOut *out)
{
    pslib_row_load(table, shape, PSLIB_PLAIN, weights, state, out->weights);
    for (int64_t j = 0; j < shape->state_floats; j++) out->state[j] = state[j];
    out->weights += shape->weight_floats;
    out->state += shape->state_floats;
}

/* Rows that have not changed, by the order of their numbers: in that of their keys, which is the index's, a table that
 * loads them would put all of them into the first lines of an index that is still small. */
static inline void pslib_image_still(const PslibTable *table, const PslibArena *arena, int row_class,
                                     const uint32_t *ranks, PslibImageOut *out)
{
    const PslibRowClass *shape = &table->classes[row_class];
    for (uint32_t number = 0; number < arena->next; number++) {
        const uint32_t ahead = number + PSLIB_IMAGE_AHEAD;
        if (ahead < arena->next && ranks[ahead] != PSLIB_ERASED)
            pslib_prefetch_row(table->classes, pslib_place(row_class, pslib_arena_row(arena, shape, ahead)), 1);
        if (ranks[number] == PSLIB_ERASED) continue;
        const uint32_t row = pslib_arena_row(arena, shape, number);
        pslib_image_put(table, shape, pslib_row_weights(shape, row), pslib_row_state(shape, row), out);
    }
}

/* Rows of a partition that were copied aside. Returns how many. */
static inline int64_t pslib_image_copied(const PslibTable *table, uint32_t number, int row_class, PslibImageOut *out)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibCopies *copies = &table->tracking->rows[row_class];
    const uint64_t *first = out->keys;
    for (uint32_t next = copies->heads[number]; next != 0;) {
        const PslibCopy *some[PSLIB_IMAGE_AHEAD];
        int count = 0;
        for (; next != 0 && count < PSLIB_IMAGE_AHEAD; next = copies->links[next - 1]) {
            some[count] = pslib_copy_at(copies, next - 1);
            pslib_prefetch_bytes(some[count++], copies->copy_bytes);
        }
        for (int i = 0; i < count; i++) {
            const uint8_t *weights = (const uint8_t *)(some[i] + 1);
            if (!pslib_image_has(table->tracking, some[i]->flags)) continue;
            *out->keys++ = some[i]->key;
            pslib_image_put(table, shape, weights, (const float *)(const void *)(weights + shape->weight_bytes), out);
        }
    }
    return out->keys - first;
}

/* Rows of one class of a partition, as they were at the instant: first those that lie in the table, then copies.
 * keys, weights, state: OUT. count: OUT, how many. */
static inline PslibStatus pslib_image_rows(const PslibTable *table, uint32_t number, int row_class, uint64_t *keys,
                                           float *weights, float *state, int64_t *count)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibArena *arena = &table->arenas[number].of[row_class];
    uint32_t *ranks = pslib_arena_new_numbers(arena, shape);
    if (ranks == NULL) return PSLIB_NO_MEMORY;
    *count = pslib_image_ranks(table, arena, shape, ranks);
    PslibImageOut out = {keys + *count, weights, state};
    if (*count > 0) {
        pslib_image_keys(table, number, row_class, ranks, keys);
        pslib_image_still(table, arena, row_class, ranks, &out);
    }
    free(ranks);
    *count += pslib_image_copied(table, number, row_class, &out);
    return PSLIB_OK;
}

/* Counted keys that a partition's image has at most. */
static inline int64_t pslib_image_counted_bound(const PslibTable *table, uint32_t number)
{
    return (int64_t)pslib_partition_counted(table, number) + table->tracking->counted.counts[number];
}

/* Counted keys of a partition at the instant, and what they counted. keys, counts: OUT, with room for all that there
 * may be. Returns how many. */
static inline int64_t pslib_image_counts(const PslibTable *table, uint32_t number, uint64_t *keys, uint32_t *counts)
{
    const PslibPartition *partition = &table->partitions[number];
    const PslibCopies *noted = &table->tracking->counted;
    int64_t count = 0;
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            const uint64_t key = line->key[cell];
            if (line->place[cell] < PSLIB_COUNTED) continue;
            if (noted->next > 0 && *pslib_note_place(table->tracking, key, pslib_mix64(key)) != 0) continue;
            keys[count] = key;
            counts[count++] = line->place[cell] - PSLIB_COUNTED;
        }
    }
    for (uint32_t next = noted->heads[number]; next != 0;) {
        const PslibCopy *note = pslib_copy_at(noted, next - 1);
        next = noted->links[next - 1];
        if (note->flags == 0) continue; /* it was not there */
        keys[count] = note->key;
        counts[count++] = note->flags;
    }
    return count;
}

/* The filter of a partition at the instant; NULL: it had none. */
static inline const uint8_t *pslib_image_filter(const PslibTable *table, uint32_t number)
{
    const PslibTracking *tracking = table->tracking;
    if (tracking->pending[number] & PSLIB_FILTER_COPIED) return tracking->filters[number];
    return table->policies.admission.filters == NULL ? NULL : table->policies.admission.filters[number];
}

/* A partition is written. */
static inline void pslib_image_written(PslibTable *table, uint32_t number)
{
    PslibTracking *tracking = table->tracking;
    for (int c = 0; c < PSLIB_CLASSES; c++) pslib_copies_free(&tracking->rows[c], number);
    if (tracking->filters[number] != NULL) {
        free(tracking->filters[number]);
        tracking->filters[number] = NULL;
        tracking->filter_bytes -= table->policies.admission.filter_counters;
    }
    tracking->pending[number] = 0;
}

/* What copies and flags take. */
static inline int64_t pslib_tracking_bytes(const PslibTable *table)
{
    const PslibTracking *tracking = table->tracking;
    if (tracking == NULL) return 0;
    int64_t bytes = pslib_copies_bytes(&tracking->counted) + tracking->filter_bytes +
                    (int64_t)tracking->place_count * 4 + tracking->gone_capacity * 8;
    for (int c = 0; c < PSLIB_CLASSES; c++)
        bytes += pslib_copies_bytes(&tracking->rows[c]) +
                 ((int64_t)table->classes[c].slab_count << table->classes[c].slab_shift);
    return bytes;
}

#endif
