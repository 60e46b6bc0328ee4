/* Limits of memory alone: the gathers that benchmarks/table.py compares the table with.
 *
 * Places are line numbers, drawn at random by the caller; all are prefetched AHEAD places before use, into the first
 * cache of the core or, `second`, the second one, as the table does since 2026-11-26 (cython_ext/common/vectors.h).
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, AHEAD = 32 };

/* So many lines in huge pages, touched. NULL when there is no memory. */
char *lines_make(int64_t lines)
{
    const size_t huge = (size_t)2 << 20, bytes = ((size_t)lines * LINE + huge - 1) & ~(huge - 1);
    char *mapped = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)mapped + huge - 1) & ~(uintptr_t)(huge - 1));
    madvise(start, bytes, MADV_HUGEPAGE);
    memset(start, 1, bytes);
    return start;
}

/* Gives them back. */
void lines_free(char *start, int64_t lines)
{
    munmap(start, (size_t)lines * LINE);
}

static inline int64_t later(int64_t i, int64_t n)
{
    return i + AHEAD < n ? i + AHEAD : n - 1;
}

/* A constant row size, and a flag for the cache, give code of its own, as in the table. */
#define INLINE static inline __attribute__((always_inline))

INLINE void prefetch(const char *address, int second)
{
    if (second) __builtin_prefetch(address, 0, 2);
    else __builtin_prefetch(address);
}

INLINE float bare(const char *lines, const int64_t *places, int64_t n, int second)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        prefetch(lines + places[later(i, n)] * LINE, second);
        sum += *(const float *)(lines + places[i] * LINE);
    }
    return sum;
}

/* One float of each line is read. */
float gather_bare(const char *lines, const int64_t *places, int64_t n, int second)
{
    return second ? bare(lines, places, n, 1) : bare(lines, places, n, 0);
}

#define BY_ROW_BYTES(call)                                                                                   \
    switch (row_bytes) {                                                                                     \
    case 4: return call(4);                                                                                  \
    case 8: return call(8);                                                                                  \
    case 16: return call(16);                                                                                \
    case 32: return call(32);                                                                                \
    case 64: return call(64);                                                                                \
    case 128: return call(128);                                                                              \
    case 256: return call(256);                                                                              \
    default: return call(row_bytes);                                                                         \
    }

INLINE void prefetch_row(const char *row, int64_t row_bytes, int second)
{
    for (int64_t line = 0; line < row_bytes; line += LINE) prefetch(row + line, second);
}

INLINE float copied(const char *index, const int64_t *index_places, const char *rows, const int64_t *row_places,
                    int64_t n, char *out, int64_t row_bytes, int second)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        prefetch(index + index_places[later(i, n)] * LINE, second);
        prefetch_row(rows + row_places[later(i, n)] * row_bytes, row_bytes, second);
        sum += *(const float *)(index + index_places[i] * LINE);
        memcpy(out + i * row_bytes, rows + row_places[i] * row_bytes, (size_t)row_bytes);
    }
    return sum;
}

INLINE float updated(const char *index, const int64_t *index_places, char *rows, const int64_t *row_places,
                     char *state, int64_t n, const char *in, int64_t row_bytes, int second)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        prefetch(index + index_places[later(i, n)] * LINE, second);
        prefetch_row(rows + row_places[later(i, n)] * row_bytes, row_bytes, second);
        prefetch(state + row_places[later(i, n)] * 4, second);
        sum += *(const float *)(index + index_places[i] * LINE);
        float *row = (float *)(rows + row_places[i] * row_bytes);
        const float *more = (const float *)(in + i * row_bytes);
        for (int64_t j = 0; j < row_bytes / 4; j++) row[j] += more[j];
        *(float *)(state + row_places[i] * 4) += 1.0f;
    }
    return sum;
}

/* Read a line of one array, copy a row of another to out: what a look-up has to touch. Rows are so many bytes, a
 * power of two from 4 on, side by side from the start of a line: none lies in more lines than it must. */
float gather_copy(const char *index, const int64_t *index_places, const char *rows, const int64_t *row_places,
                  int64_t n, char *out, int64_t row_bytes, int second)
{
#define COPIED(bytes) (second ? copied(index, index_places, rows, row_places, n, out, bytes, 1)      \
                              : copied(index, index_places, rows, row_places, n, out, bytes, 0))
    BY_ROW_BYTES(COPIED)
}

/* Read a line of one array, add a row of `in` to a row of another, and 1 to a float of a third: an update. */
float gather_update(const char *index, const int64_t *index_places, char *rows, const int64_t *row_places,
                    char *state, int64_t n, const char *in, int64_t row_bytes, int second)
{
#define UPDATED(bytes) (second ? updated(index, index_places, rows, row_places, state, n, in, bytes, 1)      \
                               : updated(index, index_places, rows, row_places, state, n, in, bytes, 0))
    BY_ROW_BYTES(UPDATED)
}
