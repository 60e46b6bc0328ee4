/* Takes, frees and trims blocks of a heap, and counts the pages that have memory, as the system tells.
 *
 * tests/table/test_heap_pages.py compiles it with the calls of Linux and with the fallbacks of common/platform.h.
 */
#include <stdio.h>
#include <unistd.h>

#include "common/cores.h"
#include "table/memory/heap.h"

enum { PAGES_MAX = 4096 };

static const size_t mebi = (size_t)1 << 20;

/* Return the pages with memory among the whole huge pages of a free block. */
static size_t pages_with_memory(const void *memory)
{
    uint8_t *start;
    unsigned char seen[PAGES_MAX];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const void *block = (const uint8_t *)memory - PSLIB_CACHE_LINE;
    const size_t bytes = pslib_block_huge_bytes(block, &start);
    if (bytes == 0 || bytes / page > PAGES_MAX || mincore(start, bytes, (void *)seen) != 0) return (size_t)-1;
    size_t count = 0;
    for (size_t i = 0; i < bytes / page; i++) count += seen[i] & 1;
    return count;
}

static int is_filled(const uint8_t *memory, int value)
{
    for (size_t i = 0; i < 8 * mebi; i++)
        if (memory[i] != value) return 0;
    return 1;
}

int main(void)
{
    PslibHeap heap = {0};
    void *first = pslib_heap_take(&heap, 128 * mebi); /* a quarter of it is the next region: blocks have neighbours */
    uint8_t *blocks[3];
    for (int i = 0; i < 3; i++) memset(blocks[i] = pslib_heap_take(&heap, 8 * mebi), i + 1, 8 * mebi);
    pslib_heap_give_back(&heap, blocks[1], 8 * mebi);
    const size_t before = pages_with_memory(blocks[1]);
    pslib_heap_trim(&heap);
    printf("had memory %d\n", before > 0 && before != (size_t)-1);
    printf("has memory %zu\n", pages_with_memory(blocks[1]));
    printf("counted as blank %d\n", heap.blank_bytes >= (int64_t)(4 * mebi));
    uint8_t *again = pslib_heap_take(&heap, 8 * mebi);
    memset(again, 9, 8 * mebi);
    printf("the same addresses %d\n", again == blocks[1]);
    printf("filled %d %d %d\n", is_filled(blocks[0], 1), is_filled(again, 9), is_filled(blocks[2], 3));
    pslib_heap_give_back(&heap, blocks[0], 8 * mebi);
    pslib_heap_give_back(&heap, again, 8 * mebi);
    pslib_heap_give_back(&heap, blocks[2], 8 * mebi);
    pslib_heap_give_back(&heap, first, 128 * mebi);
    printf("bytes left %lld\n", (long long)(heap.region_bytes + heap.used_bytes + heap.blank_bytes));
    CoreTurns turns = core_turns_begin(1000000);
    while (core_used() < turns.until + 1000000) continue;
    printf("turns %s, given way %d\n", turns.before < 0 ? "as the system likes" : "short", core_give_way(&turns));
    core_turns_end(&turns);
    return 0;
}
