/* strips.h: the loops that pull and push the rows of a batch, eight keys (a strip) at a time.
 *
 * A look-up follows three addresses, each read from the memory that the one before leads to, and each usually a
 * cache miss: the directory, a line of the index, the row. The misses of many keys have to overlap. The instructions
 * of a key cost as much as the waiting, so they are done for strips of eight keys, the first stage in vector code:
 *
 *     strip s          mix the keys; read the directory    prefetch the home lines
 *     strip s - 2      is the key in its home line?        yes: prefetch the row; no: note it, prefetch the next line
 *                                                          if this one is full; a push prefetches one more
 *     every 2 strips   look up the keys noted 1 to 3 strips ago, prefetch their rows; a push makes rows here
 *     strip s - 6      read or step the rows
 *
 * No stage waits: the keys that are not in their home line (5 to 10 of 100) are looked up when their next line has
 * arrived. Noted keys are looked up, and rows made and stepped, in the order of the keys, which decides row numbers and
 * counts: a key that repeats finds the row made for it before. A key that has no row when its rows stage comes, as one
 * that was turned away (policies.h), has no weights here, and a push does nothing for it.
 *
 * Where a row is one part of 16 weights of 4 or 2 bytes without counters (one16), one cache line or half of one, the
 * compiler knows its length.
 */
#ifndef PSLIB_STRIPS_H
#define PSLIB_STRIPS_H

#include "common/mix.h"
#include "common/vectors.h"
#include "table/policies.h"

enum {
    PSLIB_STRIP = 8,           /* keys */
    PSLIB_STRIPS_TO_FIND = 2,  /* from the prefetch of home lines to their use */
    PSLIB_STRIPS_NOTED = 2,    /* whose noted keys are looked up together */
    PSLIB_STRIPS_TO_LATER = 1, /* from the last of these to that look-up */
    PSLIB_STRIPS_TO_WORK = 1,  /* from there to the rows of the first of them */
    PSLIB_STRIPS_BEHIND = PSLIB_STRIPS_NOTED + PSLIB_STRIPS_TO_LATER + PSLIB_STRIPS_TO_WORK, /* from find to rows */
    PSLIB_STRIP_RING = 64,     /* keys; a power of two above all of these */
    PSLIB_STRIPS_OF_KEYS = 8,  /* from the prefetch of keys to their use */
    PSLIB_ROWS_OF_GRADIENTS = 16
};

/* State of the keys in the pipeline; key i is at place i % PSLIB_STRIP_RING. */
typedef struct {
    uint64_t key[PSLIB_STRIP_RING];
    uint64_t mixed[PSLIB_STRIP_RING];
    const PslibLine *home[PSLIB_STRIP_RING];
    void *weights[PSLIB_STRIP_RING];  /* NULL: no row */
    float *state[PSLIB_STRIP_RING];   /* a push only */
    uint8_t made[PSLIB_STRIP_RING];   /* its row is new and has no floats yet */
    uint8_t of[PSLIB_STRIP_RING];     /* class of its row, with policies */
    uint32_t noted[2][PSLIB_STRIP * PSLIB_STRIPS_NOTED + 1]; /* places of keys that are not in their home line */
    uint32_t *now;   /* the list that is being written */
    uint32_t *later; /* the other one, which is looked up next */
    uint32_t later_count;
} __attribute__((aligned(64))) PslibStrips;

/* Numbers for the address of a row of one class. */
typedef struct {
    uint8_t *const *bases;
    int slab_shift;
    uint32_t inside; /* mask */
    size_t weight_step, state_start, state_step;
    size_t read_bytes, push_bytes; /* to prefetch from the weights on */
    size_t apart_bytes;            /* of a state that is not behind the weights */
} PslibClassMap;

/* The first three are constants for the compiler. */
typedef struct {
    int one16;      /* a row is 16 weights */
    int storage;    /* of these; of other rows that of the table */
    int policies;   /* rows may be narrow; a push may turn keys away */
    int with_state; /* a pull reads the state of a row too */
    int plain;      /* a push is steps alone */
    int64_t dim;    /* of what is pulled and pushed */
    PslibClassMap of[PSLIB_CLASSES]; /* of the wide class alone, without policies */
} PslibRowMap;

static const PslibLine pslib_empty_line __attribute__((aligned(64)));

PSLIB_INLINE PslibClassMap pslib_class_map(const PslibRowClass *shape, int one16, int storage)
{
    const int apart = shape->split && shape->state_floats > 0;
    return (PslibClassMap){.bases = shape->bases,
                           .slab_shift = shape->slab_shift, .inside = (UINT32_C(1) << shape->slab_shift) - 1,
                           .weight_step = one16 ? (storage == PSLIB_FLOAT32 ? 64 : 32) : shape->weight_step,
                           .state_start = shape->state_start, .state_step = shape->state_step,
                           .read_bytes = !shape->split && shape->reads_state ? shape->row_bytes : shape->weight_bytes,
                           .push_bytes = shape->split ? shape->weight_bytes : shape->row_bytes,
                           .apart_bytes = apart ? shape->state_step : 0};
}

/* one16, policies: 0 or 1, and constants, as storage is. */
PSLIB_INLINE PslibRowMap pslib_row_map(const PslibTable *table, int one16, int storage, int policies)
{
    const PslibRowClass *classes = table->classes;
    PslibRowMap map = {.one16 = one16, .storage = storage, .policies = policies,
                       .with_state = !one16 && classes[PSLIB_WIDE].reads_state,
                       .plain = !one16 && pslib_rows_are_plain(table),
                       .dim = one16 ? 16 : classes[PSLIB_WIDE].weight_floats};
    map.of[PSLIB_WIDE] = pslib_class_map(&classes[PSLIB_WIDE], one16, storage);
    if (policies) map.of[PSLIB_NARROW] = pslib_class_map(&classes[PSLIB_NARROW], 0, storage);
    return map;
}

/* Prefetch a line of an array that is read from its start to its end, `count` steps before its use; past the end it is
 * any line, which does no harm. The processor's own prefetcher follows an array among the random lines of the table or
 * loses it, as the address of the load falls in the binary: the same loop pulled 37 and 23 million absent keys/s. */
PSLIB_INLINE void pslib_prefetch_ahead(const void *now, size_t step, int count)
{
    PSLIB_PREFETCH_NEAR((const void *)((uintptr_t)now + step * (size_t)count));
}

/* --- strip s: keys, mixed keys, home lines */

#if PSLIB_HAS_LEVELS
/* Return the home lines of eight mixed keys; that of a partition without an index is empty. */
PSLIB_FOR_AVX512 static inline __m512i pslib_homes_avx512(const PslibTable *table, __m512i mixed)
{
    const __m512i number = _mm512_srl_epi64(mixed, _mm_cvtsi32_si128(64 - table->partition_bits));
    const __m512i entry = _mm512_add_epi64(number, number); /* in units of 8 bytes */
    const __m512i lines = _mm512_i64gather_epi64(entry, (const void *)table->partitions, 8);
    const __m512i counts = _mm512_i64gather_epi64(entry, (const void *)&table->partitions[0].line_count, 8);
    const __m512i home = _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(mixed, 8), counts), 32);
    const __m512i none = _mm512_set1_epi64((long long)(uintptr_t)&pslib_empty_line);
    const __m512i address = _mm512_add_epi64(lines, _mm512_slli_epi64(home, 6));
    return _mm512_mask_mov_epi64(address, _mm512_testn_epi64_mask(lines, lines), none);
}

/* All in vectors: eight words stored one by one cannot be read as a vector before they have left the store buffer. */
PSLIB_FOR_AVX512 static inline void pslib_strip_keys_avx512(const PslibTable *table, const uint64_t *keys,
                                                            int64_t count, PslibStrips *strips, uint32_t at)
{
    const __mmask8 there = count >= PSLIB_STRIP ? 0xFF : (__mmask8)((1u << count) - 1);
    const __m512i some = _mm512_maskz_loadu_epi64(there, keys);
    const __m512i mixed = pslib_mix64_avx512(some);
    _mm512_store_si512((void *)(strips->key + at), some);
    _mm512_store_si512((void *)(strips->mixed + at), mixed);
    _mm512_store_si512((void *)(strips->home + at), pslib_homes_avx512(table, mixed));
}
#endif

/* Compute the home lines of a strip. */
PSLIB_INLINE void pslib_strip_homes(const PslibTable *table, PslibStrips *strips, uint32_t at)
{
    for (int j = 0; j < PSLIB_STRIP; j++) {
        const PslibPartition *partition = pslib_table_partition(table, strips->mixed[at + j]);
        const PslibLine *lines = partition->lines == NULL ? &pslib_empty_line : partition->lines;
        strips->home[at + j] = lines + pslib_home_line(strips->mixed[at + j], partition->line_count);
    }
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX2 static inline void pslib_strip_mix_avx2(const uint64_t *keys, PslibStrips *strips, uint32_t at)
{
    for (int j = 0; j < PSLIB_STRIP; j += 4) {
        const __m256i some = _mm256_loadu_si256((const __m256i *)(const void *)(keys + j));
        _mm256_store_si256((__m256i *)(void *)(strips->key + at + j), some);
        _mm256_store_si256((__m256i *)(void *)(strips->mixed + at + j), pslib_mix64_avx2(some));
    }
}
#endif

PSLIB_INLINE void pslib_strip_keys(const PslibTable *table, const uint64_t *keys, int64_t count, int level,
                                   PslibStrips *strips, uint32_t at)
{
    uint64_t last[PSLIB_STRIP] = {0};
    if (count < PSLIB_STRIP) keys = memcpy(last, keys, sizeof *keys * (size_t)count);
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX2) pslib_strip_mix_avx2(keys, strips, at);
    else
#endif
        for (int j = 0; j < PSLIB_STRIP; j++) {
            strips->key[at + j] = keys[j];
            strips->mixed[at + j] = pslib_mix64(keys[j]);
        }
    (void)level;
    pslib_strip_homes(table, strips, at);
}

/* First stage of a strip of min(count, PSLIB_STRIP) keys. A last strip is filled with key 0, whose look-up is not
 * used. */
PSLIB_INLINE void pslib_strip_begin(const PslibTable *table, const uint64_t *keys, int64_t count, int level,
                                    PslibStrips *strips, uint32_t at)
{
    pslib_prefetch_ahead(keys, sizeof *keys * PSLIB_STRIP, PSLIB_STRIPS_OF_KEYS);
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) pslib_strip_keys_avx512(table, keys, count, strips, at);
    else
#endif
        pslib_strip_keys(table, keys, count, level, strips, at);
}

/* Prefetch the home lines of a strip after its first stage. */
PSLIB_INLINE void pslib_strip_prefetch_homes(const PslibStrips *strips, uint32_t at)
{
    for (int j = 0; j < PSLIB_STRIP; j++) PSLIB_PREFETCH(strips->home[at + j]);
}

/* --- strip s - 2: one key, in its home line or noted */

/* Return the class of the row of a key in the pipeline. */
PSLIB_INLINE int pslib_strip_class(const PslibRowMap *map, const PslibStrips *strips, uint32_t at)
{
    return map->policies ? strips->of[at] : PSLIB_WIDE;
}

/* Return the address of the row of a place, and set its class. state: OUT, or NULL. */
PSLIB_INLINE void *pslib_strip_row(const PslibRowMap *map, uint32_t place, PslibStrips *strips, uint32_t at,
                                   float **state)
{
    const uint32_t id = place - 1;
    if (map->policies) strips->of[at] = (uint8_t)(id >> PSLIB_ROW_BITS);
    const PslibClassMap *of = &map->of[map->policies ? id >> PSLIB_ROW_BITS : PSLIB_WIDE];
    const uint32_t row = map->policies ? id & (PSLIB_ROW_IDS - 1) : id;
    uint8_t *base = of->bases[row >> of->slab_shift];
    const size_t inside = row & of->inside;
    if (state != NULL) *state = (float *)(void *)(base + of->state_start + inside * of->state_step);
    return (void *)(base + inside * of->weight_step);
}

/* Prefetch the state of a row for a push; that of 16 weights may be longer than a line. */
PSLIB_INLINE void pslib_strip_prefetch_state(const PslibRowMap *map, const PslibStrips *strips, uint32_t at)
{
    const size_t bytes = map->of[PSLIB_WIDE].state_step;
    PSLIB_PREFETCH(strips->state[at]);
    if (map->one16 && bytes > sizeof(float)) pslib_prefetch_bytes(strips->state[at], bytes);
}

/* Prefetch the parts of a row that will be read or stepped. */
PSLIB_INLINE void pslib_strip_prefetch_row(const PslibRowMap *map, int for_push, const PslibStrips *strips, uint32_t at)
{
    const void *weights = strips->weights[at];
    if (map->one16) {
        PSLIB_PREFETCH(weights);
        if (for_push) pslib_strip_prefetch_state(map, strips, at);
        return;
    }
    const PslibClassMap *of = &map->of[pslib_strip_class(map, strips, at)];
    const size_t bytes = for_push ? of->push_bytes : of->read_bytes;
    if (bytes > PSLIB_CACHE_LINE) pslib_prefetch_bytes(weights, bytes);
    else {
        PSLIB_PREFETCH(weights); /* mostly one line, but a test costs more than a second prefetch */
        PSLIB_PREFETCH((const uint8_t *)weights + bytes - 1);
    }
    if ((for_push || map->with_state) && of->apart_bytes > 0) pslib_prefetch_bytes(strips->state[at], of->apart_bytes);
}

/* Return the place of the row of a key in its home line; 0: none there. Where most keys of a batch have one, or most
 * have none, the branches are predicted and the next key starts early: look-ups take 0.92 to 0.96 of the time of
 * branch-free code (AMD Zen 4), and no more than that where half of the keys are absent. */
PSLIB_INLINE uint32_t pslib_strip_place(const PslibRowMap *map, int level, int for_push, const PslibLine *line,
                                        uint64_t key)
{
    const uint32_t mask = pslib_line_same_at(level, line, key);
    if (__builtin_expect(mask == 0, 0)) return 0;
    const uint32_t place = line->place[pslib_lowest_cell(mask)];
    return (for_push && !map->policies) || place < PSLIB_COUNTED ? place : 0; /* a counted key has no row */
}

/* Look up one key in its home line, or note it. Returns the number of noted keys. next: OUT, address to prefetch: the
 * row or the next line; a push prefetches the state too. */
PSLIB_INLINE uint32_t pslib_strip_find(const PslibRowMap *map, int level, int for_push, PslibStrips *strips,
                                       uint32_t at, uint32_t noted, const void **next)
{
    const PslibLine *line = strips->home[at];
    const uint32_t place = pslib_strip_place(map, level, for_push, line, strips->key[at]);
    const int with_state = for_push || map->with_state;
    if (for_push) strips->made[at] = 0;
    if (__builtin_expect(place != 0, 1)) {
        float *state;
        *next = strips->weights[at] = pslib_strip_row(map, place, strips, at, with_state ? &state : NULL);
        if (with_state) strips->state[at] = state;
        return noted;
    }
    const int full = line->place[PSLIB_CELLS - 1] != 0;
    *next = line + full;
    strips->weights[at] = NULL;
    if (map->policies) strips->of[at] = PSLIB_WIDE;
    if (with_state) strips->state[at] = (float *)(uintptr_t)(line + 2 * full); /* one new key in ten passes it too */
    strips->now[noted] = at;
    return noted + 1;
}

/* Prefetch for one key: `next`, or all lines of its row where a row has more than one. */
PSLIB_INLINE void pslib_strip_prefetch(const PslibRowMap *map, int for_push, const PslibStrips *strips, uint32_t at,
                                       const void *next)
{
    if (!map->one16 && strips->weights[at] != NULL) {
        pslib_strip_prefetch_row(map, for_push, strips, at);
        return;
    }
    PSLIB_PREFETCH(next);
    if (for_push) pslib_strip_prefetch_state(map, strips, at);
}

/* --- strip s - 6: the rows */

PSLIB_INLINE void pslib_first_row_at(const PslibTable *table, int first_part, uint64_t key, float *out, int level)
{
    pslib_first_parts(table, level, first_part, key, out);
}

PSLIB_COPIES(void, pslib_first_row, table->level, (const PslibTable *table, int first_part, uint64_t key, float *out),
             table, first_part, key, out)

PSLIB_INLINE int64_t pslib_strip_pull(const PslibTable *table, const PslibRowMap *map, int level,
                                      const PslibStrips *strips, uint32_t at, float now, float *out)
{
    const void *weights = strips->weights[at];
    if (__builtin_expect(weights == NULL, 0)) {
        pslib_first_row(table, 0, strips->key[at], out);
        return 1;
    }
    const PslibRowClass *shape = &table->classes[pslib_strip_class(map, strips, at)];
    if (map->one16) pslib_load_at(level, map->storage, 16, weights, 0, out);
    else pslib_row_pull(table, shape, level, weights, map->with_state ? strips->state[at] : NULL, now, out);
    if (map->policies && shape->part_count < table->part_count)
        pslib_first_row(table, shape->part_count, strips->key[at], out + shape->weight_floats);
    return 0;
}

/* Not inlined: it is long, and inlined into all loops it would take a minute to compile. */
PSLIB_INLINE void pslib_strip_push_row_at(PslibTable *table, const PslibRowClass *shape, uint64_t key, int made,
                                          void *weights, float *state, const float *gradient,
                                          const PslibRecord *record, int64_t i, int level)
{
    pslib_row_push(table, shape, level, key, made, weights, state, gradient, record, i);
}

PSLIB_COPIES(void, pslib_strip_push_row, table->level,
             (PslibTable *table, const PslibRowClass *shape, uint64_t key, int made, void *weights, float *state,
              const float *gradient, const PslibRecord *record, int64_t i),
             table, shape, key, made, weights, state, gradient, record, i)

/* Step the row of one key. i: place of the key in the record. */
PSLIB_INLINE void pslib_strip_push(PslibTable *table, const PslibRowMap *map, int level, const PslibStrips *strips,
                                   uint32_t at, const float *gradient, const PslibRecord *record, int64_t i)
{
    const PslibRowClass *shape = &table->classes[pslib_strip_class(map, strips, at)];
    const uint64_t key = strips->key[at];
    const int made = strips->made[at];
    void *weights = strips->weights[at];
    float *state = strips->state[at];
    if (map->policies && weights == NULL) return; /* turned away */
    if (map->one16)
        pslib_row_push_one16(table, map->storage, level, key, made, weights, state, gradient, record);
    else if (map->policies)
        pslib_strip_push_row(table, shape, key, made, weights, state, gradient, record, i);
    else if (map->plain)
        pslib_row_push_plain(table, level, key, made, weights, state, gradient);
    else
        pslib_row_push(table, shape, level, key, made, weights, state, gradient, record, i);
    if (map->policies && shape->part_count < table->part_count) pslib_note_due(table, key, state);
}

PSLIB_INLINE void pslib_strips_open(PslibStrips *strips)
{
    strips->now = strips->noted[0];
    strips->later = strips->noted[1];
    strips->later_count = 0;
}

/* --- every two strips: keys that were not found in their home line
 *
 * Swap the lists; `noted` keys will be looked up. A push prefetches the arenas of their partitions, for new rows. */
PSLIB_INLINE void pslib_strips_lay_by(const PslibTable *table, int for_push, PslibStrips *strips, uint32_t noted)
{
    for (uint32_t q = 0; for_push && q < noted; q++)
        PSLIB_PREFETCH(pslib_table_arenas(table, strips->mixed[strips->now[q]]));
    uint32_t *list = strips->now;
    strips->now = strips->later;
    strips->later = list;
    strips->later_count = noted;
}

PSLIB_INLINE void pslib_strips_later_pull(const PslibTable *table, const PslibRowMap *map, int level,
                                          PslibStrips *strips)
{
    for (uint32_t q = 0; q < strips->later_count; q++) {
        const uint32_t at = strips->later[q];
        if (strips->home[at]->passed == 0 && strips->key[at] != 0) continue;
        const uint64_t mixed = strips->mixed[at];
        const PslibPartition *partition = pslib_table_partition(table, mixed);
        const uint32_t place = pslib_partition_find_at(level, partition, strips->key[at], mixed).place;
        if (place == 0) continue;
        strips->weights[at] = pslib_strip_row(map, place, strips, at, map->with_state ? &strips->state[at] : NULL);
        pslib_strip_prefetch_row(map, 0, strips, at);
    }
    strips->later_count = 0;
}

/* Find the row of one key, key i of the record, or make one of row_class, unless the key is turned away. known: IN, the
 * map so far. grown: INOUT, set to 1 where its partition has a new index. */
PSLIB_INLINE PslibStatus pslib_strip_make(PslibTable *table, const PslibRowMap *known, int level, int row_class,
                                          const PslibRecord *record, int64_t i, PslibStrips *strips, uint32_t at,
                                          int *grown)
{
    const uint64_t key = strips->key[at], mixed = strips->mixed[at];
    PslibPartition *partition = pslib_table_partition(table, mixed);
    const PslibLine *lines = partition->lines;
    PslibFound found = {0, 0, 0, 0};
    PslibStatus status = PSLIB_OK;
    if (!known->policies || table->policies.admission.kind == PSLIB_ADMIT_ALL) {
        status = pslib_partition_find_or_add(level, partition, pslib_table_arenas(table, mixed), table->classes, key,
                                             mixed, row_class, &found.place, &strips->made[at]);
    } else {
        found = pslib_partition_find_at(level, partition, key, mixed);
        const int absent = found.place == 0;
        if (absent)
            status = pslib_admit(table, key, mixed, record->shows == NULL ? 1.0f : record->shows[i], record->salt,
                                 row_class, &found);
        strips->made[at] = absent && found.place != 0;
    }
    *grown |= partition->lines != lines;
    if (status != PSLIB_OK || found.place == 0) return status;
    table->rows[row_class] += strips->made[at];
    const PslibRowMap map = pslib_row_map(table, known->one16, known->storage, known->policies); /* new slabs */
    strips->weights[at] = pslib_strip_row(&map, found.place, strips, at, &strips->state[at]);
    pslib_strip_prefetch_row(&map, 1, strips, at);
    return PSLIB_OK;
}

/* Find or make the rows of all noted keys, in their order; key number `first` is the first that may be among them.
 * Returns the number of the n keys that can be stepped: all, unless status is an error. */
PSLIB_INLINE int64_t pslib_strips_later_push(PslibTable *table, const PslibRowMap *map, int level, int row_class,
                                             const PslibRecord *record, PslibStrips *strips, int64_t first, int64_t n,
                                             PslibStatus *status, int *grown)
{
    for (uint32_t q = 0; q < strips->later_count; q++) {
        const uint32_t at = strips->later[q];
        const int64_t i = first + ((at - (uint32_t)first) & (PSLIB_STRIP_RING - 1));
        if (i >= n) break;
        const PslibStatus made = pslib_strip_make(table, map, level, row_class, record, i, strips, at, grown);
        if (made != PSLIB_OK) {
            *status = made;
            n = i;
        }
    }
    strips->later_count = 0;
    return n;
}

PSLIB_INLINE uint32_t pslib_strip_at(int64_t strip)
{
    return (uint32_t)(strip * PSLIB_STRIP) % PSLIB_STRIP_RING;
}

/* Return the number of keys of strip `strip` among the first n. */
PSLIB_INLINE uint32_t pslib_strip_keys_of(int64_t strip, int64_t n)
{
    const int64_t left = n - strip * PSLIB_STRIP;
    return strip < 0 || left <= 0 ? 0 : left < PSLIB_STRIP ? (uint32_t)left : PSLIB_STRIP;
}

/* The three strips that are processed together: their places in the ring and their numbers of keys. */
typedef struct {
    uint32_t begun_at, begun; /* prefetch its home lines */
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

/* For key j of these strips: prefetch a home line; find a row and prefetch it. Returns the number of noted keys. */
PSLIB_INLINE uint32_t pslib_strip_find_one(const PslibRowMap *map, int level, int for_push, PslibStrips *strips,
                                           PslibStripTurn turn, uint32_t j, uint32_t noted)
{
    const void *next;
    PSLIB_PREFETCH(strips->home[turn.begun_at + j]);
    noted = pslib_strip_find(map, level, for_push, strips, turn.find_at + j, noted, &next);
    pslib_strip_prefetch(map, for_push, strips, turn.find_at + j, next);
    return noted;
}

/* Prefetch the home lines of one strip, find the rows of another and prefetch these. Returns the number of noted keys.
 *
 * A prefetch retires when its address is translated, which is slow where the address cache (TLB) misses, and the
 * instructions after it fill the reorder buffer meanwhile. So there are few instructions between two prefetches: not
 * the steps of rows (with them an update takes 1.1 of the time for 16 floats, 1.2 to 1.5 for others; AMD Zen 4,
 * AVX-512 and AVX2). With AVX-512 finding a key and copying its row are few enough: a look-up goes key by key through
 * all three strips, and takes 1.05 to 1.1 of the time otherwise. Without, the prefetches of a strip are issued
 * together (AMD Zen 3).
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
    if (turn.begun > 0) pslib_strip_prefetch_homes(strips, turn.begun_at);
    for (uint32_t j = 0; j < finds; j++)
        noted = pslib_strip_find(map, level, for_push, strips, at + j, noted, &next[j]);
    for (uint32_t j = 0; j < finds; j++) pslib_strip_prefetch(map, for_push, strips, at + j, next[j]);
    return noted;
}

/* Read the rows of one strip, find those of another and prefetch the home lines of a third. absent: INOUT, number of
 * keys without a row. Returns the number of noted keys. */
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
            if (strip < count) pslib_strip_prefetch_homes(&strips, pslib_strip_at(strip));
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

/* As pslib_strips_pull, for a push: steps rows. */
PSLIB_INLINE uint32_t pslib_strips_push(PslibTable *table, const PslibRowMap *map, int level,
                                        PslibStrips *strips, int64_t n, int64_t find, uint32_t noted,
                                        const float *gradients, const PslibRecord *record)
{
    const PslibStripTurn turn = pslib_strip_turn(find, n);
    const int64_t first = (find - PSLIB_STRIPS_BEHIND) * PSLIB_STRIP;
    const float *from = gradients + first * map->dim;
    noted = pslib_strip_find_all(map, level, 1, strips, turn, noted);
    for (uint32_t j = 0; map->one16 && j < turn.works; j++) /* a row is a line */
        pslib_prefetch_ahead(from + 16 * j, PSLIB_CACHE_LINE, PSLIB_ROWS_OF_GRADIENTS);
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
            if (strip < count) pslib_strip_prefetch_homes(&strips, pslib_strip_at(strip));
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

/* Compiled for 16 weights once for each storage type, as a constant. */
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

/* Compiled for other rows once without policies, and once with narrow rows or, for pushes, admission. */
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

/* Return 1 if the rows of a table are 16 weights without counters, for which there are own loops. */
static inline int pslib_is_one16(const PslibTable *table)
{
    return table->part_count == 1 && table->parts[0].dim == 16 && table->storage != PSLIB_INT8 &&
           table->counters == 0 && pslib_optimizer_is_plain(&table->parts[0].optimizer);
}

/* Read the weights of all parts of n keys at the time `now`; initial values where a key has no row or no wide row.
 * out: OUT, (n, dim). Changes nothing in the table. Returns the number of keys without a row. */
static inline int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out)
{
    if (table->classes[PSLIB_NARROW].part_count > 0) return pslib_policies_pull(table, keys, n, now, out);
    if (pslib_is_one16(table)) return pslib_one16_pull(table, keys, n, out);
    return pslib_plain_pull(table, keys, n, now, out);
}

/* Take one optimizer step for each key in order; a key without a row gets one of row_class first or is turned away.
 * gradients: IN, (n, dim). done: OUT, keys that were stepped; on failure the rest has changed nothing. Rows that are
 * due for promotion become wide in pslib_table_push. */
static inline PslibStatus pslib_push_loops(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                           int row_class, const PslibRecord *record, int64_t *done)
{
    if (table->classes[PSLIB_NARROW].part_count > 0 || table->policies.admission.kind != PSLIB_ADMIT_ALL)
        return pslib_policies_push(table, keys, n, gradients, row_class, record, done);
    if (pslib_is_one16(table)) return pslib_one16_push(table, keys, n, gradients, record, done);
    return pslib_plain_push(table, keys, n, gradients, record, done);
}

#endif
