/* partition.h: one partition = an index over the arenas of its wide and its narrow rows.
 *
 * The index is open addressing over cache lines. A key starts at its home line; a look-up reads lines from
 * there, one after the other and round the end, and stops at the first that has an empty cell. So:
 *
 *     (1) every line from a key's home up to, not including, the line that holds it is full
 *     (2) at most PSLIB_CELLS_FILLED / PSLIB_CELLS of all cells are filled: there is always an empty cell,
 *         and every look-up ends
 *
 * There are no tombstones. Erasing may break (1) for keys further on; one of them is then moved back into
 * the hole, which leaves a hole further on, until no key needs one.
 *
 * The struct is one cache line, and all zeros is an empty partition.
 */
#ifndef PSLIB_PARTITION_H
#define PSLIB_PARTITION_H

#include "arena.h"
#include "mix.h"

enum { PSLIB_WIDE = 0, PSLIB_NARROW = 1, PSLIB_CLASSES = 2 };
enum { PSLIB_SHRINK_ROWS = 16 }; /* fewer erased rows than this are not worth giving back */

typedef struct {
    PslibLine *lines; /* NULL while line_count is 0 */
    uint32_t line_count;
    uint32_t rows; /* filled cells = live rows of both classes */
    PslibArena arenas[PSLIB_CLASSES];
} PslibPartition;

_Static_assert(sizeof(PslibLine) == PSLIB_CACHE_LINE, "one line of the index is one cache line");
_Static_assert(sizeof(PslibPartition) == PSLIB_CACHE_LINE, "an empty partition costs one cache line");

/* Where a look-up ended: the cell that holds the key, or the empty cell where it would go. */
typedef struct {
    uint32_t line;
    int cell;
    uint8_t *row; /* NULL: the key has no row */
    int row_class;
} PslibFound;

static inline uint8_t *pslib_partition_row(const PslibPartition *partition, const PslibRowClass *classes,
                                           uint32_t place)
{
    const int row_class = pslib_place_class(place);
    return pslib_arena_row(&partition->arenas[row_class], &classes[row_class], pslib_place_row(place));
}

static inline uint32_t pslib_next_line(uint32_t line, uint32_t line_count)
{
    return line + 1 == line_count ? 0 : line + 1;
}

static inline PslibFound pslib_partition_find(const PslibPartition *partition, const PslibRowClass *classes,
                                              uint64_t key, uint64_t mixed)
{
    PslibFound found = {0, -1, NULL, PSLIB_WIDE};
    if (partition->line_count == 0) return found;
    const uint8_t tag = pslib_tag(mixed);
    found.line = pslib_home_line(mixed, partition->line_count);
    for (;;) {
        const PslibLine *line = &partition->lines[found.line];
        for (uint32_t mask = pslib_line_mask(line, tag); mask != 0; mask &= mask - 1) {
            found.cell = pslib_lowest_cell(mask);
            const uint32_t place = pslib_cell_place(line, found.cell);
            uint8_t *row = pslib_partition_row(partition, classes, place);
            if (pslib_row_key(row) == key) {
                found.row = row;
                found.row_class = pslib_place_class(place);
                return found;
            }
        }
        const uint32_t empty = pslib_line_mask(line, 0);
        if (empty != 0) {
            found.cell = pslib_lowest_cell(empty);
            return found;
        }
        found.line = pslib_next_line(found.line, partition->line_count);
    }
}

/* Put an entry that is not there yet into the first empty cell from its home line on. */
static inline void pslib_lines_put(PslibLine *lines, uint32_t line_count, uint64_t mixed, uint32_t place)
{
    uint32_t number = pslib_home_line(mixed, line_count);
    uint32_t empty;
    while ((empty = pslib_line_mask(&lines[number], 0)) == 0) number = pslib_next_line(number, line_count);
    pslib_cell_set(&lines[number], pslib_lowest_cell(empty), pslib_tag(mixed), place);
}

static inline PslibLine *pslib_lines_make(uint32_t line_count)
{
    PslibLine *lines = pslib_aligned_memory((size_t)line_count * sizeof *lines);
    if (lines != NULL) memset(lines, 0, (size_t)line_count * sizeof *lines);
    return lines;
}

/* The rows that a line points to are needed soon: their keys are read to place them anew. */
static inline void pslib_line_prefetch_rows(const PslibPartition *partition, const PslibRowClass *classes,
                                            uint32_t number)
{
    if (number >= partition->line_count) return;
    const PslibLine *line = &partition->lines[number];
    for (uint32_t mask = ~pslib_line_mask(line, 0) & 0xFFFF; mask != 0; mask &= mask - 1)
        __builtin_prefetch(pslib_partition_row(partition, classes, pslib_cell_place(line, pslib_lowest_cell(mask))));
}

/* Half as many lines again; every entry moves. On failure nothing has changed. */
static inline PslibStatus pslib_index_grow(PslibPartition *partition, const PslibRowClass *classes)
{
    const uint32_t line_count = partition->line_count + partition->line_count / 2 + 1;
    PslibLine *lines = pslib_lines_make(line_count);
    if (lines == NULL) return PSLIB_NO_MEMORY;
    pslib_line_prefetch_rows(partition, classes, 0);
    for (uint32_t number = 0; number < partition->line_count; number++) {
        const PslibLine *line = &partition->lines[number];
        pslib_line_prefetch_rows(partition, classes, number + 1);
        for (uint32_t mask = ~pslib_line_mask(line, 0) & 0xFFFF; mask != 0; mask &= mask - 1) {
            const uint32_t place = pslib_cell_place(line, pslib_lowest_cell(mask));
            const uint64_t key = pslib_row_key(pslib_partition_row(partition, classes, place));
            pslib_lines_put(lines, line_count, pslib_mix64(key), place);
        }
    }
    free(partition->lines);
    partition->lines = lines;
    partition->line_count = line_count;
    return PSLIB_OK;
}

/* A cell of this line whose key may move back into line `hole` without breaking (1): its home is at or
 * before the hole. -1 when there is none. */
static inline int pslib_cell_that_may_move(const PslibPartition *partition, const PslibRowClass *classes,
                                           uint32_t number, uint32_t hole)
{
    const PslibLine *line = &partition->lines[number];
    const uint32_t count = partition->line_count;
    const uint32_t way = number >= hole ? number - hole : number + count - hole;
    for (uint32_t mask = ~pslib_line_mask(line, 0) & 0xFFFF; mask != 0; mask &= mask - 1) {
        const int cell = pslib_lowest_cell(mask);
        const uint64_t key = pslib_row_key(pslib_partition_row(partition, classes, pslib_cell_place(line, cell)));
        const uint32_t home = pslib_home_line(pslib_mix64(key), count);
        const uint32_t travelled = number >= home ? number - home : number + count - home;
        if (travelled >= way) return cell;
    }
    return -1;
}

/* The nearest line after the hole from which a key may move back, and its cell; 0 when no key needs to. */
static inline int pslib_find_mover(const PslibPartition *partition, const PslibRowClass *classes, uint32_t hole,
                                   uint32_t *number, int *cell)
{
    for (*number = hole;;) {
        *number = pslib_next_line(*number, partition->line_count);
        if (*number == hole) return 0;
        *cell = pslib_cell_that_may_move(partition, classes, *number, hole);
        if (*cell >= 0) return 1;
        if (pslib_line_mask(&partition->lines[*number], 0) != 0) return 0; /* nothing has passed this line */
    }
}

/* Empty one cell and restore (1). All rows of the remaining entries must still hold their keys. */
static inline void pslib_index_remove(PslibPartition *partition, const PslibRowClass *classes, uint32_t hole, int cell)
{
    uint32_t from;
    int from_cell;
    partition->lines[hole].tag[cell] = 0;
    partition->rows--;
    /* a line with a second empty cell was not full before: no key has passed it */
    while (pslib_line_mask(&partition->lines[hole], 0) == (UINT32_C(1) << cell) &&
           pslib_find_mover(partition, classes, hole, &from, &from_cell)) {
        PslibLine *source = &partition->lines[from];
        pslib_cell_set(&partition->lines[hole], cell, source->tag[from_cell], pslib_cell_place(source, from_cell));
        source->tag[from_cell] = 0;
        hole = from;
        cell = from_cell;
    }
}

static inline void pslib_partition_release(PslibPartition *partition, const PslibRowClass *classes)
{
    free(partition->lines);
    for (int c = 0; c < PSLIB_CLASSES; c++) pslib_arena_release(&partition->arenas[c], &classes[c]);
    memset(partition, 0, sizeof *partition);
}

/* Make the row of a key that has none (`found` says where it would go): its key is written, its floats are
 * not. `found` then points to it. On failure the partition holds what it held. */
static inline PslibStatus pslib_partition_add(PslibPartition *partition, const PslibRowClass *classes, uint64_t key,
                                              uint64_t mixed, int row_class, PslibFound *found)
{
    uint32_t number;
    if ((uint64_t)partition->rows + 1 > (uint64_t)partition->line_count * PSLIB_CELLS_FILLED) {
        const PslibStatus status = pslib_index_grow(partition, classes);
        if (status != PSLIB_OK) return status;
        *found = pslib_partition_find(partition, classes, key, mixed);
    }
    const PslibStatus status = pslib_arena_take(&partition->arenas[row_class], &classes[row_class], &number);
    if (status != PSLIB_OK) return status;
    found->row = pslib_arena_row(&partition->arenas[row_class], &classes[row_class], number);
    found->row_class = row_class;
    memcpy(found->row, &key, sizeof key);
    pslib_cell_set(&partition->lines[found->line], found->cell, pslib_tag(mixed), pslib_place(row_class, number));
    partition->rows++;
    return PSLIB_OK;
}

/* Give a key's row another class: a new row with its key and no floats yet; `old` gets the floats of the row
 * that goes. On failure nothing has changed. Erasing and inserting, without a second look at the index. */
static inline PslibStatus pslib_partition_reclass(PslibPartition *partition, const PslibRowClass *classes,
                                                  int row_class, PslibFound *found, uint8_t **old)
{
    uint32_t number;
    const PslibStatus status = pslib_arena_take(&partition->arenas[row_class], &classes[row_class], &number);
    if (status != PSLIB_OK) return status;
    PslibLine *line = &partition->lines[found->line];
    *old = found->row;
    found->row = pslib_arena_row(&partition->arenas[row_class], &classes[row_class], number);
    memcpy(found->row, *old, PSLIB_KEY_BYTES);
    pslib_cell_set(line, found->cell, line->tag[found->cell], pslib_place(row_class, number));
    return PSLIB_OK;
}

/* Whether giving memory back is due: a class has lost 3 of 4 rows, and so many rows were erased since the
 * last time that moving all that are left costs a constant number of moves for each. */
static inline int pslib_partition_is_sparse(const PslibPartition *partition)
{
    uint64_t erased = 0;
    int sparse = 0;
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const PslibArena *arena = &partition->arenas[c];
        const uint64_t gone = arena->next - arena->live;
        erased += gone;
        sparse |= gone >= PSLIB_SHRINK_ROWS + 3 * (uint64_t)arena->live;
    }
    return sparse && 2 * erased >= partition->rows;
}

/* Index all rows anew, erased numbers being none, in lines for half as many rows again. Without memory for
 * a smaller index the old one is used. */
static inline void pslib_index_rebuild(PslibPartition *partition, const PslibRowClass *classes)
{
    const uint32_t line_count = (uint32_t)(((uint64_t)partition->rows * 3 / 2) / PSLIB_CELLS_FILLED + 1);
    PslibLine *lines = line_count < partition->line_count ? pslib_lines_make(line_count) : NULL;
    if (lines != NULL) {
        free(partition->lines);
        partition->lines = lines;
        partition->line_count = line_count;
    } else {
        memset(partition->lines, 0, (size_t)partition->line_count * sizeof *partition->lines);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) {
        const PslibArena *arena = &partition->arenas[c];
        for (uint32_t number = 0; number < arena->next; number++) {
            const uint64_t key = pslib_row_key(pslib_arena_row(arena, &classes[c], number));
            pslib_lines_put(partition->lines, partition->line_count, pslib_mix64(key), pslib_place(c, number));
        }
    }
}

/* Give memory back when most rows have gone. Row numbers change, their order does not. Doing nothing is
 * always right, so a lack of memory is no error here. */
static inline void pslib_partition_shrink(PslibPartition *partition, const PslibRowClass *classes)
{
    if (partition->rows == 0) {
        pslib_partition_release(partition, classes);
        return;
    }
    if (!pslib_partition_is_sparse(partition)) return;
    uint8_t *erased[PSLIB_CLASSES];
    for (int c = 0; c < PSLIB_CLASSES; c++) erased[c] = pslib_arena_erased(&partition->arenas[c], &classes[c]);
    if (erased[PSLIB_WIDE] != NULL && erased[PSLIB_NARROW] != NULL) {
        for (int c = 0; c < PSLIB_CLASSES; c++) pslib_arena_slide(&partition->arenas[c], &classes[c], erased[c]);
        pslib_index_rebuild(partition, classes);
    }
    for (int c = 0; c < PSLIB_CLASSES; c++) free(erased[c]);
}

#endif
