"""How a thread shares its core with others.

Where all cores have work, a thread that computes keeps its own until the kernel's next tick, 1 to 4 ms, and a
thread that is woken there waits as long, though it needs it for 50 us only.
"""

from libc.stdint cimport int64_t

cdef extern from "common/cores.h" nogil:
    ctypedef struct Turns "CoreTurns":
        int64_t before
    int64_t core_turn_now()
    Turns core_turns_begin(int64_t nanoseconds)
    int core_give_way(Turns *turns)
    void core_turns_end(const Turns *turns)

__all__ = ["CoreTurns", "turn_s"]


def turn_s():
    """What the calling thread's turns are to last; 0: as the system has it; None: it does not say."""
    cdef int64_t nanoseconds = core_turn_now()
    return None if nanoseconds < 0 else nanoseconds / 1e9


cdef class CoreTurns:
    """Short turns on its core of the thread that makes this.

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

    cdef Turns turns
    cdef readonly long long given_way

    def __init__(self, double seconds):
        self.turns = core_turns_begin(<int64_t>(seconds * 1e9))

    @property
    def taken(self):
        return self.turns.before >= 0

    def give_way(self):
        """At the end of a turn, let another thread have the core, if one waits; in this thread alone."""
        cdef int given
        with nogil:
            given = core_give_way(&self.turns)
        self.given_way += given

    def end(self):
        """Turns as long as they were before, and no giving way any more; in this thread alone."""
        core_turns_end(&self.turns)
        self.turns.before = -1
