/* cores.h: short scheduling turns of a thread on its core (cores.pyx). */
#ifndef PSLIB_CORES_H
#define PSLIB_CORES_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "common/platform.h"

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
