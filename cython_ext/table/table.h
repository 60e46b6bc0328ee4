/* table.h: the partitions of one table that one shard thread owns, and its settings.
 *
 * Nearly all the time is spent in strips.h, which reads and steps rows. The loops here and in table_rows.h are for
 * rarer work: they go through a batch in blocks of 64 keys, prefetch the memory of a block (what the prefetch has
 * read is not used later), and then process key after key.
 *
 * Not thread safe: one thread works on a table at a time.
 */
#ifndef PSLIB_TABLE_H
#define PSLIB_TABLE_H

#include "common/mix.h"
#include "common/vectors.h"
#include "table/initializers.h"
#include "table/optimizer_steps.h"
#include "table/memory/partition.h"
#include "table/storage.h"

enum {
    PSLIB_ADMIT_ALL = 0,
    PSLIB_ADMIT_COUNT = 1,
    PSLIB_ADMIT_BLOOM = 2,
    PSLIB_ADMIT_CHANCE = 3,
    PSLIB_ADMISSION_KINDS = 4
};
enum { PSLIB_PROMOTE_NEVER = 0, PSLIB_PROMOTE_SHOWS = 1, PSLIB_PROMOTE_SCORE = 2, PSLIB_PROMOTION_KINDS = 3 };
enum { PSLIB_EVICT_AGE = 0, PSLIB_EVICT_NORM = 1, PSLIB_EVICT_SCORE = 2, PSLIB_EVICT_RULES = 3 };

/* Policies (policies.h). All zeros: every key gets a wide row at its first push and keeps it. */
typedef struct {
    int32_t kind;
    uint32_t count;           /* exact count, Bloom filter: shows with which a key gets its row */
    float chance;             /* probability */
    uint32_t filter_counters; /* of one partition, a power of two */
    uint8_t **filters;        /* one a partition; NULL until it has turned a key away */
    int64_t filter_bytes;     /* of all filters */
    int64_t turned_away;      /* occurrences of keys in pushes that got no row */
    int64_t admitted;         /* rows made under a policy */
} PslibAdmission;

/* New rows are narrow where kind is not 0. */
typedef struct {
    int32_t kind;
    float number;
    uint64_t *due; /* keys whose rows become wide at the end of the current push */
    int64_t due_count;
    int64_t promoted; /* rows */
} PslibPromotion;

typedef struct {
    PslibAdmission admission;
    PslibPromotion promotion;
    float nonclick, click;              /* score = (shows - clicks) * nonclick + clicks * click */
    int64_t evicted[PSLIB_EVICT_RULES]; /* rows, by rule */
    int64_t evicted_share;              /* rows, by share */
} PslibPolicies;

enum { PSLIB_BLOCK = 64, PSLIB_PARTS_MAX = 8, PSLIB_PARTITION_BITS_MAX = 20 };
enum { PSLIB_PREFETCH_BYTES = 512 }; /* of one row; the hardware prefetches the rest of longer ones */

typedef struct {
    int64_t dim;
    int64_t state_floats;
    const float *initial_state; /* (state_floats,), borrowed */
    PslibOptimizer optimizer;
    PslibInitializer initializer;
} PslibPart;

/* Counters of a row (bits). */
enum { PSLIB_COUNT_LAST_SEEN = 1, PSLIB_COUNT_SHOWS = 2, PSLIB_COUNTER_KINDS = 4 };

/* Arguments of a push beside keys and gradients. */
typedef struct {
    uint64_t salt;       /* random bits are a function of key, part, column and salt */
    uint64_t rounding;   /* mix64(salt) */
    float now;           /* in the table's own unit of time */
    const float *shows;  /* (n,), finite and above 0; NULL = 1 each */
    const float *clicks; /* (n,), finite and not below 0; NULL = 0 each */
} PslibRecord;

typedef struct {
    PslibPartition *partitions; /* the directory, 1 << partition_bits entries */
    PslibArenas *arenas;        /* as many */
    void *directory;            /* the memory of both */
    int partition_bits;
    int part_count;
    PslibPart parts[PSLIB_PARTS_MAX];
    PslibRowClass classes[PSLIB_CLASSES];
    int64_t rows[PSLIB_CLASSES];
    int level; /* of vectors.h: which copy of the loops works on this table */
    int storage;
    int counters;
    int wild;              /* steps may lead to numbers that are not finite (optimizer_steps.h); never 0 again */
    int64_t steps_refused; /* of parts of rows; an element or all of them were refused */
    int decays; /* the weights of some part decay with time, also where they are only read */
    PslibPolicies policies;
    struct PslibTracking *tracking; /* images.h; NULL: changes are not tracked */
    PslibHeap heap;
} PslibTable;

/* Allocate the directory, by calloc: entries of partitions that stay empty take no memory. */
static inline PslibStatus pslib_table_open(PslibTable *table, int partition_bits)
{
    const size_t count = (size_t)1 << partition_bits;
    table->directory = calloc(count + 1, sizeof(PslibPartition) + sizeof(PslibArenas));
    if (table->directory == NULL) return PSLIB_NO_MEMORY;
    const uintptr_t start = ((uintptr_t)table->directory + PSLIB_CACHE_LINE - 1) & ~(uintptr_t)(PSLIB_CACHE_LINE - 1);
    table->partitions = (PslibPartition *)start;
    table->arenas = (PslibArenas *)(void *)(table->partitions + count);
    table->partition_bits = partition_bits;
    if (table->policies.admission.kind != PSLIB_ADMIT_BLOOM) return PSLIB_OK;
    table->policies.admission.filters = calloc(count, sizeof *table->policies.admission.filters);
    return table->policies.admission.filters == NULL ? PSLIB_NO_MEMORY : PSLIB_OK;
}

/* Set the row classes, after the parts: wide rows hold all parts, narrow rows the first narrow_parts. */
static inline void pslib_table_shape(PslibTable *table, int part_count, int narrow_parts)
{
    const int counts[PSLIB_CLASSES] = {part_count, narrow_parts};
    table->part_count = part_count;
    for (int p = 0; p < part_count; p++) {
        const PslibPart *part = &table->parts[p];
        table->decays |= part->optimizer.weight_decay != 0;
        table->wild |= !pslib_optimizer_is_tame(&part->optimizer) ||
                       !pslib_state_is_tame(&part->optimizer, part->dim, part->initial_state);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const int64_t counted = (table->counters & PSLIB_COUNT_LAST_SEEN) + (table->counters & PSLIB_COUNT_SHOWS);
        const int64_t head = counts[c] == 0 ? 0 : counted + (table->storage == PSLIB_INT8 ? counts[c] : 0);
        int64_t weights = 0, state = head;
        for (int p = 0; p < counts[c]; p++) {
            weights += table->parts[p].dim;
            state += table->parts[p].state_floats;
        }
        table->classes[c] = pslib_row_class(&table->heap, counts[c], weights, pslib_storage_bytes(table->storage), head,
                                            state, table->storage == PSLIB_INT8 || table->decays);
    }
    const PslibRowClass *most = &table->classes[narrow_parts > 0 ? PSLIB_NARROW : PSLIB_WIDE]; /* of the rows */
    table->heap.level = table->level;
    table->heap.sparing = most->row_bytes < PSLIB_CACHE_LINE;
}

PSLIB_INLINE PslibPartition *pslib_table_partition(const PslibTable *table, uint64_t mixed)
{
    return &table->partitions[pslib_partition_of_mixed(mixed, table->partition_bits)];
}

PSLIB_INLINE PslibArenas *pslib_table_arenas(const PslibTable *table, uint64_t mixed)
{
    return &table->arenas[pslib_partition_of_mixed(mixed, table->partition_bits)];
}

/* Free the Bloom filter of a partition, if there is one: none is the same as one of zeros. */
static inline void pslib_filter_release(PslibAdmission *admission, size_t number)
{
    if (admission->filters == NULL || admission->filters[number] == NULL) return;
    free(admission->filters[number]);
    admission->filters[number] = NULL;
    admission->filter_bytes -= admission->filter_counters;
}

static inline void pslib_table_close(PslibTable *table)
{
    if (table->directory != NULL)
        for (size_t i = 0; i < (size_t)1 << table->partition_bits; i++) {
            pslib_filter_release(&table->policies.admission, i);
            if (table->partitions[i].line_count != 0)
                pslib_partition_release(&table->partitions[i], &table->arenas[i], table->classes);
        }
    free(table->policies.admission.filters);
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        free(table->classes[c].bases);
        free(table->classes[c].slabs);
        free(table->classes[c].flags);
    }
    free(table->directory);
    memset(table, 0, sizeof *table);
}

PSLIB_INLINE void pslib_prefetch_home(const PslibPartition *partition, uint64_t mixed)
{
    if (partition->line_count == 0) return;
    PSLIB_PREFETCH(&partition->lines[pslib_home_line(mixed, partition->line_count)]);
}

PSLIB_INLINE void pslib_prefetch_bytes(const void *start, size_t bytes)
{
    const uint8_t *at = start;
    if (bytes > PSLIB_PREFETCH_BYTES) bytes = PSLIB_PREFETCH_BYTES;
    for (size_t i = 0; i < bytes; i += PSLIB_CACHE_LINE) PSLIB_PREFETCH(at + i);
    if (((uintptr_t)at & (PSLIB_CACHE_LINE - 1)) != 0) PSLIB_PREFETCH(at + bytes - 1);
}

/* Prefetch the weights of a row and, where it will be stepped or a pull needs it, its state. */
PSLIB_INLINE void pslib_prefetch_row(const PslibRowClass *classes, uint32_t place, int with_state)
{
    const PslibRowClass *shape = &classes[pslib_place_class(place)];
    with_state |= shape->reads_state;
    const int together = with_state && !shape->split;
    pslib_prefetch_bytes(pslib_place_weights(classes, place), together ? shape->row_bytes : shape->weight_bytes);
    if (with_state && shape->split && shape->state_floats > 0)
        pslib_prefetch_bytes(pslib_place_state(classes, place), shape->state_step);
}

/* Prefetch the memory of a block of keys. mixed: OUT, (count,). */
static inline void pslib_block_prefetch(const PslibTable *table, const uint64_t *keys, int64_t count, uint64_t *mixed)
{
    for (int64_t i = 0; i < count; i++) {
        mixed[i] = pslib_mix64(keys[i]);
        PSLIB_PREFETCH(pslib_table_partition(table, mixed[i]));
        PSLIB_PREFETCH(pslib_table_arenas(table, mixed[i]));
    }
    for (int64_t i = 0; i < count; i++) pslib_prefetch_home(pslib_table_partition(table, mixed[i]), mixed[i]);
    for (int64_t i = 0; i < count; i++) {
        const PslibPartition *partition = pslib_table_partition(table, mixed[i]);
        const uint32_t place = pslib_partition_find(partition, keys[i], mixed[i]).place;
        if (place != 0) pslib_prefetch_row(table->classes, place, 1);
    }
}

/* Compute the initial values of the parts from first_part on, side by side as in a wide row. out: OUT. */
PSLIB_INLINE void pslib_first_parts(const PslibTable *table, int level, int first_part, uint64_t key, float *out)
{
    for (int p = first_part; p < table->part_count; p++) {
        pslib_first_values_at(level, &table->parts[p].initializer, key, table->parts[p].dim, out);
        out += table->parts[p].dim;
    }
}

/* Return the number of counted keys of a partition. */
static inline uint32_t pslib_partition_counted(const PslibTable *table, uint32_t number)
{
    return table->partitions[number].filled - pslib_partition_rows(&table->arenas[number]);
}

/* Return the number of keys that have no row; counted keys have none. */
static inline int64_t pslib_table_missing(const PslibTable *table, const uint64_t *keys, int64_t n)
{
    uint64_t mixed[PSLIB_BLOCK];
    int64_t missing = 0;
    for (int64_t start = 0; start < n; start += PSLIB_BLOCK) {
        const int64_t count = n - start < PSLIB_BLOCK ? n - start : PSLIB_BLOCK;
        for (int64_t i = 0; i < count; i++) {
            mixed[i] = pslib_mix64(keys[start + i]);
            PSLIB_PREFETCH(pslib_table_partition(table, mixed[i]));
        }
        for (int64_t i = 0; i < count; i++) pslib_prefetch_home(pslib_table_partition(table, mixed[i]), mixed[i]);
        for (int64_t i = 0; i < count; i++)
            missing +=
                pslib_partition_find(pslib_table_partition(table, mixed[i]), keys[start + i], mixed[i]).place == 0;
    }
    return missing;
}

#endif
