/* eviction.h: which rows leave, and how counts fade.
 *
 *     age     now - last_seen > number
 *     norm    sqrt(sum of squares of all weights) < number; each part summed as its optimizer sums gradients
 *             (16 lanes), then part after part
 *     score   (shows - clicks) * nonclick + clicks * click < number: PaddlePaddle's accessor
 *             (CtrCommonAccessor::Shrink), where decay multiplies shows and clicks once a day
 *     share   the given share of all rows, the worst first by one of the three: oldest, smallest, lowest
 *
 * What a rule looks at is the worth of a row. NaN is below nothing and older than nothing, so such a row stays;
 * by share it is the last to leave.
 *
 * A partition is sifted at the speed of memory, without looking up a key: its rows are read in the order of
 * their numbers and marked, its index is read from front to back and marked rows lose their cells, then the
 * rows join the list of erased ones in the order of their numbers. What is left empty goes back to the system.
 */
#ifndef PSLIB_EVICTION_H
#define PSLIB_EVICTION_H

#include "table/admission.h"
#include "table/table_rows.h"
#include "table/tracking.h"

enum { PSLIB_ROW_LIVE = 0, PSLIB_ROW_ERASED = 1, PSLIB_ROW_LEAVES = 2 };
enum { PSLIB_RANK_HALF_BITS = 16, PSLIB_RANK_BINS = 1 << PSLIB_RANK_HALF_BITS };

/* What decides about rows, met in the order of partitions, classes and row numbers; or only counts them. */
enum { PSLIB_SIEVE_LIMIT = 0, PSLIB_SIEVE_RANK = 1, PSLIB_SIEVE_COUNT = 2 };
typedef struct {
    int rule;
    int kind;
    float number, now;  /* limit */
    uint32_t rank;      /* rank: all rows of lower ranks leave, */
    int64_t tied;       /* and of so many of this rank */
    int64_t tied_leave; /* so many, spread evenly over those met */
    int64_t tied_met;
    int64_t *bins; /* count: rows by the high half of their ranks, */
    int64_t above; /* or, unless it is -1, by the low half of those whose high half this is */
    uint64_t *keys; /* OUT, keys of the rows that leave, unless it is NULL */
    int64_t key_count;
} PslibSieve;

/* All partitions where numbers is NULL, else these. */
typedef struct {
    const uint32_t *numbers;
    int64_t count;
} PslibChosen;

static inline PslibChosen pslib_chosen(const PslibTable *table, const uint32_t *numbers, int64_t count)
{
    return (PslibChosen){numbers, numbers == NULL ? INT64_C(1) << table->partition_bits : count};
}

PSLIB_INLINE uint32_t pslib_chosen_at(const PslibChosen *chosen, int64_t place)
{
    return chosen->numbers == NULL ? (uint32_t)place : chosen->numbers[place];
}

/* --- the worth of a row */

static inline float pslib_row_norm(const PslibTable *table, const PslibRowClass *shape, uint32_t row)
{
    float part[PSLIB_DIM_MAX];
    const uint8_t *weights = pslib_row_weights(shape, row);
    const float *scales = pslib_row_state(shape, row) + pslib_counter_floats(table);
    float sum = 0.0f;
    for (int p = 0; p < shape->part_count; p++) {
        const int64_t dim = table->parts[p].dim;
        const float *floats = part;
        if (table->storage == PSLIB_FLOAT32) floats = (const float *)(const void *)weights;
        else pslib_load(table->storage, dim, weights, table->storage == PSLIB_INT8 ? scales[p] : 0, part);
        sum += pslib_sum_of_squares(dim, floats);
        weights += (size_t)dim * pslib_storage_bytes(table->storage);
    }
    return sqrtf(sum);
}

PSLIB_INLINE float pslib_row_worth(const PslibTable *table, const PslibRowClass *shape, uint32_t row, int rule)
{
    const float *counters = pslib_row_state(shape, row);
    if (rule == PSLIB_EVICT_AGE) return counters[0];
    if (rule == PSLIB_EVICT_NORM) return pslib_row_norm(table, shape, row);
    return pslib_score(table, counters);
}

/* Float order as integer order; all NaNs above everything. */
PSLIB_INLINE uint32_t pslib_rank(float worth)
{
    uint32_t bits;
    if (!(worth == worth)) return UINT32_MAX;
    worth += 0.0f; /* -0 is 0 */
    memcpy(&bits, &worth, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(0x80000000);
}

PSLIB_INLINE int pslib_sieve_takes(PslibSieve *sieve, float worth)
{
    if (sieve->kind == PSLIB_SIEVE_LIMIT)
        return sieve->rule == PSLIB_EVICT_AGE ? sieve->now - worth > sieve->number : worth < sieve->number;
    const uint32_t rank = pslib_rank(worth);
    if (sieve->kind == PSLIB_SIEVE_COUNT) {
        if (sieve->above < 0) sieve->bins[rank >> PSLIB_RANK_HALF_BITS]++;
        else if (rank >> PSLIB_RANK_HALF_BITS == sieve->above) sieve->bins[rank & (PSLIB_RANK_BINS - 1)]++;
        return 0;
    }
    if (rank != sieve->rank) return rank < sieve->rank;
    const int64_t before = sieve->tied_met * sieve->tied_leave / sieve->tied; /* of both below 2^31 */
    return ++sieve->tied_met * sieve->tied_leave / sieve->tied > before;
}

/* --- marks: one byte a row number of one class of a partition */

/* NULL without memory. */
static inline uint8_t *pslib_arena_marks(const PslibArena *arena, const PslibRowClass *shape)
{
    uint8_t *marks = calloc((size_t)arena->next + 1, 1);
    if (marks == NULL) return NULL;
    for (uint32_t head = arena->free_head; head != 0;) {
        const uint32_t row = head - 1;
        marks[pslib_row_number(shape, row)] = PSLIB_ROW_ERASED;
        memcpy(&head, pslib_row_weights(shape, row), sizeof head);
    }
    return marks;
}

/* What the rule will read of a unit: rows of a unit follow each other, units lie anywhere. */
PSLIB_INLINE void pslib_unit_prefetch(const PslibRowClass *shape, uint32_t unit, int rule)
{
    const uint32_t row = unit << shape->unit_shift;
    const int weights = rule == PSLIB_EVICT_NORM;
    const uint8_t *at = weights ? (const uint8_t *)pslib_row_weights(shape, row)
                                : (const uint8_t *)pslib_row_state(shape, row);
    const size_t bytes = (weights ? shape->weight_step : shape->state_step) << shape->unit_shift;
    for (size_t i = 0; i < bytes; i += PSLIB_CACHE_LINE) PSLIB_PREFETCH(at + i);
}

/* Returns how many rows leave. */
PSLIB_INLINE int64_t pslib_arena_sift(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                      PslibSieve *sieve, int rule, uint8_t *marks)
{
    int64_t leave = 0;
    for (uint32_t start = 0; start < arena->next; start += pslib_unit_rows(shape)) {
        const uint32_t first = pslib_arena_row(arena, shape, start);
        uint32_t count = arena->next - start;
        if (count > pslib_unit_rows(shape)) {
            count = pslib_unit_rows(shape);
            pslib_unit_prefetch(shape, arena->units[(start >> shape->unit_shift) + 1], rule);
        }
        for (uint32_t i = 0; i < count; i++) {
            if (marks[start + i] != PSLIB_ROW_LIVE) continue;
            if (!pslib_sieve_takes(sieve, pslib_row_worth(table, shape, first + i, rule))) continue;
            marks[start + i] = PSLIB_ROW_LEAVES;
            leave++;
        }
    }
    return leave;
}

/* The same with the rule known to the compiler. */
static inline int64_t pslib_arena_mark(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                       PslibSieve *sieve, uint8_t *marks)
{
    switch (sieve->rule) {
    case PSLIB_EVICT_AGE: return pslib_arena_sift(table, arena, shape, sieve, PSLIB_EVICT_AGE, marks);
    case PSLIB_EVICT_NORM: return pslib_arena_sift(table, arena, shape, sieve, PSLIB_EVICT_NORM, marks);
    default: return pslib_arena_sift(table, arena, shape, sieve, PSLIB_EVICT_SCORE, marks);
    }
}

/* Empty the cells of marked rows. */
static inline void pslib_cells_forget(const PslibTable *table, PslibPartition *partition, uint8_t *const *marks,
                                      PslibSieve *sieve)
{
    const uint32_t number = (uint32_t)(partition - table->partitions);
    for (uint32_t i = 0; i < partition->line_count; i++) {
        PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            const uint32_t place = line->place[cell];
            if (!pslib_place_is_row(place)) continue;
            const int c = pslib_place_class(place);
            const uint32_t row_number = pslib_row_number(&table->classes[c], pslib_place_row(place));
            if (marks[c][row_number] != PSLIB_ROW_LEAVES) continue;
            if (table->tracking != NULL) pslib_before_leaving(table, number, line->key[cell], place);
            const PslibFound found = {i, cell, place, 0};
            if (sieve->keys != NULL) sieve->keys[sieve->key_count++] = line->key[cell];
            pslib_index_remove(partition, &found, pslib_mix64(line->key[cell]));
        }
    }
}

static inline void pslib_arena_forget(PslibArena *arena, const PslibRowClass *shape, const uint8_t *marks)
{
    for (uint32_t row_number = 0; row_number < arena->next; row_number++)
        if (marks[row_number] == PSLIB_ROW_LEAVES)
            pslib_arena_give_back(arena, shape, pslib_arena_row(arena, shape, row_number));
}

/* --- sifting */

/* gone: INOUT, rows that left are added. On failure nothing has changed. */
static inline PslibStatus pslib_partition_sift(PslibTable *table, uint32_t number, PslibSieve *sieve, int64_t *gone)
{
    PslibPartition *partition = &table->partitions[number];
    PslibArenas *arenas = &table->arenas[number];
    uint8_t *marks[PSLIB_CLASSES];
    int64_t leave[PSLIB_CLASSES] = {0, 0};
    if (pslib_partition_rows(arenas) == 0) return PSLIB_OK;
    for (int c = 0; c < PSLIB_CLASSES; c++) marks[c] = pslib_arena_marks(&arenas->of[c], &table->classes[c]);
    const int made = marks[PSLIB_WIDE] != NULL && marks[PSLIB_NARROW] != NULL;
    for (int c = 0; made && c < PSLIB_CLASSES; c++)
        leave[c] = pslib_arena_mark(table, &arenas->of[c], &table->classes[c], sieve, marks[c]);
    if (leave[PSLIB_WIDE] + leave[PSLIB_NARROW] > 0) {
        pslib_cells_forget(table, partition, marks, sieve);
        for (int c = 0; c < PSLIB_CLASSES; c++) {
            pslib_arena_forget(&arenas->of[c], &table->classes[c], marks[c]);
            table->rows[c] -= leave[c];
            *gone += leave[c];
        }
        pslib_partition_settle(partition, arenas, table->classes);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) free(marks[c]);
    return made ? PSLIB_OK : PSLIB_NO_MEMORY;
}

static inline PslibStatus pslib_table_sift(PslibTable *table, const PslibChosen *chosen, PslibSieve *sieve,
                                           int64_t *gone)
{
    PslibStatus status = PSLIB_OK;
    *gone = 0;
    pslib_heap_pack(&table->heap, 1); /* what moves now will stay where it is put */
    for (int64_t i = 0; status == PSLIB_OK && i < chosen->count; i++)
        status = pslib_partition_sift(table, pslib_chosen_at(chosen, i), sieve, gone);
    pslib_heap_pack(&table->heap, 0);
    if (*gone > 0) pslib_heap_trim(&table->heap);
    return status;
}

/* All rows that a rule's limit lets go. gone: OUT, rows; without memory those of the first partitions. */
static inline PslibStatus pslib_table_evict(PslibTable *table, const uint32_t *numbers, int64_t count, int rule,
                                            float number, float now, int64_t *gone)
{
    const PslibChosen chosen = pslib_chosen(table, numbers, count);
    PslibSieve sieve = {.rule = rule, .number = number, .now = now};
    const PslibStatus status = pslib_table_sift(table, &chosen, &sieve, gone);
    table->policies.evicted[rule] += *gone;
    return status;
}

/* --- a share of all rows */

/* The bin with the row that is the last of the worst `wanted`. wanted: INOUT, what is left to take in it. */
static inline PslibStatus pslib_rank_bin(PslibTable *table, const PslibChosen *chosen, PslibSieve *sieve,
                                         int64_t *wanted, int64_t *bin)
{
    int64_t none;
    memset(sieve->bins, 0, PSLIB_RANK_BINS * sizeof *sieve->bins);
    const PslibStatus status = pslib_table_sift(table, chosen, sieve, &none);
    for (*bin = 0; *bin < PSLIB_RANK_BINS - 1 && *wanted > sieve->bins[*bin]; ++*bin) *wanted -= sieve->bins[*bin];
    return status;
}

/* The worst `wanted` (1..rows) of all rows, exactly: the rank of the last of them is found half by half in two
 * passes over the rows. keys: OUT, theirs, unless it is NULL. gone: OUT, rows. On failure some rows may have left. */
static inline PslibStatus pslib_table_evict_worst(PslibTable *table, int rule, int64_t wanted, uint64_t *keys,
                                                  int64_t *gone)
{
    const PslibChosen all = pslib_chosen(table, NULL, 0);
    PslibSieve sieve = {.rule = rule, .kind = PSLIB_SIEVE_COUNT, .above = -1};
    int64_t high = 0, low = 0;
    *gone = 0;
    sieve.bins = malloc(PSLIB_RANK_BINS * sizeof *sieve.bins);
    if (sieve.bins == NULL) return PSLIB_NO_MEMORY;
    PslibStatus status = pslib_rank_bin(table, &all, &sieve, &wanted, &high);
    sieve.above = high;
    if (status == PSLIB_OK) status = pslib_rank_bin(table, &all, &sieve, &wanted, &low);
    sieve.kind = PSLIB_SIEVE_RANK;
    sieve.rank = (uint32_t)(high << PSLIB_RANK_HALF_BITS | low);
    sieve.tied = sieve.bins[low];
    sieve.tied_leave = wanted;
    sieve.keys = keys;
    free(sieve.bins);
    if (status == PSLIB_OK) status = pslib_table_sift(table, &all, &sieve, gone);
    table->policies.evicted_share += *gone;
    return status;
}

/* --- decay */

/* count = floor(float(count) * factor); a counted key at 0 is forgotten. */
static inline void pslib_counts_decay(PslibPartition *partition, float factor)
{
    for (uint32_t i = 0; i < partition->line_count; i++) {
        PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            if (line->place[cell] < PSLIB_COUNTED) continue;
            const uint32_t count = (uint32_t)((float)(line->place[cell] - PSLIB_COUNTED) * factor);
            line->place[cell] = PSLIB_COUNTED | count;
            const PslibFound found = {i, cell, 0, count};
            if (count == 0) pslib_index_remove(partition, &found, pslib_mix64(line->key[cell]));
        }
    }
}

static inline void pslib_filter_decay(PslibAdmission *admission, uint32_t number, float factor)
{
    uint8_t *filter = admission->filters[number], decayed[PSLIB_FILTER_COUNT_MAX + 1], left = 0;
    if (filter == NULL) return;
    for (int count = 0; count <= PSLIB_FILTER_COUNT_MAX; count++) decayed[count] = (uint8_t)((float)count * factor);
    for (uint32_t i = 0; i < admission->filter_counters; i++) left |= filter[i] = decayed[filter[i]];
    if (left == 0) pslib_filter_release(admission, number);
}

/* shows *= factor;  clicks *= factor.  Erased rows too: nobody reads what they hold there. */
static inline void pslib_shows_decay(const PslibTable *table, uint32_t number, float factor)
{
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const PslibArena *arena = &table->arenas[number].of[c];
        for (uint32_t row_number = 0; row_number < arena->next; row_number++) {
            const uint32_t row = pslib_arena_row(arena, &table->classes[c], row_number);
            float *shows = pslib_row_state(&table->classes[c], row) + pslib_shows_at(table);
            shows[0] *= factor;
            shows[1] *= factor;
        }
    }
}

/* Shows, clicks and the counts of keys without rows fade. factor: 0..1. */
static inline void pslib_table_decay(PslibTable *table, const uint32_t *numbers, int64_t count, float factor)
{
    const PslibChosen chosen = pslib_chosen(table, numbers, count);
    pslib_heap_pack(&table->heap, 1);
    for (int64_t i = 0; i < chosen.count; i++) {
        const uint32_t number = pslib_chosen_at(&chosen, i);
        PslibPartition *partition = &table->partitions[number];
        if (table->tracking != NULL) pslib_before_partition(table, number, table->counters & PSLIB_COUNT_SHOWS);
        if (table->counters & PSLIB_COUNT_SHOWS) pslib_shows_decay(table, number, factor);
        if (table->policies.admission.kind == PSLIB_ADMIT_BLOOM)
            pslib_filter_decay(&table->policies.admission, number, factor);
        if (pslib_partition_counted(table, number) == 0) continue;
        pslib_counts_decay(partition, factor);
        pslib_partition_settle(partition, &table->arenas[number], table->classes);
    }
    pslib_heap_pack(&table->heap, 0);
    pslib_heap_trim(&table->heap);
}

#endif
