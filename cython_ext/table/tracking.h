/* tracking.h: what has changed in a table since an instant.
 *
 * Two readers ask. An image is the table as it was at one instant, written piece by piece while pushes go on:
 * before a row changes in a partition that is not written yet, its bytes are copied aside, once. An increment
 * holds the rows that have changed since the instant of the image before it, and the keys whose rows have left.
 *
 * Two bits a row say it, by row id, in memory that is there only while somebody asks:
 *
 *     CHANGED   the row was made or changed after the instant (of the image before, where none is being taken)
 *     DIRTY     while an image is taken: it was CHANGED when that began, so it belongs to an increment
 *
 *     instant:           DIRTY |= CHANGED;  CHANGED = 0
 *     row changes:       not CHANGED and its partition is not written yet: copy it aside, with its DIRTY;  CHANGED = 1
 *     the image holds:   rows that are not CHANGED, and copies; of both only DIRTY ones where it is an increment
 *     it is committed:   DIRTY = 0
 *     it is given up:    CHANGED |= DIRTY;  DIRTY = 0
 *
 * New rows are CHANGED from the start (pslib_arena_take), and bits move with their rows (pslib_row_move), so
 * a row number that is used again says nothing of the row before it. Counted keys have no bits: what a key
 * counted at the instant is noted before it changes, 0 for one that was not there. A Bloom filter is copied as
 * a whole before its first change.
 *
 * A push never fails for want of memory for copies: the image does (`broken`).
 */
#ifndef PSLIB_TRACKING_H
#define PSLIB_TRACKING_H

#include "table/row_io.h"

enum { PSLIB_PENDING = 1, PSLIB_FILTER_COPIED = 2 }; /* of a partition whose image is not written */
enum { PSLIB_COPIES_SHIFT = 9, PSLIB_COPIES_MASK = (1 << PSLIB_COPIES_SHIFT) - 1 }; /* copies of one chunk */

/* A copy: this, the weights of the row, its state. Of a counted key: this, with its count for flags. */
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
    uint32_t *heads;    /* (partitions,) copy made last, + 1 */
    uint32_t *counts;   /* (partitions,) */
} PslibCopies;

typedef struct PslibTracking {
    int keeps;        /* changes are noted between images too: there will be increments */
    int increment;    /* the image being taken is one */
    int broken;       /* there was no memory for a copy: the image can't be written */
    uint8_t *pending; /* (partitions,) NULL: no image is being taken */
    PslibCopies rows[PSLIB_CLASSES];
    PslibCopies counted;
    uint32_t *places; /* of counted keys: copy + 1, by open addressing */
    uint32_t place_count; /* a power of two, or 0 */
    uint8_t **filters;    /* (partitions,) copies; NULL: there was no filter */
    int64_t filter_bytes;
    uint64_t *gone;       /* keys whose rows have left, in time order, may repeat */
    int64_t gone_count, gone_capacity;
    int64_t gone_before;  /* of them, those that left before the instant */
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

/* Room for one more copy of a partition; NULL without memory. number: OUT. */
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

/* The copies of a partition are written: others may have their room. */
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

/* --- before something changes */

static inline int pslib_is_pending(const PslibTracking *tracking, uint32_t number)
{
    return tracking->pending != NULL && tracking->pending[number] != 0;
}

/* A row is about to change or to leave. */
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

/* A row is about to leave: as before, and an increment will name its key. */
static inline void pslib_before_leaving(const PslibTable *table, uint32_t number, uint64_t key, uint32_t place)
{
    PslibTracking *tracking = table->tracking;
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

/* Where the note of a key stands, or the empty place for it. */
static inline uint32_t *pslib_note_place(const PslibTracking *tracking, uint64_t key, uint64_t mixed)
{
    uint32_t at = (uint32_t)(mixed >> 8) & (tracking->place_count - 1);
    while (tracking->places[at] != 0 && pslib_copy_at(&tracking->counted, tracking->places[at] - 1)->key != key)
        at = (at + 1) & (tracking->place_count - 1);
    return &tracking->places[at];
}

/* Places for twice the notes. */
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

/* The count of a key without a row, or 0, is about to change. Notes stay until the image ends. */
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

/* The filter of a partition is about to change. */
static inline void pslib_before_filter(const PslibTable *table, uint32_t number)
{
    PslibTracking *tracking = table->tracking;
    const PslibAdmission *admission = &table->policies.admission;
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
 * Block after block, in passes, each of which prefetches what the next one reads: most of the time goes into waiting
 * for memory. Keys of partitions that are written leave in the first pass, rows that are CHANGED in the third. */

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

/* Keys of partitions in which a change matters, and the directory. */
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

/* Look keys up. Those that have no row are noted, if their partition is not written; the others stay. */
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

/* Only rows that have not changed yet are worth a prefetch. `leaving` ones stay all: their keys are named. */
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

/* These keys are about to be pushed, assigned, counted or (leaving) erased. */
PSLIB_APART void pslib_before_keys(const PslibTable *table, const uint64_t *keys, int64_t n, int leaving)
{
    PslibWatched watched;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        pslib_watch(table, keys + start, n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK, &watched);
        pslib_watch_places(table, &watched);
        pslib_watch_rows(table, leaving != 0, &watched);
        for (uint32_t i = 0; i < watched.count; i++) {
            const uint32_t number = pslib_partition_of_mixed(watched.mixed[i], table->partition_bits);
            if (leaving) pslib_before_leaving(table, number, watched.key[i], watched.place[i]);
            else pslib_before_row(table, number, watched.key[i], watched.place[i]);
        }
    }
}

/* All of a partition is about to change: its counts, its filter and, with `rows`, its rows. */
PSLIB_APART void pslib_before_partition(const PslibTable *table, uint32_t number, int rows)
{
    const PslibPartition *partition = &table->partitions[number];
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

#endif
