"""Short scheduling turns of a thread, so that others on its core wait less.

Where all cores are busy, a thread that computes keeps its core until the kernel's next tick, 1 to 4 ms, and a
thread that wakes up there waits as long, though it needs the core for 50 us only.
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
    """Return the length of the calling thread's turns; 0: the system's default; None: not known."""
    cdef int64_t nanoseconds = core_turn_now()
    return None if nanoseconds < 0 else nanoseconds / 1e9


cdef class CoreTurns:
    """Short turns of the calling thread on its core; its share of the core does not change.

    Parameters
    ----------
    seconds : float
        Length of a turn when other threads wait for the core, 0.0001 to 0.1.

    Attributes
    ----------
    taken : bool
        True if the system supports it: Linux does since 6.12, for threads with the ordinary policy.
    given_way : int
        Number of times that the thread has yielded.
    """

    cdef Turns turns
    cdef readonly long long given_way

    def __init__(self, double seconds):
        self.turns = core_turns_begin(<int64_t>(seconds * 1e9))

    @property
    def taken(self):
        return self.turns.before >= 0

    def give_way(self):
        """Yield the core to a waiting thread, if the turn is over; to be called by this thread only."""
        cdef int given
        with nogil:
            given = core_give_way(&self.turns)
        self.given_way += given

    def end(self):
        """Restore the length of turns and stop yielding; to be called by this thread only."""
        core_turns_end(&self.turns)
        self.turns.before = -1
