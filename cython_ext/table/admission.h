/* admission.h: which keys get a row.
 *
 * Most keys of a log are seen once or twice and never earn the row that they would take. A push of a key
 * without a row asks here; a key that is turned away takes no row, its gradient is dropped, and a pull goes on
 * giving its first values. `weight` of an occurrence of a key is its shows, rounded down, at least 1.
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
 *     probability   24 random bits of (key, name of the push) below the table's chance: a key seen often gets
 *                   its row sooner, and nothing has to be remembered.
 *
 * Exact counts and probability depend on a key's own pushes only; estimates depend on which keys share a
 * filter, hence on partition_bits.
 */
#ifndef PSLIB_ADMISSION_H
#define PSLIB_ADMISSION_H

#include "table/table.h"

enum { PSLIB_FILTER_HASHES = 4, PSLIB_FILTER_COUNT_MAX = 255 };
#define PSLIB_FILTER_MIN (UINT32_C(1) << 6)  /* counters: one cache line */
#define PSLIB_FILTER_MAX (UINT32_C(1) << 27) /* 16 for each row that a partition can hold: 0.24 % taken for known */

/* Shows of one occurrence as a whole number, 1..65535; what is no number counts once. */
PSLIB_INLINE uint32_t pslib_show_weight(float shows)
{
    if (!(shows >= 1.0f)) return 1;
    return shows < (float)PSLIB_COUNT_MAX ? (uint32_t)shows : PSLIB_COUNT_MAX;
}

/* Where the counters of a key are: by double hashing of a second mix, as the first chose the partition.
 * places: (PSLIB_FILTER_HASHES,) OUT. */
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

/* The filter of a partition, made when there is none; NULL without memory. */
static inline uint8_t *pslib_filter_of(PslibAdmission *admission, uint32_t number)
{
    if (admission->filters[number] == NULL) {
        admission->filters[number] = calloc(admission->filter_counters, 1);
        if (admission->filters[number] != NULL) admission->filter_bytes += admission->filter_counters;
    }
    return admission->filters[number];
}

/* The answer to one occurrence of a key. */
typedef enum { PSLIB_TURNED_AWAY = 0, PSLIB_ADMITTED = 1 } PslibAnswer;

/* answer: OUT. On failure nothing has changed. */
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

/* found: IN, what a look-up of the key said. answer: OUT. On failure nothing has changed. */
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

/* top 24 bits of mix64(key ^ mix64(salt ^ GOLDEN)) * 2^-24 < chance */
static inline PslibAnswer pslib_ask_chance(float chance, uint64_t key, uint64_t salt)
{
    const uint64_t word = pslib_mix64(key ^ pslib_mix64(salt ^ PSLIB_GOLDEN));
    return (float)(int32_t)(word >> 40) * 0x1p-24f < chance ? PSLIB_ADMITTED : PSLIB_TURNED_AWAY;
}

/* One occurrence of a key that has no row, in a push: give it one or turn it away. found: INOUT, what a
 * look-up said; its place stays 0 where the key was turned away. The caller counts the row among those of the
 * table. On failure nothing has changed. */
PSLIB_APART PslibStatus pslib_admit(PslibTable *table, uint64_t key, uint64_t mixed, float shows, uint64_t salt,
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

/* --- counts and filters in and out */

/* Counted keys of a partition. */
static inline uint32_t pslib_partition_counted(const PslibTable *table, uint32_t number)
{
    return table->partitions[number].filled - pslib_partition_rows(&table->arenas[number]);
}

/* keys, counts: OUT, as many as the partition has counted keys, in no order that means anything. */
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

/* Set counts (1..65535); a key with a row keeps it and is not counted. done: OUT, keys done; on failure the
 * rest has changed nothing. */
static inline PslibStatus pslib_counts_import(PslibTable *table, uint32_t number, const uint64_t *keys,
                                              const uint32_t *counts, int64_t n, int64_t *done)
{
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

/* c_i = min(c_i + other_i, 255): of keys that were counted in either, no estimate is below its count. */
static inline PslibStatus pslib_filter_import(PslibTable *table, uint32_t number, const uint8_t *other)
{
    uint8_t *filter = pslib_filter_of(&table->policies.admission, number);
    if (filter == NULL) return PSLIB_NO_MEMORY;
    for (uint32_t i = 0; i < table->policies.admission.filter_counters; i++) {
        const uint32_t sum = (uint32_t)filter[i] + other[i];
        filter[i] = (uint8_t)(sum < PSLIB_FILTER_COUNT_MAX ? sum : PSLIB_FILTER_COUNT_MAX);
    }
    return PSLIB_OK;
}

#endif
