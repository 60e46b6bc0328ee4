/* policies.h: which keys get a row (admission), which narrow rows become wide (promotion), which rows are evicted, and
 * how counts decay.
 *
 * Admission. Most keys of a log are seen once or twice. A push of a key without a row asks pslib_admit; a key that is
 * turned away takes no row, its gradient is dropped, and a pull keeps returning its initial values. `weight` of an
 * occurrence is its shows, rounded down, at least 1.
 *
 *     exact count   an index cell without a row counts the key:  count += weight;  admitted when
 *                   count >= the table's count. 12.8 bytes of index for each key seen. Erasing forgets it.
 *     Bloom filter  m counters of 8 bits a partition, 4 of them for a key; its count is estimated by the
 *                   smallest:  estimate = min(c1, c2, c3, c4) + weight;  admitted when estimate >= the table's
 *                   count, else c_i = max(c_i, estimate): conservative update, only the smallest grow
 *                   (Estan and Varghese, New directions in traffic measurement and accounting, SIGCOMM 2002,
 *                   section 3.3.2). An estimate is never below the shows that were turned away (up to 255).
 *                   With n keys that were turned away a new key is taken for a known one with a probability of
 *                   about (1 - e^(-4 n / m))^4 (Broder and Mitzenmacher, Network applications of Bloom
 *                   filters, 2004, section 2.1). Erasing cannot forget: the key shares its counters.
 *     probability   24 random bits of (key, name of the push) below the table's chance. Nothing is stored.
 *
 * Exact counts and probability depend on a key's own pushes only; estimates depend on which keys share a filter, hence
 * on partition_bits.
 *
 * Promotion. In a table with promotion new rows are narrow: they hold the first parts only (PaddlePaddle's accessor
 * gives `embedx` the same way). A row is due for promotion when, after a step,
 *
 *     shows >= number      or      score = (shows - clicks) * nonclick + clicks * click >= number
 *
 * It becomes wide at the end of that push: the loop of a push holds addresses of rows, so no row may move under it.
 *
 * Eviction.
 *
 *     age     now - last_seen > number
 *     norm    sqrt(sum of squares of all weights) < number; each part summed as its optimizer sums gradients
 *             (16 lanes), then part after part
 *     score   (shows - clicks) * nonclick + clicks * click < number: PaddlePaddle's accessor
 *             (CtrCommonAccessor::Shrink), where decay multiplies shows and clicks once a day
 *     share   the given share of all rows, the worst first by one of the three: oldest, smallest, lowest
 *
 * The value that a rule compares is the worth of a row. NaN is below nothing and older than nothing, so such a row
 * stays; by share it is evicted last.
 *
 * A partition is scanned at the speed of memory, without looking up a key: its rows are read in the order of their
 * numbers and marked, its index is read from front to back and marked rows lose their cells, then the rows join the
 * list of erased ones in the order of their numbers. Memory left empty goes back to the system.
 */
#ifndef PSLIB_POLICIES_H
#define PSLIB_POLICIES_H

#include "table/images.h"

enum { PSLIB_FILTER_HASHES = 4, PSLIB_FILTER_COUNT_MAX = 255 };
#define PSLIB_FILTER_MIN (UINT32_C(1) << 6)  /* counters: one cache line */
#define PSLIB_FILTER_MAX (UINT32_C(1) << 27) /* 16 for each row that a partition can hold: 0.24 % taken for known */

/* Shows of one occurrence as a whole number, 1..65535; what is no number counts once. */
PSLIB_INLINE uint32_t pslib_show_weight(float shows)
{
    if (!(shows >= 1.0f)) return 1;
    return shows < (float)PSLIB_COUNT_MAX ? (uint32_t)shows : PSLIB_COUNT_MAX;
}

/* Compute the places of a key's counters by double hashing of a second mix, since the first chose the partition.
 * places: OUT, (PSLIB_FILTER_HASHES,). */
static inline void pslib_filter_places(uint64_t mixed, uint32_t counters, uint32_t *places)
{
    const uint64_t word = pslib_mix64(mixed + PSLIB_GOLDEN);
    const uint32_t first = (uint32_t)word, step = (uint32_t)(word >> 32) | 1;
    for (uint32_t i = 0; i < PSLIB_FILTER_HASHES; i++) places[i] = (first + i * step) & (counters - 1);
}

static inline uint32_t pslib_filter_smallest(const uint8_t *filter, const uint32_t *places)
{
    uint32_t smallest = PSLIB_FILTER_COUNT_MAX;
    for (int i = 0; i < PSLIB_FILTER_HASHES; i++)
        if (filter[places[i]] < smallest) smallest = filter[places[i]];
    return smallest;
}

/* Return the filter of a partition, a new one when there is none; NULL without memory. */
static inline uint8_t *pslib_filter_of(PslibAdmission *admission, uint32_t number)
{
    if (admission->filters[number] == NULL) {
        admission->filters[number] = calloc(admission->filter_counters, 1);
        if (admission->filters[number] != NULL) admission->filter_bytes += admission->filter_counters;
    }
    return admission->filters[number];
}

typedef enum { PSLIB_TURNED_AWAY = 0, PSLIB_ADMITTED = 1 } PslibAnswer;

/* Admission by Bloom filter. answer: OUT. On failure nothing has changed. */
static inline PslibStatus pslib_ask_filter(PslibAdmission *admission, uint32_t number, uint64_t mixed,
                                           uint32_t weight, PslibAnswer *answer)
{
    uint32_t places[PSLIB_FILTER_HASHES];
    uint8_t *filter = admission->filters[number];
    pslib_filter_places(mixed, admission->filter_counters, places);
    uint32_t estimate = weight + (filter == NULL ? 0 : pslib_filter_smallest(filter, places));
    *answer = estimate >= admission->count ? PSLIB_ADMITTED : PSLIB_TURNED_AWAY;
    if (*answer == PSLIB_ADMITTED) return PSLIB_OK;
    filter = pslib_filter_of(admission, number);
    if (filter == NULL) return PSLIB_NO_MEMORY;
    for (int i = 0; i < PSLIB_FILTER_HASHES; i++)
        if (filter[places[i]] < estimate) filter[places[i]] = (uint8_t)estimate;
    return PSLIB_OK;
}

/* Admission by exact count. found: IN, the look-up of the key. answer: OUT. On failure nothing has changed. */
static inline PslibStatus pslib_ask_count(const PslibAdmission *admission, PslibPartition *partition, PslibHeap *heap,
                                          uint64_t key, uint64_t mixed, uint32_t weight, const PslibFound *found,
                                          PslibAnswer *answer)
{
    const uint32_t count = found->count + weight; /* below 2^17 */
    *answer = count >= admission->count ? PSLIB_ADMITTED : PSLIB_TURNED_AWAY;
    if (*answer == PSLIB_ADMITTED) return PSLIB_OK;
    if (found->count == 0) return pslib_partition_count(partition, heap, key, mixed, count);
    partition->lines[found->line].place[found->cell] = PSLIB_COUNTED | count;
    return PSLIB_OK;
}

/* Admission by probability: top 24 bits of mix64(key ^ mix64(salt ^ GOLDEN)) * 2^-24 < chance */
static inline PslibAnswer pslib_ask_chance(float chance, uint64_t key, uint64_t salt)
{
    const uint64_t word = pslib_mix64(key ^ pslib_mix64(salt ^ PSLIB_GOLDEN));
    return (float)(int32_t)(word >> 40) * 0x1p-24f < chance ? PSLIB_ADMITTED : PSLIB_TURNED_AWAY;
}

/* Make the row of a key that occurs in a push without one, or turn the key away. found: INOUT, the look-up of the key;
 * its place stays 0 where the key was turned away. The caller increments the rows of the table. On failure nothing has
 * changed. */
PSLIB_NOINLINE PslibStatus pslib_admit(PslibTable *table, uint64_t key, uint64_t mixed, float shows, uint64_t salt,
                                    int row_class, PslibFound *found)
{
    PslibAdmission *admission = &table->policies.admission;
    const uint32_t number = pslib_partition_of_mixed(mixed, table->partition_bits);
    PslibPartition *partition = &table->partitions[number];
    const uint32_t weight = pslib_show_weight(shows);
    PslibAnswer answer = PSLIB_ADMITTED;
    PslibStatus status = PSLIB_OK;
    if (admission->kind == PSLIB_ADMIT_COUNT)
        status = pslib_ask_count(admission, partition, &table->heap, key, mixed, weight, found, &answer);
    else if (admission->kind == PSLIB_ADMIT_BLOOM)
        status = pslib_ask_filter(admission, number, mixed, weight, &answer);
    else
        answer = pslib_ask_chance(admission->chance, key, salt);
    if (status != PSLIB_OK) return status;
    if (answer == PSLIB_TURNED_AWAY) {
        admission->turned_away++;
        return PSLIB_OK;
    }
    status = pslib_partition_make(partition, &table->arenas[number], table->classes, key, mixed, row_class, found);
    if (status != PSLIB_OK) return status;
    admission->admitted++;
    return PSLIB_OK;
}

/* --- export and import of counts and filters */

/* Copy the counted keys of a partition, in no particular order. keys, counts: OUT, (pslib_partition_counted,). */
static inline void pslib_counts_export(const PslibTable *table, uint32_t number, uint64_t *keys, uint32_t *counts)
{
    const PslibPartition *partition = &table->partitions[number];
    for (uint32_t i = 0; i < partition->line_count; i++) {
        const PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            if (line->place[cell] < PSLIB_COUNTED) continue;
            *keys++ = line->key[cell];
            *counts++ = line->place[cell] - PSLIB_COUNTED;
        }
    }
}

/* Set counts (1..65535); a key with a row keeps it and is not counted. done: OUT, keys done; on failure the rest has
 * changed nothing. */
static inline PslibStatus pslib_counts_import(PslibTable *table, uint32_t number, const uint64_t *keys,
                                              const uint32_t *counts, int64_t n, int64_t *done)
{
    pslib_before_keys(table, keys, n, 0);
    PslibPartition *partition = &table->partitions[number];
    for (*done = 0; *done < n; ++*done) {
        const uint64_t key = keys[*done], mixed = pslib_mix64(key);
        const PslibFound found = pslib_partition_find(partition, key, mixed);
        PslibStatus status = PSLIB_OK;
        if (found.place != 0) continue;
        if (found.count != 0) partition->lines[found.line].place[found.cell] = PSLIB_COUNTED | counts[*done];
        else status = pslib_partition_count(partition, &table->heap, key, mixed, counts[*done]);
        if (status != PSLIB_OK) return status;
    }
    return PSLIB_OK;
}

/* c_i = min(c_i + other_i, 255): no estimate is below that of either filter. */
static inline PslibStatus pslib_filter_import(PslibTable *table, uint32_t number, const uint8_t *other)
{
    pslib_before_filter(table, number);
    uint8_t *filter = pslib_filter_of(&table->policies.admission, number);
    if (filter == NULL) return PSLIB_NO_MEMORY;
    for (uint32_t i = 0; i < table->policies.admission.filter_counters; i++) {
        const uint32_t sum = (uint32_t)filter[i] + other[i];
        filter[i] = (uint8_t)(sum < PSLIB_FILTER_COUNT_MAX ? sum : PSLIB_FILTER_COUNT_MAX);
    }
    return PSLIB_OK;
}

/* --- promotion */

/* (shows - clicks) * nonclick + clicks * click */
PSLIB_INLINE float pslib_score(const PslibTable *table, const float *state)
{
    const float shows = state[pslib_shows_at(table)], clicks = state[pslib_shows_at(table) + 1];
    return (shows - clicks) * table->policies.nonclick + clicks * table->policies.click;
}

/* Return the shows or the score of a row with this state, whichever decides about promotion. */
PSLIB_INLINE float pslib_promotion_value(const PslibTable *table, const float *state)
{
    return table->policies.promotion.kind == PSLIB_PROMOTE_SHOWS ? state[pslib_shows_at(table)]
                                                                 : pslib_score(table, state);
}

/* Note the key of a narrow row with this state if the row is due for promotion. */
PSLIB_INLINE void pslib_note_due(PslibTable *table, uint64_t key, const float *state)
{
    PslibPromotion *promotion = &table->policies.promotion;
    if (promotion->kind == PSLIB_PROMOTE_NEVER) return;
    if (pslib_promotion_value(table, state) >= promotion->number) promotion->due[promotion->due_count++] = key;
}

/* --- eviction */

enum { PSLIB_ROW_LIVE = 0, PSLIB_ROW_ERASED = 1, PSLIB_ROW_SELECTED = 2 }; /* marks */
enum { PSLIB_RANK_HALF_BITS = 16, PSLIB_RANK_BINS = 1 << PSLIB_RANK_HALF_BITS };

/* The rule that selects rows to evict, or only counts them. Rows come by partition, class and number. */
enum { PSLIB_SELECT_LIMIT = 0, PSLIB_SELECT_RANK = 1, PSLIB_SELECT_COUNT = 2 };
typedef struct {
    int rule;
    int kind;
    float number, now;    /* LIMIT */
    uint32_t rank;        /* RANK: rows of lower ranks are evicted, */
    int64_t tied;         /* and of this number of rows of this rank */
    int64_t tied_evicted; /* this number, spread evenly */
    int64_t tied_met;
    int64_t *bins;  /* COUNT: number of rows for each high half of a rank, */
    int64_t above;  /* or, unless it is -1, for each low half of the ranks with this high half */
    uint64_t *keys; /* OUT, keys of evicted rows; or NULL */
    int64_t key_count;
} PslibSelection;

/* Numbers of the partitions that a rule is applied to. */
typedef struct {
    const uint32_t *numbers;
    int64_t count;
} PslibChosen;

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

/* Map float order to integer order; NaN is above everything. */
PSLIB_INLINE uint32_t pslib_rank(float worth)
{
    uint32_t bits;
    if (!(worth == worth)) return UINT32_MAX;
    worth += 0.0f; /* -0 is 0 */
    memcpy(&bits, &worth, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(0x80000000);
}

PSLIB_INLINE int pslib_selects(PslibSelection *selection, float worth)
{
    if (selection->kind == PSLIB_SELECT_LIMIT)
        return selection->rule == PSLIB_EVICT_AGE ? selection->now - worth > selection->number
                                                  : worth < selection->number;
    const uint32_t rank = pslib_rank(worth);
    if (selection->kind == PSLIB_SELECT_COUNT) {
        if (selection->above < 0) selection->bins[rank >> PSLIB_RANK_HALF_BITS]++;
        else if (rank >> PSLIB_RANK_HALF_BITS == selection->above) selection->bins[rank & (PSLIB_RANK_BINS - 1)]++;
        return 0;
    }
    if (rank != selection->rank) return rank < selection->rank;
    const int64_t before = selection->tied_met * selection->tied_evicted / selection->tied; /* of both below 2^31 */
    return ++selection->tied_met * selection->tied_evicted / selection->tied > before;
}

/* --- marks: one byte a row number of one class of a partition */

/* Return the marks of an arena: erased rows are marked, others are 0. NULL without memory. */
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

/* Prefetch what the rule will read of a unit: its rows are contiguous, units lie anywhere. */
PSLIB_INLINE void pslib_unit_prefetch(const PslibRowClass *shape, uint32_t unit, int rule)
{
    const uint32_t row = unit << shape->unit_shift;
    const int weights = rule == PSLIB_EVICT_NORM;
    const uint8_t *at = weights ? (const uint8_t *)pslib_row_weights(shape, row)
                                : (const uint8_t *)pslib_row_state(shape, row);
    const size_t bytes = (weights ? shape->weight_step : shape->state_step) << shape->unit_shift;
    for (size_t i = 0; i < bytes; i += PSLIB_CACHE_LINE) PSLIB_PREFETCH(at + i);
}

/* Mark the rows that the rule selects. Returns their number. */
PSLIB_INLINE int64_t pslib_arena_scan(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                      PslibSelection *selection, int rule, uint8_t *marks)
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
            if (!pslib_selects(selection, pslib_row_worth(table, shape, first + i, rule))) continue;
            marks[start + i] = PSLIB_ROW_SELECTED;
            leave++;
        }
    }
    return leave;
}

/* pslib_arena_scan with the rule as a constant for the compiler. */
static inline int64_t pslib_arena_mark(const PslibTable *table, const PslibArena *arena, const PslibRowClass *shape,
                                       PslibSelection *selection, uint8_t *marks)
{
    switch (selection->rule) {
    case PSLIB_EVICT_AGE: return pslib_arena_scan(table, arena, shape, selection, PSLIB_EVICT_AGE, marks);
    case PSLIB_EVICT_NORM: return pslib_arena_scan(table, arena, shape, selection, PSLIB_EVICT_NORM, marks);
    default: return pslib_arena_scan(table, arena, shape, selection, PSLIB_EVICT_SCORE, marks);
    }
}

/* Empty the cells of marked rows. */
static inline void pslib_cells_clear(const PslibTable *table, PslibPartition *partition, uint8_t *const *marks,
                                      PslibSelection *selection)
{
    const uint32_t number = (uint32_t)(partition - table->partitions);
    for (uint32_t i = 0; i < partition->line_count; i++) {
        PslibLine *line = &partition->lines[i];
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            const uint32_t place = line->place[cell];
            if (!pslib_place_is_row(place)) continue;
            const int c = pslib_place_class(place);
            const uint32_t row_number = pslib_row_number(&table->classes[c], pslib_place_row(place));
            if (marks[c][row_number] != PSLIB_ROW_SELECTED) continue;
            pslib_before_erasing(table, number, line->key[cell], place);
            const PslibFound found = {i, cell, place, 0};
            if (selection->keys != NULL) selection->keys[selection->key_count++] = line->key[cell];
            pslib_index_remove(partition, &found, pslib_mix64(line->key[cell]));
        }
    }
}

static inline void pslib_arena_erase(PslibArena *arena, const PslibRowClass *shape, const uint8_t *marks)
{
    for (uint32_t row_number = 0; row_number < arena->next; row_number++)
        if (marks[row_number] == PSLIB_ROW_SELECTED)
            pslib_arena_give_back(arena, shape, pslib_arena_row(arena, shape, row_number));
}

/* Evict the selected rows of a partition. gone: INOUT, their number is added. On failure nothing has changed. */
static inline PslibStatus pslib_partition_evict(PslibTable *table, uint32_t number, PslibSelection *selection,
                                                int64_t *gone)
{
    PslibPartition *partition = &table->partitions[number];
    PslibArenas *arenas = &table->arenas[number];
    uint8_t *marks[PSLIB_CLASSES];
    int64_t leave[PSLIB_CLASSES] = {0, 0};
    if (pslib_partition_rows(arenas) == 0) return PSLIB_OK;
    for (int c = 0; c < PSLIB_CLASSES; c++) marks[c] = pslib_arena_marks(&arenas->of[c], &table->classes[c]);
    const int made = marks[PSLIB_WIDE] != NULL && marks[PSLIB_NARROW] != NULL;
    for (int c = 0; made && c < PSLIB_CLASSES; c++)
        leave[c] = pslib_arena_mark(table, &arenas->of[c], &table->classes[c], selection, marks[c]);
    if (leave[PSLIB_WIDE] + leave[PSLIB_NARROW] > 0) {
        pslib_cells_clear(table, partition, marks, selection);
        for (int c = 0; c < PSLIB_CLASSES; c++) {
            pslib_arena_erase(&arenas->of[c], &table->classes[c], marks[c]);
            table->rows[c] -= leave[c];
            *gone += leave[c];
        }
        pslib_partition_settle(partition, arenas, table->classes);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) free(marks[c]);
    return made ? PSLIB_OK : PSLIB_NO_MEMORY;
}

static inline PslibStatus pslib_table_scan(PslibTable *table, const PslibChosen *chosen, PslibSelection *selection,
                                           int64_t *gone)
{
    PslibStatus status = PSLIB_OK;
    *gone = 0;
    pslib_heap_pack(&table->heap, 1); /* blocks that move now stay where they are put */
    for (int64_t i = 0; status == PSLIB_OK && i < chosen->count; i++)
        status = pslib_partition_evict(table, chosen->numbers[i], selection, gone);
    pslib_heap_pack(&table->heap, 0);
    if (*gone > 0) pslib_heap_trim(&table->heap);
    return status;
}

/* Evict the rows below (age: above) the limit of a rule. gone: OUT, rows evicted, also on failure. */
static inline PslibStatus pslib_table_evict(PslibTable *table, const uint32_t *numbers, int64_t count, int rule,
                                            float number, float now, int64_t *gone)
{
    const PslibChosen chosen = {numbers, count};
    PslibSelection selection = {.rule = rule, .number = number, .now = now};
    const PslibStatus status = pslib_table_scan(table, &chosen, &selection, gone);
    table->policies.evicted[rule] += *gone;
    return status;
}

/* --- a share of all rows */

/* Find the bin with the last of the worst `wanted` rows. wanted: INOUT, number of rows to take in that bin. bin:
 * OUT. */
static inline PslibStatus pslib_rank_bin(PslibTable *table, const PslibChosen *chosen, PslibSelection *selection,
                                         int64_t *wanted, int64_t *bin)
{
    int64_t none;
    memset(selection->bins, 0, PSLIB_RANK_BINS * sizeof *selection->bins);
    const PslibStatus status = pslib_table_scan(table, chosen, selection, &none);
    for (*bin = 0; *bin < PSLIB_RANK_BINS - 1 && *wanted > selection->bins[*bin]; ++*bin)
        *wanted -= selection->bins[*bin];
    return status;
}

/* Evict exactly the worst `wanted` (1..rows) rows of the partitions: the rank of the last of them is found half by half
 * in two passes. keys: OUT, theirs, or NULL. gone: OUT, rows evicted. On failure some rows may be evicted. */
static inline PslibStatus pslib_table_evict_worst(PslibTable *table, const uint32_t *numbers, int64_t count, int rule,
                                                  int64_t wanted, uint64_t *keys, int64_t *gone)
{
    const PslibChosen all = {numbers, count};
    PslibSelection selection = {.rule = rule, .kind = PSLIB_SELECT_COUNT, .above = -1};
    int64_t high = 0, low = 0;
    *gone = 0;
    selection.bins = malloc(PSLIB_RANK_BINS * sizeof *selection.bins);
    if (selection.bins == NULL) return PSLIB_NO_MEMORY;
    PslibStatus status = pslib_rank_bin(table, &all, &selection, &wanted, &high);
    selection.above = high;
    if (status == PSLIB_OK) status = pslib_rank_bin(table, &all, &selection, &wanted, &low);
    selection.kind = PSLIB_SELECT_RANK;
    selection.rank = (uint32_t)(high << PSLIB_RANK_HALF_BITS | low);
    selection.tied = selection.bins[low];
    selection.tied_evicted = wanted;
    selection.keys = keys;
    free(selection.bins);
    if (status == PSLIB_OK) status = pslib_table_scan(table, &all, &selection, gone);
    table->policies.evicted_share += *gone;
    return status;
}

/* --- decay */

/* count = floor(float(count) * factor); a counted key at 0 is erased. */
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

/* shows *= factor;  clicks *= factor.  Of erased rows too, whose counters are never read. */
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

/* Decay shows, clicks and the counts of keys without rows. factor: 0..1. */
static inline void pslib_table_decay(PslibTable *table, const uint32_t *numbers, int64_t count, float factor)
{
    pslib_heap_pack(&table->heap, 1);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t number = numbers[i];
        PslibPartition *partition = &table->partitions[number];
        pslib_before_partition(table, number, table->counters & PSLIB_COUNT_SHOWS);
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
