"""Packets of lanes: what is written to a lane's socket, and read from it (``lanes.pyx``).

A packet is a message:

    packet      = one frame | more frames | region packet    the last: `shared_frames.pyx`
    one frame   = %x01 octets
    more frames = count size{count - 1} octets        count: uint8, above 1; sizes: uint32, little-endian,
                                                      of all frames but the last

It leaves in two stretches, a head, which says how its frames follow each other, and the frames. All of it is
inlined: a short message passes through here at both ends.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.lane_sockets cimport LANE_BYTES_MAX, LaneMessages, lane_close, lane_send, lane_send_with


# --- out --------------------------------------------------------------------------------------------------


cdef inline bytes head_of_one():
    """The head of one frame."""
    return b"\1"


cdef inline bytes head_of(frames):
    """The head of some frames, 1 to 255."""
    cdef uint32_t size
    head = bytes([len(frames)])
    for frame in frames[: len(frames) - 1]:
        size = len(frame)
        head += PyBytes_FromStringAndSize(<char *>&size, sizeof(size))
    return head


cdef inline bint has_room(bytes head, bytes rest) noexcept:
    """Whether a packet has room for so much."""
    return PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(rest) <= LANE_BYTES_MAX


cdef inline int write_packet(int fd, bytes head, bytes rest) noexcept:
    """0, EAGAIN when a socket has no room, or what is against it."""
    while lane_send(
        fd, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head), PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest)
    ) < 0:
        if errno != EINTR:  # a send that does not wait is not interrupted by much
            return errno
    return 0


cdef inline bint write_region_packet(int fd, bytes packet, int passed) noexcept:
    """Write a region packet, with a descriptor (-1: none), at once or not at all; whether it is written."""
    return lane_send_with(fd, PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet), passed) >= 0


# --- in ---------------------------------------------------------------------------------------------------


cdef inline bytes region_packet_at(LaneMessages *packets, int place):
    """A packet if it is a region packet; None: it is none."""
    cdef unsigned int size = packets.sizes[place]
    if not 0 < size <= LANE_BYTES_MAX or packets.data[place][0] != 0:
        return None
    return PyBytes_FromStringAndSize(<char *>packets.data[place], size)


cdef inline list frames_at(LaneMessages *packets, int place):
    """The frames of a packet; None: it is none, or has other things in it."""
    cdef const unsigned char *data = packets.data[place]
    cdef uint64_t count, at, number, size = packets.sizes[place]
    cdef uint32_t length
    cdef list frames = []
    if size == 0 or size > LANE_BYTES_MAX or data[0] == 0:
        return None
    count = data[0]
    at = 1 + 4 * (count - 1)
    if at > size:
        return None
    for number in range(count - 1):
        memcpy(&length, data + 1 + 4 * number, sizeof(length))
        if length > size - at:
            return None
        frames.append(PyBytes_FromStringAndSize(<char *>data + at, length))
        at += length
    frames.append(PyBytes_FromStringAndSize(<char *>data + at, size - at))
    return frames


cdef inline int close_passed(LaneMessages *packets, int first, int count) noexcept:
    """Close the descriptors that have come with packets and that nobody wants."""
    cdef int place
    for place in range(first, count):
        if packets.fds[place] >= 0:
            lane_close(packets.fds[place])
    return 0
