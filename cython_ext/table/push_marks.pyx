"""Marks of applied pushes of one shard; what moves with a unit is in ``pslib/wire/applied_pushes.py``.

Units are the bits of an integer, as long as there are units: thousands of bits.
"""

__all__ = ["FencedError", "PushMarks", "StreamMarks"]


class FencedError(Exception):
    """A push under a lease that somebody else holds by now."""


cdef class StreamMarks:
    """Of one stream: its floor, its epoch, and the units of each number above the floor.

    Attributes
    ----------
    floor, epoch : int
    applied : dict of int to int
        number -> set of units (as an integer's bits) to which it has been applied.
    """

    cdef public object floor, epoch
    cdef public dict applied

    def __init__(self, floor=0, epoch=0, applied=None):
        self.floor, self.epoch, self.applied = floor, epoch, {} if applied is None else applied


cdef class PushMarks:
    """Marks of all streams.

    Attributes
    ----------
    streams : dict of int to StreamMarks
    done_below : int
        All streams below this number are over.
    """

    cdef readonly dict streams
    cdef public object done_below

    def __init__(self):
        self.streams, self.done_below = {}, 0

    def fresh(self, object stream, object number, object epoch, object units):
        """The units among ``units`` to which the push has not been applied yet.

        Raises
        ------
        FencedError
            When a later epoch of this stream has been seen: the lease has another holder.
        """
        cdef StreamMarks known
        if stream < self.done_below:
            return 0
        known = self.marks_of(stream)
        if epoch < known.epoch:
            raise FencedError(
                f"lease {stream} is held under epoch {known.epoch}; this push has epoch {epoch}"
            )
        known.epoch = epoch
        if number < known.floor:
            return 0
        before = known.applied.get(number)
        return units if before is None else units & ~before

    def record(self, object stream, object number, object units):
        """Remember that the push has been applied to ``units``."""
        cdef dict applied = self.marks_of(stream).applied
        before = applied.get(number)
        applied[number] = units if before is None else before | units

    def raise_floor(self, object stream, object below):
        """All numbers below ``below`` are applied everywhere: forget them one by one, keep the floor."""
        cdef StreamMarks known = self.streams.get(stream)
        if known is None or below <= known.floor:
            return
        known.floor = below
        for number in tuple(known.applied):
            if number < below:
                del known.applied[number]

    cdef StreamMarks marks_of(self, object stream):
        # nearly always there: one made for `setdefault`, and thrown away, takes as long as all the rest
        cdef StreamMarks known = self.streams.get(stream)
        if known is None:
            known = self.streams[stream] = StreamMarks()
        return known
