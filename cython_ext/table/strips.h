/* strips.h: the stages of reading and stepping the rows of a batch. Where a row is one part of 16 weights of 4 or
 * 2 bytes without counters (one16), one cache line or half of one, the compiler knows it.
 *
 * A look-up follows three addresses, each read from the memory that the one before leads to, and each usually a
 * cache miss: the directory, a line of the index, the row. The misses of many keys have to overlap. The work of a
 * key that does not wait for memory is as dear as the waiting, so it is done for strips of eight keys, of which the
 * first stage is vector code:
 *
 *     strip s          mix the keys; read the directory    prefetch the home lines
 *     strip s - 2      is the key in its home line?        yes: prefetch the row; no: note it, prefetch the line
 *                                                          behind it, if it is full; a push the next one too
 *     every 2 strips   look up those that were noted 1 to 3 strips ago, prefetch their rows; a push makes rows here
 *                      (strip_notes.h)
 *     strip s - 6      work on the rows
 *
 * Nothing waits on the spot: the keys that are not in their home line (5 to 10 of 100) are looked up when their
 * next line has come. They are looked up for good, and rows made and stepped, in the order of the keys: a key
 * that repeats finds the row made for it before. A key that has no row when its turn comes, as one that was turned
 * away (admission.h), has no weights here, and a push does nothing for it.
 */
#ifndef PSLIB_STRIPS_H
#define PSLIB_STRIPS_H

#include "common/mix_vectors.h"
#include "common/prefetch.h"
#include "table/promotion.h"
#include "table/row_io.h"
#include "common/vectors.h"

enum {
    PSLIB_STRIP = 8,           /* keys */
    PSLIB_STRIPS_TO_FIND = 2,  /* from the home lines' prefetch to their reading */
    PSLIB_STRIPS_NOTED = 2,    /* whose notes are worked on together */
    PSLIB_STRIPS_TO_LATER = 1, /* from the last of these to that work */
    PSLIB_STRIPS_TO_WORK = 1,  /* from there to the rows of the first of them */
    PSLIB_STRIPS_BEHIND = PSLIB_STRIPS_NOTED + PSLIB_STRIPS_TO_LATER + PSLIB_STRIPS_TO_WORK, /* from find to rows */
    PSLIB_STRIP_RING = 64      /* keys; a power of two above all of these */
};

/* What is known of the keys under way; key i stands at i % PSLIB_STRIP_RING. */
typedef struct {
    uint64_t key[PSLIB_STRIP_RING];
    uint64_t mixed[PSLIB_STRIP_RING];
    const PslibLine *home[PSLIB_STRIP_RING];
    void *weights[PSLIB_STRIP_RING];  /* NULL: no row */
    float *state[PSLIB_STRIP_RING];   /* a push only */
    uint8_t made[PSLIB_STRIP_RING];   /* its row is new and has no floats yet */
    uint8_t of[PSLIB_STRIP_RING];     /* class of its row, with policies */
    uint32_t noted[2][PSLIB_STRIP * PSLIB_STRIPS_NOTED + 1]; /* where keys stand that are not in their home line */
    uint32_t *now;   /* that of the two lists which is being written */
    uint32_t *later; /* the other one, which is worked on next */
    uint32_t later_count;
} __attribute__((aligned(64))) PslibStrips;

/* What the address of a row of one class is made of. */
typedef struct {
    uint8_t *const *bases;
    int slab_shift;
    uint32_t inside; /* mask */
    size_t weight_step, state_start, state_step;
    size_t read_bytes, push_bytes; /* to prefetch from the weights on */
    size_t apart_bytes;            /* of a state that stands elsewhere */
} PslibClassMap;

/* The compiler knows the first three. */
typedef struct {
    int one16;      /* a row is 16 weights */
    int storage;    /* of these; of other rows the table says it */
    int policies;   /* rows may be narrow; a push may turn keys away */
    int with_state; /* a pull reads the state of a row too */
    int plain;      /* a push has nothing to do but steps */
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

/* one16 and policies: of 0 and 1, and constants, as storage is. */
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

/* --- strip s: keys, mixed keys, home lines */

#if PSLIB_HAS_LEVELS
/* The home lines of eight mixed keys; a partition without an index has an empty one. */
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

/* In vectors to the end: eight words stored one by one could not be read as a vector before they have left the
 * processor's store buffer. */
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

/* The home lines of a strip. */
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

/* The first stage of a strip of `count` keys or, if fewer, PSLIB_STRIP. Behind the last key of all, key 0 is looked
 * up for nothing. */
PSLIB_INLINE void pslib_strip_begin(const PslibTable *table, const uint64_t *keys, int64_t count, int level,
                                    PslibStrips *strips, uint32_t at)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) pslib_strip_keys_avx512(table, keys, count, strips, at);
    else
#endif
        pslib_strip_keys(table, keys, count, level, strips, at);
}

/* Ask for the home lines of a strip that has begun. */
PSLIB_INLINE void pslib_strip_ask(const PslibStrips *strips, uint32_t at)
{
    for (int j = 0; j < PSLIB_STRIP; j++) PSLIB_PREFETCH(strips->home[at + j]);
}

/* --- strip s - 2: one key, in its home line or noted */

/* The class of the row of a key under way. */
PSLIB_INLINE int pslib_strip_class(const PslibRowMap *map, const PslibStrips *strips, uint32_t at)
{
    return map->policies ? strips->of[at] : PSLIB_WIDE;
}

/* Where the row of a place lies, and its class. state: OUT, where it is wanted. */
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

/* The state of a row, which a push steps too; that of 16 weights may go on after its first line. */
PSLIB_INLINE void pslib_strip_prefetch_state(const PslibRowMap *map, const PslibStrips *strips, uint32_t at)
{
    const size_t bytes = map->of[PSLIB_WIDE].state_step;
    PSLIB_PREFETCH(strips->state[at]);
    if (map->one16 && bytes > sizeof(float)) pslib_prefetch_bytes(strips->state[at], bytes);
}

/* A row that a key has: all that will be read of it, or stepped. */
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
        PSLIB_PREFETCH(weights); /* mostly one line, and what asks whether is dearer than the second prefetch */
        PSLIB_PREFETCH((const uint8_t *)weights + bytes - 1);
    }
    if ((for_push || map->with_state) && of->apart_bytes > 0) pslib_prefetch_bytes(strips->state[at], of->apart_bytes);
}

/* The place of the row of a key in its home line; 0: it has none there. Where most keys of a batch have one, or most
 * have none, the processor guesses the branches and goes on with the next key: look-ups take 0.92 to 0.96 of the time
 * that they take without branches (AMD Zen 4), and no more where half of the keys are absent. */
PSLIB_INLINE uint32_t pslib_strip_place(const PslibRowMap *map, int level, int for_push, const PslibLine *line,
                                        uint64_t key)
{
    const uint32_t mask = pslib_line_same_at(level, line, key);
    if (__builtin_expect(mask == 0, 0)) return 0;
    const uint32_t place = line->place[pslib_lowest_cell(mask)];
    return (for_push && !map->policies) || place < PSLIB_COUNTED ? place : 0; /* a counted key has no row */
}

/* Returns how many keys are noted then. next: OUT, what is to be prefetched, the row or the line behind; for a push
 * also the state. */
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
    if (with_state) strips->state[at] = (float *)(uintptr_t)(line + 2 * full); /* one new key in ten goes by it too */
    strips->now[noted] = at;
    return noted + 1;
}

/* Of a row of one line whatever is next; where there are more lines, a key without a row wants few of them. */
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

/* Apart: what is long, and compiled into the loops once more, would take a minute to compile. */
PSLIB_INLINE void pslib_strip_push_row_at(const PslibTable *table, const PslibRowClass *shape, uint64_t key, int made,
                                          void *weights, float *state, const float *gradient,
                                          const PslibRecord *record, int64_t i, int level)
{
    pslib_row_push(table, shape, level, key, made, weights, state, gradient, record, i);
}

PSLIB_COPIES(void, pslib_strip_push_row, table->level,
             (const PslibTable *table, const PslibRowClass *shape, uint64_t key, int made, void *weights, float *state,
              const float *gradient, const PslibRecord *record, int64_t i),
             table, shape, key, made, weights, state, gradient, record, i)

/* i: place of the key in the record. */
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
    if (map->policies && shape->part_count < table->part_count) pslib_note_proof(table, key, state);
}

#endif
