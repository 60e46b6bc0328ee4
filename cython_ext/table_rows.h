/* table_rows.h: whole rows in and out of a table: checkpoints, moves of partitions, promotion; and the
 * check that a table's memory is in order. */
#ifndef PSLIB_TABLE_ROWS_H
#define PSLIB_TABLE_ROWS_H

#include "table.h"

/* Change the class of a found row. Its old row goes back to its arena; `found` points to the new one, which
 * holds the key and the weights and state of the parts that both classes have. */
static inline PslibStatus pslib_table_reclass(PslibTable *table, PslibPartition *partition, int row_class,
                                              PslibFound *found)
{
    const int old_class = found->row_class;
    const PslibRowClass *from = &table->classes[old_class];
    const PslibRowClass *to = &table->classes[row_class];
    const int64_t weights = from->weight_floats < to->weight_floats ? from->weight_floats : to->weight_floats;
    const int64_t state = from->state_floats < to->state_floats ? from->state_floats : to->state_floats;
    const uint32_t old_place = pslib_cell_place(&partition->lines[found->line], found->cell);
    uint8_t *old;
    const PslibStatus status = pslib_partition_reclass(partition, table->classes, row_class, found, &old);
    if (status != PSLIB_OK) return status;
    found->row_class = row_class;
    memcpy(pslib_row_weights(found->row), pslib_row_weights(old), sizeof(float) * (size_t)weights);
    memcpy(pslib_row_state(found->row, to), pslib_row_state(old, from), sizeof(float) * (size_t)state);
    pslib_arena_give_back(&partition->arenas[old_class], from, pslib_place_row(old_place));
    table->rows[old_class]--;
    table->rows[row_class]++;
    return PSLIB_OK;
}

/* Make or overwrite one row of row_class with these weights and this state. */
static inline PslibStatus pslib_table_put(PslibTable *table, uint64_t key, uint64_t mixed, const float *weights,
                                          const float *state, int row_class)
{
    const PslibRowClass *shape = &table->classes[row_class];
    PslibPartition *partition = pslib_table_partition(table, mixed);
    PslibFound found = pslib_partition_find(partition, table->classes, key, mixed);
    const int made = found.row == NULL;
    const int changed = !made && found.row_class != row_class;
    PslibStatus status = PSLIB_OK;
    if (made) status = pslib_partition_add(partition, table->classes, key, mixed, row_class, &found);
    if (changed) status = pslib_table_reclass(table, partition, row_class, &found);
    if (status != PSLIB_OK) return status;
    table->rows[row_class] += made;
    memcpy(pslib_row_weights(found.row), weights, sizeof(float) * (size_t)shape->weight_floats);
    if (shape->state_floats > 0)
        memcpy(pslib_row_state(found.row, shape), state, sizeof(float) * (size_t)shape->state_floats);
    if (changed) pslib_partition_shrink(partition, table->classes);
    return PSLIB_OK;
}

/* Make or overwrite whole rows, key after key. weights: (n, weight_floats of the class), state:
 * (n, state_floats of the class). done: OUT, rows that were put; on failure the rest has changed nothing. */
static inline PslibStatus pslib_table_assign(PslibTable *table, const uint64_t *keys, int64_t n, const float *weights,
                                             const float *state, int row_class, int64_t *done)
{
    uint64_t mixed[PSLIB_BLOCK];
    const PslibRowClass *shape = &table->classes[row_class];
    for (*done = 0; *done < n;) {
        const int64_t start = *done;
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++, ++*done) {
            const PslibStatus status =
                pslib_table_put(table, keys[start + i], mixed[i], weights + *done * shape->weight_floats,
                                state + *done * shape->state_floats, row_class);
            if (status != PSLIB_OK) return status;
        }
    }
    return PSLIB_OK;
}

/* Narrow rows become wide: the parts that they have keep weights and state, the others begin.
 * promoted: OUT, rows that changed. done: OUT, keys looked at; on failure the rest has changed nothing. */
static inline PslibStatus pslib_table_promote(PslibTable *table, const uint64_t *keys, int64_t n, int64_t *promoted,
                                              int64_t *done)
{
    const int narrow_parts = table->classes[PSLIB_NARROW].part_count;
    uint64_t mixed[PSLIB_BLOCK];
    *promoted = 0;
    for (*done = 0; *done < n;) {
        const int64_t start = *done;
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++, ++*done) {
            PslibPartition *partition = pslib_table_partition(table, mixed[i]);
            PslibFound found = pslib_partition_find(partition, table->classes, keys[start + i], mixed[i]);
            if (found.row == NULL || found.row_class == PSLIB_WIDE) continue;
            const PslibStatus status = pslib_table_reclass(table, partition, PSLIB_WIDE, &found);
            if (status != PSLIB_OK) return status;
            pslib_row_begin(table, &table->classes[PSLIB_WIDE], narrow_parts, found.row);
            ++*promoted;
            pslib_partition_shrink(partition, table->classes);
        }
    }
    return PSLIB_OK;
}

/* The place in `keys` of the first key that does not belong to the partition; -1 when all do. */
static inline int64_t pslib_first_stranger(const PslibTable *table, uint32_t partition, const uint64_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (pslib_partition_of_mixed(pslib_mix64(keys[i]), table->partition_bits) != partition) return i;
    return -1;
}

/* All rows of one class of a partition, by ascending row number. keys, weights, state: OUT, as long as the
 * class has live rows. Changes nothing. */
static inline PslibStatus pslib_table_export(const PslibTable *table, uint32_t number, int row_class, uint64_t *keys,
                                             float *weights, float *state)
{
    const PslibRowClass *shape = &table->classes[row_class];
    const PslibArena *arena = &table->partitions[number].arenas[row_class];
    uint8_t *erased = pslib_arena_erased(arena, shape);
    if (erased == NULL) return PSLIB_NO_MEMORY;
    for (uint32_t row_number = 0; row_number < arena->next; row_number++) {
        if (erased[row_number]) continue;
        uint8_t *row = pslib_arena_row(arena, shape, row_number);
        *keys++ = pslib_row_key(row);
        memcpy(weights, pslib_row_weights(row), sizeof(float) * (size_t)shape->weight_floats);
        memcpy(state, pslib_row_state(row, shape), sizeof(float) * (size_t)shape->state_floats);
        weights += shape->weight_floats;
        state += shape->state_floats;
    }
    free(erased);
    return PSLIB_OK;
}

typedef struct {
    int64_t rows;            /* of both classes */
    int64_t narrow_rows;
    int64_t index_bytes;     /* cache lines of all indexes */
    int64_t row_bytes;       /* chunks of all arenas and the lists of them, filled or not */
    int64_t free_bytes;      /* of row_bytes, what no row fills now */
    int64_t directory_bytes; /* as if every partition had been touched */
} PslibStats;

/* Reads numbers of the directory only, never through a pointer: safe beside a thread that works. */
static inline PslibStats pslib_table_stats(const PslibTable *table)
{
    const size_t count = (size_t)1 << table->partition_bits;
    PslibStats stats = {table->rows[PSLIB_WIDE] + table->rows[PSLIB_NARROW], table->rows[PSLIB_NARROW], 0, 0, 0,
                        (int64_t)((count + 1) * sizeof(PslibPartition))};
    for (size_t i = 0; i < count; i++) {
        const PslibPartition *partition = &table->partitions[i];
        stats.index_bytes += (int64_t)partition->line_count * (int64_t)sizeof(PslibLine);
        for (int c = 0; c < PSLIB_CLASSES; c++) {
            const PslibArena *arena = &partition->arenas[c];
            stats.row_bytes += (int64_t)pslib_arena_bytes(arena, &table->classes[c]);
            stats.free_bytes += ((int64_t)arena->capacity - arena->live) * (int64_t)table->classes[c].row_bytes;
        }
    }
    return stats;
}

/* Erased and live numbers of an arena are all that were given out, and its list of erased ones ends. */
static inline int pslib_arena_in_order(const PslibArena *arena, const PslibRowClass *shape)
{
    uint64_t erased = 0;
    for (uint32_t head = arena->free_head; head != 0; erased++) {
        if (head > arena->next || erased > arena->next) return 0;
        memcpy(&head, pslib_arena_row(arena, shape, head - 1), sizeof head);
    }
    return arena->next <= arena->capacity && erased + arena->live == arena->next;
}

/* Every filled cell leads to a row whose key leads back to this cell; there is always an empty cell. */
static inline int pslib_partition_in_order(const PslibTable *table, uint32_t number)
{
    const PslibPartition *partition = &table->partitions[number];
    uint64_t filled = 0, live = 0;
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        if (!pslib_arena_in_order(&partition->arenas[c], &table->classes[c])) return 0;
        live += partition->arenas[c].live;
    }
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (uint32_t mask = ~pslib_line_mask(line, 0) & 0xFFFF; mask != 0; mask &= mask - 1, filled++) {
            const int cell = pslib_lowest_cell(mask);
            const uint64_t key =
                pslib_row_key(pslib_partition_row(partition, table->classes, pslib_cell_place(line, cell)));
            const uint64_t mixed = pslib_mix64(key);
            const PslibFound found = pslib_partition_find(partition, table->classes, key, mixed);
            if (pslib_partition_of_mixed(mixed, table->partition_bits) != number) return 0;
            if (found.row == NULL || found.line != i || found.cell != cell) return 0;
        }
    }
    if (filled > (uint64_t)partition->line_count * PSLIB_CELLS_FILLED) return 0;
    return filled == partition->rows && filled == live;
}

/* The first partition whose memory is not in order; -1 when all are, -2 when the row counts are not. */
static inline int64_t pslib_table_first_broken(const PslibTable *table)
{
    int64_t rows = 0;
    for (size_t i = 0; i < (size_t)1 << table->partition_bits; i++) {
        if (!pslib_partition_in_order(table, (uint32_t)i)) return (int64_t)i;
        rows += table->partitions[i].rows;
    }
    return rows == table->rows[PSLIB_WIDE] + table->rows[PSLIB_NARROW] ? -1 : -2;
}

#endif
