/* partition.h: one partition = an index over the arenas of its wide and its narrow rows.
 *
 * The index is open addressing over cache lines. A key starts at its home line and goes into the first empty
 * cell from there on, line after line and round the end; each line that it goes by counts it in `passed`. So:
 *
 *     (1) a look-up that has not found its key may end at the first line that no key has passed
 *     (2) at most pslib_index_percent of all cells are filled: there is always an empty cell
 *
 * A cell holds a row or, in tables that count keys before they give them a row (admission.h), a counted key.
 * There are no tombstones: erasing empties the cell and takes the key out of the counts on its way; no other
 * key moves. A look-up also ends after all lines, however they were passed.
 *
 * What a look-up needs of a partition is 16 bytes, so that those of some thousand partitions stay in the cache;
 * its arenas stand in an array of their own. All zeros is an empty partition.
 */
#ifndef PSLIB_PARTITION_H
#define PSLIB_PARTITION_H

#include "table/arena.h"
#include "table/index_move.h"
#include "common/mix.h"

enum { PSLIB_WIDE = 0, PSLIB_NARROW = 1, PSLIB_CLASSES = 2 };
enum {
    PSLIB_SHRINK_ROWS = 16, /* fewer erased rows than this are not worth giving back */
    PSLIB_SHRINK_LINES = 4  /* nor is an index of so few lines worth another one */
};

typedef struct {
    PslibLine *lines; /* NULL while line_count is 0 */
    uint32_t line_count;
    uint32_t filled; /* cells = live rows of both classes + counted keys */
} PslibPartition;

typedef struct {
    PslibArena of[PSLIB_CLASSES];
} PslibArenas;

_Static_assert(sizeof(PslibLine) == PSLIB_CACHE_LINE, "one line of the index is one cache line");
_Static_assert(sizeof(PslibPartition) == 16 && sizeof(PslibArenas) == 48, "an empty partition costs 64 bytes");

/* Where a look-up ended. */
typedef struct {
    uint32_t line;
    int cell;
    uint32_t place; /* 0: the key has no row */
    uint32_t count; /* of a counted key; when both are 0, line and cell say nothing */
} PslibFound;

PSLIB_INLINE void *pslib_place_weights(const PslibRowClass *classes, uint32_t place)
{
    return pslib_row_weights(&classes[pslib_place_class(place)], pslib_place_row(place));
}

PSLIB_INLINE float *pslib_place_state(const PslibRowClass *classes, uint32_t place)
{
    return pslib_row_state(&classes[pslib_place_class(place)], pslib_place_row(place));
}

PSLIB_INLINE PslibFound pslib_partition_find_at(int level, const PslibPartition *partition, uint64_t key,
                                                uint64_t mixed)
{
    PslibFound found = {0, 0, 0, 0};
    found.line = pslib_home_line(mixed, partition->line_count);
    for (uint32_t seen = 0; seen < partition->line_count; seen++) {
        const PslibLine *line = &partition->lines[found.line];
        const uint32_t mask = pslib_line_mask_at(level, line, key);
        if (mask != 0) {
            found.cell = pslib_lowest_cell(mask);
            const uint32_t place = line->place[found.cell];
            const int counted = place >= PSLIB_COUNTED;
            found.place = counted ? 0 : place;
            found.count = counted ? place - PSLIB_COUNTED : 0;
            return found;
        }
        if (line->passed == 0) return found;
        found.line = pslib_next_line(found.line, partition->line_count);
    }
    return found;
}

PSLIB_INLINE PslibFound pslib_partition_find(const PslibPartition *partition, uint64_t key, uint64_t mixed)
{
    return pslib_partition_find_at(PSLIB_PLAIN, partition, key, mixed);
}

/* Put an entry that is not there yet into the first empty cell from its home line on. */
PSLIB_INLINE void pslib_lines_put(int level, PslibLine *lines, uint32_t line_count, uint64_t key, uint64_t mixed,
                                  uint32_t place)
{
    uint32_t number = pslib_home_line(mixed, line_count);
    uint32_t empty;
    while ((empty = pslib_line_empty_at(level, &lines[number])) == 0) {
        lines[number].passed++;
        number = pslib_next_line(number, line_count);
    }
    lines[number].key[pslib_lowest_cell(empty)] = key;
    lines[number].place[pslib_lowest_cell(empty)] = place;
}

/* Move all entries to an index of so many lines. On failure nothing has changed. */
PSLIB_APART PslibStatus pslib_index_resize(PslibPartition *partition, PslibHeap *heap, uint32_t line_count)
{
    uint8_t some[PSLIB_FILLS], *fills = some;
    for (uint32_t number = 0; number < PSLIB_LINES_AHEAD && number < partition->line_count; number++)
        PSLIB_PREFETCH(partition->lines + number);
    if (line_count > PSLIB_FILLS) fills = malloc(line_count);
    PslibLine *lines = fills == NULL ? NULL : pslib_heap_take(heap, (size_t)line_count * sizeof *lines);
    if (lines != NULL) {
        const PslibMove move = {
            partition->lines, partition->line_count, heap->level, {lines, line_count, 0, fills}};
        pslib_lines_move(&move);
        pslib_heap_give_back(heap, partition->lines, (size_t)partition->line_count * sizeof *lines);
        partition->lines = lines;
        partition->line_count = line_count;
    }
    if (fills != some) free(fills);
    return lines == NULL ? PSLIB_NO_MEMORY : PSLIB_OK;
}

PSLIB_INLINE uint64_t pslib_index_percent(const PslibHeap *heap)
{
    return heap->sparing ? PSLIB_SPARING_FILLED_PERCENT : PSLIB_FILLED_PERCENT;
}

PSLIB_INLINE int pslib_index_is_full(const PslibPartition *partition, const PslibHeap *heap)
{
    return 100 * ((uint64_t)partition->filled + 1) >
           (uint64_t)partition->line_count * (PSLIB_CELLS * pslib_index_percent(heap));
}

/* Three eighths more lines, and up to as much on top by the bits of some key that no look-up uses: partitions that grow
 * side by side then grow at different times, and neither time nor memory comes in waves. An eighth, and up to half of
 * that on top, where the table is sparing: growing costs three times the time, and 18 % fewer bytes of index a row. */
PSLIB_APART PslibStatus pslib_index_grow(PslibPartition *partition, PslibHeap *heap, uint64_t mixed)
{
    const uint32_t step = heap->sparing ? partition->line_count / 8 : partition->line_count * 3 / 8;
    const uint32_t on_top = heap->sparing ? step / 2 : step;
    const uint32_t some = (uint32_t)(((uint64_t)on_top * (mixed & 0xFF)) >> 8);
    return pslib_index_resize(partition, heap, partition->line_count + step + some + 1);
}

/* Empty the cell of a key. */
static inline void pslib_index_remove(PslibPartition *partition, const PslibFound *found, uint64_t mixed)
{
    uint32_t number = pslib_home_line(mixed, partition->line_count);
    for (; number != found->line; number = pslib_next_line(number, partition->line_count))
        partition->lines[number].passed--;
    partition->lines[number].key[found->cell] = 0;
    partition->lines[number].place[found->cell] = 0;
    partition->filled--;
}

static inline void pslib_partition_release(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes)
{
    pslib_heap_give_back(classes[PSLIB_WIDE].heap, partition->lines,
                         (size_t)partition->line_count * sizeof *partition->lines);
    memset(partition, 0, sizeof *partition);
    for (int c = 0; c < PSLIB_CLASSES; c++) pslib_arena_cut(&arenas->of[c], &classes[c], 0);
}

/* Live rows of both classes. */
PSLIB_INLINE uint32_t pslib_partition_rows(const PslibArenas *arenas)
{
    return arenas->of[PSLIB_WIDE].live + arenas->of[PSLIB_NARROW].live;
}

/* Count a key that the index does not hold. On failure nothing has changed. */
static inline PslibStatus pslib_partition_count(PslibPartition *partition, PslibHeap *heap, uint64_t key,
                                                uint64_t mixed, uint32_t count)
{
    if (pslib_index_is_full(partition, heap)) {
        const PslibStatus status = pslib_index_grow(partition, heap, mixed);
        if (status != PSLIB_OK) return status;
    }
    pslib_lines_put(PSLIB_PLAIN, partition->lines, partition->line_count, key, mixed, PSLIB_COUNTED | count);
    partition->filled++;
    return PSLIB_OK;
}

/* Make the row of a key that the index does not hold; its floats are whatever was there. On failure the
 * partition holds what it held. */
PSLIB_INLINE PslibStatus pslib_partition_add_at(int level, PslibPartition *partition, PslibArenas *arenas,
                                                PslibRowClass *classes, uint64_t key, uint64_t mixed, int row_class,
                                                uint32_t *place)
{
    uint32_t row;
    PslibStatus status = PSLIB_OK;
    if (pslib_index_is_full(partition, classes[row_class].heap))
        status = pslib_index_grow(partition, classes[row_class].heap, mixed);
    if (status == PSLIB_OK) status = pslib_arena_take(&arenas->of[row_class], &classes[row_class], &row);
    if (status != PSLIB_OK) return status;
    *place = pslib_place(row_class, row);
    pslib_lines_put(level, partition->lines, partition->line_count, key, mixed, *place);
    partition->filled++;
    return PSLIB_OK;
}

PSLIB_INLINE PslibStatus pslib_partition_add(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes,
                                             uint64_t key, uint64_t mixed, int row_class, uint32_t *place)
{
    return pslib_partition_add_at(PSLIB_PLAIN, partition, arenas, classes, key, mixed, row_class, place);
}

/* Find the row of a key or make it, where no keys are counted. Most new keys go into their home line, by which no key
 * has gone: they are not looked for a second time. made: OUT, set for a new row. On failure nothing has changed. */
PSLIB_INLINE PslibStatus pslib_partition_find_or_add(int level, PslibPartition *partition, PslibArenas *arenas,
                                                     PslibRowClass *classes, uint64_t key, uint64_t mixed,
                                                     int row_class, uint32_t *place, uint8_t *made)
{
    const int full = pslib_index_is_full(partition, classes[row_class].heap);
    if (!full) {
        PslibLine *line = &partition->lines[pslib_home_line(mixed, partition->line_count)];
        const uint32_t empty = pslib_line_empty_at(level, line);
        if (line->passed == 0 && empty != 0 && pslib_line_mask_at(level, line, key) == 0) {
            uint32_t row;
            const PslibStatus status = pslib_arena_take(&arenas->of[row_class], &classes[row_class], &row);
            if (status != PSLIB_OK) return status;
            *place = pslib_place(row_class, row);
            line->key[pslib_lowest_cell(empty)] = key;
            line->place[pslib_lowest_cell(empty)] = *place;
            partition->filled++;
            *made = 1;
            return PSLIB_OK;
        }
    }
    *place = pslib_partition_find_at(level, partition, key, mixed).place;
    if (*place != 0) return PSLIB_OK;
    const PslibStatus status =
        pslib_partition_add_at(level, partition, arenas, classes, key, mixed, row_class, place);
    *made = status == PSLIB_OK;
    return status;
}

/* Make the row of a key that has none, in the cell that counted it or in a new one. found: INOUT, what a
 * look-up of the key said. On failure nothing has changed. */
PSLIB_INLINE PslibStatus pslib_partition_make(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes,
                                              uint64_t key, uint64_t mixed, int row_class, PslibFound *found)
{
    uint32_t row;
    if (found->count == 0)
        return pslib_partition_add(partition, arenas, classes, key, mixed, row_class, &found->place);
    const PslibStatus status = pslib_arena_take(&arenas->of[row_class], &classes[row_class], &row);
    if (status != PSLIB_OK) return status;
    found->place = pslib_place(row_class, row);
    found->count = 0;
    partition->lines[found->line].place[found->cell] = found->place;
    return PSLIB_OK;
}

/* Of a class `times` as many rows have gone as are left. */
static inline int pslib_arena_is_sparse(const PslibArena *arena, uint64_t times)
{
    const uint64_t gone = arena->next - arena->live;
    return arena->live == 0 ? gone > 0 : gone >= PSLIB_SHRINK_ROWS + times * arena->live;
}

/* An eighth of all cells is left; growth fills two fifths of them or more. */
static inline int pslib_index_is_sparse(const PslibPartition *partition)
{
    return 8 * (uint64_t)partition->filled < (uint64_t)partition->line_count * PSLIB_CELLS &&
           partition->line_count > PSLIB_SHRINK_LINES;
}

static inline int pslib_partition_is_sparse(const PslibPartition *partition, const PslibArenas *arenas, uint64_t times)
{
    return pslib_arena_is_sparse(&arenas->of[PSLIB_WIDE], times) ||
           pslib_arena_is_sparse(&arenas->of[PSLIB_NARROW], times) || pslib_index_is_sparse(partition);
}

/* So many rows were erased since the last time that going through all that is left costs a constant number of
 * moves for each; an index is sparse only after as many. */
static inline int pslib_shrinking_pays(const PslibPartition *partition, const PslibArenas *arenas)
{
    uint64_t erased = 0;
    for (int c = 0; c < PSLIB_CLASSES; c++) erased += arenas->of[c].next - arenas->of[c].live;
    return 2 * erased >= partition->filled || pslib_index_is_sparse(partition);
}

/* Give all rows their new numbers, in the index and in the arenas. */
static inline void pslib_partition_renumber(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes,
                                            uint32_t *const *new_numbers)
{
    for (uint32_t i = 0; i < partition->line_count; i++) {
        uint32_t *places = partition->lines[i].place;
        for (int cell = 0; cell < PSLIB_CELLS; cell++) {
            if (!pslib_place_is_row(places[cell])) continue;
            const int c = pslib_place_class(places[cell]);
            const uint32_t number = new_numbers[c][pslib_row_number(&classes[c], pslib_place_row(places[cell]))];
            places[cell] = pslib_place(c, pslib_arena_row(&arenas->of[c], &classes[c], number));
        }
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) pslib_arena_slide(&arenas->of[c], &classes[c], new_numbers[c]);
}

/* Give memory back when most rows or counted keys have gone. Row numbers change, their order does not. times:
 * how many rows must have gone for each that is left. Doing nothing is always right, so a lack of memory is no
 * error here. */
static inline void pslib_partition_compact(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes,
                                           uint64_t times)
{
    if (partition->filled == 0) {
        pslib_partition_release(partition, arenas, classes);
        return;
    }
    if (!pslib_partition_is_sparse(partition, arenas, times)) return;
    uint32_t *numbers[PSLIB_CLASSES];
    for (int c = 0; c < PSLIB_CLASSES; c++) numbers[c] = pslib_arena_new_numbers(&arenas->of[c], &classes[c]);
    if (numbers[PSLIB_WIDE] != NULL && numbers[PSLIB_NARROW] != NULL) {
        pslib_partition_renumber(partition, arenas, classes, numbers);
        const uint32_t line_count = (uint32_t)(((uint64_t)partition->filled * 2) / PSLIB_CELLS + 1);
        if (line_count < partition->line_count) pslib_index_resize(partition, classes[PSLIB_WIDE].heap, line_count);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) free(numbers[c]);
}

/* After one row of maybe many was erased: when 3 of 4 have gone, and only where it pays. */
static inline void pslib_partition_shrink(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes)
{
    if (partition->filled == 0 || pslib_shrinking_pays(partition, arenas))
        pslib_partition_compact(partition, arenas, classes, 3);
}

/* After all of a partition was looked at anyway: when half has gone. */
static inline void pslib_partition_settle(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes)
{
    pslib_partition_compact(partition, arenas, classes, 1);
}

#endif
