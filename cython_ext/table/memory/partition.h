/* partition.h: one partition = an index over the arenas of its wide and its narrow rows.
 *
 * The index is open addressing over cache lines of five cells:
 *
 *     byte  0..39   keys of cells 0..4; 0 in an empty cell
 *     byte 40..59   places of the rows of these keys, + 1;  0: the cell is empty;
 *                   0xFFFF0000 + c: the key has no row yet, it is a counted key (policies.h)
 *     byte 60..63   passed: number of keys of the index that were placed behind this line because it was full
 *
 * The cell holds the whole key, so a look-up reads one line of the index and then the row: with a short tag here and
 * the key in the row, a row of 16 floats would lie across two lines. An entry costs 12.8 bytes instead of 4, and the
 * row 8 to 12 less.
 *
 * A key starts at its home line and takes the first empty cell from there on, line after line and round the end. So:
 *
 *     (1) a look-up that has not found its key may end at the first line that no key has passed
 *     (2) at most pslib_index_percent of all cells are filled: there is always an empty cell
 *
 * There are no tombstones: erasing empties the cell and decrements `passed` on the way to it; no other key moves. A
 * look-up also ends after all lines, whatever they have counted.
 *
 * A look-up needs 16 bytes of a partition, so that those of some thousand partitions stay in the cache; the arenas
 * are an array of their own. All zeros is an empty partition.
 */
#ifndef PSLIB_PARTITION_H
#define PSLIB_PARTITION_H

#include <string.h>

#include "common/mix.h"
#include "common/vectors.h"
#include "table/memory/arena.h"

/* --- one line of the index */

enum {
    PSLIB_CELLS = 5,                   /* of one line */
    PSLIB_FILLED_PERCENT = 75,         /* of all cells at most: above it look-ups pass many full lines */
    PSLIB_SPARING_FILLED_PERCENT = 78, /* where rows are short beside their cells */
    PSLIB_SHRINK_ROWS = 16,            /* fewer erased rows than this are not worth giving back */
    PSLIB_SHRINK_LINES = 4             /* nor is an index of so few lines worth a smaller one */
};

typedef struct {
    uint64_t key[PSLIB_CELLS];
    uint32_t place[PSLIB_CELLS];
    uint32_t passed;
} PslibLine;

/* Home line: bits 8..39 of the mixed key scaled to 0..line_count-1, so that line_count need not be a power
 * of two (growth by half wastes less memory than doubling). The partition is bits 44..63. */
PSLIB_INLINE uint32_t pslib_home_line(uint64_t mixed, uint32_t line_count)
{
    return (uint32_t)(((uint64_t)(uint32_t)(mixed >> 8) * line_count) >> 32);
}

PSLIB_INLINE uint32_t pslib_next_line(uint32_t line, uint32_t line_count)
{
    return line + 1 == line_count ? 0 : line + 1;
}

/* Return a mask: bit i is set where cell i holds this key. Branch-free, because the branch would be unpredictable. */
PSLIB_INLINE uint32_t pslib_line_mask(const PslibLine *line, uint64_t key)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++)
        mask |= (uint32_t)((line->key[cell] == key) & (line->place[cell] != 0)) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
/* The same in vectors. As 32-bit words the places of a line are words 10 to 14. */
PSLIB_FOR_AVX512 static inline uint32_t pslib_line_mask_avx512(const PslibLine *line, uint64_t key)
{
    const __m512i words = _mm512_load_si512((const void *)line);
    const uint32_t same = _mm512_cmpeq_epi64_mask(words, _mm512_set1_epi64((long long)key));
    return same & (_mm512_test_epi32_mask(words, words) >> 10) & 0x1F;
}

PSLIB_FOR_AVX2 static inline uint32_t pslib_line_mask_avx2(const PslibLine *line, uint64_t key)
{
    const __m256i keys = _mm256_load_si256((const __m256i *)(const void *)line);
    const __m256i same = _mm256_cmpeq_epi64(keys, _mm256_set1_epi64x((long long)key));
    const uint32_t last = (line->key[4] == key) & (line->place[4] != 0);
    const __m128i places = _mm_loadu_si128((const __m128i *)(const void *)line->place);
    const __m128i empty = _mm_cmpeq_epi32(places, _mm_setzero_si128());
    const uint32_t filled = ~(uint32_t)_mm_movemask_ps(_mm_castsi128_ps(empty));
    return ((uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same)) & filled) | last << 4;
}
#endif

/* level: that of the kernel which this is inlined into. */
PSLIB_INLINE uint32_t pslib_line_mask_at(int level, const PslibLine *line, uint64_t key)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) return pslib_line_mask_avx512(line, key);
    if (level == PSLIB_AVX2) return pslib_line_mask_avx2(line, key);
#endif
    (void)level;
    return pslib_line_mask(line, key);
}

/* Return a mask: bit i is set where the key in cell i is this one, also where the cell is empty and the key is 0,
 * because empty cells hold key 0. */
PSLIB_INLINE uint32_t pslib_line_same(const PslibLine *line, uint64_t key)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++) mask |= (uint32_t)(line->key[cell] == key) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX512 static inline uint32_t pslib_line_same_avx512(const PslibLine *line, uint64_t key)
{
    const __m512i keys = _mm512_load_si512((const void *)line);
    return _mm512_cmpeq_epi64_mask(keys, _mm512_set1_epi64((long long)key)) & 0x1F;
}

PSLIB_FOR_AVX2 static inline uint32_t pslib_line_same_avx2(const PslibLine *line, uint64_t key)
{
    const __m256i keys = _mm256_load_si256((const __m256i *)(const void *)line);
    const __m256i same = _mm256_cmpeq_epi64(keys, _mm256_set1_epi64x((long long)key));
    return (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same)) | (uint32_t)(line->key[4] == key) << 4;
}
#endif

PSLIB_INLINE uint32_t pslib_line_same_at(int level, const PslibLine *line, uint64_t key)
{
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512) return pslib_line_same_avx512(line, key);
    if (level == PSLIB_AVX2) return pslib_line_same_avx2(line, key);
#endif
    (void)level;
    return pslib_line_same(line, key);
}

/* Return a mask: bit i is set where cell i is empty. */
PSLIB_INLINE uint32_t pslib_line_empty(const PslibLine *line)
{
    uint32_t mask = 0;
    for (int cell = 0; cell < PSLIB_CELLS; cell++) mask |= (uint32_t)(line->place[cell] == 0) << cell;
    return mask;
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX2 static inline uint32_t pslib_line_empty_avx2(const PslibLine *line)
{
    const __m128i places = _mm_loadu_si128((const __m128i *)(const void *)line->place);
    const __m128i empty = _mm_cmpeq_epi32(places, _mm_setzero_si128());
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(empty)) | (uint32_t)(line->place[4] == 0) << 4;
}
#endif

PSLIB_INLINE uint32_t pslib_line_empty_at(int level, const PslibLine *line)
{
#if PSLIB_HAS_LEVELS
    if (level >= PSLIB_AVX2) return pslib_line_empty_avx2(line);
#endif
    (void)level;
    return pslib_line_empty(line);
}

PSLIB_INLINE int pslib_lowest_cell(uint32_t mask)
{
    return __builtin_ctz(mask);
}

/* --- growing and shrinking the index
 *
 * Home lines keep their order when the number of lines changes, so memory is read and written from front to back, some
 * lines at a time: their entries are made contiguous, mixed as vectors, and stored in lines that were cleared shortly
 * before and are still in the nearest cache. */

enum {
    PSLIB_LINES_MOVED = 32, /* read before they are written: 2.5 KB of entries */
    PSLIB_LINES_AHEAD = 16, /* prefetched before they are read */
    PSLIB_MIXED_TOGETHER = 8,
    PSLIB_FILLS = 8192      /* lines whose counters are on the stack */
};

typedef struct {
    uint64_t key[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
    uint32_t place[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
    uint32_t home[(PSLIB_LINES_MOVED + 1) * PSLIB_CELLS + PSLIB_MIXED_TOGETHER];
} PslibMoved;

/* The new lines. */
typedef struct {
    PslibLine *lines;
    uint32_t count;
    uint32_t cleared; /* lines below it are initialized */
    uint8_t *fills;   /* (count,): number of filled cells of each line. To read back cells that were just written would
                         cost more than all the rest */
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

/* Read the entries of some lines. moved: OUT, contiguous. Returns their number. They are in the first cells of a line,
 * unless keys were erased; so all cells are copied, and the empty ones then overwritten. */
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

/* Return the first line from a full one on that is not full, and count a key placed behind those before it. */
PSLIB_NOINLINE uint32_t pslib_lines_pass(PslibLines *to, uint32_t number)
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

/* --- one partition */

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

/* Result of a look-up. */
typedef struct {
    uint32_t line;
    int cell;
    uint32_t place; /* 0: the key has no row */
    uint32_t count; /* of a counted key; when both are 0, line and cell are undefined */
} PslibFound;

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

/* Store a new entry in the first empty cell from its home line on. */
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
PSLIB_NOINLINE PslibStatus pslib_index_resize(PslibPartition *partition, PslibHeap *heap, uint32_t line_count)
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

/* Add three eighths of the lines, and up to as many on top by bits of some key that no look-up uses: then partitions of
 * equal size grow at different times, and time and memory are spread. An eighth, and up to half of that on top, where
 * the table is sparing: growing takes three times the time, and 18 % fewer bytes of index a row. */
PSLIB_NOINLINE PslibStatus pslib_index_grow(PslibPartition *partition, PslibHeap *heap, uint64_t mixed)
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

/* Return the live rows of both classes. */
PSLIB_INLINE uint32_t pslib_partition_rows(const PslibArenas *arenas)
{
    return arenas->of[PSLIB_WIDE].live + arenas->of[PSLIB_NARROW].live;
}

/* Store a key that the index does not hold, with its count. On failure nothing has changed. */
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

/* Make the row of a key that the index does not hold; its floats are undefined. place: OUT. On failure nothing has
 * changed. */
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

/* Find the row of a key or make it, in tables without counted keys. Most new keys get a cell of their home line, which
 * no key has passed, without a second look-up. made: OUT, 1 for a new row. On failure nothing has changed. */
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

/* Make the row of a key that has none, in the cell that counted it or in a new one. found: INOUT, the look-up of the
 * key. On failure nothing has changed. */
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

/* Return 1 if the arena has `times` as many erased rows as live ones. */
static inline int pslib_arena_is_sparse(const PslibArena *arena, uint64_t times)
{
    const uint64_t gone = arena->next - arena->live;
    return arena->live == 0 ? gone > 0 : gone >= PSLIB_SHRINK_ROWS + times * arena->live;
}

/* Return 1 if at most an eighth of all cells is filled; growth fills two fifths of them or more. */
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

/* Return 1 if so many rows were erased since the last time that compaction costs a constant number of moves for each;
 * an index is sparse only after as many. */
static inline int pslib_shrinking_pays(const PslibPartition *partition, const PslibArenas *arenas)
{
    uint64_t erased = 0;
    for (int c = 0; c < PSLIB_CLASSES; c++) erased += arenas->of[c].next - arenas->of[c].live;
    return 2 * erased >= partition->filled || pslib_index_is_sparse(partition);
}

/* Change the numbers of all rows in the index and in the arenas. */
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

/* Free memory when most rows or counted keys were erased. Row numbers change, their order does not. times: erased rows
 * for each live one from which on this is done. Without memory nothing is done, which is no error. */
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

/* Called after each erased row: compact when 3 of 4 are erased, and only where it pays. */
static inline void pslib_partition_shrink(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes)
{
    if (partition->filled == 0 || pslib_shrinking_pays(partition, arenas))
        pslib_partition_compact(partition, arenas, classes, 3);
}

/* Called after a pass over the partition: compact when half is erased. */
static inline void pslib_partition_settle(PslibPartition *partition, PslibArenas *arenas, PslibRowClass *classes)
{
    pslib_partition_compact(partition, arenas, classes, 1);
}

#endif
