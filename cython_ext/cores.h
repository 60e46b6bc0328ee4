/* How a thread shares its core with others (cores.pyx). */
#ifndef PSLIB_CORES_H
#define PSLIB_CORES_H

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#if defined(__linux__)
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(SYS_sched_setattr) && defined(SYS_sched_getattr)

/* sched_setattr's, of which C libraries have a name since glibc 2.41. */
struct core_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* How the calling thread is scheduled; 0, or below 0 with errno. */
static int core_get(struct core_attributes *out) {
    return (int)syscall(SYS_sched_getattr, 0, out, sizeof *out, 0);
}

/* Let it run so many nanoseconds at a time, if it is an ordinary thread. Linux before 6.12 pays no heed to it. */
static inline int core_turn(uint64_t nanoseconds) {
    struct core_attributes wanted;
    if (core_get(&wanted) < 0) return -1;
    if (wanted.policy != SCHED_OTHER) {
        errno = EINVAL;
        return -1;
    }
    wanted.runtime = nanoseconds;
    return (int)syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static inline int64_t core_turn_now(void) {
    struct core_attributes found;
    return core_get(&found) < 0 ? -1 : (int64_t)found.runtime;
}

#else

static inline int core_turn(uint64_t nanoseconds) {
    (void)nanoseconds;
    errno = ENOSYS;
    return -1;
}
static inline int64_t core_turn_now(void) { return -1; }

#endif
/* Nanoseconds of a core that the calling thread has had. */
static inline int64_t core_used(void) {
    struct timespec used = {0, 0};
#ifdef CLOCK_THREAD_CPUTIME_ID
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
#endif
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

#endif
