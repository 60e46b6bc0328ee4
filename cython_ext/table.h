/* table.h: the partitions of one table that one shard thread owns, and the loops over batches of keys.
 *
 * A batch goes through in blocks of 64 keys, and each block in stages, so that the cache misses of 64 keys
 * overlap instead of following one another:
 *
 *     1  mix the keys                            prefetch the directory entries
 *     2  home lines of the index                 prefetch the lines
 *     3  first cell with the key's tag           prefetch its row
 *     4  real look-ups, by now in cache, and the work on each row, key after key
 *
 * Stages 1 to 3 only prefetch: nothing that they saw is used in stage 4, which may make, move and erase
 * rows as it goes. Duplicate keys in a batch therefore act one after the other in their order.
 *
 * Not thread safe: one thread works on a table at a time.
 */
#ifndef PSLIB_TABLE_H
#define PSLIB_TABLE_H

#include "initializers.h"
#include "mix.h"
#include "optimizer_steps.h"
#include "partition.h"

enum { PSLIB_BLOCK = 64, PSLIB_DIM_MAX = 4096, PSLIB_PARTS_MAX = 8, PSLIB_PARTITION_BITS_MAX = 20 };
enum { PSLIB_PREFETCH_BYTES = 512 }; /* of one row; the hardware follows longer ones by itself */

typedef struct {
    int64_t dim;
    int64_t state_floats;
    const float *initial_state; /* (state_floats,), borrowed */
    PslibOptimizer optimizer;
    PslibInitializer initializer;
} PslibPart;

typedef struct {
    PslibPartition *partitions; /* the directory, 1 << partition_bits entries */
    void *directory;            /* the memory that it lies in */
    int partition_bits;
    int part_count;
    PslibPart parts[PSLIB_PARTS_MAX];
    PslibRowClass classes[PSLIB_CLASSES];
    int64_t rows[PSLIB_CLASSES];
} PslibTable;

/* The directory comes from calloc, so that entries of partitions that stay empty cost no memory at all. */
static inline PslibStatus pslib_table_open(PslibTable *table, int partition_bits)
{
    const size_t count = (size_t)1 << partition_bits;
    table->directory = calloc(count + 1, sizeof(PslibPartition));
    if (table->directory == NULL) return PSLIB_NO_MEMORY;
    const uintptr_t start = ((uintptr_t)table->directory + PSLIB_CACHE_LINE - 1) & ~(uintptr_t)(PSLIB_CACHE_LINE - 1);
    table->partitions = (PslibPartition *)start;
    table->partition_bits = partition_bits;
    return PSLIB_OK;
}

/* Row classes, once the parts are known: wide rows hold all parts, narrow rows the first narrow_parts. */
static inline void pslib_table_shape(PslibTable *table, int part_count, int narrow_parts)
{
    const int counts[PSLIB_CLASSES] = {part_count, narrow_parts};
    table->part_count = part_count;
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        int64_t weights = 0, state = 0;
        for (int p = 0; p < counts[c]; p++) {
            weights += table->parts[p].dim;
            state += table->parts[p].state_floats;
        }
        table->classes[c] = pslib_row_class(counts[c], weights, state);
    }
}

static inline PslibPartition *pslib_table_partition(const PslibTable *table, uint64_t mixed)
{
    return &table->partitions[pslib_partition_of_mixed(mixed, table->partition_bits)];
}

static inline int64_t pslib_table_drop(PslibTable *table, uint32_t number)
{
    PslibPartition *partition = &table->partitions[number];
    const int64_t rows = partition->rows;
    for (int c = 0; c < PSLIB_CLASSES; c++) table->rows[c] -= partition->arenas[c].live;
    pslib_partition_release(partition, table->classes);
    return rows;
}

static inline void pslib_table_close(PslibTable *table)
{
    if (table->partitions != NULL)
        for (size_t i = 0; i < (size_t)1 << table->partition_bits; i++)
            if (table->partitions[i].line_count != 0) pslib_partition_release(&table->partitions[i], table->classes);
    free(table->directory);
    table->partitions = NULL;
    table->directory = NULL;
}

/* Stages 1 to 3 for one block. mixed: OUT. */
static inline void pslib_block_prefetch(const PslibTable *table, const uint64_t *keys, int64_t count, uint64_t *mixed)
{
    for (int64_t i = 0; i < count; i++) {
        mixed[i] = pslib_mix64(keys[i]);
        __builtin_prefetch(pslib_table_partition(table, mixed[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        const PslibPartition *partition = pslib_table_partition(table, mixed[i]);
        if (partition->line_count == 0) continue;
        __builtin_prefetch(&partition->lines[pslib_home_line(mixed[i], partition->line_count)]);
        __builtin_prefetch(partition->arenas[PSLIB_WIDE].chunks);
    }
    for (int64_t i = 0; i < count; i++) {
        const PslibPartition *partition = pslib_table_partition(table, mixed[i]);
        if (partition->line_count == 0) continue;
        const PslibLine *line = &partition->lines[pslib_home_line(mixed[i], partition->line_count)];
        const uint32_t mask = pslib_line_mask(line, pslib_tag(mixed[i]));
        if (mask == 0) continue;
        const uint32_t place = pslib_cell_place(line, pslib_lowest_cell(mask));
        const uint8_t *row = pslib_partition_row(partition, table->classes, place);
        const size_t bytes = table->classes[pslib_place_class(place)].row_bytes;
        for (size_t at = 0; at < bytes + PSLIB_CACHE_LINE && at < PSLIB_PREFETCH_BYTES; at += PSLIB_CACHE_LINE)
            __builtin_prefetch(row + (at < bytes ? at : bytes - 1));
    }
}

/* First values of the parts from first_part on, as they stand side by side in a wide row. */
static inline void pslib_first_parts(const PslibTable *table, int first_part, uint64_t key, float *out)
{
    for (int p = first_part; p < table->part_count; p++) {
        pslib_first_values(&table->parts[p].initializer, key, table->parts[p].dim, out);
        out += table->parts[p].dim;
    }
}

/* Fill a new row: first values and first state of the parts from first_part on. */
static inline void pslib_row_begin(const PslibTable *table, const PslibRowClass *shape, int first_part, uint8_t *row)
{
    const uint64_t key = pslib_row_key(row);
    float *weights = pslib_row_weights(row);
    float *state = pslib_row_state(row, shape);
    for (int p = 0; p < shape->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        if (p >= first_part) {
            pslib_first_values(&part->initializer, key, part->dim, weights);
            if (part->state_floats > 0) memcpy(state, part->initial_state, sizeof(float) * (size_t)part->state_floats);
        }
        weights += part->dim;
        state += part->state_floats;
    }
}

/* One optimizer step for each part that the row has. */
static inline void pslib_row_step(const PslibTable *table, const PslibRowClass *shape, uint8_t *row,
                                  const float *gradient)
{
    float *weights = pslib_row_weights(row);
    float *state = pslib_row_state(row, shape);
    for (int p = 0; p < shape->part_count; p++) {
        const PslibPart *part = &table->parts[p];
        pslib_step(&part->optimizer, part->dim, weights, state, gradient);
        weights += part->dim;
        state += part->state_floats;
        gradient += part->dim;
    }
}

/* Weights of all parts of n keys; what a key has no row or no wide row for is its first value.
 * out: (n, dim) OUT. Changes nothing in the table. Returns how many keys have no row. */
static inline int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float *out)
{
    uint64_t mixed[PSLIB_BLOCK];
    const int64_t dim = table->classes[PSLIB_WIDE].weight_floats;
    int64_t absent = 0;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++) {
            const uint64_t key = keys[start + i];
            float *target = out + (start + i) * dim;
            const PslibFound found =
                pslib_partition_find(pslib_table_partition(table, mixed[i]), table->classes, key, mixed[i]);
            if (found.row == NULL) {
                pslib_first_parts(table, 0, key, target);
                absent++;
                continue;
            }
            const PslibRowClass *shape = &table->classes[found.row_class];
            memcpy(target, pslib_row_weights(found.row), sizeof(float) * (size_t)shape->weight_floats);
            if (shape->part_count < table->part_count)
                pslib_first_parts(table, shape->part_count, key, target + shape->weight_floats);
        }
    }
    return absent;
}

/* One optimizer step for each key in order; a key without a row gets one of row_class first.
 * gradients: (n, dim). done: OUT, keys that were stepped; on failure the rest has changed nothing. */
static inline PslibStatus pslib_table_push(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                           int row_class, int64_t *done)
{
    uint64_t mixed[PSLIB_BLOCK];
    const int64_t dim = table->classes[PSLIB_WIDE].weight_floats;
    for (*done = 0; *done < n;) {
        const int64_t start = *done;
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++, ++*done) {
            const uint64_t key = keys[start + i];
            PslibPartition *partition = pslib_table_partition(table, mixed[i]);
            PslibFound found = pslib_partition_find(partition, table->classes, key, mixed[i]);
            if (found.row == NULL) {
                const PslibStatus status =
                    pslib_partition_add(partition, table->classes, key, mixed[i], row_class, &found);
                if (status != PSLIB_OK) return status;
                table->rows[row_class]++;
                pslib_row_begin(table, &table->classes[row_class], 0, found.row);
            }
            pslib_row_step(table, &table->classes[found.row_class], found.row, gradients + (start + i) * dim);
        }
    }
    return PSLIB_OK;
}

/* Forget rows; absent keys are an ordinary case. Returns how many rows there were. */
static inline int64_t pslib_table_erase(PslibTable *table, const uint64_t *keys, int64_t n)
{
    uint64_t mixed[PSLIB_BLOCK];
    int64_t erased = 0;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        pslib_block_prefetch(table, keys + start, count, mixed);
        for (int64_t i = 0; i < count; i++) {
            PslibPartition *partition = pslib_table_partition(table, mixed[i]);
            const PslibFound found = pslib_partition_find(partition, table->classes, keys[start + i], mixed[i]);
            if (found.row == NULL) continue;
            const uint32_t place = pslib_cell_place(&partition->lines[found.line], found.cell);
            pslib_index_remove(partition, table->classes, found.line, found.cell);
            pslib_arena_give_back(&partition->arenas[found.row_class], &table->classes[found.row_class],
                                  pslib_place_row(place));
            table->rows[found.row_class]--;
            erased++;
            pslib_partition_shrink(partition, table->classes);
        }
    }
    return erased;
}

#endif
