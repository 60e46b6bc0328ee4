"""What clients of this machine have laid into shared memory, at the server: views of it.

The other end, and the grammar, are in ``shared_frames.pyx``.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.time cimport monotonic
from libc.stdint cimport uint64_t

from cython_ext.shared_frames cimport (
    HEAD,
    IDLE_S,
    LOOKS_S,
    TOKEN_BYTES,
    Region,
    aligned,
    close_file,
    here,
    is_free,
    mapped,
    mark_free,
    number_at,
)

__all__ = ["SharedViews"]

cdef size_t ENDED_BYTES_MAX = 256 << 20  # of lanes that have ended, whose messages may still be on their way


@cython.no_gc  # no cycle can hold it, and a collection must not take the region from it first
cdef class Held:
    """What is read of a region; the last one who lets go of it frees the region for its owner."""

    cdef Region region

    def __dealloc__(self):
        mark_free(self.region)


cdef class Frame:
    """One frame of them."""

    cdef Held held
    cdef size_t start, size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.held.region.memory + self.start, self.size, False, flags)


cdef class Told:
    """The regions that one lane has told of."""

    def __cinit__(self, bytes token, bytes lane):
        self.token, self.lane, self.regions = token, lane, {}

    cdef size_t keep_taken(self) except? 0:
        """Forget those that no message is in; bytes of the rest."""
        cdef Region region
        cdef size_t total = 0
        self.regions = {number: one for number, one in self.regions.items() if not is_free(one)}
        for region in self.regions.values():
            total += region.size
        return total


cdef class SharedViews:
    """Frames in shared memory that all lanes of a server's link tell of; used as `Lanes` are.

    Parameters
    ----------
    frame_bytes_max : int
        Of one frame.
    """

    def __init__(self, frame_bytes_max):
        self.frame_bytes_max, self.process = frame_bytes_max, here()
        self.by_token, self.by_lane, self.ended = {}, {}, []

    @property
    def sizes(self):
        """Bytes of all regions, of lanes that are open."""
        cdef Told one
        cdef Region region
        return [region.size for one in self.by_lane.values() for region in one.regions.values()]

    @property
    def kept(self):
        """The same of lanes that have ended."""
        cdef Told one
        cdef Region region
        return [region.size for one in self.ended for region in one.regions.values()]

    def told(self, bytes lane, bytes packet, int fd):
        """A lane tells of a region; False: in no way that makes sense, or it can't be mapped. Closes fd."""
        cdef Told one
        cdef Region region
        cdef uint64_t number, size
        try:
            if PyBytes_GET_SIZE(packet) != 1 + TOKEN_BYTES + 16:
                return False
            token, number, size = packet[1 : 1 + TOKEN_BYTES], number_at(packet, 9), number_at(packet, 17)
            one = self.by_token.get(token)
            if one is None and lane not in self.by_lane:
                one = self.by_token[token] = self.by_lane[lane] = Told(token, lane)
            if one is None or one.lane != lane:
                return False
            if size == 0:
                one.regions.pop(number, None)
                return True
            region = None if fd < 0 or size < HEAD else mapped(fd, number, size)
            if region is None:
                return False
            one.regions[number] = region
            return True
        finally:
            close_file(fd)

    cpdef list taken(self, bytes placard):
        """The frames of a message; None: the placard names a region that is not known here, or is none."""
        cdef Told one = self.told_by(placard[1 : 1 + TOKEN_BYTES])
        cdef Py_ssize_t place, count, head = 1 + TOKEN_BYTES + 9
        cdef size_t start = HEAD, size
        cdef Region region
        cdef Held held
        cdef list frames
        if one is None or PyBytes_GET_SIZE(placard) <= head or self.process != here():
            return None
        region = one.regions.get(number_at(placard, 9))
        count = <unsigned char>PyBytes_AS_STRING(placard)[head - 1]
        if region is None or count == 0 or PyBytes_GET_SIZE(placard) < head + 8 * count:
            return None
        held = Held.__new__(Held)
        held.region = region
        frames = [placard[head + 8 * count :]]
        for place in range(count):
            size = number_at(placard, head + 8 * place)
            if size > self.frame_bytes_max or size > region.size or start > region.size - size:
                return None
            frames.append(view_of(held, start, size))
            start += aligned(size)
        return frames

    cdef Told told_by(self, bytes token):
        cdef Told found = self.by_token.get(token), one
        for one in self.ended if found is None else ():
            if one.token == token:
                found = one
        return found

    # --- the end ------------------------------------------------------------------------------------------

    def end(self, bytes lane):
        """A lane is gone; views of what came live on, and what was sent before may still come by ZeroMQ."""
        cdef Told one = self.by_lane.pop(lane, None)
        cdef size_t total = 0
        if one is None:
            return
        del self.by_token[one.token]
        one.ended_s = monotonic()
        kept = []
        for one in [one, *reversed(self.ended)]:  # the latest first
            total += one.keep_taken()
            if one.regions and total <= ENDED_BYTES_MAX:
                kept.insert(0, one)
        self.ended = kept

    cdef int look_around(self) except -1:
        """Now and then, forget what has not come after all."""
        cdef Told one
        cdef double now_s
        if not self.ended:
            return 0
        now_s = monotonic()
        if now_s >= self.looks_s:
            self.looks_s = now_s + LOOKS_S
            self.ended = [one for one in self.ended if one.ended_s > now_s - IDLE_S]
        return 0


cdef object view_of(Held held, size_t start, size_t size):
    cdef Frame frame = Frame.__new__(Frame)
    frame.held, frame.start, frame.size = held, start, size
    return memoryview(frame)


cdef bint is_placard(object frame) noexcept:
    """Whether a frame tells of others in shared memory."""
    return (
        PyBytes_CheckExact(frame)
        and PyBytes_GET_SIZE(frame) > 0
        and <unsigned char>PyBytes_AS_STRING(frame)[0] == 0xC1
    )
