/* arena.h: where the rows of one class in one partition lie.
 *
 * A row is  [key u64][weights float32 ...][state float32 ...]  rounded up to 8 bytes: a row can't be
 * saved, moved or restored without its state. Rows have numbers 0, 1, 2, ... and lie in chunks:
 *
 *     the first chunk grows 4, 8, 16, ... up to chunk_rows rows (most partitions of a young table are small)
 *     every later chunk has chunk_rows rows and never moves
 *
 * Erased numbers form a list through their rows (the first 4 bytes of an erased row hold the number + 1 of
 * the next) and are used again before new ones. When most rows have gone, pslib_arena_slide moves those
 * that are left to 0, 1, 2, ... in their order and gives the other chunks back.
 */
#ifndef PSLIB_ARENA_H
#define PSLIB_ARENA_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "index_line.h"

enum {
    PSLIB_CACHE_LINE = 64,
    PSLIB_KEY_BYTES = 8,
    PSLIB_FIRST_ROWS = 4,
    PSLIB_CHUNK_SHIFT_MAX = 8, /* chunks of 256 rows: half a chunk is lost a partition, on average */
    PSLIB_CHUNK_SHIFT_MIN = 4
};
#define PSLIB_CHUNK_BYTES_AIM ((size_t)1 << 20) /* rows so long that 256 pass this lie in smaller chunks */

typedef enum {
    PSLIB_OK = 0,
    PSLIB_NO_MEMORY = 1,      /* nothing changed */
    PSLIB_PARTITION_FULL = 2, /* PSLIB_ROWS_MAX rows of one class: nothing changed */
    PSLIB_BROKEN = 3          /* a consistency check failed */
} PslibStatus;

/* The shape of all rows of one class: the first part_count parts of the table. */
typedef struct {
    int part_count;
    int chunk_shift; /* chunk_rows = 1 << chunk_shift */
    int64_t weight_floats;
    int64_t state_floats;
    size_t row_bytes;
} PslibRowClass;

typedef struct {
    uint8_t **chunks;    /* NULL while capacity is 0 */
    uint32_t next;       /* numbers below it have been given out */
    uint32_t capacity;   /* rows that fit in the chunks there are */
    uint32_t live;       /* rows that are not erased */
    uint32_t free_head;  /* the number erased last, + 1; 0 = none */
} PslibArena;

static inline PslibRowClass pslib_row_class(int part_count, int64_t weight_floats, int64_t state_floats)
{
    const size_t payload = PSLIB_KEY_BYTES + sizeof(float) * (size_t)(weight_floats + state_floats);
    PslibRowClass shape = {part_count, PSLIB_CHUNK_SHIFT_MAX, weight_floats, state_floats, (payload + 7) & ~(size_t)7};
    while (shape.chunk_shift > PSLIB_CHUNK_SHIFT_MIN &&
           (shape.row_bytes << shape.chunk_shift) > PSLIB_CHUNK_BYTES_AIM)
        shape.chunk_shift--;
    return shape;
}

/* Memory that starts at a cache line; bytes are rounded up to whole lines. NULL when there is none. */
static inline void *pslib_aligned_memory(size_t bytes)
{
    void *memory = NULL;
    bytes = (bytes + PSLIB_CACHE_LINE - 1) & ~(size_t)(PSLIB_CACHE_LINE - 1);
    return posix_memalign(&memory, PSLIB_CACHE_LINE, bytes) == 0 ? memory : NULL;
}

static inline uint8_t *pslib_arena_row(const PslibArena *arena, const PslibRowClass *shape, uint32_t number)
{
    const uint32_t inside = number & ((UINT32_C(1) << shape->chunk_shift) - 1);
    return arena->chunks[number >> shape->chunk_shift] + (size_t)inside * shape->row_bytes;
}

static inline uint64_t pslib_row_key(const uint8_t *row)
{
    uint64_t key;
    memcpy(&key, row, sizeof key);
    return key;
}

static inline float *pslib_row_weights(uint8_t *row)
{
    return (float *)(void *)(row + PSLIB_KEY_BYTES);
}

static inline float *pslib_row_state(uint8_t *row, const PslibRowClass *shape)
{
    return pslib_row_weights(row) + shape->weight_floats;
}

static inline uint32_t pslib_arena_chunks(const PslibArena *arena, const PslibRowClass *shape)
{
    return (uint32_t)(((uint64_t)arena->capacity + (UINT32_C(1) << shape->chunk_shift) - 1) >> shape->chunk_shift);
}

/* The length of the list of chunks is not stored: it is the power of two at or above their count. */
static inline uint32_t pslib_power_of_two_from(uint32_t count)
{
    uint32_t power = 1;
    while (power < count) power *= 2;
    return power;
}

static inline size_t pslib_arena_bytes(const PslibArena *arena, const PslibRowClass *shape)
{
    if (arena->capacity == 0) return 0;
    return (size_t)arena->capacity * shape->row_bytes +
           sizeof(uint8_t *) * pslib_power_of_two_from(pslib_arena_chunks(arena, shape));
}

/* Move the first chunk to one of `rows` rows; the rows below `kept` keep their bytes. */
static inline PslibStatus pslib_arena_move_first(PslibArena *arena, const PslibRowClass *shape, uint32_t rows,
                                                 uint32_t kept)
{
    uint8_t *chunk = pslib_aligned_memory((size_t)rows * shape->row_bytes);
    if (chunk == NULL) return PSLIB_NO_MEMORY;
    if (kept > 0) memcpy(chunk, arena->chunks[0], (size_t)kept * shape->row_bytes);
    free(arena->chunks[0]);
    arena->chunks[0] = chunk;
    arena->capacity = rows;
    return PSLIB_OK;
}

static inline PslibStatus pslib_arena_begin(PslibArena *arena, const PslibRowClass *shape)
{
    uint8_t **chunks = calloc(1, sizeof *chunks);
    if (chunks == NULL) return PSLIB_NO_MEMORY;
    arena->chunks = chunks;
    if (pslib_arena_move_first(arena, shape, PSLIB_FIRST_ROWS, 0) == PSLIB_OK) return PSLIB_OK;
    free(chunks);
    arena->chunks = NULL;
    return PSLIB_NO_MEMORY;
}

static inline PslibStatus pslib_arena_add_chunk(PslibArena *arena, const PslibRowClass *shape)
{
    const uint32_t count = pslib_arena_chunks(arena, shape);
    if (pslib_power_of_two_from(count) == count) {
        uint8_t **longer = realloc(arena->chunks, 2 * (size_t)count * sizeof *longer);
        if (longer == NULL) return PSLIB_NO_MEMORY;
        arena->chunks = longer;
    }
    uint8_t *chunk = pslib_aligned_memory(shape->row_bytes << shape->chunk_shift);
    if (chunk == NULL) return PSLIB_NO_MEMORY;
    arena->chunks[count] = chunk;
    arena->capacity += UINT32_C(1) << shape->chunk_shift;
    return PSLIB_OK;
}

static inline PslibStatus pslib_arena_grow(PslibArena *arena, const PslibRowClass *shape)
{
    if (arena->capacity >= PSLIB_ROWS_MAX) return PSLIB_PARTITION_FULL;
    if (arena->capacity == 0) return pslib_arena_begin(arena, shape);
    if (arena->capacity < (UINT32_C(1) << shape->chunk_shift))
        return pslib_arena_move_first(arena, shape, 2 * arena->capacity, arena->next);
    return pslib_arena_add_chunk(arena, shape);
}

/* A row number for a new row; its bytes are whatever was there. On failure nothing has changed. */
static inline PslibStatus pslib_arena_take(PslibArena *arena, const PslibRowClass *shape, uint32_t *number)
{
    if (arena->free_head != 0) {
        *number = arena->free_head - 1;
        memcpy(&arena->free_head, pslib_arena_row(arena, shape, *number), sizeof arena->free_head);
    } else {
        if (arena->next == arena->capacity) {
            const PslibStatus status = pslib_arena_grow(arena, shape);
            if (status != PSLIB_OK) return status;
        }
        *number = arena->next++;
    }
    arena->live++;
    return PSLIB_OK;
}

static inline void pslib_arena_give_back(PslibArena *arena, const PslibRowClass *shape, uint32_t number)
{
    memcpy(pslib_arena_row(arena, shape, number), &arena->free_head, sizeof arena->free_head);
    arena->free_head = number + 1;
    arena->live--;
}

static inline void pslib_arena_release(PslibArena *arena, const PslibRowClass *shape)
{
    const uint32_t count = pslib_arena_chunks(arena, shape);
    for (uint32_t i = 0; i < count; i++) free(arena->chunks[i]);
    free(arena->chunks);
    memset(arena, 0, sizeof *arena);
}

/* Which numbers are erased: one byte a number below `next`, 1 = erased. NULL when there is no memory. */
static inline uint8_t *pslib_arena_erased(const PslibArena *arena, const PslibRowClass *shape)
{
    uint8_t *erased = calloc((size_t)arena->next + 1, 1);
    if (erased == NULL) return NULL;
    for (uint32_t head = arena->free_head; head != 0;) {
        erased[head - 1] = 1;
        memcpy(&head, pslib_arena_row(arena, shape, head - 1), sizeof head);
    }
    return erased;
}

/* Give back the chunks that hold no row, all rows being below `live`. */
static inline void pslib_arena_trim(PslibArena *arena, const PslibRowClass *shape)
{
    const uint32_t chunk_rows = UINT32_C(1) << shape->chunk_shift;
    if (arena->live == 0) {
        pslib_arena_release(arena, shape);
        return;
    }
    uint32_t count = pslib_arena_chunks(arena, shape);
    while ((uint64_t)(count - 1) * chunk_rows >= arena->live) free(arena->chunks[--count]);
    if (arena->capacity > chunk_rows) arena->capacity = count * chunk_rows;
    uint8_t **shorter = realloc(arena->chunks, pslib_power_of_two_from(count) * sizeof *shorter);
    if (shorter != NULL) arena->chunks = shorter;
    uint32_t first_rows = PSLIB_FIRST_ROWS;
    while (first_rows < arena->live) first_rows *= 2;
    /* without memory for a smaller first chunk the larger one stays */
    if (count == 1 && first_rows < arena->capacity) pslib_arena_move_first(arena, shape, first_rows, arena->live);
}

/* Move the live rows to 0, 1, 2, ... in their order and give back what is then empty. */
static inline void pslib_arena_slide(PslibArena *arena, const PslibRowClass *shape, const uint8_t *erased)
{
    uint32_t kept = 0;
    for (uint32_t number = 0; number < arena->next; number++) {
        if (erased[number]) continue;
        if (kept != number)
            memcpy(pslib_arena_row(arena, shape, kept), pslib_arena_row(arena, shape, number), shape->row_bytes);
        kept++;
    }
    arena->next = kept;
    arena->free_head = 0;
    pslib_arena_trim(arena, shape);
}

#endif
