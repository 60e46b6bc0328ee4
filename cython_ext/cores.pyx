"""How a thread shares its core with others.

Where all cores have work, a thread that computes keeps its own until the kernel's next tick, 1 to 4 ms, and a
thread that is woken there waits as long, though it needs it for 50 us only.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "cores.h":
    int core_turn(uint64_t nanoseconds)
    int64_t core_turn_now()

cdef extern from "sched.h" nogil:
    int sched_yield()

__all__ = ["give_way", "take_short_turns", "turn_s"]


def take_short_turns(double seconds):
    """Let the calling thread run so long at a time, 0.0001 to 0.1 s, when others want its core.

    Its share of the core is what it was. Returns whether the system has been told: Linux alone can be, and
    heeds it since 6.12; a thread with a scheduling policy of its own keeps that.
    """
    return core_turn(<uint64_t>(seconds * 1e9)) == 0


def turn_s():
    """What the calling thread's turns are to last; 0: as the system has it; None: it does not say."""
    cdef int64_t nanoseconds = core_turn_now()
    return None if nanoseconds < 0 else nanoseconds / 1e9


def give_way():
    """Let another thread have this core, if one waits for it.

    After short turns this costs the calling thread none of its share; after turns of milliseconds it may be
    left out for as long (Linux 6.18 takes what is left of a turn).
    """
    with nogil:
        sched_yield()
