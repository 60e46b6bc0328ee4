/* layers.h: the memory-bound parts of a model, each in one pass over its arrays, for float and double.
 *
 * Shapes: n examples, m units or fields of dim floats. Arrays without a stride argument are contiguous. Each
 * function runs the copy for the best instruction set of the machine (vectors.h); all copies give the same bits.
 */
#ifndef PSLIB_LAYERS_H
#define PSLIB_LAYERS_H

#include <stdint.h>
#include <string.h>

#include "common/vectors.h"

enum {
    PSLIB_LOOK_AHEAD = 12, /* rows prefetched before they are read: about as many misses as a core overlaps */
    PSLIB_BLOCK = 16       /* columns whose sums stay in registers */
};

static int pslib_layer_level; /* of this module; set once when it is loaded */

#define PSLIB_JOINED(name, type) name##_##type
#define PSLIB_NAMED(name, type) PSLIB_JOINED(name, type)
#define LOOP(name) PSLIB_NAMED(name, REAL)
#define LOOP_AT(name) PSLIB_NAMED(PSLIB_NAMED(name, REAL), at)
#define LOOP_COPIES(...) PSLIB_COPIES(__VA_ARGS__) /* expands LOOP(name) first */

#define REAL float
#include "model/layer_loops.h"
#undef REAL
#define REAL double
#include "model/layer_loops.h"
#undef REAL

/* List the occurrences of each of `rows` rows among n places, in order: a counting sort.
 * order: OUT, (n,). starts: OUT, (rows + 1,).  Returns 0, or -1 when a place is not in 0..rows-1. */
static inline int pslib_occurrences(const int32_t *places, int64_t n, int64_t rows, int32_t *order, int32_t *starts)
{
    memset(starts, 0, (rows + 1) * sizeof(int32_t));
    for (int64_t p = 0; p < n; p++) {
        if ((uint64_t)(int64_t)places[p] >= (uint64_t)rows) return -1;
        starts[places[p]]++;
    }
    int32_t before = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t count = starts[r];
        starts[r] = before;
        before += count;
    }
    starts[rows] = before;
    for (int64_t p = 0; p < n; p++) order[starts[places[p]]++] = (int32_t)p;
    memmove(starts + 1, starts, rows * sizeof(int32_t)); /* each start has become the next row's */
    starts[0] = 0;
    return 0;
}

#endif
