/* platform.h: system calls that only Linux has, each with a plain fallback: huge pages, pages given back, and the length
 * of a thread's turns. No other header asks which system this is; the same for Python is pslib/process/platform.py.
 *
 * PSLIB_NO_LINUX compiles the fallbacks on Linux, for tests.
 */
#ifndef PSLIB_PLATFORM_H
#define PSLIB_PLATFORM_H

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#if defined(__linux__) && !defined(PSLIB_NO_LINUX)
#define PSLIB_LINUX 1
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/syscall.h>
#include <unistd.h>
#else
#define PSLIB_LINUX 0
#endif

/* --- pages */

/* Map memory that starts at a multiple of `align`; NULL when there is none. */
static inline void *pslib_pages_map(size_t bytes, size_t align)
{
    uint8_t *mapped = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return NULL;
    uint8_t *start = (uint8_t *)(((uintptr_t)mapped + align - 1) & ~(uintptr_t)(align - 1));
    if (start > mapped) munmap(mapped, (size_t)(start - mapped));
    munmap(start + bytes, (size_t)(mapped + align - start));
    return start;
}

/* Ask for huge pages; if refused, or where a program can't ask, small pages work too. */
static inline void pslib_pages_want_huge(void *start, size_t bytes)
{
#if PSLIB_LINUX && defined(MADV_HUGEPAGE)
    madvise(start, bytes, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}

/* Return the memory of whole pages to the system, but not their addresses; their content is lost. Returns 0 if that
 * was refused. Elsewhere MADV_DONTNEED is only a hint that keeps the memory, so the pages are mapped anew. */
static inline int pslib_pages_empty(void *start, size_t bytes)
{
#if PSLIB_LINUX
    return madvise(start, bytes, MADV_DONTNEED) == 0;
#else
    return mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
#endif
}

/* --- turns of a thread on its core */

#if PSLIB_LINUX && defined(SYS_sched_setattr) && defined(SYS_sched_getattr)

/* Argument of sched_setattr, which C libraries declare since glibc 2.41. */
struct core_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Read the scheduling of the calling thread. Returns 0, or below 0 with errno. */
static inline int core_get(struct core_attributes *out)
{
    return (int)syscall(SYS_sched_getattr, 0, out, sizeof *out, 0);
}

/* Set the length of its turns, if it has the ordinary policy. Linux before 6.12 ignores it. */
static inline int core_turn(uint64_t nanoseconds)
{
    struct core_attributes wanted;
    if (core_get(&wanted) < 0) return -1;
    if (wanted.policy != SCHED_OTHER) {
        errno = EINVAL;
        return -1;
    }
    wanted.runtime = nanoseconds;
    return (int)syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static inline int64_t core_turn_now(void)
{
    struct core_attributes found;
    return core_get(&found) < 0 ? -1 : (int64_t)found.runtime;
}

#else

static inline int core_turn(uint64_t nanoseconds)
{
    (void)nanoseconds;
    errno = ENOSYS;
    return -1;
}

static inline int64_t core_turn_now(void)
{
    return -1;
}

#endif

#endif
