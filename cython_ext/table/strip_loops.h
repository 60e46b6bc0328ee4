/* strip_loops.h: the loops over the strips of a batch (strips.h). */
#ifndef PSLIB_STRIP_LOOPS_H
#define PSLIB_STRIP_LOOPS_H

#include "table/strip_notes.h"

PSLIB_INLINE uint32_t pslib_strip_at(int64_t strip)
{
    return (uint32_t)(strip * PSLIB_STRIP) % PSLIB_STRIP_RING;
}

/* How many of strip `strip`'s keys are among the first n. */
PSLIB_INLINE uint32_t pslib_strip_keys_of(int64_t strip, int64_t n)
{
    const int64_t left = n - strip * PSLIB_STRIP;
    return strip < 0 || left <= 0 ? 0 : left < PSLIB_STRIP ? (uint32_t)left : PSLIB_STRIP;
}

/* The three strips that are worked on in turn: where they stand in the ring, and how many keys they have. */
typedef struct {
    uint32_t begun_at, begun; /* has its home lines: prefetch them */
    uint32_t find_at, finds;
    uint32_t work_at, works;
} PslibStripTurn;

PSLIB_INLINE PslibStripTurn pslib_strip_turn(int64_t find, int64_t n)
{
    const int64_t begun = find + PSLIB_STRIPS_TO_FIND, work = find - PSLIB_STRIPS_BEHIND;
    return (PslibStripTurn){.begun_at = pslib_strip_at(begun), .begun = pslib_strip_keys_of(begun, n),
                            .find_at = pslib_strip_at(find), .finds = pslib_strip_keys_of(find, n),
                            .work_at = pslib_strip_at(work), .works = pslib_strip_keys_of(work, n)};
}

PSLIB_INLINE int pslib_turn_is_whole(PslibStripTurn turn)
{
    return (turn.begun == PSLIB_STRIP) & (turn.finds == PSLIB_STRIP) & (turn.works == PSLIB_STRIP);
}

/* Key j of each of these strips: ask for its home line; find its row and ask for that. */
PSLIB_INLINE uint32_t pslib_strip_find_one(const PslibRowMap *map, int level, int for_push, PslibStrips *strips,
                                           PslibStripTurn turn, uint32_t j, uint32_t noted)
{
    const void *next;
    PSLIB_PREFETCH(strips->home[turn.begun_at + j]);
    noted = pslib_strip_find(map, level, for_push, strips, turn.find_at + j, noted, &next);
    pslib_strip_prefetch(map, for_push, strips, turn.find_at + j, next);
    return noted;
}

/* Ask for the home lines of one strip, find the rows of another and ask for these. Returns how many keys are noted then.
 *
 * A prefetch leaves the processor when its address is translated, which takes long where the address cache (TLB)
 * misses, and what stands behind it fills the processor's window meanwhile. So few instructions stand between two of
 * them: not the steps of rows (with them an update takes 1.1 of the time for 16 floats, 1.2 to 1.5 for others; AMD
 * Zen 4, AVX-512 and AVX2). With AVX-512 to find a key is little enough, and so is to copy its row: a look-up goes key
 * by key through all three strips, as it takes 1.05 to 1.1 of the time otherwise. Without, the prefetches of a strip
 * follow each other closely (AMD Zen 3).
 */
PSLIB_INLINE uint32_t pslib_strip_find_all(const PslibRowMap *map, int level, int for_push, PslibStrips *strips,
                                           PslibStripTurn turn, uint32_t noted)
{
    const uint32_t at = turn.find_at, finds = turn.finds;
    const void *next[PSLIB_STRIP];
    if (level == PSLIB_AVX512 && pslib_turn_is_whole(turn)) {
        for (uint32_t j = 0; j < PSLIB_STRIP; j++)
            noted = pslib_strip_find_one(map, level, for_push, strips, turn, j, noted);
        return noted;
    }
    if (turn.begun > 0) pslib_strip_ask(strips, turn.begun_at);
    for (uint32_t j = 0; j < finds; j++)
        noted = pslib_strip_find(map, level, for_push, strips, at + j, noted, &next[j]);
    for (uint32_t j = 0; j < finds; j++) pslib_strip_prefetch(map, for_push, strips, at + j, next[j]);
    return noted;
}

/* Read the rows of one strip, find those of another and ask for the home lines of a third. absent: INOUT. Returns how
 * many keys are noted then. */
PSLIB_INLINE uint32_t pslib_strips_pull(const PslibTable *table, const PslibRowMap *map, int level,
                                        PslibStrips *strips, int64_t n, int64_t find, uint32_t noted, float now,
                                        float *out, int64_t *absent)
{
    const PslibStripTurn turn = pslib_strip_turn(find, n);
    float *to = out + (find - PSLIB_STRIPS_BEHIND) * PSLIB_STRIP * map->dim;
    if (level == PSLIB_AVX512 && pslib_turn_is_whole(turn)) {
        for (uint32_t j = 0; j < PSLIB_STRIP; j++) {
            noted = pslib_strip_find_one(map, level, 0, strips, turn, j, noted);
            *absent += pslib_strip_pull(table, map, level, strips, turn.work_at + j, now, to + map->dim * j);
        }
        return noted;
    }
    noted = pslib_strip_find_all(map, level, 0, strips, turn, noted);
    for (uint32_t j = 0; j < turn.works; j++)
        *absent += pslib_strip_pull(table, map, level, strips, turn.work_at + j, now, to + map->dim * j);
    return noted;
}

PSLIB_INLINE int64_t pslib_strips_pull_body(const PslibTable *table, const uint64_t *keys, int64_t n, float now,
                                            float *out, int level, int one16, int storage, int policies)
{
    const int64_t count = (n + PSLIB_STRIP - 1) / PSLIB_STRIP;
    const PslibRowMap map = pslib_row_map(table, one16, storage, policies);
    PslibStrips strips;
    uint32_t noted = 0;
    int64_t absent = 0;
    pslib_strips_open(&strips);
    for (int64_t strip = 0; strip < count + PSLIB_STRIPS_TO_FIND + PSLIB_STRIPS_BEHIND; strip++) {
        const int64_t find = strip - PSLIB_STRIPS_TO_FIND;
        const int64_t start = strip * PSLIB_STRIP;
        if (strip < count) pslib_strip_begin(table, keys + start, n - start, level, &strips, pslib_strip_at(strip));
        if (find < 0) {
            if (strip < count) pslib_strip_ask(&strips, pslib_strip_at(strip));
            continue;
        }
        noted = pslib_strips_pull(table, &map, level, &strips, n, find, noted, now, out, &absent);
        if (find % PSLIB_STRIPS_NOTED == PSLIB_STRIPS_NOTED - 1) {
            pslib_strips_lay_by(table, 0, &strips, noted);
            noted = 0;
        }
        if (find % PSLIB_STRIPS_NOTED == PSLIB_STRIPS_TO_LATER - 1)
            pslib_strips_later_pull(table, &map, level, &strips);
    }
    return absent;
}

/* As pslib_strips_pull, for a push. */
PSLIB_INLINE uint32_t pslib_strips_push(PslibTable *table, const PslibRowMap *map, int level,
                                        PslibStrips *strips, int64_t n, int64_t find, uint32_t noted,
                                        const float *gradients, const PslibRecord *record)
{
    const PslibStripTurn turn = pslib_strip_turn(find, n);
    const int64_t first = (find - PSLIB_STRIPS_BEHIND) * PSLIB_STRIP;
    const float *from = gradients + first * map->dim;
    noted = pslib_strip_find_all(map, level, 1, strips, turn, noted);
    for (uint32_t j = 0; j < turn.works; j++)
        pslib_strip_push(table, map, level, strips, turn.work_at + j, from + map->dim * j, record, first + j);
    return noted;
}

PSLIB_INLINE PslibStatus pslib_strips_push_body(PslibTable *table, const uint64_t *keys, int64_t n,
                                                const float *gradients, int row_class, const PslibRecord *record,
                                                int64_t *done, int level, int one16, int storage, int policies)
{
    const int64_t all = n, count = (n + PSLIB_STRIP - 1) / PSLIB_STRIP;
    PslibRowMap map = pslib_row_map(table, one16, storage, policies);
    PslibStatus status = PSLIB_OK;
    PslibStrips strips;
    uint32_t noted = 0;
    pslib_strips_open(&strips);
    for (int64_t strip = 0; strip < count + PSLIB_STRIPS_TO_FIND + PSLIB_STRIPS_BEHIND; strip++) {
        const int64_t find = strip - PSLIB_STRIPS_TO_FIND;
        const int64_t start = strip * PSLIB_STRIP;
        if (strip < count) pslib_strip_begin(table, keys + start, all - start, level, &strips, pslib_strip_at(strip));
        if (find < 0) {
            if (strip < count) pslib_strip_ask(&strips, pslib_strip_at(strip));
            continue;
        }
        noted = pslib_strips_push(table, &map, level, &strips, n, find, noted, gradients, record);
        if (find % PSLIB_STRIPS_NOTED == PSLIB_STRIPS_NOTED - 1) {
            pslib_strips_lay_by(table, 1, &strips, noted);
            noted = 0;
        }
        if (find % PSLIB_STRIPS_NOTED == PSLIB_STRIPS_TO_LATER - 1) {
            const int64_t first = (find - PSLIB_STRIPS_TO_LATER - PSLIB_STRIPS_NOTED + 1) * PSLIB_STRIP;
            int grown = 0;
            n = pslib_strips_later_push(table, &map, level, row_class, record, &strips, first, n, &status, &grown);
            map = pslib_row_map(table, one16, storage, policies);
            for (int64_t begun = find + 1; grown && begun <= strip; begun++)
                pslib_strip_homes(table, &strips, pslib_strip_at(begun));
        }
    }
    *done = n;
    return status;
}

/* Of 16 weights once for each storage type, so that the compiler knows it. */
PSLIB_INLINE int64_t pslib_one16_pull_at(const PslibTable *table, const uint64_t *keys, int64_t n, float *out,
                                         int level)
{
    switch (table->storage) {
    case PSLIB_BFLOAT16: return pslib_strips_pull_body(table, keys, n, 0, out, level, 1, PSLIB_BFLOAT16, 0);
    case PSLIB_FLOAT16: return pslib_strips_pull_body(table, keys, n, 0, out, level, 1, PSLIB_FLOAT16, 0);
    default: return pslib_strips_pull_body(table, keys, n, 0, out, level, 1, PSLIB_FLOAT32, 0);
    }
}

PSLIB_INLINE PslibStatus pslib_one16_push_at(PslibTable *table, const uint64_t *keys, int64_t n,
                                             const float *gradients, const PslibRecord *record, int64_t *done,
                                             int level)
{
    const int wide = PSLIB_WIDE;
    switch (table->storage) {
    case PSLIB_BFLOAT16:
        return pslib_strips_push_body(table, keys, n, gradients, wide, record, done, level, 1, PSLIB_BFLOAT16, 0);
    case PSLIB_FLOAT16:
        return pslib_strips_push_body(table, keys, n, gradients, wide, record, done, level, 1, PSLIB_FLOAT16, 0);
    default:
        return pslib_strips_push_body(table, keys, n, gradients, wide, record, done, level, 1, PSLIB_FLOAT32, 0);
    }
}

/* Of others once for tables without policies, and once for those with narrow rows or, of pushes, with admission. */
PSLIB_INLINE int64_t pslib_plain_pull_at(const PslibTable *table, const uint64_t *keys, int64_t n, float now,
                                         float *out, int level)
{
    return pslib_strips_pull_body(table, keys, n, now, out, level, 0, PSLIB_FLOAT32, 0);
}

PSLIB_INLINE PslibStatus pslib_plain_push_at(PslibTable *table, const uint64_t *keys, int64_t n,
                                             const float *gradients, const PslibRecord *record, int64_t *done,
                                             int level)
{
    return pslib_strips_push_body(table, keys, n, gradients, PSLIB_WIDE, record, done, level, 0, PSLIB_FLOAT32, 0);
}

PSLIB_INLINE int64_t pslib_policies_pull_at(const PslibTable *table, const uint64_t *keys, int64_t n, float now,
                                            float *out, int level)
{
    return pslib_strips_pull_body(table, keys, n, now, out, level, 0, PSLIB_FLOAT32, 1);
}

PSLIB_INLINE PslibStatus pslib_policies_push_at(PslibTable *table, const uint64_t *keys, int64_t n,
                                                const float *gradients, int row_class, const PslibRecord *record,
                                                int64_t *done, int level)
{
    return pslib_strips_push_body(table, keys, n, gradients, row_class, record, done, level, 0, PSLIB_FLOAT32, 1);
}

PSLIB_COPIES(int64_t, pslib_one16_pull, table->level,
             (const PslibTable *table, const uint64_t *keys, int64_t n, float *out), table, keys, n, out)
PSLIB_COPIES(PslibStatus, pslib_one16_push, table->level,
             (PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients, const PslibRecord *record,
              int64_t *done),
             table, keys, n, gradients, record, done)
PSLIB_COPIES(int64_t, pslib_plain_pull, table->level,
             (const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out),
             table, keys, n, now, out)
PSLIB_COPIES(PslibStatus, pslib_plain_push, table->level,
             (PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients, const PslibRecord *record,
              int64_t *done),
             table, keys, n, gradients, record, done)
PSLIB_COPIES(int64_t, pslib_policies_pull, table->level,
             (const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out),
             table, keys, n, now, out)
PSLIB_COPIES(PslibStatus, pslib_policies_push, table->level,
             (PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients, int row_class,
              const PslibRecord *record, int64_t *done),
             table, keys, n, gradients, row_class, record, done)

/* Whether the compiler knows the rows of a table. */
static inline int pslib_is_one16(const PslibTable *table)
{
    return table->part_count == 1 && table->parts[0].dim == 16 && table->storage != PSLIB_INT8 &&
           table->counters == 0 && pslib_optimizer_is_plain(&table->parts[0].optimizer);
}

/* Weights of all parts of n keys at the time `now`; what a key has no row or no wide row for is its first value.
 * out: (n, dim) OUT. Changes nothing in the table. Returns how many keys have no row. */
static inline int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out)
{
    if (table->classes[PSLIB_NARROW].part_count > 0) return pslib_policies_pull(table, keys, n, now, out);
    if (pslib_is_one16(table)) return pslib_one16_pull(table, keys, n, out);
    return pslib_plain_pull(table, keys, n, now, out);
}

/* One optimizer step for each key in order; a key without a row gets one of row_class first or is turned away.
 * gradients: (n, dim). done: OUT, keys that were stepped; on failure the rest has changed nothing. Rows that have
 * proved themselves become wide only in pslib_table_push. */
static inline PslibStatus pslib_push_loops(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                           int row_class, const PslibRecord *record, int64_t *done)
{
    if (table->classes[PSLIB_NARROW].part_count > 0 || table->policies.admission.kind != PSLIB_ADMIT_ALL)
        return pslib_policies_push(table, keys, n, gradients, row_class, record, done);
    if (pslib_is_one16(table)) return pslib_one16_push(table, keys, n, gradients, record, done);
    return pslib_plain_push(table, keys, n, gradients, record, done);
}

#endif
