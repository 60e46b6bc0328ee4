"""Large frames between processes of one machine: they are laid into memory that both have mapped.

A frame of megabytes through a socket is copied into the kernel and out of it, 200 KB at a time, by two
threads of ZeroMQ that wake each other for each piece. Between two processes that have a lane (``lanes.pyx``)
it is copied once, into a *region*, by whoever sends it; who receives it has views of that. The message itself
goes by ZeroMQ as ever, in its place among all others, with a *placard* for the frames:

    placard       = %xC1 token region count size{count} frame
    token         = 8 octets
    region, size  = uint64, little-endian
    count         = uint8, above 0
    frame         = the first frame of the message

No header of msgpack begins with %xC1. Each end has regions of its own, which only it writes to, and tells of
each new one by the lane, with its descriptor; of one that it gives up too:

    region packet = %x00 token region size          size 0: it is given up, no descriptor

The token is made by the end that has begun the lane, and said by both: whose placard that is, no name of
ZeroMQ's tells. A region has one message at a time: its first word is not 0 from when it is written until the
receiver's last view of it is gone, which may be when a user drops an array. One that is not free is not used,
so what is in a region stays as long as anybody looks. Where there is no room, no lane, or anything else is
amiss, frames go by ZeroMQ.
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from "shared_memory.h":
    int region_is_free(const void *region) nogil
    void region_mark(void *region, int is_free) nogil
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
    IDLE_TURNS = 64  # messages after which a region that nobody has needed is given up

cdef size_t REGIONS_BYTES_MAX = 256 << 20  # of one end of a lane; then frames go by ZeroMQ


cdef class Region:
    """Memory that the other end of a lane has mapped too."""

    def __dealloc__(self):
        if self.memory != NULL:
            region_unmap(self.memory, self.size)


@cython.no_gc  # no cycle can hold it, and a collection must not take the region from it first
cdef class Held:
    """What is read of a region; the last one who lets go of it frees the region for its owner."""

    cdef Region region

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
    """The regions of both ends of one lane."""

    def __cinit__(self, bytes token, bytes lane):
        self.token, self.lane, self.mine, self.theirs = token, lane, [], {}


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
        self.shelves, self.by_lane, self.by_key = {}, {}, {}

    def begin(self, bytes lane, key):
        """A lane has been begun here: what is sent to the peer called `key` may use shared memory."""
        self.by_key[key] = self.put_up(os.urandom(TOKEN_BYTES), lane)

    cdef Shelf put_up(self, bytes token, bytes lane):
        cdef Shelf shelf = Shelf(token, lane)
        self.shelves[token] = self.by_lane[lane] = shelf
        return shelf

    def end(self, bytes lane):
        """A lane is gone; views of what came live on."""
        cdef Shelf shelf = self.by_lane.pop(lane, None)
        if shelf is not None:
            del self.shelves[shelf.token]
            self.by_key = {key: one for key, one in self.by_key.items() if one is not shelf}

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

    cpdef bytes lay(self, key, list frames):
        """Lay all frames of a message but the first into a region.

        Parameters
        ----------
        key : hashable
            The peer: as `begin` was told, or a name by which it has sent placards.
        frames : list of bytes-like
            Contiguous.

        Returns
        -------
        bytes or None
            The message in one frame; None: it is not for this, and all of it goes by ZeroMQ.
        """
        cdef Shelf shelf = self.by_key.get(key)
        cdef Py_ssize_t place, got = 0, count = len(frames) - 1
        cdef size_t start = HEAD
        cdef Py_buffer sources[FRAMES_MAX]
        cdef uint64_t sizes[FRAMES_MAX]
        cdef Region region = None
        if shelf is None or not 0 < count <= FRAMES_MAX or len(frames[0]) > FIRST_BYTES_MAX:
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
            start = HEAD
            with nogil:
                for place in range(count):
                    memcpy(region.memory + start, sources[place].buf, sizes[place])
                    start += aligned(sizes[place])
        finally:
            for place in range(got):
                PyBuffer_Release(&sources[place])
        region_mark(region.memory, False)
        self.last = region
        return b"".join((
            b"\xc1", shelf.token, word(region.number), bytes([count]),
            PyBytes_FromStringAndSize(<char *>sizes, count * sizeof(uint64_t)), frames[0],
        ))

    def take_back(self):
        """What was laid last could not be sent."""
        region_mark(self.last.memory, True)

    cdef Region room(self, Shelf shelf, size_t size):
        """A free region, the smallest that has room and is not far too large, or a new one.

        What was of no use for long is given up.
        """
        cdef Region region, found = None, idle = None
        cdef size_t most = TIMES_MAX * size + REGION_GRAIN
        shelf.laid += 1
        for region in shelf.mine:
            if not region_is_free(region.memory):
                continue
            if size <= region.size <= most and (found is None or region.size < found.size):
                found = region
            if region.used + IDLE_TURNS < shelf.laid:
                idle = region
        if idle is not None and idle is not found:
            self.forget(shelf, idle)
        if found is None:
            found = self.make(shelf, size)
        if found is not None:
            found.used = shelf.laid
        return found

    cdef Region make(self, Shelf shelf, size_t size):
        """A new region, a quarter larger than it need be; the other end is told of it."""
        cdef Region one, region
        cdef size_t all_bytes
        size = (size + size // 4 + REGION_GRAIN - 1) // REGION_GRAIN * REGION_GRAIN
        all_bytes = size
        for one in shelf.mine:
            all_bytes += one.size
        if all_bytes > REGIONS_BYTES_MAX:
            return None
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
        return region

    cdef int forget(self, Shelf shelf, Region region) except -1:
        """Give up a region that is free."""
        if self.lanes.tell(shelf.lane, region_packet(shelf, region.number, 0), -1):
            shelf.mine.remove(region)
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
            if shelf is None or shelf.lane != lane:
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

    cpdef list taken(self, object sender, bytes placard):
        """The frames of a message; None: the placard names a region that is not known here, or is none.

        Whoever has sent it is known from then on: what he is sent may use shared memory too.
        """
        cdef Shelf shelf = self.shelves.get(placard[1 : 1 + TOKEN_BYTES])
        cdef Py_ssize_t place, count, head = 1 + TOKEN_BYTES + 9
        cdef size_t start = HEAD, size
        cdef Region region
        cdef Held held
        cdef Frame frame
        cdef list frames
        if shelf is None or PyBytes_GET_SIZE(placard) <= head:
            return None
        region = shelf.theirs.get(number_at(placard, 9))
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
            frame = Frame.__new__(Frame)
            frame.held, frame.start, frame.size = held, start, size
            frames.append(memoryview(frame))
            start += aligned(size)
        self.by_key[sender] = shelf
        return frames


cdef Region mapped(int fd, uint64_t number, size_t size):
    cdef Region region = Region.__new__(Region)
    region.memory = <unsigned char *>region_map(fd, size)
    region.size, region.number, region.process = size, number, region_process()
    return None if region.memory == NULL else region


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
