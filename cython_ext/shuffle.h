/* shuffle.h: the places 0..n-1 in the order of mix64(base + place).
 *
 * A place is packed below the high bits of its mixed number, so that sorting 8 bytes a place is enough. Mixed numbers
 * are spread evenly: one pass throws them into buckets of about 512, which stay in a core's cache while a second pass
 * spreads each over 512 cells, and an insertion sort has next to nothing left to do. Two places whose high bits are
 * equal (one chance in 2,000 for a whole window) are told apart by their whole mixed numbers at the end.
 */
#ifndef PSLIB_SHUFFLE_H
#define PSLIB_SHUFFLE_H

#include <stdint.h>
#include <string.h>

#include "mix.h"

#define PSLIB_SHUFFLE_CELL_BITS 9
#define PSLIB_SHUFFLE_BUCKET_BITS_MAX 12
/* Beyond it cells get long and an insertion sort slow: 4,096 buckets of 512 cells of 4. */
#define PSLIB_SHUFFLE_MAX ((int64_t)1 << 23)

typedef struct {
    uint64_t base, places; /* a place is packed & places */
    int bucket_bits;
} PslibShuffle;

static inline uint64_t pslib_shuffle_packed(const PslibShuffle *order, int64_t place)
{
    return (pslib_mix64(order->base + (uint64_t)place) & ~order->places) | (uint64_t)place;
}

static inline uint64_t pslib_shuffle_mixed(const PslibShuffle *order, uint64_t packed)
{
    return pslib_mix64(order->base + (packed & order->places));
}

/* Counts become where each begins. */
static inline void pslib_shuffle_starts(uint32_t *counts, int64_t size)
{
    uint32_t before = 0;
    for (int64_t i = 0; i < size; i++) {
        const uint32_t count = counts[i];
        counts[i] = before;
        before += count;
    }
}

static inline uint32_t pslib_shuffle_bucket(const PslibShuffle *order, uint64_t packed)
{
    return pslib_partition_of_mixed(packed, order->bucket_bits);
}

/* Sorts one bucket from `from` to `to` by the bits below those of its bucket, then altogether. */
static void pslib_shuffle_sort_bucket(const PslibShuffle *order, const uint64_t *from, uint64_t *to, int64_t size)
{
    uint32_t next[1 << PSLIB_SHUFFLE_CELL_BITS] = {0};
    const int left = order->bucket_bits, right = 64 - PSLIB_SHUFFLE_CELL_BITS;
    for (int64_t i = 0; i < size; i++) next[from[i] << left >> right]++;
    pslib_shuffle_starts(next, 1 << PSLIB_SHUFFLE_CELL_BITS);
    for (int64_t i = 0; i < size; i++) to[next[from[i] << left >> right]++] = from[i];
    for (int64_t i = 1; i < size; i++) {
        const uint64_t one = to[i];
        int64_t at = i;
        for (; at > 0 && to[at - 1] > one; at--) to[at] = to[at - 1];
        to[at] = one;
    }
}

/* Where high bits are equal, the order is that of the whole mixed numbers. */
static void pslib_shuffle_break_ties(const PslibShuffle *order, uint64_t *sorted, int64_t n)
{
    int tied = 0;
    for (int64_t i = 1; i < n; i++) tied |= (sorted[i] ^ sorted[i - 1]) <= order->places;
    if (!tied) return;
    for (int64_t i = 1; i < n; i++) {
        const uint64_t one = sorted[i];
        int64_t at = i;
        while (at > 0 && (sorted[at - 1] | order->places) == (one | order->places) &&
               pslib_shuffle_mixed(order, sorted[at - 1]) > pslib_shuffle_mixed(order, one)) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = one;
    }
}

/* `room` and `out` hold n words each; n <= PSLIB_SHUFFLE_MAX. `out` gets the places. */
static void pslib_shuffle(uint64_t base, int64_t n, uint64_t *room, uint64_t *out)
{
    static const int64_t most = 1 << PSLIB_SHUFFLE_BUCKET_BITS_MAX;
    uint32_t next[(1 << PSLIB_SHUFFLE_BUCKET_BITS_MAX) + 1] = {0};
    PslibShuffle order = {base, 0, 0};
    while ((int64_t)order.places < n - 1) order.places = 2 * order.places + 1;
    while (((int64_t)1 << (order.bucket_bits + PSLIB_SHUFFLE_CELL_BITS)) < n && (1 << order.bucket_bits) < most) {
        order.bucket_bits++;
    }
    const int64_t buckets = (int64_t)1 << order.bucket_bits;
    for (int64_t i = 0; i < n; i++) {
        out[i] = pslib_shuffle_packed(&order, i);
        next[pslib_shuffle_bucket(&order, out[i])]++;
    }
    pslib_shuffle_starts(next, buckets);
    for (int64_t i = 0; i < n; i++) room[next[pslib_shuffle_bucket(&order, out[i])]++] = out[i];
    for (int64_t b = 0, start = 0; b < buckets; start = next[b], b++) {
        pslib_shuffle_sort_bucket(&order, room + start, out + start, next[b] - start);
    }
    pslib_shuffle_break_ties(&order, out, n);
    for (int64_t i = 0; i < n; i++) out[i] &= order.places;
}

#endif
