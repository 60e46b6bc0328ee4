/* Print the number of rows that every level of vectors reads and stores alike (storage.h), or the first that differs.
 *
 * tests/table/test_storage.py compiles and runs it. All levels must give the bits of the plain loops, and touch nothing
 * but the part: it ends at the end of a page that is followed by a protected one, so that it also lies at every
 * alignment; under the address sanitizer it is one exact malloc.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef WITHOUT_LEVELS /* as on a processor of another kind */
#undef __x86_64__
#endif
#include "table/storage.h"

enum { DIMS = 70, ROOM = 1 << 16, CASES = 5, TURNS = 40 };

static const float edges[] = {
    0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, -NAN, 3.4028234663852886e38f, 3.3895313892515355e38f,
    65504.0f, 65505.0f, 65519.99f, 65520.0f, 1e5f, 0x1p-14f, 0x1.ffcp-15f, 0x1p-24f, 0x1p-25f, 0x1p-40f, 0x1p-126f,
    0x1.fffffcp-127f, 1e-45f, 9.2e-41f, 0x1.fep127f, 2047.5f, 0.1f, -0.3f};
enum { EDGES = sizeof edges / sizeof *edges };

/* `bytes` at the end of what may be touched. */
static void *room_of(int which, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    static void *held[4];
    free(held[which]);
    held[which] = malloc(bytes);
    if (held[which] == NULL) exit(1);
    return held[which];
#else
    static uint8_t *pages[4];
    if (pages[which] == NULL) {
        void *made = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED || mprotect((uint8_t *)made + ROOM, ROOM, PROT_NONE) != 0) exit(1);
        pages[which] = made;
    }
    return pages[which] + ROOM - bytes;
#endif
}

static uint64_t drawn(uint64_t number)
{
    return pslib_mix64(number * PSLIB_GOLDEN + 1);
}

/* A weight whose rounding by these 16 bits just goes up, or just stays. */
static float at_the_threshold(int storage, uint32_t random, uint64_t word)
{
    const float sign = word & 1 ? -1.0f : 1.0f, less = word & 2 ? 0x1p-16f : 0.0f, whole = (float)(word >> 60);
    const float just = whole + (float)(0x10000 - random) * 0x1p-16f;
    const uint32_t below = (uint32_t)(word >> 1 & 1), some = 0x38800000 + ((uint32_t)(word >> 32) & 0x7FF0000);
    if (storage == PSLIB_BFLOAT16) return sign * pslib_float_of(some + 0x10000 - random - below);
    if (storage == PSLIB_INT8) return sign * (just - less);
    if (word & 4) return sign * (just - less) * 0x1p-24f;
    return sign * pslib_float_of(some + 0x2000 - (random >> 3) - below);
}

static float weight_of(int kind, int storage, int64_t column, int64_t dim, uint64_t base, uint64_t turn)
{
    const uint64_t word = drawn(turn * DIMS + (uint64_t)column);
    const float common = ((float)(word >> 40) * 0x1p-23f - 1.0f) * pslib_float_of((127 - (uint32_t)(word & 31)) << 23);
    const uint32_t random = pslib_mix64(base + (uint64_t)column / 4 * PSLIB_GOLDEN) >> column % 4 * 16 & 0xFFFF;
    switch (kind) {
    case 0: return common;
    case 1: return pslib_float_of((uint32_t)word); /* any bits */
    case 2: return (uint64_t)column == turn % (uint64_t)dim ? edges[turn / (uint64_t)dim % EDGES] : common;
    case 3: return turn % 2 ? common * 0x1p-140f : edges[word % 4 == 0 ? (word >> 8) % EDGES : 0];
    default: return column == dim - 1 && storage == PSLIB_INT8 ? 127.0f : at_the_threshold(storage, random, word);
    }
}

static int differ(const char *what, int level, int storage, int64_t dim, int kind, uint64_t turn)
{
    printf("%s: level %d, storage %d, dim %d, weights of kind %d, turn %d\n", what, level, storage, (int)dim, kind,
           (int)turn);
    return 1;
}

static int one_row(int level, int storage, int64_t dim, int kind, uint64_t turn)
{
    const size_t bytes = pslib_storage_bytes(storage) * (size_t)dim, wide = sizeof(float) * (size_t)dim;
    const uint64_t base = drawn(turn + 1000);
    const float scales[] = {0.25f, 0.0f, NAN, INFINITY, 1e-45f, PSLIB_SCALE_MAX};
    float have_scale = 5, want_scale = 5;
    float *w = room_of(0, wide), *have_w = room_of(1, wide), want_w[DIMS];
    uint8_t *have = room_of(2, bytes), want[4 * DIMS];
    for (int64_t j = 0; j < dim; j++) w[j] = weight_of(kind, storage, j, dim, base, turn);
    memset(have, 0xA5, bytes);
    pslib_store_at(level, storage, dim, w, base, have, storage == PSLIB_INT8 ? &have_scale : NULL);
    pslib_store(storage, dim, w, base, want, storage == PSLIB_INT8 ? &want_scale : NULL);
    if (memcmp(have, want, bytes) != 0) return differ("stored", level, storage, dim, kind, turn);
    if (pslib_bits_of(have_scale) != pslib_bits_of(want_scale)) return differ("scale", level, storage, dim, kind, turn);
    for (int i = 0; i < (storage == PSLIB_INT8 ? 7 : 1); i++) {
        const float scale = i < 6 ? scales[i] : want_scale;
        pslib_load_at(level, storage, dim, have, scale, have_w);
        pslib_load(storage, dim, want, scale, want_w);
        if (memcmp(have_w, want_w, wide) != 0) return differ("read", level, storage, dim, kind, turn);
    }
    return 0;
}

/* All bytes that rows can hold: a NaN in a row is a quiet one. */
static int every_value(int level, int storage)
{
    const uint32_t count = storage == PSLIB_INT8 ? 1 << 8 : 1 << 16, quiet = storage == PSLIB_BFLOAT16 ? 0x40 : 0x200;
    const uint32_t infinity = storage == PSLIB_BFLOAT16 ? 0x7F80 : 0x7C00;
    static uint16_t halves[1 << 16];
    static uint8_t small[1 << 8];
    static float have[1 << 16], want[1 << 16];
    for (uint32_t i = 0; i < count; i++) {
        halves[i] = (uint16_t)((i & 0x7FFF) > infinity ? i | quiet : i);
        small[i & 0xFF] = (uint8_t)i;
    }
    const void *from = storage == PSLIB_INT8 ? (const void *)small : halves;
    pslib_load_at(level, storage, count, from, 0.3f, have);
    pslib_load(storage, count, from, 0.3f, want);
    return memcmp(have, want, sizeof(float) * count) == 0 ? 0 : differ("values", level, storage, count, 0, 0);
}

int main(void)
{
    long rows = 0;
    for (int level = PSLIB_PLAIN; level <= pslib_best_level(); level++)
        for (int storage = PSLIB_FLOAT32; storage < PSLIB_STORAGE_KINDS; storage++) {
            if (storage != PSLIB_FLOAT32 && every_value(level, storage)) return 1;
            for (int64_t dim = 1; dim <= DIMS; dim++)
                for (int kind = 0; kind < CASES; kind++) {
                    const uint64_t turns = kind == 2 ? (uint64_t)dim * EDGES : TURNS;
                    for (uint64_t turn = 0; turn < turns; turn++, rows++)
                        if (one_row(level, storage, dim, kind, turn)) return 1;
                }
        }
    printf("%ld rows alike\n", rows);
    return 0;
}
