/* table_loops.h: reading and stepping the rows of a batch.
 *
 * Tables whose rows are all of one class and whose keys are all admitted go by strips (strip_loops.h), which do the
 * same in less time; the loops here are for the others, with rows that are narrow first or keys that are turned away.
 *
 * A look-up follows three addresses, each read from the memory that the one before leads to, and each usually
 * a cache miss: the directory, a line of the index, the row. So that the misses of many keys overlap, the loop
 * works on five keys at once, PSLIB_AHEAD keys apart:
 *
 *     key i              mix it                             prefetch the directory entry
 *     key i - 1 AHEAD    home line                          prefetch that line
 *     key i - 2 AHEAD    is it in its home line?            yes: prefetch the row; no: prefetch the next line
 *     key i - 3 AHEAD    look up those that were not;       prefetch their rows
 *                        a push makes rows here
 *     key i - 4 AHEAD    work on the row
 *
 * The fourth stage is what makes a full index fast: one key in ten lies in a later line, and waiting for that
 * line on the spot would cost as much as all the other keys of its block.
 *
 * Rings hold what is known of the keys under way. Keys are looked up for good, and rows made and stepped, in
 * their order: a key that repeats finds the row made for it before. A key that is turned away (admission.h)
 * keeps place 0, and there is no work on its row.
 */
#ifndef PSLIB_TABLE_LOOPS_H
#define PSLIB_TABLE_LOOPS_H

#include "admission.h"
#include "promotion.h"
#include "row_io.h"
#include "strip_loops.h"
#include "vectors.h"

enum {
    PSLIB_AHEAD = 16,
    PSLIB_RING = 128 /* a power of two above 4 PSLIB_AHEAD */
};

typedef struct {
    uint64_t mixed[PSLIB_RING];
    uint32_t place[PSLIB_RING]; /* 0: no row */
    uint8_t again[PSLIB_RING];  /* not in its home line, but keys have gone by that */
    uint8_t made[PSLIB_RING];   /* its row is new and has no floats yet */
} PslibUnderWay;

/* The first three stages for key i and those behind it. */
PSLIB_INLINE void pslib_first_stages(const PslibTable *table, const uint64_t *keys, int64_t n, int64_t i,
                                     int for_push, int level, PslibUnderWay *ring)
{
    if (i < n) {
        const uint64_t mixed = pslib_mix64(keys[i]);
        ring->mixed[i % PSLIB_RING] = mixed;
        __builtin_prefetch(pslib_table_partition(table, mixed));
    }
    i -= PSLIB_AHEAD;
    if ((uint64_t)i < (uint64_t)n) {
        const uint64_t mixed = ring->mixed[i % PSLIB_RING];
        pslib_prefetch_home(pslib_table_partition(table, mixed), mixed);
    }
    i -= PSLIB_AHEAD;
    if ((uint64_t)i >= (uint64_t)n) return;
    const uint64_t mixed = ring->mixed[i % PSLIB_RING];
    const PslibPartition *partition = pslib_table_partition(table, mixed);
    ring->place[i % PSLIB_RING] = 0;
    ring->again[i % PSLIB_RING] = 0;
    if (partition->line_count == 0) return;
    const uint32_t home = pslib_home_line(mixed, partition->line_count);
    const PslibLine *line = &partition->lines[home];
    const uint32_t mask = pslib_line_mask_at(level, line, keys[i]);
    if (mask != 0) {
        const uint32_t place = line->place[pslib_lowest_cell(mask)];
        if (place >= PSLIB_COUNTED) return; /* a counted key has no row */
        ring->place[i % PSLIB_RING] = place;
        pslib_prefetch_row(table->classes, place, for_push);
        return;
    }
    ring->again[i % PSLIB_RING] = line->passed != 0;
    if (line->passed != 0 || (for_push && pslib_line_empty(line) == 0))
        __builtin_prefetch(&partition->lines[pslib_next_line(home, partition->line_count)]);
    if (for_push) __builtin_prefetch(pslib_table_arenas(table, mixed));
}

/* Weights of all parts of one key. place 0: the key has no row. */
PSLIB_INLINE void pslib_pull_one(const PslibTable *table, int level, uint64_t key, uint32_t place, float now,
                                 float *out)
{
    if (place == 0) {
        pslib_first_parts(table, level, 0, key, out);
        return;
    }
    const PslibRowClass *shape = &table->classes[pslib_place_class(place)];
    pslib_row_pull(table, shape, level, pslib_place_weights(table->classes, place),
                   pslib_place_state(table->classes, place), now, out);
    if (shape->part_count < table->part_count)
        pslib_first_parts(table, level, shape->part_count, key, out + shape->weight_floats);
}

PSLIB_INLINE int64_t pslib_pull_at(const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out,
                                   int level)
{
    const int64_t dim = table->classes[PSLIB_WIDE].weight_floats;
    PslibUnderWay ring;
    int64_t absent = 0;
    for (int64_t step = 0; step < n + 4 * PSLIB_AHEAD; step++) {
        pslib_first_stages(table, keys, n, step, 0, level, &ring);
        int64_t i = step - 3 * PSLIB_AHEAD;
        if ((uint64_t)i < (uint64_t)n && ring.again[i % PSLIB_RING]) {
            const uint64_t mixed = ring.mixed[i % PSLIB_RING];
            const uint32_t place = pslib_partition_find(pslib_table_partition(table, mixed), keys[i], mixed).place;
            ring.place[i % PSLIB_RING] = place;
            if (place != 0) pslib_prefetch_row(table->classes, place, 0);
        }
        i -= PSLIB_AHEAD;
        if (i < 0) continue;
        absent += ring.place[i % PSLIB_RING] == 0;
        pslib_pull_one(table, level, keys[i], ring.place[i % PSLIB_RING], now, out + i * dim);
    }
    return absent;
}

/* The fourth stage of a push. */
PSLIB_INLINE PslibStatus pslib_find_or_make(PslibTable *table, const uint64_t *keys, int64_t i, int row_class,
                                            const PslibRecord *record, PslibUnderWay *ring)
{
    ring->made[i % PSLIB_RING] = 0;
    if (ring->place[i % PSLIB_RING] != 0) return PSLIB_OK;
    const uint64_t mixed = ring->mixed[i % PSLIB_RING];
    PslibPartition *partition = pslib_table_partition(table, mixed);
    PslibFound found = pslib_partition_find(partition, keys[i], mixed);
    if (found.place == 0) {
        const PslibStatus status =
            table->policies.admission.kind == PSLIB_ADMIT_ALL
                ? pslib_partition_add(partition, pslib_table_arenas(table, mixed), table->classes, keys[i], mixed,
                                      row_class, &found.place)
                : pslib_admit(table, keys[i], mixed, record->shows == NULL ? 1.0f : record->shows[i], record->salt,
                              row_class, &found);
        if (status != PSLIB_OK || found.place == 0) return status;
        ring->made[i % PSLIB_RING] = 1;
        table->rows[row_class]++;
    }
    ring->place[i % PSLIB_RING] = found.place;
    pslib_prefetch_row(table->classes, found.place, 1);
    return PSLIB_OK;
}

/* The last stage of a push. */
PSLIB_INLINE void pslib_push_one(const PslibTable *table, int level, uint64_t key, uint32_t place, int made,
                                 const float *gradient, const PslibRecord *record, int64_t i)
{
    const PslibRowClass *shape = &table->classes[pslib_place_class(place)];
    pslib_row_push(table, shape, level, key, made, pslib_place_weights(table->classes, place),
                   pslib_place_state(table->classes, place), gradient, record, i);
}

PSLIB_INLINE PslibStatus pslib_push_at(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                       int row_class, const PslibRecord *record, int64_t *done, int level)
{
    const int64_t dim = table->classes[PSLIB_WIDE].weight_floats;
    PslibUnderWay ring;
    PslibStatus status = PSLIB_OK;
    for (int64_t step = 0; step < n + 4 * PSLIB_AHEAD; step++) {
        pslib_first_stages(table, keys, n, step, 1, level, &ring);
        int64_t i = step - 3 * PSLIB_AHEAD;
        if ((uint64_t)i < (uint64_t)n) {
            const PslibStatus now = pslib_find_or_make(table, keys, i, row_class, record, &ring);
            if (now != PSLIB_OK) { /* the keys before it are done, then it ends */
                status = now;
                n = i;
            }
        }
        i -= PSLIB_AHEAD;
        if ((uint64_t)i >= (uint64_t)n) continue;
        const uint32_t place = ring.place[i % PSLIB_RING];
        if (place == 0) continue; /* turned away */
        pslib_push_one(table, level, keys[i], place, ring.made[i % PSLIB_RING], gradients + i * dim, record, i);
        if (table->policies.promotion.kind != PSLIB_PROMOTE_NEVER) pslib_note_proof(table, keys[i], place);
    }
    *done = n;
    return status;
}

PSLIB_COPIES(int64_t, pslib_pull, table->level,
             (const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out),
             table, keys, n, now, out)
PSLIB_COPIES(PslibStatus, pslib_push, table->level,
             (PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients, int row_class,
              const PslibRecord *record, int64_t *done),
             table, keys, n, gradients, row_class, record, done)

/* Weights of all parts of n keys at the time `now`; what a key has no row or no wide row for is its first value.
 * out: (n, dim) OUT. Changes nothing in the table. Returns how many keys have no row. */
static inline int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out)
{
    if (pslib_in_strips(table)) return pslib_strips_pull_rows(table, keys, n, now, out);
    return pslib_pull(table, keys, n, now, out);
}

/* One optimizer step for each key in order; a key without a row gets one of row_class first or is turned away.
 * gradients: (n, dim). done: OUT, keys that were stepped; on failure the rest has changed nothing. Rows that have
 * proved themselves become wide only in pslib_table_push. */
static inline PslibStatus pslib_push_loops(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                           int row_class, const PslibRecord *record, int64_t *done)
{
    if (pslib_in_strips(table)) return pslib_strips_push_rows(table, keys, n, gradients, record, done);
    return pslib_push(table, keys, n, gradients, row_class, record, done);
}

#endif
