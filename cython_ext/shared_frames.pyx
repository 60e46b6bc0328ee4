"""Large frames of requests between processes of one machine: laid into memory that both have mapped.

A frame of megabytes through a socket is copied into the kernel and out of it, 200 KB at a time, by two
threads of ZeroMQ that wake each other for each piece. A client that has a lane to a server (``lanes.pyx``)
copies it once, into a *region*, and the server reads it there. The message itself goes by ZeroMQ as ever, in
its place among all others, with a *placard* for the frames:

    placard       = %xC1 token region count size{count} frame
    token         = 8 octets
    region, size  = uint64, little-endian
    count         = uint8, above 0
    frame         = the first frame of the message

No header of msgpack begins with %xC1. The client tells of each new region by the lane, with its descriptor;
of one that it gives up too:

    region packet = %x00 token region size          size 0: it is given up, no descriptor

The token is made by the client for its lane: whose placard that is, no name of ZeroMQ's tells. A region has
one message at a time: its first word is not 0 from when it is written until the server's last view of it is
gone. One that is not free is not used, so what is in a region stays as long as anybody looks. Where there is
no room, no lane, or anything else is amiss, frames go by ZeroMQ.

Answers do: what comes by them becomes users', who keep it, and fork, so a client would have to copy it once
more; and the thread that serves would copy, where ZeroMQ's have time to (``benchmarks/README.md``).
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.time cimport monotonic
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from "cores.h" nogil:
    int core_turn(uint64_t nanoseconds)
    int64_t core_turn_now()
    int64_t core_used()

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "shared_memory.h" nogil:
    int region_is_free(const void *region)
    void region_mark(void *region, int is_free)
    int region_file(size_t size)
    void *region_map(int fd, size_t size)
    void region_unmap(void *memory, size_t size)
    void region_close(int fd)
    int64_t region_process()

__all__ = ["SharedFrames"]

cdef enum:
    HEAD = 64  # bytes before the first frame of a region, and what each frame begins at a multiple of
    TOKEN_BYTES = 8
    FRAMES_MAX = 64
    FIRST_BYTES_MAX = 1 << 15  # the placard must be a frame that is taken as bytes
    LAID_FROM = 1 << 16  # bytes; less goes as quickly by a socket
    REGION_GRAIN = 1 << 16
    TIMES_MAX = 8  # so many times as large as it need be, and a region is left for larger messages
    LONG_FROM = 1 << 20  # bytes; more is copied in short turns, as a shard's thread works
    PIECE_BYTES = 1 << 18
    TURN_NS = 300_000

cdef size_t REGIONS_BYTES_MAX = 256 << 20  # made by one link; then frames go by ZeroMQ
cdef size_t ENDED_BYTES_MAX = 256 << 20  # of lanes that have ended, whose messages may still be on their way
cdef double IDLE_S = 5.0  # without a message a region is given up
cdef double LOOKS_S = 1.0  # how often that is looked at


cdef class Region:
    """Memory that the other end of a lane has mapped too."""

    def __dealloc__(self):
        if self.memory != NULL and self.process == region_process():
            region_unmap(self.memory, self.size)


@cython.no_gc  # no cycle can hold it, and a collection must not take the region from it first
cdef class Held:
    """What is read of a region; the last one who lets go of it frees the region for its owner."""

    def __dealloc__(self):
        if self.region.process == region_process():
            region_mark(self.region.memory, True)


cdef class Frame:
    """One frame of them."""

    cdef Held held
    cdef size_t start, size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.held.region.memory + self.start, self.size, False, flags)


cdef class Shelf:
    """The regions of one lane: at a client those that it has made, at a server those that it was told of."""

    def __cinit__(self, bytes token, bytes lane):
        self.token, self.lane, self.mine, self.theirs = token, lane, [], {}

    cdef size_t keep_taken(self) except? 0:
        """Forget what no message of the other end is in; bytes of the rest."""
        cdef Region region
        cdef size_t total = 0
        self.theirs = {number: one for number, one in self.theirs.items() if not is_free(one)}
        for region in self.theirs.values():
            total += region.size
        return total


cdef class SharedFrames:
    """Frames in shared memory, of all lanes of a link; used as `Lanes` are.

    Parameters
    ----------
    lanes : Lanes
    frame_bytes_max : int
        Of one frame.
    """

    def __init__(self, lanes, frame_bytes_max):
        self.lanes, self.frame_bytes_max = lanes, frame_bytes_max
        self.shelves, self.by_lane, self.by_peer, self.ended = {}, {}, {}, []
        self.process = region_process()

    def begin(self, bytes lane, peer):
        """A client has begun a lane to a peer: large frames that it sends there may be laid."""
        self.by_peer[peer] = self.put_up(os.urandom(TOKEN_BYTES), lane)

    cdef Shelf put_up(self, bytes token, bytes lane):
        cdef Shelf shelf = Shelf(token, lane)
        self.shelves[token] = self.by_lane[lane] = shelf
        return shelf

    def end(self, bytes lane):
        """A lane is gone; views of what came live on, and what was sent before may still come by ZeroMQ."""
        cdef Shelf shelf = self.by_lane.pop(lane, None)
        cdef Region region
        if shelf is None:
            return
        del self.shelves[shelf.token]
        self.by_peer = {peer: one for peer, one in self.by_peer.items() if one is not shelf}
        for region in shelf.mine:
            self.made_bytes -= region.size
        shelf.mine = []
        if shelf.keep_taken():
            shelf.ended_s = monotonic()
            self.ended.append(shelf)
            self.bound_ended()

    cdef int bound_ended(self) except -1:
        """Of lanes that have ended, the latest ones' regions are kept."""
        cdef Shelf shelf
        cdef size_t total = 0
        kept = []
        for shelf in reversed(self.ended):
            total += shelf.keep_taken()
            if total <= ENDED_BYTES_MAX and shelf.theirs:
                kept.insert(0, shelf)
        self.ended = kept
        return 0

    @property
    def sizes(self):
        """Bytes of all regions: of those made here, and of those that others have told of."""
        cdef Shelf shelf
        cdef Region region
        mine, theirs = [], []
        for shelf in self.shelves.values():
            mine += [region.size for region in shelf.mine]
            theirs += [region.size for region in shelf.theirs.values()]
        return mine, theirs

    # --- out ----------------------------------------------------------------------------------------------

    cpdef bytes lay(self, peer, list frames):
        """Lay all frames of a message but the first into a region.

        Parameters
        ----------
        peer : hashable
            As `begin` was told.
        frames : list of bytes-like
            Contiguous.

        Returns
        -------
        bytes or None
            The message in one frame; None: it is not for this, and all of it goes by ZeroMQ.
        """
        cdef Shelf shelf = self.by_peer.get(peer)
        cdef Py_ssize_t place, got = 0, count = len(frames) - 1
        cdef size_t start = HEAD
        cdef Py_buffer sources[FRAMES_MAX]
        cdef uint64_t sizes[FRAMES_MAX]
        cdef Region region = None
        if shelf is None or not 0 < count <= FRAMES_MAX or len(frames[0]) > FIRST_BYTES_MAX:
            return None
        if self.process != region_process():  # a child has no regions
            return None
        try:
            for place in range(count):
                PyObject_GetBuffer(frames[place + 1], &sources[place], PyBUF_SIMPLE)
                got += 1
                sizes[place] = sources[place].len
                if sizes[place] > self.frame_bytes_max:
                    return None
                start += aligned(sizes[place])
            if start >= LAID_FROM:
                region = self.room(shelf, start)
            if region is None:
                return None
            with nogil:
                copy_all(region.memory, sources, count)
        finally:
            for place in range(got):
                PyBuffer_Release(&sources[place])
        region_mark(region.memory, False)
        self.last = region
        return b"".join((
            b"\xc1", shelf.token, word(region.number), bytes([count]),
            PyBytes_FromStringAndSize(<char *>sizes, count * sizeof(uint64_t)), frames[0],
        ))

    cpdef int settle(self, bint is_sent) except -1:
        """What was laid last is on its way, or could not be sent."""
        if self.last is not None and not is_sent:
            region_mark(self.last.memory, True)
        self.last = None
        return 0

    cdef Region room(self, Shelf shelf, size_t size):
        """A free region, the smallest that has room and is not far too large, or a new one; None: no room."""
        cdef Region region, found = None
        cdef size_t most = TIMES_MAX * size + REGION_GRAIN
        for region in shelf.mine:
            if not size <= region.size <= most or (found is not None and region.size >= found.size):
                continue
            if is_free(region):
                found = region
        if found is None:
            found = self.make(shelf, size)
        if found is not None:
            found.used_s = monotonic()
        return found

    cdef Region make(self, Shelf shelf, size_t size):
        """A new region, a quarter larger than it need be; the other end is told of it."""
        cdef Region region
        cdef int fd
        size = with_room(size)
        if not self.lanes.can_tell(shelf.lane):
            return None
        if self.made_bytes + size > REGIONS_BYTES_MAX and monotonic() >= self.full_s:
            self.full_s = monotonic() + LOOKS_S
            self.trim(LOOKS_S)
        if self.made_bytes + size > REGIONS_BYTES_MAX:
            return None
        with nogil:
            fd = region_file(size)
        if fd < 0:
            return None
        try:
            region = mapped(fd, shelf.made + 1, size)
            if region is None:
                return None
            if not self.lanes.tell(shelf.lane, region_packet(shelf, region.number, size), fd):
                return None
        finally:
            region_close(fd)
        shelf.made += 1
        shelf.mine.append(region)
        self.made_bytes += size
        return region

    cpdef int trim(self, double idle_s) except -1:
        """Give up regions that are free and have had no message for so long."""
        cdef Shelf shelf
        cdef Region region
        cdef double before_s = monotonic() - idle_s
        for shelf in self.shelves.values():
            for region in shelf.mine[:]:
                if region.used_s > before_s or region is self.last or not is_free(region):
                    continue
                if not self.lanes.tell(shelf.lane, region_packet(shelf, region.number, 0), -1):
                    break
                shelf.mine.remove(region)
                self.made_bytes -= region.size
        return 0

    cdef int look_around(self) except -1:
        """Now and then, give up what is idle."""
        cdef double now_s
        if self.made_bytes == 0 and not self.ended:
            return 0
        now_s = monotonic()
        if now_s < self.looks_s:
            return 0
        self.looks_s = now_s + LOOKS_S
        self.trim(IDLE_S)
        if self.ended:
            self.ended = [one for one in self.ended if (<Shelf>one).ended_s > now_s - IDLE_S]
        return 0

    # --- in -----------------------------------------------------------------------------------------------

    def told(self, bytes lane, bytes packet, int fd):
        """A lane tells of a region; False: in no way that makes sense, or it can't be mapped. Closes fd."""
        cdef Shelf shelf
        cdef Region region = None
        cdef uint64_t number, size
        try:
            if PyBytes_GET_SIZE(packet) != 1 + TOKEN_BYTES + 16:
                return False
            token, number, size = packet[1 : 1 + TOKEN_BYTES], number_at(packet, 9), number_at(packet, 17)
            shelf = self.shelves.get(token)
            if shelf is None and lane not in self.by_lane:
                shelf = self.put_up(token, lane)
            if shelf is None or shelf.lane != lane or shelf in self.by_peer.values():
                return False
            if size == 0:
                shelf.theirs.pop(number, None)
                return True
            region = None if fd < 0 or size < HEAD else mapped(fd, number, size)
            if region is None:
                return False
            shelf.theirs[number] = region
            return True
        finally:
            if fd >= 0:
                region_close(fd)

    cpdef list taken(self, bytes placard):
        """The frames of a message; None: the placard names a region that is not known here, or is none."""
        cdef Shelf shelf = self.shelf_of(placard[1 : 1 + TOKEN_BYTES])
        cdef Py_ssize_t place, count, head = 1 + TOKEN_BYTES + 9
        cdef size_t start = HEAD, size
        cdef Region region
        cdef Held held
        cdef list frames
        if shelf is None or PyBytes_GET_SIZE(placard) <= head:
            return None
        region = shelf.theirs.get(number_at(placard, 9)) if self.process == region_process() else None
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

    cdef Shelf shelf_of(self, bytes token):
        cdef Shelf shelf = self.shelves.get(token), one
        for one in self.ended if shelf is None else ():
            if one.token == token:
                shelf = one
        return shelf


cdef object view_of(Held held, size_t start, size_t size):
    cdef Frame frame = Frame.__new__(Frame)
    frame.held, frame.start, frame.size = held, start, size
    return memoryview(frame)


cdef int copy_all(unsigned char *out, Py_buffer *sources, Py_ssize_t count) noexcept nogil:
    """Copy frames to where they belong; many bytes in short turns, between which others may have the core."""
    cdef size_t start = HEAD, at, some, total = 0
    cdef Py_ssize_t place
    cdef int64_t turn = -1, until = 0
    for place in range(count):
        total += sources[place].len
    if total > LONG_FROM:
        turn = core_turn_now()
        if turn >= 0 and (core_turn(TURN_NS) < 0 or core_turn_now() != TURN_NS):
            turn = -1
        until = core_used() + TURN_NS * 4 // 5
    for place in range(count):
        at = 0
        while at < <size_t>sources[place].len:
            some = min(<size_t>sources[place].len - at, <size_t>PIECE_BYTES)
            memcpy(out + start + at, <const char *>sources[place].buf + at, some)
            at += some
            if turn >= 0 and core_used() >= until:
                sched_yield()
                until = core_used() + TURN_NS * 4 // 5
        start += aligned(at)
    if turn >= 0:
        core_turn(<uint64_t>turn)
    return 0


cdef Region mapped(int fd, uint64_t number, size_t size):
    cdef Region region = Region.__new__(Region)
    cdef void *memory
    with nogil:
        memory = region_map(fd, size)
    region.memory = <unsigned char *>memory
    region.size, region.number, region.process = size, number, region_process()
    return None if region.memory == NULL else region


cdef bint is_free(Region region) noexcept:
    """Whether nobody reads it; in a process that was forked nobody does, for it is not there."""
    return region.process != region_process() or region_is_free(region.memory)


cdef size_t with_room(size_t size) noexcept:
    """A quarter more, so that the next message fits as well."""
    return (size + size // 4 + REGION_GRAIN - 1) // REGION_GRAIN * REGION_GRAIN


cdef bytes region_packet(Shelf shelf, uint64_t number, uint64_t size):
    return b"\0" + shelf.token + word(number) + word(size)


cdef size_t aligned(size_t size) noexcept nogil:
    return (size + HEAD - 1) // HEAD * HEAD


cdef bytes word(uint64_t number):
    return PyBytes_FromStringAndSize(<char *>&number, sizeof(number))


cdef uint64_t number_at(bytes frame, Py_ssize_t place) noexcept:
    cdef uint64_t number
    memcpy(&number, PyBytes_AS_STRING(frame) + place, sizeof(number))
    return number


cdef bint is_placard(object frame) noexcept:
    """Whether a frame tells of others in shared memory."""
    return (
        PyBytes_CheckExact(frame)
        and PyBytes_GET_SIZE(frame) > 0
        and <unsigned char>PyBytes_AS_STRING(frame)[0] == 0xC1
    )
