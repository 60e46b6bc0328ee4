/* arena.h: memory of rows.
 *
 * A row is weights, in the storage type of the table (storage.h), and state, float32; its key is in the index. Rows of
 * one class of a table, of all partitions, lie in slabs of about 1 MiB, and a row id is a slab and a place in it: from
 * an index entry to the row is one addition, without a list of a partition's memory in between. A slab is
 * [weights][state] row after row; only where the weights fill whole cache lines (16 floats, 32, ...) or just half of
 * one (16 of 2 bytes) it is [weights of all its rows][state of all its rows]: a row of 68 bytes would always touch two
 * lines, and one of 36 half the time; this way reading a row touches one line, and stepping it two.
 *
 * Partitions take rows from slabs in units of 8 to 64. An arena is the rows of one class in one partition: a list of
 * units, which in their order hold its row numbers 0, 1, 2, ... A row never moves until pslib_arena_slide. Erased rows
 * form a list through their first 4 bytes and are used again before new ones.
 */
#ifndef PSLIB_ARENA_H
#define PSLIB_ARENA_H

#include "common/vectors.h"
#include "table/memory/heap.h"

enum { PSLIB_WIDE = 0, PSLIB_NARROW = 1, PSLIB_CLASSES = 2 }; /* classes of rows */
enum { PSLIB_ROW_BITS = 31 };
#define PSLIB_ROW_IDS (UINT32_C(1) << PSLIB_ROW_BITS) /* bound of row ids of one class */
#define PSLIB_COUNTED UINT32_C(0xFFFF0000)            /* places from here on are counts, not rows (partition.h) */
#define PSLIB_COUNT_MAX UINT32_C(0xFFFF)

typedef enum {
    PSLIB_OK = 0,
    PSLIB_NO_MEMORY = 1,      /* nothing changed */
    PSLIB_PARTITION_FULL = 2, /* PSLIB_ROWS_MAX rows of one class: nothing changed */
    PSLIB_TABLE_FULL = 3      /* no row id is left: nothing changed */
} PslibStatus;

#define PSLIB_ROWS_MAX (UINT32_C(1) << 23) /* of one class in one partition */
#define PSLIB_UNIT_BYTES_AIM ((size_t)1024)
#define PSLIB_SLAB_BYTES_AIM ((size_t)1 << 20)
#define PSLIB_NONE UINT32_MAX
enum { PSLIB_ROW_CHANGED = 1, PSLIB_ROW_DIRTY = 2 }; /* flags of a row */
enum { PSLIB_UNIT_SHIFT_MIN = 3, PSLIB_UNIT_SHIFT_MAX = 6, PSLIB_SLAB_SHIFT_MAX = 20 };

typedef struct {
    uint32_t live;       /* units that partitions hold */
    uint32_t next;       /* units below it have been given out */
    uint32_t free_head;  /* unit inside the slab given back last, + 1; 0 = none */
    uint32_t after, before; /* in the list of slabs with room, or of those without memory; PSLIB_NONE = ends */
} PslibSlab;

/* The shape of all rows of one class (the first part_count parts of the table), and their slabs. */
typedef struct {
    PslibHeap *heap; /* of the table */
    int part_count;
    int unit_shift;  /* a unit is 1 << unit_shift rows */
    int slab_shift;  /* a slab is 1 << slab_shift rows */
    int split;       /* weights of a slab first, then state */
    int64_t weight_floats;
    int64_t state_floats;
    int64_t head_floats;  /* of these, the ones before the state of the first part */
    int reads_state;      /* a pull looks at the state too */
    size_t weight_bytes;  /* rounded up to whole floats, so that state is aligned */
    size_t row_bytes;
    size_t weight_step; /* bytes from the weights of a row to those of the next */
    size_t state_step;
    size_t state_start; /* bytes from the start of a slab to the state of its first row */
    uint8_t **bases;    /* where each slab starts; NULL: it has no memory now */
    uint8_t *flags;     /* of all rows, by id: changes (images.h); NULL: not tracked */
    PslibSlab *slabs;
    uint32_t slab_count;
    uint32_t slab_capacity; /* of the two lists above */
    uint32_t with_room;     /* first slab of the list; PSLIB_NONE = none */
    uint32_t without_memory;
} PslibRowClass;

typedef struct {
    uint32_t *units;
    uint32_t next;       /* row numbers below it have been given out; they fill all units but the last */
    uint32_t last_unit;  /* the last of `units` */
    uint32_t live;       /* rows that are not erased */
    uint32_t free_head;  /* id of the row erased last, + 1; 0 = none */
} PslibArena;

static inline PslibRowClass pslib_row_class(PslibHeap *heap, int part_count, int64_t weight_floats,
                                            size_t bytes_a_weight, int64_t head_floats, int64_t state_floats,
                                            int reads_state)
{
    const size_t weights = (bytes_a_weight * (size_t)weight_floats + sizeof(float) - 1) & ~(sizeof(float) - 1);
    const size_t state = sizeof(float) * (size_t)state_floats;
    PslibRowClass shape = {.heap = heap, .part_count = part_count, .weight_floats = weight_floats,
                           .state_floats = state_floats, .head_floats = head_floats, .reads_state = reads_state,
                           .weight_bytes = weights, .row_bytes = weights + state};
    shape.with_room = shape.without_memory = PSLIB_NONE;
    shape.unit_shift = PSLIB_UNIT_SHIFT_MAX;
    while (shape.unit_shift > PSLIB_UNIT_SHIFT_MIN &&
           (shape.row_bytes << shape.unit_shift) > PSLIB_UNIT_BYTES_AIM + 256)
        shape.unit_shift--;
    shape.slab_shift = shape.unit_shift;
#if !defined(__SANITIZE_ADDRESS__) /* it checks the ends of slabs, so there each unit is a slab */
    while (shape.slab_shift < PSLIB_SLAB_SHIFT_MAX &&
           (shape.row_bytes << (shape.slab_shift + 1)) <= PSLIB_SLAB_BYTES_AIM + PSLIB_SLAB_BYTES_AIM / 8)
        shape.slab_shift++;
#endif
    const int half = bytes_a_weight == 2 && weights == PSLIB_CACHE_LINE / 2 && !reads_state;
    shape.split = weights > 0 && (weights % PSLIB_CACHE_LINE == 0 || half);
    shape.weight_step = shape.split ? weights : weights + state;
    shape.state_step = shape.split ? state : weights + state;
    shape.state_start = shape.split ? weights << shape.slab_shift : weights;
    return shape;
}

static inline uint32_t pslib_unit_rows(const PslibRowClass *shape)
{
    return UINT32_C(1) << shape->unit_shift;
}

PSLIB_INLINE void *pslib_row_weights(const PslibRowClass *shape, uint32_t row)
{
    const size_t inside = row & ((UINT32_C(1) << shape->slab_shift) - 1);
    return (void *)(shape->bases[row >> shape->slab_shift] + inside * shape->weight_step);
}

PSLIB_INLINE float *pslib_row_state(const PslibRowClass *shape, uint32_t row)
{
    const size_t inside = row & ((UINT32_C(1) << shape->slab_shift) - 1);
    return (float *)(void *)(shape->bases[row >> shape->slab_shift] + shape->state_start + inside * shape->state_step);
}

/* A place names a row of one class; it is never 0. */
PSLIB_INLINE uint32_t pslib_place(int row_class, uint32_t row)
{
    return (((uint32_t)row_class << PSLIB_ROW_BITS) | row) + 1;
}

/* Return 1 if a cell with this place holds a row: it is neither empty nor a counted key. */
PSLIB_INLINE int pslib_place_is_row(uint32_t place)
{
    return place - 1 < PSLIB_COUNTED - 1;
}

PSLIB_INLINE int pslib_place_class(uint32_t place)
{
    return (int)((place - 1) >> PSLIB_ROW_BITS);
}

PSLIB_INLINE uint32_t pslib_place_row(uint32_t place)
{
    return (place - 1) & (PSLIB_ROW_IDS - 1);
}

PSLIB_INLINE void *pslib_place_weights(const PslibRowClass *classes, uint32_t place)
{
    return pslib_row_weights(&classes[pslib_place_class(place)], pslib_place_row(place));
}

PSLIB_INLINE float *pslib_place_state(const PslibRowClass *classes, uint32_t place)
{
    return pslib_row_state(&classes[pslib_place_class(place)], pslib_place_row(place));
}

static inline void pslib_row_move(const PslibRowClass *shape, uint32_t to, uint32_t from)
{
    memcpy(pslib_row_weights(shape, to), pslib_row_weights(shape, from), shape->weight_bytes);
    memcpy(pslib_row_state(shape, to), pslib_row_state(shape, from), sizeof(float) * (size_t)shape->state_floats);
    if (shape->flags != NULL) shape->flags[to] = shape->flags[from];
}

/* --- slabs: units of rows, and the order in which a partition holds them */

static inline size_t pslib_slab_bytes(const PslibRowClass *shape)
{
    const size_t rows = (size_t)1 << shape->slab_shift;
    return rows * shape->row_bytes + sizeof(uint32_t) * (rows >> shape->unit_shift);
}

/* Return where the position of a unit in its partition's list is stored: behind the rows of the slab. */
static inline uint32_t *pslib_unit_position(const PslibRowClass *shape, uint32_t unit)
{
    const int units_shift = shape->slab_shift - shape->unit_shift;
    uint8_t *behind = shape->bases[unit >> units_shift] + (shape->row_bytes << shape->slab_shift);
    return (uint32_t *)(void *)behind + (unit & ((UINT32_C(1) << units_shift) - 1));
}

static inline void pslib_slab_list_add(PslibRowClass *shape, uint32_t *list, uint32_t number)
{
    PslibSlab *slab = &shape->slabs[number];
    slab->before = PSLIB_NONE;
    slab->after = *list;
    if (*list != PSLIB_NONE) shape->slabs[*list].before = number;
    *list = number;
}

static inline void pslib_slab_list_remove(PslibRowClass *shape, uint32_t *list, uint32_t number)
{
    const PslibSlab *slab = &shape->slabs[number];
    if (slab->after != PSLIB_NONE) shape->slabs[slab->after].before = slab->before;
    if (slab->before != PSLIB_NONE) shape->slabs[slab->before].after = slab->after;
    else *list = slab->after;
}

/* Find a number for one more slab. number: OUT. */
static inline PslibStatus pslib_slab_number(PslibRowClass *shape, uint32_t *number)
{
    *number = shape->without_memory;
    if (*number != PSLIB_NONE) {
        pslib_slab_list_remove(shape, &shape->without_memory, *number);
        return PSLIB_OK;
    }
    /* ids of rows stay so low that the places of narrow rows end before PSLIB_COUNTED */
    if (((uint64_t)shape->slab_count + 1) << shape->slab_shift >= PSLIB_ROW_IDS - 2 * PSLIB_COUNT_MAX)
        return PSLIB_TABLE_FULL;
    if (shape->slab_count == shape->slab_capacity) {
        const uint32_t capacity = shape->slab_capacity ? 2 * shape->slab_capacity : 4;
        uint8_t **bases = realloc(shape->bases, capacity * sizeof *bases);
        if (bases != NULL) shape->bases = bases;
        PslibSlab *slabs = realloc(shape->slabs, capacity * sizeof *slabs);
        if (slabs != NULL) shape->slabs = slabs;
        if (bases == NULL || slabs == NULL) return PSLIB_NO_MEMORY;
        if (shape->flags != NULL) {
            uint8_t *flags = realloc(shape->flags, (size_t)capacity << shape->slab_shift);
            if (flags == NULL) return PSLIB_NO_MEMORY;
            shape->flags = flags;
        }
        shape->slab_capacity = capacity;
    }
    *number = shape->slab_count++;
    return PSLIB_OK;
}

static inline PslibStatus pslib_slab_add(PslibRowClass *shape)
{
    uint32_t number;
    const PslibStatus status = pslib_slab_number(shape, &number);
    if (status != PSLIB_OK) return status;
    shape->slabs[number] = (PslibSlab){0};
    shape->bases[number] = pslib_heap_take(shape->heap, pslib_slab_bytes(shape));
    const int made = shape->bases[number] != NULL;
    pslib_slab_list_add(shape, made ? &shape->with_room : &shape->without_memory, number);
    return made ? PSLIB_OK : PSLIB_NO_MEMORY;
}

static inline PslibStatus pslib_unit_take(PslibRowClass *shape, uint32_t *unit)
{
    if (shape->with_room == PSLIB_NONE) {
        const PslibStatus status = pslib_slab_add(shape);
        if (status != PSLIB_OK) return status;
    }
    const uint32_t number = shape->with_room;
    const int units_shift = shape->slab_shift - shape->unit_shift;
    PslibSlab *slab = &shape->slabs[number];
    if (slab->free_head != 0) {
        *unit = (number << units_shift) + slab->free_head - 1;
        memcpy(&slab->free_head, pslib_row_weights(shape, *unit << shape->unit_shift), sizeof slab->free_head);
    } else {
        *unit = (number << units_shift) + slab->next++;
    }
    slab->live++;
    if (slab->live == UINT32_C(1) << units_shift) pslib_slab_list_remove(shape, &shape->with_room, number);
    return PSLIB_OK;
}

static inline void pslib_unit_give_back(PslibRowClass *shape, uint32_t unit)
{
    const int units_shift = shape->slab_shift - shape->unit_shift;
    const uint32_t number = unit >> units_shift;
    PslibSlab *slab = &shape->slabs[number];
    if (slab->live == UINT32_C(1) << units_shift) pslib_slab_list_add(shape, &shape->with_room, number);
    memcpy(pslib_row_weights(shape, unit << shape->unit_shift), &slab->free_head, sizeof slab->free_head);
    slab->free_head = (unit & ((UINT32_C(1) << units_shift) - 1)) + 1;
    if (--slab->live != 0) return;
    pslib_slab_list_remove(shape, &shape->with_room, number);
    pslib_heap_give_back(shape->heap, shape->bases[number], pslib_slab_bytes(shape));
    shape->bases[number] = NULL;
    pslib_slab_list_add(shape, &shape->without_memory, number);
}

/* --- arenas */

static inline uint32_t pslib_arena_units(const PslibArena *arena, const PslibRowClass *shape)
{
    return (arena->next + pslib_unit_rows(shape) - 1) >> shape->unit_shift;
}

static inline int64_t pslib_arena_rows_held(const PslibArena *arena, const PslibRowClass *shape)
{
    return (int64_t)pslib_arena_units(arena, shape) << shape->unit_shift;
}

/* The length of the list of units is not stored: it is the power of two at or above their count. */
static inline uint32_t pslib_power_of_two_from(uint32_t count)
{
    uint32_t power = 1;
    while (power < count) power *= 2;
    return power;
}

/* Return the bytes of the list of units. */
static inline int64_t pslib_arena_list_bytes(const PslibArena *arena, const PslibRowClass *shape)
{
    const uint32_t units = pslib_arena_units(arena, shape);
    return units == 0 ? 0 : (int64_t)sizeof(uint32_t) * pslib_power_of_two_from(units);
}

/* Return the bytes of rows, filled or not, with the list and the positions of their units. */
static inline int64_t pslib_arena_bytes(const PslibArena *arena, const PslibRowClass *shape)
{
    const uint32_t units = pslib_arena_units(arena, shape);
    if (units == 0) return 0;
    return pslib_arena_rows_held(arena, shape) * (int64_t)shape->row_bytes +
           (int64_t)sizeof(uint32_t) * units + pslib_arena_list_bytes(arena, shape);
}

PSLIB_INLINE uint32_t pslib_arena_row(const PslibArena *arena, const PslibRowClass *shape, uint32_t row_number)
{
    return (arena->units[row_number >> shape->unit_shift] << shape->unit_shift) |
           (row_number & ((UINT32_C(1) << shape->unit_shift) - 1));
}

static inline uint32_t pslib_row_number(const PslibRowClass *shape, uint32_t row)
{
    return (*pslib_unit_position(shape, row >> shape->unit_shift) << shape->unit_shift) |
           (row & (pslib_unit_rows(shape) - 1));
}

PSLIB_NOINLINE PslibStatus pslib_arena_grow(PslibArena *arena, PslibRowClass *shape)
{
    const uint32_t count = pslib_arena_units(arena, shape);
    uint32_t unit;
    if (arena->next >= PSLIB_ROWS_MAX) return PSLIB_PARTITION_FULL;
    if (count == 0 || pslib_power_of_two_from(count) == count) {
        uint32_t *longer = realloc(arena->units, (count == 0 ? 1 : 2 * (size_t)count) * sizeof *longer);
        if (longer == NULL) return PSLIB_NO_MEMORY;
        arena->units = longer;
    }
    const PslibStatus status = pslib_unit_take(shape, &unit);
    if (status != PSLIB_OK) return status;
    *pslib_unit_position(shape, unit) = count;
    arena->units[count] = unit;
    arena->last_unit = unit;
    return PSLIB_OK;
}

/* Take a row, whose bytes are undefined. row: OUT, its id. On failure nothing has changed. */
PSLIB_INLINE PslibStatus pslib_arena_take(PslibArena *arena, PslibRowClass *shape, uint32_t *row)
{
    if (arena->free_head != 0) {
        *row = arena->free_head - 1;
        memcpy(&arena->free_head, pslib_row_weights(shape, *row), sizeof arena->free_head);
    } else {
        const uint32_t inside = arena->next & ((UINT32_C(1) << shape->unit_shift) - 1);
        if (inside == 0) {
            const PslibStatus status = pslib_arena_grow(arena, shape);
            if (status != PSLIB_OK) return status;
        }
        *row = (arena->last_unit << shape->unit_shift) | inside;
        arena->next++;
    }
    if (__builtin_expect(shape->flags != NULL, 0)) shape->flags[*row] = PSLIB_ROW_CHANGED;
    arena->live++;
    return PSLIB_OK;
}

static inline void pslib_arena_give_back(PslibArena *arena, const PslibRowClass *shape, uint32_t row)
{
    memcpy(pslib_row_weights(shape, row), &arena->free_head, sizeof arena->free_head);
    arena->free_head = row + 1;
    arena->live--;
}

/* Keep the first `kept` rows and free the units behind them. */
static inline void pslib_arena_cut(PslibArena *arena, PslibRowClass *shape, uint32_t kept)
{
    uint32_t count = pslib_arena_units(arena, shape);
    arena->next = kept;
    const uint32_t kept_units = pslib_arena_units(arena, shape);
    while (count > kept_units) pslib_unit_give_back(shape, arena->units[--count]);
    if (count == 0) {
        free(arena->units);
        memset(arena, 0, sizeof *arena);
        return;
    }
    uint32_t *shorter = realloc(arena->units, pslib_power_of_two_from(count) * sizeof *shorter);
    if (shorter != NULL) arena->units = shorter;
    arena->last_unit = arena->units[count - 1];
}

#define PSLIB_ERASED UINT32_MAX

/* Return the numbers that rows get when erased ones are left out: (next,), PSLIB_ERASED for erased rows. NULL without
 * memory. */
static inline uint32_t *pslib_arena_new_numbers(const PslibArena *arena, const PslibRowClass *shape)
{
    uint32_t *numbers = calloc((size_t)arena->next + 1, sizeof *numbers);
    uint32_t kept = 0;
    if (numbers == NULL) return NULL;
    for (uint32_t head = arena->free_head; head != 0;) {
        const uint32_t row = head - 1;
        numbers[pslib_row_number(shape, row)] = PSLIB_ERASED;
        memcpy(&head, pslib_row_weights(shape, row), sizeof head);
    }
    for (uint32_t number = 0; number < arena->next; number++)
        if (numbers[number] != PSLIB_ERASED) numbers[number] = kept++;
    return numbers;
}

/* Move the live rows to the numbers of pslib_arena_new_numbers and free the units that are then empty. */
static inline void pslib_arena_slide(PslibArena *arena, PslibRowClass *shape, const uint32_t *new_numbers)
{
    for (uint32_t number = 0; number < arena->next; number++)
        if (new_numbers[number] < number)
            pslib_row_move(shape, pslib_arena_row(arena, shape, new_numbers[number]),
                           pslib_arena_row(arena, shape, number));
    arena->free_head = 0;
    pslib_arena_cut(arena, shape, arena->live);
}

#endif
