/* What memory alone allows: the gathers that benchmarks/table.py holds the table against.
 *
 * Places are line numbers, drawn at random by the caller; all are prefetched AHEAD places before use.
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

static inline int64_t later(int64_t i, int64_t n)
{
    return i + AHEAD < n ? i + AHEAD : n - 1;
}

/* One float of each line is read. */
float gather_bare(const char *lines, const int64_t *places, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        __builtin_prefetch(lines + places[later(i, n)] * LINE);
        sum += *(const float *)(lines + places[i] * LINE);
    }
    return sum;
}

/* Read a line of one array, copy a line of another to out: what a look-up of a row of 16 floats has to touch. */
float gather_copy(const char *index, const int64_t *index_places, const char *rows, const int64_t *row_places,
                  int64_t n, char *out)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        __builtin_prefetch(index + index_places[later(i, n)] * LINE);
        __builtin_prefetch(rows + row_places[later(i, n)] * LINE);
        sum += *(const float *)(index + index_places[i] * LINE);
        memcpy(out + i * LINE, rows + row_places[i] * LINE, LINE);
    }
    return sum;
}

/* Read a line of one array, add a line of `in` to a line of another, and 1 to a float of a third: an update. */
float gather_update(const char *index, const int64_t *index_places, char *rows, const int64_t *row_places,
                    char *state, int64_t n, const char *in)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        __builtin_prefetch(index + index_places[later(i, n)] * LINE);
        __builtin_prefetch(rows + row_places[later(i, n)] * LINE);
        __builtin_prefetch(state + row_places[later(i, n)] * 4);
        sum += *(const float *)(index + index_places[i] * LINE);
        float *row = (float *)(rows + row_places[i] * LINE);
        const float *more = (const float *)(in + i * LINE);
        for (int j = 0; j < LINE / 4; j++) row[j] += more[j];
        *(float *)(state + row_places[i] * 4) += 1.0f;
    }
    return sum;
}
