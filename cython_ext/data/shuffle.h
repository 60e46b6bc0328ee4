/* shuffle.h: the places 0..n-1 sorted by mix64(base + place).
 *
 * Mixed numbers are uniformly distributed: one pass distributes places to buckets of about 512 by the highest bits. A
 * place is stored in 4 bytes below the next bits of its mixed number, so that a window of 2^18 is 1 MB and stays in the
 * cache; each bucket is distributed to 512 cells, and an insertion sort corrects the few inversions left. Where those
 * bits are equal too (16 in 1,000 places of such a window) the whole mixed numbers are compared, at the end.
 */
#ifndef PSLIB_SHUFFLE_H
#define PSLIB_SHUFFLE_H

#include <stdint.h>
#include <string.h>

#include "common/mix.h"
#include "common/vectors.h"

#define PSLIB_SHUFFLE_CELL_BITS 9
#define PSLIB_SHUFFLE_BUCKET_BITS_MAX 14
/* Beyond it too few bits of 4 bytes would be left above the place. */
#define PSLIB_SHUFFLE_MAX ((int64_t)1 << 23)
#define PSLIB_SHUFFLE_BLOCK 256

typedef struct {
    uint64_t base;
    uint32_t places; /* a place is word & places */
    int bucket_bits, level;
} PslibShuffle;

PSLIB_INLINE void pslib_shuffle_mix_at(const PslibShuffle *order, int64_t start, int64_t size, uint64_t *restrict mixed,
                                       int level)
{
    const uint64_t first = order->base + (uint64_t)start;
    (void)level;
    for (int64_t i = 0; i < size; i++) mixed[i] = pslib_mix64(first + (uint64_t)i);
}

/* Mixed numbers of `size` places from `start` on. mixed: OUT. */
PSLIB_COPIES(void, pslib_shuffle_mix, order->level,
             (const PslibShuffle *order, int64_t start, int64_t size, uint64_t *mixed), order, start, size, mixed)

/* Replace counts by the starts of their buckets. counts: INOUT. */
static inline void pslib_shuffle_starts(uint32_t *counts, int64_t size)
{
    uint32_t before = 0;
    for (int64_t i = 0; i < size; i++) {
        const uint32_t count = counts[i];
        counts[i] = before;
        before += count;
    }
}

/* Store the word of each place at words[next[bucket]++]; with words NULL only count: next[bucket]++. */
static void pslib_shuffle_distribute(const PslibShuffle *order, int64_t n, uint32_t *restrict next,
                                     uint32_t *restrict words)
{
    uint64_t mixed[PSLIB_SHUFFLE_BLOCK];
    for (int64_t start = 0; start < n; start += PSLIB_SHUFFLE_BLOCK) {
        const int64_t size = n - start < PSLIB_SHUFFLE_BLOCK ? n - start : PSLIB_SHUFFLE_BLOCK;
        pslib_shuffle_mix(order, start, size, mixed);
        for (int64_t i = 0; i < size; i++) {
            const uint32_t at = next[pslib_partition_of_mixed(mixed[i], order->bucket_bits)]++;
            if (!words) continue;
            const uint32_t lower = (uint32_t)(mixed[i] << order->bucket_bits >> 32);
            words[at] = (lower & ~order->places) | (uint32_t)(start + i);
        }
    }
}

/* Sort the words of one bucket. to: OUT. */
static void pslib_shuffle_sort_bucket(const uint32_t *restrict from, uint32_t *restrict to, int64_t size)
{
    uint32_t next[1 << PSLIB_SHUFFLE_CELL_BITS] = {0};
    const int right = 32 - PSLIB_SHUFFLE_CELL_BITS;
    for (int64_t i = 0; i < size; i++) next[from[i] >> right]++;
    pslib_shuffle_starts(next, 1 << PSLIB_SHUFFLE_CELL_BITS);
    for (int64_t i = 0; i < size; i++) to[next[from[i] >> right]++] = from[i];
    /* One branch-free bubble pass leaves an eighth of the inversions, whose branches are unpredictable. */
    uint32_t most = size > 0 ? to[0] : 0;
    for (int64_t i = 1; i < size; i++) {
        const uint32_t one = to[i];
        to[i - 1] = one < most ? one : most;
        most = one < most ? most : one;
    }
    if (size > 0) to[size - 1] = most;
    for (int64_t i = 1; i < size; i++) {
        const uint32_t one = to[i];
        int64_t at = i;
        for (; at > 0 && to[at - 1] > one; at--) to[at] = to[at - 1];
        to[at] = one;
    }
}

static inline uint64_t pslib_shuffle_mixed(const PslibShuffle *order, uint32_t word)
{
    return pslib_mix64(order->base + (word & order->places));
}

/* Sort words with equal bits by the whole mixed numbers. sorted: INOUT. */
static void pslib_shuffle_break_ties(const PslibShuffle *order, uint32_t *sorted, int64_t size)
{
    const uint32_t places = order->places;
    for (int64_t i = 1; i < size; i++) {
        if ((sorted[i] ^ sorted[i - 1]) > places) continue;
        const uint32_t one = sorted[i];
        int64_t at = i;
        while (at > 0 && (sorted[at - 1] | places) == (one | places) &&
               pslib_shuffle_mixed(order, sorted[at - 1]) > pslib_shuffle_mixed(order, one)) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = one;
    }
}

/* room: buffer of 2 n words; n <= PSLIB_SHUFFLE_MAX. out: OUT, (n,). */
static void pslib_shuffle(uint64_t base, int64_t n, uint32_t *room, int64_t *out)
{
    uint32_t next[(1 << PSLIB_SHUFFLE_BUCKET_BITS_MAX) + 1] = {0};
    PslibShuffle order = {base, 0, 0, pslib_best_level()};
    while ((int64_t)order.places < n - 1) order.places = 2 * order.places + 1;
    while (((int64_t)1 << (order.bucket_bits + PSLIB_SHUFFLE_CELL_BITS)) < n &&
           order.bucket_bits < PSLIB_SHUFFLE_BUCKET_BITS_MAX) {
        order.bucket_bits++;
    }
    const int64_t buckets = (int64_t)1 << order.bucket_bits;
    pslib_shuffle_distribute(&order, n, next, NULL);
    pslib_shuffle_starts(next, buckets);
    pslib_shuffle_distribute(&order, n, next, room);
    uint32_t *const sorted = room + n;
    for (int64_t b = 0, start = 0; b < buckets; start = next[b], b++) {
        const int64_t size = next[b] - start;
        pslib_shuffle_sort_bucket(room + start, sorted, size);
        pslib_shuffle_break_ties(&order, sorted, size);
        for (int64_t i = 0; i < size; i++) out[start + i] = sorted[i] & order.places;
    }
}

#endif
