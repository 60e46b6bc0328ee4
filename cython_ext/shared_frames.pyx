"""Large frames of requests between processes of one machine: laid into memory that both have mapped.

A frame of megabytes through a socket is copied into the kernel and out of it, 200 KB at a time, by two
threads of ZeroMQ that wake each other for each piece. A client that has a lane to a server (``lanes.pyx``)
copies it once, into a *region*, and the server reads it there (``shared_views.pyx``). The message itself goes
by ZeroMQ as ever, in its place among all others, with a *placard* for the frames:

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

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.time cimport monotonic
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from "cores.h" nogil:
    ctypedef struct CoreTurns:
        int64_t before
    CoreTurns core_turns_begin(int64_t nanoseconds)
    int core_give_way(CoreTurns *turns)
    void core_turns_end(const CoreTurns *turns)

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
    FRAMES_MAX = 64
    FIRST_BYTES_MAX = 1 << 15  # the placard must be a frame that is taken as bytes
    LAID_FROM = 1 << 16  # bytes; less goes as quickly by a socket
    REGION_GRAIN = 1 << 16
    TIMES_MAX = 8  # so many times as large as it need be, and a region is left for larger messages
    LONG_FROM = 1 << 20  # bytes; more is copied in short turns, as a shard's thread works
    PIECE_BYTES = 1 << 18
    TURN_NS = 300_000

cdef size_t REGIONS_BYTES_MAX = 256 << 20  # made by one link; then frames go by ZeroMQ


cdef class Region:
    """Memory that both ends of a lane have mapped."""

    def __dealloc__(self):
        if self.memory != NULL and self.process == region_process():
            region_unmap(self.memory, self.size)


cdef class Shelf:
    """The regions made for one lane."""

    def __cinit__(self, bytes lane):
        self.token, self.lane, self.regions = os.urandom(TOKEN_BYTES), lane, []

    cdef bytes packet(self, uint64_t number, uint64_t size):
        return b"\0" + self.token + word(number) + word(size)


cdef class SharedFrames:
    """Lays large frames for the peers of a client's link that have lanes; used as `Lanes` are.

    Parameters
    ----------
    lanes : Lanes
    frame_bytes_max : int
        Of one frame.

    Attributes
    ----------
    given_way : int
        How often a thread has left its core to others while it copied.
    """

    def __init__(self, lanes, frame_bytes_max):
        self.lanes, self.frame_bytes_max, self.process = lanes, frame_bytes_max, here()
        self.shelves = {}

    def begin(self, bytes lane, peer):
        """A lane has been begun to a peer: large frames that are sent there may be laid."""
        self.shelves[peer] = Shelf(lane)

    def end(self, bytes lane):
        """A lane is gone."""
        cdef Shelf shelf
        self.shelves = {peer: shelf for peer, shelf in self.shelves.items() if shelf.lane != lane}

    @property
    def sizes(self):
        """Bytes of all regions."""
        cdef Shelf shelf
        cdef Region region
        return [region.size for shelf in self.shelves.values() for region in shelf.regions]

    def told(self, bytes lane, bytes packet, int fd):
        """A server tells of no regions; closes fd."""
        close_file(fd)
        return False

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
            The message in one frame, of which `settle` shall hear what became; None: it is not for this, and
            all of it goes by ZeroMQ.
        """
        cdef Shelf shelf = self.shelves.get(peer)
        cdef Py_ssize_t place, got = 0, count = len(frames) - 1
        cdef size_t start = HEAD
        cdef Py_buffer sources[FRAMES_MAX]
        cdef uint64_t sizes[FRAMES_MAX]
        cdef Region region = None
        cdef int given_way
        if shelf is None or not 0 < count <= FRAMES_MAX or len(frames[0]) > FIRST_BYTES_MAX:
            return None
        if self.process != here():  # a child has no regions
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
                given_way = copy_all(region.memory, sources, count)
            self.given_way += given_way
        finally:
            for place in range(got):
                PyBuffer_Release(&sources[place])
        placard = b"".join((
            b"\xc1", shelf.token, word(region.number), bytes([count]),
            PyBytes_FromStringAndSize(<char *>sizes, count * sizeof(uint64_t)), frames[0],
        ))
        region_mark(region.memory, False)
        self.last = region
        return placard

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
        for region in shelf.regions:
            if not size <= region.size <= most or (found is not None and region.size >= found.size):
                continue
            if is_free(region):
                found = region
        if found is None and self.lanes.can_tell(shelf.lane):
            # a quarter larger than it need be, so that the next message has room too
            found = self.make(shelf, (size + size // 4 + REGION_GRAIN - 1) // REGION_GRAIN * REGION_GRAIN)
        if found is not None:
            found.used_s = monotonic()
        return found

    cdef Region make(self, Shelf shelf, size_t size):
        """A new region, of which the other end is told; None: there is no room for it."""
        cdef Region region
        cdef double now_s = monotonic()
        cdef int fd
        if sum(self.sizes) + size > REGIONS_BYTES_MAX and now_s >= self.full_s:
            self.full_s = now_s + LOOKS_S
            self.trim(LOOKS_S)
        if sum(self.sizes) + size > REGIONS_BYTES_MAX:
            return None
        with nogil:
            fd = region_file(size)
        if fd < 0:
            return None
        try:
            region = mapped(fd, shelf.made + 1, size)
            if region is None or not self.lanes.tell(shelf.lane, shelf.packet(region.number, size), fd):
                return None
        finally:
            close_file(fd)
        shelf.made += 1
        shelf.regions.append(region)
        return region

    cpdef int trim(self, double idle_s) except -1:
        """Give up regions that are free and have had no message for so long."""
        cdef Shelf shelf
        cdef Region region
        cdef double before_s = monotonic() - idle_s
        for shelf in self.shelves.values():
            for region in shelf.regions[:]:
                if region.used_s > before_s or region is self.last or not is_free(region):
                    continue
                if not self.lanes.tell(shelf.lane, shelf.packet(region.number, 0), -1):
                    break
                shelf.regions.remove(region)
        return 0

    cdef int look_around(self) except -1:
        """Now and then, give up what is idle."""
        cdef double now_s
        if not self.shelves:
            return 0
        now_s = monotonic()
        if now_s >= self.looks_s:
            self.looks_s = now_s + LOOKS_S
            self.trim(IDLE_S)
        return 0


cdef int copy_all(unsigned char *out, Py_buffer *sources, Py_ssize_t count) noexcept nogil:
    """Copy frames to where they belong; many bytes in short turns, between which others may have the core.

    Returns how often that was.
    """
    cdef int given_way = 0
    cdef size_t start = HEAD, at, size, some, total = 0
    cdef Py_ssize_t place
    cdef CoreTurns turns
    for place in range(count):
        total += sources[place].len
    turns.before = -1
    if total > LONG_FROM:
        turns = core_turns_begin(TURN_NS)
    for place in range(count):
        at, size = 0, sources[place].len
        while at < size:
            some = min(size - at, <size_t>PIECE_BYTES)
            memcpy(out + start + at, <const char *>sources[place].buf + at, some)
            at += some
            given_way += core_give_way(&turns)
        start += aligned(size)
    core_turns_end(&turns)
    return given_way


cdef Region mapped(int fd, uint64_t number, size_t size):
    """A region that is mapped; None: there is no room for it, or its file is none of that size."""
    cdef Region region = Region.__new__(Region)
    cdef void *memory
    with nogil:
        memory = region_map(fd, size)
    region.memory = <unsigned char *>memory
    region.size, region.number, region.process = size, number, here()
    return None if region.memory == NULL else region


cdef int close_file(int fd) noexcept:
    if fd >= 0:
        region_close(fd)
    return 0


cdef int64_t here() noexcept:
    """This process."""
    return region_process()


cdef bint is_free(Region region) noexcept:
    """Whether nobody reads it; in a process that was forked nobody does, for it is not there."""
    return region.process != here() or region_is_free(region.memory)


cdef int mark_free(Region region) noexcept:
    """Say that nobody reads it any more; a process that was forked has no say in it."""
    if region.process == here():
        region_mark(region.memory, True)
    return 0


cdef bytes word(uint64_t number):
    return PyBytes_FromStringAndSize(<char *>&number, sizeof(number))


cdef uint64_t number_at(bytes frame, Py_ssize_t place) noexcept:
    cdef uint64_t number
    memcpy(&number, PyBytes_AS_STRING(frame) + place, sizeof(number))
    return number
