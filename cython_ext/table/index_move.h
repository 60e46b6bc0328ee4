/* index_move.h: the entries of an index that grows or shrinks, moved to their new lines.
 *
 * Homes keep their order when the number of lines changes, so memory is read and written from front to back, some
 * lines at a time: their entries are put one behind the other, mixed as vectors, and filled into lines that were
 * cleared shortly before and still stand in the nearest cache.
 */
#ifndef PSLIB_INDEX_MOVE_H
#define PSLIB_INDEX_MOVE_H

#include <string.h>

#include "table/index_line.h"
#include "common/mix.h"
#include "common/prefetch.h"

enum {
    PSLIB_LINES_MOVED = 32, /* read before they are written: 2.5 KB of entries */
    PSLIB_LINES_AHEAD = 16, /* asked for before they are read */
    PSLIB_MIXED_TOGETHER = 8,
    PSLIB_FILLS = 8192      /* lines whose counters may stand on the stack */
};

typedef struct {
    uint64_t key[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
    uint32_t place[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
    uint32_t home[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
} PslibMoved;

/* Lines that are being filled. */
typedef struct {
    PslibLine *lines;
    uint32_t count;
    uint32_t cleared; /* lines below it hold entries or nothing, others whatever was there */
    uint8_t *fills;   /* (count,): how many cells of each line are filled. To read back cells that were written a moment
                         ago would cost more than all the rest */
} PslibLines;

typedef struct {
    const PslibLine *from;
    uint32_t from_count;
    int level; /* of vectors.h */
    PslibLines to;
} PslibMove;

PSLIB_INLINE void pslib_lines_clear(PslibLines *to, uint32_t end)
{
    if (end <= to->cleared) return;
    memset(to->lines + to->cleared, 0, (size_t)(end - to->cleared) * sizeof *to->lines);
    to->cleared = end;
}

/* Entries of some lines, one behind the other. moved: OUT. Returns how many they are. They stand in the first cells of
 * a line, unless keys were erased; so all cells are copied, and the empty ones then overwritten. */
PSLIB_INLINE uint32_t pslib_lines_read(const PslibLine *from, const PslibLine *end, int level, PslibMoved *moved)
{
    uint32_t count = 0;
    for (; from != end; from++) {
        PSLIB_PREFETCH(from + PSLIB_LINES_AHEAD);
        const uint32_t empty = pslib_line_empty_at(level, from);
        const uint32_t first = (uint32_t)pslib_lowest_cell(empty | UINT32_C(1) << PSLIB_CELLS);
        memcpy(moved->key + count, from->key, sizeof from->key);
        memcpy(moved->place + count, from->place, sizeof from->place);
        count += first;
        if (__builtin_expect(empty >> first == (UINT32_C(1) << PSLIB_CELLS >> first) - 1, 1)) continue;
        for (uint32_t cell = first + 1; cell < PSLIB_CELLS; cell++) {
            moved->key[count] = from->key[cell];
            moved->place[count] = from->place[cell];
            count += from->place[cell] != 0;
        }
    }
    return count;
}

/* The first line from a full one on that is not full; a key goes by those before it. */
PSLIB_APART uint32_t pslib_lines_pass(PslibLines *to, uint32_t number)
{
    while (to->fills[number] == PSLIB_CELLS) {
        to->lines[number].passed++;
        number = pslib_next_line(number, to->count);
        pslib_lines_clear(to, number + 1);
    }
    return number;
}

PSLIB_INLINE void pslib_lines_fill(const PslibMoved *moved, uint32_t count, PslibLines *to)
{
    PslibLine *const lines = to->lines;
    uint8_t *const fills = to->fills;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t key = moved->key[i];
        const uint32_t place = moved->place[i];
        uint32_t number = moved->home[i];
        if (__builtin_expect(fills[number] == PSLIB_CELLS, 0)) number = pslib_lines_pass(to, number);
        const uint32_t cell = fills[number];
        fills[number] = (uint8_t)(cell + 1);
        lines[number].key[cell] = key;
        lines[number].place[cell] = place;
    }
}

PSLIB_INLINE void pslib_lines_move_at(const PslibMove *move, int level)
{
    const PslibLine *from = move->from;
    const uint32_t from_count = move->from_count, to_count = move->to.count;
    PslibLines to = move->to;
    PslibMoved moved;
    memset(to.fills, 0, to_count);
    for (uint32_t first = 0; first < from_count; first += PSLIB_LINES_MOVED) {
        const uint32_t left = from_count - first;
        const uint32_t end = first + (left < PSLIB_LINES_MOVED ? left : PSLIB_LINES_MOVED);
        const uint32_t count = pslib_lines_read(from + first, from + end, level, &moved);
        uint32_t last = 0;
        for (uint32_t i = 0; i < count; i += PSLIB_MIXED_TOGETHER)
            for (uint32_t j = i; j < i + PSLIB_MIXED_TOGETHER; j++)
                moved.home[j] = pslib_home_line(pslib_mix64(moved.key[j]), to_count);
        for (uint32_t i = 0; i < count; i++) last = last > moved.home[i] ? last : moved.home[i];
        pslib_lines_clear(&to, last + 1);
        pslib_lines_fill(&moved, count, &to);
    }
    pslib_lines_clear(&to, to_count);
}

/* Move all entries to other lines. */
PSLIB_COPIES(void, pslib_lines_move, move->level, (const PslibMove *move), move)

#endif
