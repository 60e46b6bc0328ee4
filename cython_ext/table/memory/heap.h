/* heap.h: memory allocator of one table, in huge pages.
 *
 * A random look-up in a large table misses the address cache (TLB) of the processor as well as its data caches; with
 * pages of 2 MiB instead of 4 KiB it does not. malloc gives no huge pages, so blocks of 1 KiB and more come from here:
 *
 *     region   memory from the system, the first of 256 KiB, later ones of a quarter of all regions; from 2 MiB on
 *              aligned to huge pages, which platform.h requests. Small tables stay small.
 *     block    a run of cache lines in a region; its first line has its length and says if it is free. Free neighbours
 *              are joined at once, and a region that is one free block is unmapped. Of other free blocks
 *              pslib_heap_trim frees the memory but not the addresses, by whole huge pages: such a block is blank, as
 *              is all of a new region.
 *
 * Free blocks are listed by length, eight lengths to a power of two, so that taking a block looks at few of them. The
 * index of a partition grows to ever new lengths while slabs have one length: slabs fill the space of old indexes, and
 * fragmentation is low.
 *
 * Smaller blocks, and all of them under AddressSanitizer (which checks the ends of malloc's blocks but not of ours),
 * come from malloc. Not thread safe: a heap belongs to one table.
 */
#ifndef PSLIB_HEAP_H
#define PSLIB_HEAP_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/platform.h"

enum {
    PSLIB_CACHE_LINE = 64,
    PSLIB_HEAP_LISTS = 256,
    PSLIB_HEAP_TRIES = 8,   /* blocks of nearly the right length that are tried before a longer one is cut */
    PSLIB_HEAP_REST = 16    /* lines; a shorter rest stays part of its block */
};
#define PSLIB_HUGE_PAGE ((size_t)2 << 20)
#define PSLIB_REGION_MIN ((size_t)256 << 10)
#define PSLIB_REGION_MAX ((size_t)1 << 30)
#define PSLIB_PACK_MIN ((size_t)32 << 20) /* bytes of all regions from which on blocks are laid side by side */
#if defined(__SANITIZE_ADDRESS__)
#define PSLIB_HEAP_BLOCK_MIN SIZE_MAX
#else
#define PSLIB_HEAP_BLOCK_MIN ((size_t)1024)
#endif

/* The first line of a block. */
typedef struct PslibBlock {
    uint32_t lines;        /* with this one */
    uint32_t lines_before; /* of the block before it; 0 = the first of its region */
    uint32_t is_free;
    uint32_t is_last;      /* of its region */
    uint32_t is_blank;     /* no whole huge page in it has memory; only while it is free */
    struct PslibBlock *next, *previous; /* in the list of its length, while it is free */
} PslibBlock;

/* The first line of a region. */
typedef struct PslibRegion {
    struct PslibRegion *next, *previous;
    size_t bytes;
} PslibRegion;

typedef struct {
    PslibRegion *regions;
    int sparing;          /* of the table: bytes count more than time (partition.h) */
    int level;            /* of the table: which copy of the loops (vectors.h) */
    int64_t region_bytes; /* of all regions */
    int64_t used_bytes;   /* of blocks that are not free, with their first lines */
    int64_t blank_bytes;  /* of all regions, without memory */
    int packs;            /* blocks are taken side by side, see pslib_heap_find_packed */
    PslibBlock *packed;   /* rest of the free block that the last of them was cut from; NULL = none */
    uint64_t filled[PSLIB_HEAP_LISTS / 64]; /* bit i: list i is not empty */
    PslibBlock *lists[PSLIB_HEAP_LISTS];
} PslibHeap;

_Static_assert(sizeof(PslibBlock) <= PSLIB_CACHE_LINE, "a block begins with one line");
_Static_assert(sizeof(PslibRegion) <= PSLIB_CACHE_LINE, "a region begins with one line");

/* Return the list of blocks of this length: lengths below 16 have their own, then eight to a power of two. */
static inline uint32_t pslib_heap_list(uint32_t lines)
{
    if (lines < 16) return lines;
    const uint32_t power = 31 - (uint32_t)__builtin_clz(lines);
    return 16 + (power - 4) * 8 + ((lines >> (power - 3)) & 7);
}

/* Return the bytes of the whole huge pages behind the first line of a block. start: OUT, of the first of them. */
static inline size_t pslib_block_huge_bytes(const PslibBlock *block, uint8_t **start)
{
    const uintptr_t begin = (uintptr_t)block + PSLIB_CACHE_LINE + PSLIB_HUGE_PAGE - 1;
    const uintptr_t first = begin & ~(uintptr_t)(PSLIB_HUGE_PAGE - 1);
    const uintptr_t end = (uintptr_t)block + (size_t)block->lines * PSLIB_CACHE_LINE;
    const uintptr_t last = end & ~(uintptr_t)(PSLIB_HUGE_PAGE - 1);
    *start = (uint8_t *)first;
    return last > first ? last - first : 0;
}

static inline int64_t pslib_block_blank_bytes(const PslibBlock *block)
{
    uint8_t *start;
    return block->is_blank ? (int64_t)pslib_block_huge_bytes(block, &start) : 0;
}

static inline void pslib_heap_list_add(PslibHeap *heap, PslibBlock *block)
{
    const uint32_t list = pslib_heap_list(block->lines);
    heap->blank_bytes += pslib_block_blank_bytes(block);
    block->is_free = 1;
    block->previous = NULL;
    block->next = heap->lists[list];
    if (block->next != NULL) block->next->previous = block;
    heap->lists[list] = block;
    heap->filled[list / 64] |= UINT64_C(1) << (list % 64);
}

static inline void pslib_heap_list_remove(PslibHeap *heap, PslibBlock *block)
{
    const uint32_t list = pslib_heap_list(block->lines);
    heap->blank_bytes -= pslib_block_blank_bytes(block);
    block->is_free = 0;
    if (heap->packed == block) heap->packed = NULL;
    if (block->next != NULL) block->next->previous = block->previous;
    if (block->previous != NULL) block->previous->next = block->next;
    else heap->lists[list] = block->next;
    if (heap->lists[list] == NULL) heap->filled[list / 64] &= ~(UINT64_C(1) << (list % 64));
}

static inline PslibBlock *pslib_block_after(PslibBlock *block)
{
    return (PslibBlock *)(void *)((uint8_t *)block + (size_t)block->lines * PSLIB_CACHE_LINE);
}

static inline PslibBlock *pslib_block_before(PslibBlock *block)
{
    return (PslibBlock *)(void *)((uint8_t *)block - (size_t)block->lines_before * PSLIB_CACHE_LINE);
}

/* Add a region, in which a block of `lines` fits, as one free block. Returns 0 without memory. */
static inline int pslib_heap_add_region(PslibHeap *heap, uint32_t lines)
{
    const size_t least = ((size_t)lines + 1) * PSLIB_CACHE_LINE;
    size_t bytes = (size_t)heap->region_bytes / 4;
    if (bytes > PSLIB_REGION_MAX) bytes = PSLIB_REGION_MAX;
    if (bytes < PSLIB_REGION_MIN) bytes = PSLIB_REGION_MIN;
    if (bytes < least) bytes = least;
    const size_t smallest = (least + PSLIB_REGION_MIN - 1) & ~(PSLIB_REGION_MIN - 1);
    for (;;) { /* half as much each time that the system refuses */
        const size_t align = bytes >= PSLIB_HUGE_PAGE ? PSLIB_HUGE_PAGE : PSLIB_REGION_MIN;
        if (bytes != smallest) bytes = (bytes + align - 1) & ~(align - 1);
        PslibRegion *region = pslib_pages_map(bytes, align);
        if (region == NULL) {
            if (bytes == smallest) return 0;
            bytes = bytes / 2 > smallest ? bytes / 2 : smallest;
            continue;
        }
        if (align == PSLIB_HUGE_PAGE) pslib_pages_want_huge(region, bytes);
        *region = (PslibRegion){heap->regions, NULL, bytes};
        if (heap->regions != NULL) heap->regions->previous = region;
        heap->regions = region;
        heap->region_bytes += (int64_t)bytes;
        PslibBlock *block = (PslibBlock *)(void *)((uint8_t *)region + PSLIB_CACHE_LINE);
        *block = (PslibBlock){(uint32_t)(bytes / PSLIB_CACHE_LINE - 1), 0, 1, 1, 1, NULL, NULL};
        pslib_heap_list_add(heap, block);
        return 1;
    }
}

/* Return a free block of at least so many lines; NULL when there is none. */
static inline PslibBlock *pslib_heap_find(const PslibHeap *heap, uint32_t lines)
{
    uint32_t list = pslib_heap_list(lines);
    int tries = 0;
    for (PslibBlock *block = heap->lists[list]; block != NULL && tries < PSLIB_HEAP_TRIES; block = block->next, tries++)
        if (block->lines >= lines) return block;
    for (list++; list < PSLIB_HEAP_LISTS; list = (list | 63) + 1) {
        const uint64_t longer = heap->filled[list / 64] >> (list % 64);
        if (longer != 0) return heap->lists[list + (uint32_t)__builtin_ctzll(longer)];
    }
    return NULL;
}

/* Start or stop to take blocks side by side. Not in a small heap: packing may add a region of more than a huge page,
 * which can be more than the whole heap. */
static inline void pslib_heap_pack(PslibHeap *heap, int packs)
{
    heap->packs = packs && (uint64_t)heap->region_bytes >= PSLIB_PACK_MIN;
    heap->packed = NULL;
}

/* Return one of the longest free blocks. */
static inline PslibBlock *pslib_heap_longest(const PslibHeap *heap)
{
    for (int word = PSLIB_HEAP_LISTS / 64 - 1; word >= 0; word--)
        if (heap->filled[word] != 0) return heap->lists[64 * word + 63 - __builtin_clzll(heap->filled[word])];
    return NULL;
}

/* Return a free block behind the one that was taken last, else a long one, else all of a new region: blocks side by
 * side. In the best-fitting gaps each block would keep a huge page from being freed. NULL when there is none. */
static inline PslibBlock *pslib_heap_find_packed(PslibHeap *heap, uint32_t lines)
{
    const uint32_t page_lines = (uint32_t)(PSLIB_HUGE_PAGE / PSLIB_CACHE_LINE);
    if (heap->packed != NULL && heap->packed->lines >= lines) return heap->packed;
    const PslibBlock *longest = pslib_heap_longest(heap);
    if (longest == NULL || longest->lines < lines + page_lines) pslib_heap_add_region(heap, lines + page_lines);
    PslibBlock *block = pslib_heap_longest(heap);
    return block != NULL && block->lines >= lines ? block : NULL;
}

/* Cut a block that was taken to so many lines; the rest is free. */
static inline void pslib_heap_cut(PslibHeap *heap, PslibBlock *block, uint32_t lines)
{
    const uint32_t rest_lines = block->lines - lines;
    if (rest_lines < PSLIB_HEAP_REST) return;
    block->lines = lines;
    PslibBlock *rest = pslib_block_after(block);
    *rest = (PslibBlock){rest_lines, lines, 1, block->is_last, block->is_blank, NULL, NULL};
    block->is_last = 0;
    if (!rest->is_last) pslib_block_after(rest)->lines_before = rest_lines;
    pslib_heap_list_add(heap, rest);
    if (heap->packs) heap->packed = rest;
}

/* Allocate memory that starts at a cache line; bytes are rounded up to whole lines. NULL when there is none. */
static inline void *pslib_heap_take(PslibHeap *heap, size_t bytes)
{
    if (bytes < PSLIB_HEAP_BLOCK_MIN) {
        void *memory = NULL;
        bytes = (bytes + PSLIB_CACHE_LINE - 1) & ~(size_t)(PSLIB_CACHE_LINE - 1);
        return posix_memalign(&memory, PSLIB_CACHE_LINE, bytes) == 0 ? memory : NULL;
    }
    if (bytes / PSLIB_CACHE_LINE >= UINT32_MAX / 2) return NULL;
    const uint32_t lines = (uint32_t)((bytes + PSLIB_CACHE_LINE - 1) / PSLIB_CACHE_LINE) + 1;
    PslibBlock *block = heap->packs ? pslib_heap_find_packed(heap, lines) : NULL;
    if (block == NULL) block = pslib_heap_find(heap, lines);
    if (block == NULL) {
        if (!pslib_heap_add_region(heap, lines)) return NULL;
        block = pslib_heap_find(heap, lines);
    }
    pslib_heap_list_remove(heap, block);
    pslib_heap_cut(heap, block, lines);
    block->is_blank = 0;
    heap->used_bytes += (int64_t)block->lines * PSLIB_CACHE_LINE;
    return (uint8_t *)block + PSLIB_CACHE_LINE;
}

/* Join a block and the one after it, neither of them in a list. */
static inline void pslib_block_join(PslibBlock *block)
{
    const PslibBlock *after = pslib_block_after(block);
    block->lines += after->lines;
    block->is_last = after->is_last;
    block->is_blank = 0;
    if (!block->is_last) pslib_block_after(block)->lines_before = block->lines;
}

static inline void pslib_heap_remove_region(PslibHeap *heap, PslibRegion *region)
{
    if (region->next != NULL) region->next->previous = region->previous;
    if (region->previous != NULL) region->previous->next = region->next;
    else heap->regions = region->next;
    heap->region_bytes -= (int64_t)region->bytes;
    munmap(region, region->bytes);
}

/* Free memory of as many bytes as were taken; NULL is an ordinary case. */
static inline void pslib_heap_give_back(PslibHeap *heap, void *memory, size_t bytes)
{
    if (memory == NULL || bytes < PSLIB_HEAP_BLOCK_MIN) {
        free(memory);
        return;
    }
    PslibBlock *block = (PslibBlock *)(void *)((uint8_t *)memory - PSLIB_CACHE_LINE);
    heap->used_bytes -= (int64_t)block->lines * PSLIB_CACHE_LINE;
    if (!block->is_last && pslib_block_after(block)->is_free) {
        pslib_heap_list_remove(heap, pslib_block_after(block));
        pslib_block_join(block);
    }
    if (block->lines_before != 0 && pslib_block_before(block)->is_free) {
        block = pslib_block_before(block);
        pslib_heap_list_remove(heap, block);
        pslib_block_join(block);
    }
    if (block->lines_before == 0 && block->is_last)
        pslib_heap_remove_region(heap, (PslibRegion *)(void *)((uint8_t *)block - PSLIB_CACHE_LINE));
    else
        pslib_heap_list_add(heap, block);
}

/* Return the memory of free blocks to the system, by whole huge pages: a part of one would cost the blocks around it
 * their huge page. To be called after many blocks were freed; taking them again costs page faults. */
static inline void pslib_heap_trim(PslibHeap *heap)
{
    for (PslibRegion *region = heap->regions; region != NULL; region = region->next) {
        PslibBlock *block = (PslibBlock *)(void *)((uint8_t *)region + PSLIB_CACHE_LINE);
        for (;; block = pslib_block_after(block)) {
            uint8_t *start;
            const size_t bytes = block->is_free && !block->is_blank ? pslib_block_huge_bytes(block, &start) : 0;
            if (bytes > 0 && pslib_pages_empty(start, bytes)) {
                block->is_blank = 1;
                heap->blank_bytes += (int64_t)bytes;
            }
            if (block->is_last) break;
        }
    }
}

#endif
