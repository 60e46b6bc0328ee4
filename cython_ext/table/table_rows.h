/* table_rows.h: what a Store does to a table: push with promotion, erase, assign, export, estimate, statistics, and the
 * check that a table's memory is consistent.
 *
 * Each function that changes rows tells images.h before it does. */
#ifndef PSLIB_TABLE_ROWS_H
#define PSLIB_TABLE_ROWS_H

#include "table/strips.h"

/* --- keys erased, partitions dropped */

/* Erase rows and the counts of counted keys; absent keys are an ordinary case. Returns the number of rows erased. */
static inline int64_t pslib_table_erase(PslibTable *table, const uint64_t *keys, int64_t n)
{
    uint64_t mixed[PSLIB_BLOCK];
    int64_t erased = 0;
    pslib_before_keys(table, keys, n, 1);
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++) {
            PslibPartition *partition = pslib_table_partition(table, mixed[i]);
            const PslibFound found = pslib_partition_find(partition, keys[start + i], mixed[i]);
            if (found.place == 0 && found.count == 0) continue;
            PslibArenas *arenas = pslib_table_arenas(table, mixed[i]);
            pslib_index_remove(partition, &found, mixed[i]);
            if (found.place != 0) {
                const int c = pslib_place_class(found.place);
                pslib_arena_give_back(&arenas->of[c], &table->classes[c], pslib_place_row(found.place));
                table->rows[c]--;
                erased++;
            }
            pslib_partition_shrink(partition, arenas, table->classes);
        }
    }
    return erased;
}

/* Erase all rows, counts and the filter of a partition. Returns the number of rows. */
static inline int64_t pslib_table_drop(PslibTable *table, uint32_t number)
{
    pslib_before_partition(table, number, 1);
    const int64_t rows = pslib_partition_rows(&table->arenas[number]);
    for (int c = 0; c < PSLIB_CLASSES; c++) table->rows[c] -= table->arenas[number].of[c].live;
    pslib_filter_release(&table->policies.admission, number);
    pslib_partition_release(&table->partitions[number], &table->arenas[number], table->classes);
    return rows;
}

/* --- rows assigned, promoted and pushed */

/* Give a found row another class: a new row with the weights and state of the parts that both classes have.
 * Erase and insert without a second look-up. found: INOUT. On failure nothing has changed. */
static inline PslibStatus pslib_table_reclass(PslibTable *table, PslibPartition *partition, PslibArenas *arenas,
                                              int row_class, PslibFound *found)
{
    const int old_class = pslib_place_class(found->place);
    PslibRowClass *from = &table->classes[old_class], *to = &table->classes[row_class];
    const uint32_t old_row = pslib_place_row(found->place);
    uint32_t row;
    const PslibStatus status = pslib_arena_take(&arenas->of[row_class], to, &row);
    if (status != PSLIB_OK) return status;
    pslib_row_copy_common(table, from, old_row, to, row);
    found->place = pslib_place(row_class, row);
    partition->lines[found->line].place[found->cell] = found->place;
    pslib_arena_give_back(&arenas->of[old_class], from, old_row);
    table->rows[old_class]--;
    table->rows[row_class]++;
    return PSLIB_OK;
}

/* Make or overwrite one row of row_class with these weights and this state. state NULL: a row keeps its own, a new one
 * gets the initial state. */
static inline PslibStatus pslib_table_put(PslibTable *table, uint64_t key, uint64_t mixed, const float *weights,
                                          const float *state, int row_class)
{
    PslibPartition *partition = pslib_table_partition(table, mixed);
    PslibArenas *arenas = pslib_table_arenas(table, mixed);
    PslibFound found = pslib_partition_find(partition, key, mixed);
    const int made = found.place == 0;
    const int changed = !made && pslib_place_class(found.place) != row_class;
    PslibStatus status = PSLIB_OK;
    if (made) status = pslib_partition_make(partition, arenas, table->classes, key, mixed, row_class, &found);
    if (changed) status = pslib_table_reclass(table, partition, arenas, row_class, &found);
    if (status != PSLIB_OK) return status;
    table->rows[row_class] += made;
    if (made && state == NULL) {
        float *own = pslib_place_state(table->classes, found.place);
        for (int64_t j = 0; j < table->classes[row_class].head_floats; j++) own[j] = 0;
        pslib_row_begin(table, &table->classes[row_class], 0, key, pslib_place_weights(table->classes, found.place), own);
    }
    pslib_row_put(table, &table->classes[row_class], weights, state, pslib_place_weights(table->classes, found.place),
                  pslib_place_state(table->classes, found.place));
    if (changed) pslib_partition_shrink(partition, arenas, table->classes);
    return PSLIB_OK;
}

/* Make or overwrite whole rows, key after key. weights: IN, (n, weight_floats of the class). state: IN,
 * (n, state_floats of the class) or NULL. done: OUT, rows written; on failure the rest has changed nothing. */
static inline PslibStatus pslib_table_assign(PslibTable *table, const uint64_t *keys, int64_t n, const float *weights,
                                             const float *state, int row_class, int64_t *done)
{
    uint64_t mixed[PSLIB_BLOCK];
    const PslibRowClass *shape = &table->classes[row_class];
    pslib_before_keys(table, keys, n, 0);
    for (*done = 0; *done < n;) {
        const int64_t start = *done;
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++, ++*done) {
            const PslibStatus status =
                pslib_table_put(table, keys[start + i], mixed[i], weights + *done * shape->weight_floats,
                                state == NULL ? NULL : state + *done * shape->state_floats, row_class);
            if (status != PSLIB_OK) return status;
        }
    }
    return PSLIB_OK;
}

/* Make narrow rows wide: the parts that they have keep weights and state, the others are initialized.
 * promoted: OUT, rows that changed. done: OUT, keys processed; on failure the rest has changed nothing. */
static inline PslibStatus pslib_rows_promote(PslibTable *table, const uint64_t *keys, int64_t n, int64_t *promoted,
                                              int64_t *done)
{
    const int narrow_parts = table->classes[PSLIB_NARROW].part_count;
    uint64_t mixed[PSLIB_BLOCK];
    *promoted = 0;
    pslib_before_keys(table, keys, n, 0);
    for (*done = 0; *done < n;) {
        const int64_t start = *done;
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++, ++*done) {
            PslibPartition *partition = pslib_table_partition(table, mixed[i]);
            PslibArenas *arenas = pslib_table_arenas(table, mixed[i]);
            PslibFound found = pslib_partition_find(partition, keys[start + i], mixed[i]);
            if (found.place == 0 || pslib_place_class(found.place) == PSLIB_WIDE) continue;
            const PslibStatus status = pslib_table_reclass(table, partition, arenas, PSLIB_WIDE, &found);
            if (status != PSLIB_OK) return status;
            pslib_row_begin(table, &table->classes[PSLIB_WIDE], narrow_parts, keys[start + i],
                            pslib_place_weights(table->classes, found.place),
                            pslib_place_state(table->classes, found.place));
            ++*promoted;
            table->policies.promotion.promoted++;
            pslib_partition_shrink(partition, arenas, table->classes);
        }
    }
    return PSLIB_OK;
}

/* Push, then promotion: new rows are narrow where the table promotes, and those that are due become wide. done: OUT,
 * keys that were stepped; on failure the rest has changed nothing, or all are done and some narrow rows that are due
 * stay narrow until their next push. */
static inline PslibStatus pslib_table_push(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                           int row_class, const PslibRecord *record, int64_t *done)
{
    PslibPromotion *promotion = &table->policies.promotion;
    int64_t promoted = 0, processed = 0;
    pslib_before_keys(table, keys, n, 0);
    if (promotion->kind == PSLIB_PROMOTE_NEVER)
        return pslib_push_loops(table, keys, n, gradients, row_class, record, done);
    *done = 0;
    promotion->due_count = 0;
    promotion->due = malloc(((size_t)n + 1) * sizeof *promotion->due);
    if (promotion->due == NULL) return PSLIB_NO_MEMORY;
    const PslibStatus pushed = pslib_push_loops(table, keys, n, gradients, PSLIB_NARROW, record, done);
    const PslibStatus grown = pslib_rows_promote(table, promotion->due, promotion->due_count, &promoted, &processed);
    free(promotion->due);
    promotion->due = NULL;
    return pushed != PSLIB_OK ? pushed : grown;
}

/* pslib_table_push with learning rates times `rate`, or, with `delta`, w += g instead of steps. The optimizers of the
 * table are replaced while it runs, so that its loops are the same. */
static inline PslibStatus pslib_table_push_at(PslibTable *table, const uint64_t *keys, int64_t n,
                                              const float *gradients, int row_class, const PslibRecord *record,
                                              float rate, int delta, int64_t *done)
{
    PslibOptimizer kept[PSLIB_PARTS_MAX];
    const int count = table->classes[PSLIB_WIDE].part_count;
    if (rate == 1.0f && !delta) return pslib_table_push(table, keys, n, gradients, row_class, record, done);
    for (int p = 0; p < count; p++) {
        kept[p] = table->parts[p].optimizer;
        pslib_set_rate(&table->parts[p].optimizer, rate, delta);
        table->wild |= !pslib_optimizer_is_tame(&table->parts[p].optimizer);
    }
    const PslibStatus status = pslib_table_push(table, keys, n, gradients, row_class, record, done);
    for (int p = 0; p < count; p++) table->parts[p].optimizer = kept[p];
    return status;
}

/* --- estimates and statistics */

/* Rows and memory that a push or an import of some keys would take. */
typedef struct {
    int64_t made;    /* keys that have no row, as if admission let all in */
    int64_t widened; /* narrow rows, new ones among them, that would be wide afterwards */
    int64_t bytes;   /* of units of rows, beyond the places and units that are free */
} PslibForesight;

enum { PSLIB_FORESEE_PUSH = -1 };

/* Return the bytes of the units that partitions take for `demand` more rows of a class. demand: INOUT, one for each
 * partition; set to 0 for the partitions of the keys. */
static inline int64_t pslib_demand_bytes(const PslibTable *table, int row_class, const uint64_t *keys, int64_t n,
                                         uint32_t *demand)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const size_t unit_bytes = (shape->row_bytes << shape->unit_shift) + 2 * sizeof(uint32_t);
    int64_t units = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t number = pslib_partition_of_mixed(pslib_mix64(keys[i]), table->partition_bits);
        const PslibArena *arena = &table->arenas[number].of[row_class];
        const int64_t more = demand[number] - (pslib_arena_rows_held(arena, shape) - (int64_t)arena->live);
        demand[number] = 0;
        if (more > 0) units += (more + pslib_unit_rows(shape) - 1) >> shape->unit_shift;
    }
    for (uint32_t slab = 0; units > 0 && slab < shape->slab_count; slab++)
        if (shape->bases[slab] != NULL)
            units -= (INT64_C(1) << (shape->slab_shift - shape->unit_shift)) - shape->slabs[slab].live;
    return units > 0 ? units * (int64_t)unit_bytes : 0;
}

/* Estimate a push of n distinct keys with the shows and clicks of record; or, where row_class is not
 * PSLIB_FORESEE_PUSH, an assignment of rows of that class. Changes nothing. out: OUT. */
static inline PslibStatus pslib_table_foresee(const PslibTable *table, const uint64_t *keys, int64_t n,
                                              int row_class, const PslibRecord *record, PslibForesight *out)
{
    const PslibPromotion *promotion = &table->policies.promotion;
    const int pushed = row_class == PSLIB_FORESEE_PUSH, promotes = promotion->kind != PSLIB_PROMOTE_NEVER;
    const size_t partitions = (size_t)1 << table->partition_bits;
    uint64_t mixed[PSLIB_BLOCK];
    *out = (PslibForesight){0, 0, 0};
    uint32_t *demand[PSLIB_CLASSES];
    demand[0] = calloc(PSLIB_CLASSES * partitions, sizeof(uint32_t));
    if (demand[0] == NULL) return PSLIB_NO_MEMORY;
    demand[1] = demand[0] + partitions;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t number = pslib_partition_of_mixed(mixed[i], table->partition_bits);
            const uint32_t place = pslib_partition_find(&table->partitions[number], keys[start + i], mixed[i]).place;
            const int made = place == 0;
            float state[PSLIB_COUNTER_FLOATS_MAX];
            out->made += made;
            if (!pushed || (made && !promotes)) { /* without promotion a push makes wide rows */
                const int to = pushed ? PSLIB_WIDE : row_class;
                if (!made && pslib_place_class(place) == to) continue;
                demand[to][number]++;
                out->widened += !made && to == PSLIB_WIDE;
                continue;
            }
            if (!promotes || (!made && pslib_place_class(place) == PSLIB_WIDE)) continue;
            demand[PSLIB_NARROW][number] += (uint32_t)made;
            if (!made)
                memcpy(state, pslib_place_state(table->classes, place),
                       sizeof(float) * (size_t)pslib_counter_floats(table));
            pslib_count(table, state, made, record, start + i);
            if (!(pslib_promotion_value(table, state) >= promotion->number)) continue;
            demand[PSLIB_WIDE][number]++;
            out->widened++;
        }
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) out->bytes += pslib_demand_bytes(table, c, keys, n, demand[c]);
    free(demand[0]);
    return PSLIB_OK;
}

/* Count the partitions that have an index, units of wide rows, and units of narrow rows. held: OUT, (3,). */
static inline void pslib_table_held(const PslibTable *table, int64_t *held)
{
    held[0] = held[1] = held[2] = 0;
    for (size_t i = 0; i < (size_t)1 << table->partition_bits; i++) {
        held[0] += table->partitions[i].line_count != 0;
        held[1] += table->arenas[i].of[PSLIB_WIDE].next != 0;
        held[2] += table->arenas[i].of[PSLIB_NARROW].next != 0;
    }
}

/* Return the place in `keys` of the first key of another partition; -1 when there is none. */
static inline int64_t pslib_first_foreign(const PslibTable *table, uint32_t partition, const uint64_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (pslib_partition_of_mixed(pslib_mix64(keys[i]), table->partition_bits) != partition) return i;
    return -1;
}

/* Copy all rows of one class of a partition, by ascending row number. keys, weights, state: OUT, (live rows of the
 * class, ...). Changes nothing. */
static inline PslibStatus pslib_table_export(const PslibTable *table, uint32_t number, int row_class, uint64_t *keys,
                                             float *weights, float *state)
{
    const PslibArena *arena = &table->arenas[number].of[row_class];
    PslibRowsOut out = {keys, weights, state};
    uint32_t *ranks = pslib_arena_new_numbers(arena, &table->classes[row_class]);
    if (ranks == NULL) return PSLIB_NO_MEMORY;
    pslib_write_rows(table, number, row_class, ranks, &out);
    free(ranks);
    return PSLIB_OK;
}

typedef struct {
    int64_t rows;            /* of both classes */
    int64_t narrow_rows;
    int64_t index_bytes;     /* cache lines of all indexes */
    int64_t row_bytes;       /* units of all arenas and the lists of them, filled or not */
    int64_t free_bytes;      /* of row_bytes, what no row fills now */
    int64_t directory_bytes; /* as if every partition had been touched */
    int64_t spare_bytes;     /* of the heap's regions, what no block fills now, used before or not */
    int64_t filter_bytes;    /* Bloom filters of all partitions */
    int64_t resident_bytes;  /* of all these, what has memory, at most */
    int64_t counted_keys;
} PslibStats;

enum { PSLIB_TOUCHED_BYTES = 2 * 4096 }; /* pages of the directory that the first key of a partition touches */

/* Return rows and memory. Reads the directory only and follows no pointer: safe beside a thread that works. */
static inline PslibStats pslib_table_stats(const PslibTable *table)
{
    const size_t count = (size_t)1 << table->partition_bits;
    PslibStats stats = {.rows = table->rows[PSLIB_WIDE] + table->rows[PSLIB_NARROW],
                        .narrow_rows = table->rows[PSLIB_NARROW],
                        .directory_bytes = (int64_t)((count + 1) * (sizeof(PslibPartition) + sizeof(PslibArenas))),
                        .spare_bytes = table->heap.region_bytes - table->heap.used_bytes,
                        .filter_bytes = table->policies.admission.filter_bytes};
    int64_t filled = 0, touched = 0, outside = 0; /* of the heap's regions */
    for (size_t i = 0; i < count; i++) {
        const PslibPartition *partition = &table->partitions[i];
        const int64_t index_bytes = (int64_t)partition->line_count * (int64_t)sizeof(PslibLine);
        stats.index_bytes += index_bytes;
        filled += partition->filled;
        touched += partition->line_count != 0;
        if ((uint64_t)index_bytes < PSLIB_HEAP_BLOCK_MIN) outside += index_bytes;
        for (int c = 0; c < PSLIB_CLASSES; c++) {
            const PslibArena *arena = &table->arenas[i].of[c];
            const int64_t free_rows = pslib_arena_rows_held(arena, &table->classes[c]) - arena->live;
            const int64_t arena_bytes = pslib_arena_bytes(arena, &table->classes[c]);
            stats.row_bytes += arena_bytes;
            stats.free_bytes += free_rows * (int64_t)table->classes[c].row_bytes;
            outside += pslib_slab_bytes(&table->classes[c]) < PSLIB_HEAP_BLOCK_MIN
                           ? arena_bytes
                           : pslib_arena_list_bytes(arena, &table->classes[c]);
        }
    }
    for (int c = 0; c < PSLIB_CLASSES; c++)
        outside += (int64_t)table->classes[c].slab_capacity * (int64_t)(sizeof(uint8_t *) + sizeof(PslibSlab));
    if (touched > stats.directory_bytes / PSLIB_TOUCHED_BYTES) touched = stats.directory_bytes / PSLIB_TOUCHED_BYTES;
    stats.counted_keys = filled > stats.rows ? filled - stats.rows : 0; /* a thread may be at work */
    stats.resident_bytes = table->heap.region_bytes - table->heap.blank_bytes + outside +
                           touched * PSLIB_TOUCHED_BYTES + stats.filter_bytes;
    return stats;
}

/* --- consistency
 *
 * Each function returns 1 where what its comment says holds, else 0.
 *
 * Erased and live rows of an arena are all that were given out, its list of erased rows ends, and its units have the
 * right positions. */
static inline int pslib_arena_in_order(const PslibArena *arena, const PslibRowClass *shape)
{
    uint64_t erased = 0;
    for (uint32_t i = 0; i < pslib_arena_units(arena, shape); i++)
        if (*pslib_unit_position(shape, arena->units[i]) != i) return 0;
    for (uint32_t head = arena->free_head; head != 0; erased++) {
        const uint32_t row = head - 1;
        if (pslib_row_number(shape, row) >= arena->next || erased > arena->next) return 0;
        memcpy(&head, pslib_row_weights(shape, row), sizeof head);
    }
    return erased + arena->live == arena->next;
}

/* A place names a row that is not erased and that no place before it named. seen: as below. */
static inline int pslib_place_in_order(const PslibTable *table, uint32_t number, uint32_t place, uint32_t *const *seen)
{
    const int c = pslib_place_class(place);
    const PslibArena *arena = &table->arenas[number].of[c];
    const uint32_t row_number = pslib_row_number(&table->classes[c], pslib_place_row(place));
    if (row_number >= arena->next) return 0;
    if (pslib_arena_row(arena, &table->classes[c], row_number) != pslib_place_row(place)) return 0;
    if (seen[c][row_number] == PSLIB_ERASED) return 0;
    seen[c][row_number] = PSLIB_ERASED;
    return 1;
}

/* Every filled cell is the one that a look-up of its key finds, and holds a row, or a count in a table that counts
 * keys. seen: INOUT, for each class the new numbers of its rows; rows that were named become erased. passed: INOUT,
 * (line_count,), zeros; becomes the number of keys placed behind each line. */
static inline int pslib_cells_in_order(const PslibTable *table, uint32_t number, uint32_t *const *seen,
                                       uint32_t *passed)
{
    const PslibPartition *partition = &table->partitions[number];
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            const uint32_t place = line->place[cell];
            if (place == 0 && line->key[cell] != 0) return 0; /* strips.h counts on it */
            if (place == 0) continue;
            const uint64_t mixed = pslib_mix64(line->key[cell]);
            const PslibFound found = pslib_partition_find(partition, line->key[cell], mixed);
            if (pslib_partition_of_mixed(mixed, table->partition_bits) != number) return 0;
            if (found.line != i || found.cell != cell) return 0;
            if (pslib_place_is_row(place)) {
                if (found.place != place || !pslib_place_in_order(table, number, place, seen)) return 0;
            } else if (table->policies.admission.kind != PSLIB_ADMIT_COUNT || found.count == 0 ||
                       found.count != (place & PSLIB_COUNT_MAX)) {
                return 0;
            }
            for (uint32_t way = pslib_home_line(mixed, partition->line_count); way != i;
                 way = pslib_next_line(way, partition->line_count))
                passed[way]++;
        }
    }
    return 1;
}

/* The cells are consistent, as many have rows as there are rows, each line has counted the keys placed behind it, and
 * there is always an empty cell. 0 also without memory for the check. */
static inline int pslib_partition_in_order(const PslibTable *table, uint32_t number)
{
    const PslibPartition *partition = &table->partitions[number];
    uint64_t filled = 0, counted = 0;
    for (int c = 0; c < PSLIB_CLASSES; c++)
        if (!pslib_arena_in_order(&table->arenas[number].of[c], &table->classes[c])) return 0;
    uint32_t *seen[PSLIB_CLASSES];
    for (int c = 0; c < PSLIB_CLASSES; c++)
        seen[c] = pslib_arena_new_numbers(&table->arenas[number].of[c], &table->classes[c]);
    uint32_t *passed = calloc((size_t)partition->line_count + 1, sizeof *passed);
    int sound = seen[PSLIB_WIDE] != NULL && seen[PSLIB_NARROW] != NULL && passed != NULL;
    sound = sound && pslib_cells_in_order(table, number, seen, passed);
    for (uint32_t i = 0; sound && i < partition->line_count; i++) {
        filled += (uint64_t)(PSLIB_CELLS - __builtin_popcount(pslib_line_empty(&partition->lines[i])));
        for (int cell = 0; cell < PSLIB_CELLS; cell++) counted += partition->lines[i].place[cell] >= PSLIB_COUNTED;
        sound = partition->lines[i].passed == passed[i];
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) free(seen[c]);
    free(passed);
    if (100 * filled > (uint64_t)partition->line_count * (PSLIB_CELLS * pslib_index_percent(&table->heap)))
        return 0;
    return sound && filled == partition->filled && filled == counted + pslib_partition_rows(&table->arenas[number]);
}

/* Return the first inconsistent partition; -1 when there is none, -2 when the row counts of the table are wrong. */
static inline int64_t pslib_table_first_broken(const PslibTable *table)
{
    int64_t rows = 0;
    for (size_t i = 0; i < (size_t)1 << table->partition_bits; i++) {
        if (!pslib_partition_in_order(table, (uint32_t)i)) return (int64_t)i;
        rows += pslib_partition_rows(&table->arenas[i]);
    }
    return rows == table->rows[PSLIB_WIDE] + table->rows[PSLIB_NARROW] ? -1 : -2;
}

#endif
