"""How a thread shares its core with others.

Where all cores have work, a thread that computes keeps its own until the kernel's next tick, 1 to 4 ms, and a
thread that is woken there waits as long, though it needs it for 50 us only.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "cores.h":
    int core_turn(uint64_t nanoseconds)
    int64_t core_turn_now()
    int64_t core_used()

cdef extern from "sched.h" nogil:
    int sched_yield()

__all__ = ["ShortTurns", "turn_s"]

cdef enum:
    PERCENT = 80  # of a turn, before a thread gives way


def turn_s():
    """What the calling thread's turns are to last; 0: as the system has it; None: it does not say."""
    cdef int64_t nanoseconds = core_turn_now()
    return None if nanoseconds < 0 else nanoseconds / 1e9


cdef class ShortTurns:
    """Short turns of the thread that makes this.

    Its share of the core is what it was.

    Parameters
    ----------
    seconds : float
        How long it runs at a time when others want its core, 0.0001 to 0.1.

    Attributes
    ----------
    taken : bool
        Whether the system heeds it: Linux does since 6.12; a thread with a policy of its own keeps that.
    given_way : int
        How often.
    """

    cdef int64_t long_enough, until
    cdef readonly bint taken
    cdef readonly long long given_way

    def __init__(self, double seconds):
        cdef uint64_t nanoseconds = <uint64_t>(seconds * 1e9)
        self.taken = core_turn(nanoseconds) == 0 and core_turn_now() == <int64_t>nanoseconds
        self.long_enough = PERCENT * nanoseconds // 100
        self.until = core_used() + self.long_enough

    def give_way(self):
        """At the end of a turn, let another thread have the core, if one waits for it; in this thread alone.

        Not before: who gives way gives up the rest of his turn (Linux 6.18). A thread that did so every 20 us
        had 0.07 of a core beside another busy one, not half. Nor where turns are long, for the same reason.
        """
        if not self.taken or core_used() < self.until:
            return
        self.given_way += 1
        with nogil:
            sched_yield()
        self.until = core_used() + self.long_enough
