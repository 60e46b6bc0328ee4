/* cores.h: short scheduling turns of a thread on its core (cores.pyx). */
#ifndef PSLIB_CORES_H
#define PSLIB_CORES_H

#include <errno.h>
#include <sched.h>
#include <stddef.h>
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

/* Argument of sched_setattr, which C libraries declare since glibc 2.41. */
struct core_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Read the scheduling of the calling thread. Returns 0, or below 0 with errno. */
static inline int core_get(struct core_attributes *out) {
    return (int)syscall(SYS_sched_getattr, 0, out, sizeof *out, 0);
}

/* Set the length of its turns, if it has the ordinary policy. Linux before 6.12 ignores it. */
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
/* Return the CPU time of the calling thread, ns. */
static inline int64_t core_used(void) {
    struct timespec used = {0, 0};
#ifdef CLOCK_THREAD_CPUTIME_ID
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
#endif
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Short turns of a thread, from core_turns_begin to core_turns_end. */
typedef struct {
    int64_t before;      /* length of its turns before, ns; below 0: not supported */
    int64_t long_enough; /* four fifths of a turn, ns */
    int64_t until;       /* end of that, by core_used */
} CoreTurns;

/* Not where the system ignores it: sched_yield gives up the rest of a turn (Linux 6.18), which is then long. */
static inline CoreTurns core_turns_begin(int64_t nanoseconds) {
    CoreTurns turns = {core_turn_now(), nanoseconds / 5 * 4, 0};
    if (turns.before >= 0 && (core_turn((uint64_t)nanoseconds) < 0 || core_turn_now() != nanoseconds)) turns.before = -1;
    turns.until = core_used() + turns.long_enough;
    return turns;
}

/* At the end of a turn, and not before, yield the core to a waiting thread. A thread that yielded every 20 us got 0.07
 * of a core beside another busy one, not half. Returns 1 if it has yielded. */
static inline int core_give_way(CoreTurns *turns) {
    if (turns->before < 0 || core_used() < turns->until) return 0;
    sched_yield();
    turns->until = core_used() + turns->long_enough;
    return 1;
}

static inline void core_turns_end(const CoreTurns *turns) {
    if (turns->before >= 0) core_turn((uint64_t)turns->before);
}

#endif
