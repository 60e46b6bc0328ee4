/* images.h: which rows have changed since an instant, and the image of a table at an instant while pushes go on.
 *
 * An image is the table as it was at one instant, copied out partition by partition: before a row of a partition that
 * is not written yet changes, its bytes are copied aside, once. An increment holds the rows that have changed since
 * the instant of the image before it, and the keys whose rows have been erased or evicted.
 *
 * Two flags for each row id, in memory that exists only while images are taken:
 *
 *     CHANGED   the row was made or changed after the instant (of the image before, where none is being taken)
 *     DIRTY     while an image is taken: the row was CHANGED when that began, so it belongs to an increment
 *
 *     instant:           DIRTY |= CHANGED;  CHANGED = 0
 *     row changes:       not CHANGED and its partition is not written yet: copy it aside, with its DIRTY;  CHANGED = 1
 *     the image holds:   rows that are not CHANGED, and copies; of both only DIRTY ones where it is an increment
 *     it is committed:   DIRTY = 0
 *     it is given up:    CHANGED |= DIRTY;  DIRTY = 0
 *
 * New rows are CHANGED from the start (pslib_arena_take), and flags move with their rows (pslib_row_move), so a row
 * number that is used again says nothing of the row before it. Counted keys have no flags: the count at the instant is
 * noted before it changes, 0 for a key that was absent. A Bloom filter is copied as a whole before its first change.
 *
 * A push never fails for lack of memory for copies: the image does (`broken`).
 */
#ifndef PSLIB_IMAGES_H
#define PSLIB_IMAGES_H

#include "table/row_io.h"

enum { PSLIB_PENDING = 1, PSLIB_FILTER_COPIED = 2 }; /* flags of a partition whose image is not written */
enum { PSLIB_COPIES_SHIFT = 9, PSLIB_COPIES_MASK = (1 << PSLIB_COPIES_SHIFT) - 1 }; /* copies of one chunk */

/* Header of a copy, followed by the weights of the row and its state. Of a counted key: alone, flags is its count. */
typedef struct {
    uint64_t key;
    uint32_t flags;
} PslibCopy;

typedef struct {
    size_t copy_bytes;
    uint8_t **chunks;
    uint32_t *links;    /* for each copy the next one of the same partition, + 1; 0 = none */
    uint32_t chunk_count;
    uint32_t next;      /* copies below it have been given out */
    uint32_t free_head; /* copy given back last, + 1; 0 = none */
    uint32_t *heads;    /* (partitions,) last copy of each, + 1 */
    uint32_t *counts;   /* (partitions,) */
} PslibCopies;

typedef struct PslibTracking {
    int keeps;        /* changes are noted between images too, for increments */
    int increment;    /* the image being taken is an increment */
    int broken;       /* no memory for a copy: the image cannot be written */
    uint8_t *pending; /* (partitions,) NULL: no image is being taken */
    PslibCopies rows[PSLIB_CLASSES];
    PslibCopies counted;
    uint32_t *places; /* of counted keys: copy + 1, open addressing */
    uint32_t place_count; /* a power of two, or 0 */
    uint8_t **filters;    /* (partitions,) copies; NULL: there was no filter */
    int64_t filter_bytes;
    uint64_t *gone;       /* keys whose rows were erased or evicted, in time order, may repeat */
    int64_t gone_count, gone_capacity;
    int64_t gone_before;  /* of them, those before the instant */
} PslibTracking;

/* --- copies */

static inline PslibCopy *pslib_copy_at(const PslibCopies *copies, uint32_t number)
{
    uint8_t *chunk = copies->chunks[number >> PSLIB_COPIES_SHIFT];
    return (PslibCopy *)(void *)(chunk + (number & PSLIB_COPIES_MASK) * copies->copy_bytes);
}

static inline int pslib_copies_open(PslibCopies *copies, size_t content_bytes, size_t partitions)
{
    memset(copies, 0, sizeof *copies);
    copies->copy_bytes = (sizeof(PslibCopy) + content_bytes + 7) & ~(size_t)7;
    copies->heads = calloc(partitions, sizeof *copies->heads);
    copies->counts = calloc(partitions, sizeof *copies->counts);
    return copies->heads != NULL && copies->counts != NULL;
}

static inline void pslib_copies_close(PslibCopies *copies)
{
    for (uint32_t i = 0; i < copies->chunk_count; i++) free(copies->chunks[i]);
    free(copies->chunks);
    free(copies->links);
    free(copies->heads);
    free(copies->counts);
    memset(copies, 0, sizeof *copies);
}

static inline int pslib_copies_grow(PslibCopies *copies)
{
    const uint32_t count = copies->chunk_count;
    if ((count & (count - 1)) == 0) {
        const size_t capacity = count == 0 ? 1 : 2 * (size_t)count;
        uint8_t **longer = realloc(copies->chunks, capacity * sizeof *longer);
        if (longer != NULL) copies->chunks = longer;
        uint32_t *links = realloc(copies->links, (capacity << PSLIB_COPIES_SHIFT) * sizeof *links);
        if (links != NULL) copies->links = links;
        if (longer == NULL || links == NULL) return 0;
    }
    copies->chunks[count] = malloc(copies->copy_bytes << PSLIB_COPIES_SHIFT);
    if (copies->chunks[count] == NULL) return 0;
    copies->chunk_count++;
    return 1;
}

/* Return a new copy of a partition; NULL without memory. number: OUT. */
static inline PslibCopy *pslib_copy_add(PslibCopies *copies, uint32_t partition, uint64_t key, uint32_t *number)
{
    if (copies->free_head != 0) {
        *number = copies->free_head - 1;
        copies->free_head = copies->links[*number];
    } else {
        if (copies->next >> PSLIB_COPIES_SHIFT == copies->chunk_count && !pslib_copies_grow(copies)) return NULL;
        *number = copies->next++;
    }
    PslibCopy *copy = pslib_copy_at(copies, *number);
    copy->key = key;
    copies->links[*number] = copies->heads[partition];
    copies->heads[partition] = *number + 1;
    copies->counts[partition]++;
    return copy;
}

/* Free the copies of a partition, for reuse. */
static inline void pslib_copies_free(PslibCopies *copies, uint32_t partition)
{
    uint32_t last = copies->heads[partition];
    if (last == 0) return;
    while (copies->links[last - 1] != 0) last = copies->links[last - 1];
    copies->links[last - 1] = copies->free_head;
    copies->free_head = copies->heads[partition];
    copies->heads[partition] = copies->counts[partition] = 0;
}

static inline int64_t pslib_copies_bytes(const PslibCopies *copies)
{
    return (int64_t)copies->chunk_count * (int64_t)((copies->copy_bytes + sizeof *copies->links) << PSLIB_COPIES_SHIFT);
}

/* --- before something changes; nothing to do unless images are taken */

static inline int pslib_is_pending(const PslibTracking *tracking, uint32_t number)
{
    return tracking->pending != NULL && tracking->pending[number] != 0;
}

/* Called before a row changes or is erased: copy it aside if the image needs it. */
static inline void pslib_before_row(const PslibTable *table, uint32_t number, uint64_t key, uint32_t place)
{
    PslibTracking *tracking = table->tracking;
    const int c = pslib_place_class(place);
    const PslibRowClass *shape = &table->classes[c];
    const uint32_t row = pslib_place_row(place);
    uint8_t *flags = &shape->flags[row];
    uint32_t copied;
    if (*flags & PSLIB_ROW_CHANGED) return;
    if (pslib_is_pending(tracking, number)) {
        PslibCopy *copy = pslib_copy_add(&tracking->rows[c], number, key, &copied);
        if (copy == NULL) {
            tracking->broken = 1;
            return;
        }
        copy->flags = *flags;
        uint8_t *to = (uint8_t *)(copy + 1);
        memcpy(to, pslib_row_weights(shape, row), shape->weight_bytes);
        memcpy(to + shape->weight_bytes, pslib_row_state(shape, row), sizeof(float) * (size_t)shape->state_floats);
    }
    *flags |= PSLIB_ROW_CHANGED;
}

/* As pslib_before_row for a row that is erased or evicted: an increment will name its key. */
static inline void pslib_before_erasing(const PslibTable *table, uint32_t number, uint64_t key, uint32_t place)
{
    PslibTracking *tracking = table->tracking;
    if (tracking == NULL) return;
    pslib_before_row(table, number, key, place);
    if (!tracking->keeps) return;
    if (tracking->gone_count == tracking->gone_capacity) {
        const int64_t capacity = tracking->gone_capacity == 0 ? 256 : 2 * tracking->gone_capacity;
        uint64_t *longer = realloc(tracking->gone, (size_t)capacity * sizeof *longer);
        if (longer == NULL) { /* no increment could name this key */
            tracking->broken = 1;
            tracking->keeps = 0;
            return;
        }
        tracking->gone = longer;
        tracking->gone_capacity = capacity;
    }
    tracking->gone[tracking->gone_count++] = key;
}

/* Return the place of the note of a key, or the empty place for it. */
static inline uint32_t *pslib_note_place(const PslibTracking *tracking, uint64_t key, uint64_t mixed)
{
    uint32_t at = (uint32_t)(mixed >> 8) & (tracking->place_count - 1);
    while (tracking->places[at] != 0 && pslib_copy_at(&tracking->counted, tracking->places[at] - 1)->key != key)
        at = (at + 1) & (tracking->place_count - 1);
    return &tracking->places[at];
}

/* Double the room for notes. Returns 0 without memory. */
static inline int pslib_notes_grow(PslibTracking *tracking)
{
    const uint32_t count = tracking->place_count == 0 ? 1024 : 2 * tracking->place_count;
    uint32_t *places = calloc(count, sizeof *places);
    if (places == NULL) return 0;
    free(tracking->places);
    tracking->places = places;
    tracking->place_count = count;
    for (uint32_t i = 0; i < tracking->counted.next; i++) {
        const uint64_t key = pslib_copy_at(&tracking->counted, i)->key;
        *pslib_note_place(tracking, key, pslib_mix64(key)) = i + 1;
    }
    return 1;
}

/* Note the count of a key without a row, 0 of an absent key, before it changes. Notes are kept until the image ends. */
static inline void pslib_before_count(PslibTracking *tracking, uint32_t number, uint64_t key, uint64_t mixed,
                                      uint32_t count)
{
    uint32_t noted;
    if (2 * (tracking->counted.next + 1) > tracking->place_count && !pslib_notes_grow(tracking)) {
        tracking->broken = 1;
        return;
    }
    uint32_t *place = pslib_note_place(tracking, key, mixed);
    if (*place != 0) return;
    PslibCopy *note = pslib_copy_add(&tracking->counted, number, key, &noted);
    if (note == NULL) {
        tracking->broken = 1;
        return;
    }
    note->flags = count;
    *place = noted + 1;
}

/* Copy the filter of a partition before it changes. */
static inline void pslib_before_filter(const PslibTable *table, uint32_t number)
{
    PslibTracking *tracking = table->tracking;
    const PslibAdmission *admission = &table->policies.admission;
    if (tracking == NULL) return;
    if (!pslib_is_pending(tracking, number) || tracking->pending[number] & PSLIB_FILTER_COPIED) return;
    if (admission->filters[number] != NULL) {
        uint8_t *copy = malloc(admission->filter_counters);
        if (copy == NULL) {
            tracking->broken = 1;
            return;
        }
        memcpy(copy, admission->filters[number], admission->filter_counters);
        tracking->filters[number] = copy;
        tracking->filter_bytes += admission->filter_counters;
    }
    tracking->pending[number] |= PSLIB_FILTER_COPIED;
}

/* --- before keys are pushed, assigned, counted or erased
 *
 * Blocks of keys in passes, each of which prefetches what the next one reads: most of the time is memory latency. The
 * first pass drops keys of partitions that are written, the third drops rows that are CHANGED. */

typedef struct {
    uint32_t count;
    uint64_t key[PSLIB_BLOCK];
    uint64_t mixed[PSLIB_BLOCK];
    uint32_t place[PSLIB_BLOCK];
} PslibWatched;

PSLIB_INLINE uint8_t *pslib_row_flags(const PslibTable *table, uint32_t place)
{
    return &table->classes[pslib_place_class(place)].flags[pslib_place_row(place)];
}

/* Keep the keys of partitions that are tracked; prefetch their home lines. watched: OUT. */
PSLIB_INLINE void pslib_watch(const PslibTable *table, const uint64_t *keys, int64_t count, PslibWatched *watched)
{
    const uint8_t *pending = table->tracking->pending;
    const uint32_t all = table->tracking->keeps != 0;
    uint32_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t mixed = pslib_mix64(keys[i]);
        const uint32_t number = pslib_partition_of_mixed(mixed, table->partition_bits);
        watched->key[kept] = keys[i];
        watched->mixed[kept] = mixed;
        PSLIB_PREFETCH(&table->partitions[number]);
        kept += all | (pending != NULL && pending[number] != 0);
    }
    watched->count = kept;
    for (uint32_t i = 0; i < kept; i++)
        pslib_prefetch_home(pslib_table_partition(table, watched->mixed[i]), watched->mixed[i]);
}

/* Keep the keys that have a row. Of the others note the count or filter, if their partition is not written. */
PSLIB_INLINE void pslib_watch_places(const PslibTable *table, PslibWatched *watched)
{
    PslibTracking *tracking = table->tracking;
    const int admission = table->policies.admission.kind;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < watched->count; i++) {
        const uint64_t key = watched->key[i], mixed = watched->mixed[i];
        const PslibFound found = pslib_partition_find(pslib_table_partition(table, mixed), key, mixed);
        watched->key[kept] = key;
        watched->mixed[kept] = mixed;
        watched->place[kept] = found.place;
        if (found.place != 0) {
            PSLIB_PREFETCH(pslib_row_flags(table, found.place));
            kept++;
            continue;
        }
        const uint32_t number = pslib_partition_of_mixed(mixed, table->partition_bits);
        if (admission == PSLIB_ADMIT_ALL || !pslib_is_pending(tracking, number)) continue;
        if (admission == PSLIB_ADMIT_COUNT) pslib_before_count(tracking, number, key, mixed, found.count);
        if (admission == PSLIB_ADMIT_BLOOM) pslib_before_filter(table, number);
    }
    watched->count = kept;
}

/* Keep the rows that are not CHANGED, and prefetch them. With `leaving` keep all: increments name their keys. */
PSLIB_INLINE void pslib_watch_rows(const PslibTable *table, int leaving, PslibWatched *watched)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < watched->count; i++) {
        const uint32_t place = watched->place[i];
        const int fresh = (*pslib_row_flags(table, place) & PSLIB_ROW_CHANGED) == 0;
        watched->key[kept] = watched->key[i];
        watched->mixed[kept] = watched->mixed[i];
        watched->place[kept] = place;
        if (fresh) pslib_prefetch_row(table->classes, place, 1);
        kept += fresh | leaving;
    }
    watched->count = kept;
}

/* Called before keys are pushed, assigned, counted or (leaving) erased. */
PSLIB_NOINLINE void pslib_before_keys(const PslibTable *table, const uint64_t *keys, int64_t n, int leaving)
{
    PslibWatched watched;
    if (table->tracking == NULL) return;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        pslib_watch(table, keys + start, n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK, &watched);
        pslib_watch_places(table, &watched);
        pslib_watch_rows(table, leaving != 0, &watched);
        for (uint32_t i = 0; i < watched.count; i++) {
            const uint32_t number = pslib_partition_of_mixed(watched.mixed[i], table->partition_bits);
            if (leaving) pslib_before_erasing(table, number, watched.key[i], watched.place[i]);
            else pslib_before_row(table, number, watched.key[i], watched.place[i]);
        }
    }
}

/* Called before all counts and the filter of a partition change and, with `rows`, its rows. */
PSLIB_NOINLINE void pslib_before_partition(const PslibTable *table, uint32_t number, int rows)
{
    const PslibPartition *partition = &table->partitions[number];
    if (table->tracking == NULL) return;
    for (uint32_t i = 0; i < partition->line_count; i++)
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            const uint64_t key = partition->lines[i].key[cell];
            const uint32_t place = partition->lines[i].place[cell];
            if (rows && pslib_place_is_row(place)) pslib_before_row(table, number, key, place);
            else if (place >= PSLIB_COUNTED && pslib_is_pending(table->tracking, number))
                pslib_before_count(table->tracking, number, key, pslib_mix64(key), place - PSLIB_COUNTED);
        }
    if (table->policies.admission.kind == PSLIB_ADMIT_BLOOM) pslib_before_filter(table, number);
}

/* --- images */

enum { PSLIB_IMAGE_AHEAD = 16 }; /* rows that are prefetched before they are read */

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

/* End the image and stop tracking changes. */
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

/* Set the flags of all rows to `bit`, CHANGED or DIRTY, where they have any bit of `of`, else to 0. */
static inline void pslib_flags_become(PslibTable *table, uint8_t bit, uint8_t of)
{
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const size_t rows = (size_t)table->classes[c].slab_count << table->classes[c].slab_shift;
        uint8_t *flags = table->classes[c].flags;
        for (size_t i = 0; i < rows; i++) flags[i] = flags[i] & of ? bit : 0;
    }
}

/* Begin an image: this is its instant. keeps: track changes for increments from here on. On failure there is none. */
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

/* End the image, written or not. */
static inline void pslib_image_end(PslibTable *table)
{
    if (table->tracking == NULL) return;
    pslib_image_forget(table->tracking, (size_t)1 << table->partition_bits);
    if (!table->tracking->keeps) pslib_tracking_close(table);
}

/* Tell the fate of the last image: the next increment holds what has changed since its instant and, unless it was
 * committed, what it held. */
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

/* Return an upper bound of the rows of one class in the image of the partitions first to stop - 1. */
static inline int64_t pslib_image_bound(const PslibTable *table, uint32_t first, uint32_t stop, int row_class)
{
    int64_t bound = 0;
    for (uint32_t i = first; i < stop; i++)
        bound += (int64_t)table->arenas[i].of[row_class].live + table->tracking->rows[row_class].counts[i];
    return bound;
}

/* Return the first partition from `first` on with which there would be more than `rows` rows; first + 1 at least. */
static inline uint32_t pslib_image_stop(const PslibTable *table, uint32_t first, int64_t rows)
{
    const uint32_t partitions = UINT32_C(1) << table->partition_bits;
    uint32_t stop = first;
    for (int64_t sum = 0; stop < partitions; stop++) {
        for (int c = 0; c < PSLIB_CLASSES; c++) sum += pslib_image_bound(table, stop, stop + 1, c);
        if (sum > rows && stop > first) break;
    }
    return stop;
}

PSLIB_INLINE int pslib_image_has(const PslibTracking *tracking, uint32_t flags)
{
    if (flags & PSLIB_ROW_CHANGED) return 0;
    return !tracking->increment || flags & PSLIB_ROW_DIRTY;
}

/* Number the rows of one class that have not changed since the instant. ranks: INOUT, new numbers of live rows; rows
 * that are not in the image become erased. Returns the number of rows. */
static inline uint32_t pslib_image_ranks(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                         uint32_t *ranks)
{
    const uint32_t units = pslib_arena_units(arena, shape);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < units; i++) { /* units lie anywhere: prefetch them together */
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

/* Addresses of the next rows to write. */
typedef struct {
    uint64_t *keys;
    float *weights, *state;
} PslibRowsOut;

/* Write the weights and state of one row, of the table or copied aside. */
PSLIB_INLINE void pslib_write_row(const PslibTable *table, const PslibRowClass *shape, const void *weights,
                                  const float *state, PslibRowsOut *out)
{
    pslib_row_load(table, shape, PSLIB_PLAIN, weights, state, out->weights);
    for (int64_t j = 0; j < shape->state_floats; j++) out->state[j] = state[j];
    out->weights += shape->weight_floats;
    out->state += shape->state_floats;
}

/* Write the rows of one class of a partition that have a rank, in that order. ranks: IN, for each row number, or
 * PSLIB_ERASED. Not in the order of the index: a table that loads them would fill the first lines of an index that is
 * still small. */
static inline void pslib_write_rows(const PslibTable *table, uint32_t number, int row_class, const uint32_t *ranks,
                                    PslibRowsOut *out)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibArena *arena = &table->arenas[number].of[row_class];
    const PslibPartition *partition = &table->partitions[number];
    uint32_t count = 0;
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            if (!pslib_place_is_row(line->place[cell]) || pslib_place_class(line->place[cell]) != row_class) continue;
            const uint32_t rank = ranks[pslib_row_number(shape, pslib_place_row(line->place[cell]))];
            if (rank != PSLIB_ERASED) out->keys[rank] = line->key[cell];
        }
    }
    for (uint32_t i = 0; i < arena->next; i++) {
        const uint32_t ahead = i + PSLIB_IMAGE_AHEAD;
        if (ahead < arena->next && ranks[ahead] != PSLIB_ERASED)
            pslib_prefetch_row(table->classes, pslib_place(row_class, pslib_arena_row(arena, shape, ahead)), 1);
        if (ranks[i] == PSLIB_ERASED) continue;
        const uint32_t row = pslib_arena_row(arena, shape, i);
        pslib_write_row(table, shape, pslib_row_weights(shape, row), pslib_row_state(shape, row), out);
        count++;
    }
    out->keys += count;
}

/* Write the rows of a partition that were copied aside. */
static inline void pslib_image_copied(const PslibTable *table, uint32_t number, int row_class, PslibRowsOut *out)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibCopies *copies = &table->tracking->rows[row_class];
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
            pslib_write_row(table, shape, weights, (const float *)(const void *)(weights + shape->weight_bytes), out);
        }
    }
}

/* Write the rows of one class of the partitions first to stop - 1 as they were at the instant: of each partition first
 * those in the table, then copies. keys, weights, state: OUT, pslib_image_bound rows. count: OUT, rows written. */
static inline PslibStatus pslib_image_rows(const PslibTable *table, uint32_t first, uint32_t stop, int row_class,
                                           uint64_t *keys, float *weights, float *state, int64_t *count)
{
    const PslibRowClass *shape = &table->classes[row_class];
    PslibRowsOut out = {keys, weights, state};
    for (uint32_t i = first; i < stop; i++) {
        const PslibArena *arena = &table->arenas[i].of[row_class];
        if (pslib_image_bound(table, i, i + 1, row_class) == 0) continue;
        uint32_t *ranks = pslib_arena_new_numbers(arena, shape);
        if (ranks == NULL) return PSLIB_NO_MEMORY;
        if (pslib_image_ranks(table, arena, shape, ranks) > 0) pslib_write_rows(table, i, row_class, ranks, &out);
        free(ranks);
        pslib_image_copied(table, i, row_class, &out);
    }
    *count = out.keys - keys;
    return PSLIB_OK;
}

/* Return an upper bound of the counted keys in the image of the partitions first to stop - 1. */
static inline int64_t pslib_image_counted_bound(const PslibTable *table, uint32_t first, uint32_t stop)
{
    int64_t bound = 0;
    for (uint32_t i = first; i < stop; i++)
        bound += (int64_t)pslib_partition_counted(table, i) + table->tracking->counted.counts[i];
    return bound;
}

/* Write the counted keys of the partitions first to stop - 1 at the instant, and their counts. keys, counts: OUT,
 * (pslib_image_counted_bound,). Returns their number. */
static inline int64_t pslib_image_counts(const PslibTable *table, uint32_t first, uint32_t stop, uint64_t *keys,
                                         uint32_t *counts)
{
    const PslibCopies *noted = &table->tracking->counted;
    int64_t count = 0;
    for (uint32_t number = first; number < stop; number++) {
        const PslibPartition *partition = &table->partitions[number];
        if (pslib_image_counted_bound(table, number, number + 1) == 0) continue;
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
            if (note->flags == 0) continue; /* the key was absent */
            keys[count] = note->key;
            counts[count++] = note->flags;
        }
    }
    return count;
}

/* Return the filter of a partition at the instant; NULL: it had none. */
static inline const uint8_t *pslib_image_filter(const PslibTable *table, uint32_t number)
{
    const PslibTracking *tracking = table->tracking;
    if (tracking->pending[number] & PSLIB_FILTER_COPIED) return tracking->filters[number];
    return table->policies.admission.filters == NULL ? NULL : table->policies.admission.filters[number];
}

/* Mark a partition as written, and free its copies. */
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

/* Return the bytes of copies, flags and erased keys. */
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
