"""Lanes: sockets of their own for short messages between processes of one machine.

A message by ZeroMQ passes two threads more than those that have to do with it, one at each end, and each has
to be woken: of the 20 to 50 us of CPU that a short message took with hundreds of processes most went there. A
lane is a Unix socket of sequenced packets (``lane_packets.pxd``) that both ends use themselves: 7 us. Whoever
has one connects by ZeroMQ as well: what is long, what is sent again, and all else goes there, so a lane may
fail at any time.

The first packet of a lane is a greeting, from the end that listens: who gets none sends nothing there, so
somebody at the name who takes all and answers nothing holds up nobody.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, ECONNABORTED, EHOSTUNREACH, EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

import os
from weakref import WeakSet

from cython_ext.lane_packets cimport (
    close_passed,
    frames_at,
    has_room,
    head_of,
    head_of_one,
    region_packet_at,
    write_packet,
    write_region_packet,
)
from cython_ext.lane_sockets cimport (
    LANE_EVENTS,
    LANE_MESSAGES,
    LANE_WHOLE,
    LaneEvent,
    LaneMessages,
    lane_accept,
    lane_bind,
    lane_bound,
    lane_close,
    lane_connect,
    lane_end,
    lane_is_affordable,
    lane_is_ours,
    lane_process,
    lane_receive,
    lane_socket,
)
from cython_ext.lane_watch cimport LaneWatch

__all__ = ["Lanes"]

cdef enum:
    LISTENING = 0  # what epoll calls the socket that listens; lanes have numbers from 1 on
    BACKLOG = 1024  # hundreds of trainers connect at once
    WAITING_MAX = 1000  # messages that wait for room in a lane: as many as ZeroMQ keeps for a peer

cdef bytes GREETING = b"pslib lane 2"
cdef object EVERY = WeakSet()  # Lanes of this process


cdef class Lane:
    """One end of a lane."""

    def __cinit__(self, int fd, number, name, peer):
        self.fd, self.number, self.name, self.peer, self.waiting = fd, number, name, peer, []
        self.greeted = peer is None

    def __dealloc__(self):
        if self.fd >= 0:
            lane_close(self.fd)


cdef class Lanes:
    """All lanes of a link, and the socket at which others may begin one.

    One thread at a time may use it, and one may be in `wait` beside it; a closed one says that nothing is
    here and nobody there.

    Parameters
    ----------
    socket, waker : int
        Descriptors of ZeroMQ's socket, and of what ends a wait: they are waited for as well.

    Attributes
    ----------
    ways : dict
        By peer, as `connect` was told: the names of lanes that are open and have been greeted.
    waiting_count : int
        Messages that wait for room, of all lanes.

    Raises
    ------
    OSError
        When the system has no such sockets, or no descriptors left.
    """

    def __cinit__(self):
        self.listening = -1
        self.watch = LaneWatch.__new__(LaneWatch)

    def __init__(self, int socket, int waker):
        self.lanes, self.ways, self.came = {}, {}, []
        self.process = lane_process()
        EVERY.add(self)
        self.watch.open(socket, waker)
        self.memory = <LaneMessages *>malloc(sizeof(LaneMessages))
        if self.memory == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.listening >= 0:
            lane_close(self.listening)
        free(self.memory)

    def __len__(self):
        """Lanes that are open."""
        return len(self.lanes)

    @property
    def fd(self):
        """A descriptor that can be read whenever something is to be done here."""
        return self.watch.fd

    @property
    def is_closed(self):
        return self.watch.fd < 0

    def listen(self, bytes name):
        """Let processes of this user begin lanes at an abstract name; False: somebody has it."""
        cdef int fd = lane_socket()
        if fd < 0:
            return False
        if (
            lane_bind(fd, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), BACKLOG) < 0
            or not self.watch.add(fd, LISTENING)
        ):
            lane_close(fd)
            return False
        self.listening = fd
        return True

    def connect(self, bytes name, peer):
        """Begin a lane to a peer: the process of this user at an abstract name.

        Returns
        -------
        bytes or None
            What the other end is called here; None: there is no such process, or it takes nobody.
        """
        cdef Lane lane
        cdef int fd = lane_socket()
        if fd < 0:
            return None
        if lane_connect(fd, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)) < 0:
            lane_close(fd)
            return None
        lane = self.open(fd, peer)
        return None if lane is None else lane.name

    cdef Lane open(self, int fd, object peer):
        """A new lane, to a peer or from whoever has asked for it; None: of another user, or one too many."""
        cdef Lane lane
        cdef uint64_t number = self.opened + 1
        if (
            self.watch.fd < 0
            or not lane_is_ours(fd)
            or not lane_is_affordable(fd)
            or lane_bound(fd) < 0
            or not self.watch.add(fd, number)
        ):
            lane_close(fd)
            return None
        self.opened = number
        lane = self.lanes[number] = Lane(fd, number, name_of(number), peer)
        return lane

    def has(self, bytes name):
        """Whether somebody is reached by a lane, be it open or not; all others are ZeroMQ's."""
        return is_lane(name)

    # --- out ----------------------------------------------------------------------------------------------

    cpdef int send(self, bytes name, bytes frame) except -1:
        """Send a message of one frame; it waits here while the lane has no room.

        Returns
        -------
        int
            0, or why it is not sent: EHOSTUNREACH, there is no such lane any more; EAGAIN, too many wait, or
            it is too long.
        """
        return self.give(self.lanes.get(number_of(name)), head_of_one(), frame)

    def send_frames(self, bytes name, frames):
        """The same for any number of frames, 1 to 255."""
        return self.give(self.lanes.get(number_of(name)), head_of(frames), b"".join(frames))

    cdef int give(self, Lane lane, bytes head, bytes frame) except -1:
        cdef int reason
        if lane is None:
            return EHOSTUNREACH
        if not has_room(head, frame):
            return EAGAIN
        if not lane.waiting:
            reason = write_packet(lane.fd, head, frame)
            if reason != EAGAIN:
                if reason:
                    self.end(lane)
                    return EHOSTUNREACH
                return 0
            if not self.watch.heed_room(lane.fd, lane.number, True):
                return EAGAIN
        if len(lane.waiting) >= WAITING_MAX:
            return EAGAIN
        lane.waiting.append((head, frame))
        self.waiting_count += 1
        return 0

    def can_tell(self, bytes name):
        """Whether there is such a lane, and nothing waits for room in it."""
        cdef Lane lane = self.lanes.get(number_of(name))
        return lane is not None and lane.greeted and not lane.waiting

    def tell(self, bytes name, bytes packet, int passed):
        """Send a region packet, with a descriptor (-1: none), at once or not at all; whether it is sent."""
        cdef Lane lane = self.lanes.get(number_of(name))
        return (
            lane is not None
            and lane.greeted
            and self.process == lane_process()
            and write_region_packet(lane.fd, packet, passed)
        )

    cdef list unsent(self, object peer):
        """What waits for room in the lane to a peer, and is not to be sent there any more: each one frame."""
        cdef Lane lane = self.lanes.get(number_of(self.ways[peer])) if peer in self.ways else None
        cdef list frames
        if lane is None or not lane.waiting:
            return []
        frames = [frame for _head, frame in lane.waiting]
        self.waiting_count -= len(frames)
        lane.waiting = []
        self.watch.heed_room(lane.fd, lane.number, False)
        return frames

    cdef int flush(self, Lane lane) except -1:
        """Send what has waited for room, as far as there is."""
        cdef bytes head, frame
        cdef Py_ssize_t sent = 0
        cdef int reason
        for head, frame in lane.waiting:
            reason = write_packet(lane.fd, head, frame)
            if reason == EAGAIN:
                break
            if reason:
                return self.end(lane)
            sent += 1
        del lane.waiting[:sent]
        self.waiting_count -= <int>sent
        if not lane.waiting:
            self.watch.heed_room(lane.fd, lane.number, False)
        return 0

    # --- in -----------------------------------------------------------------------------------------------

    def receive(self, Py_ssize_t most):
        """Messages that are here, at most so many: of each who sent it, and its frames."""
        cdef list taken = []
        while len(taken) < most:
            if not self.came and self.fill(True) == 0:
                break
            taken.append(self.came.pop())
        return taken

    @property
    def holds(self):
        """Whether a message is here of which no descriptor tells any more."""
        return bool(self.came)

    cdef int wait(self, int timeout_ms, bint *woken) except -1:
        """Wait as `LaneWatch` does: what it is told is for whoever takes the next message."""
        return self.watch.wait(timeout_ms, woken)

    cdef Py_ssize_t fill(self, bint look) except -1:
        """Take what has come by lanes that the last wait has told of, or if `look`, that tell now.

        Returns how many messages are to be taken from `came`.
        """
        if self.watch.event_count == 0 and look:
            self.look()
        if self.watch.event_count:
            self.take_all(False)
            self.came.reverse()
        return len(self.came)

    cdef int drain(self) except -1:
        """Take all that has come by any lane: it was sent before whatever ZeroMQ has just brought."""
        cdef Py_ssize_t looked_at = 0
        cdef int count = LANE_EVENTS
        self.came.reverse()  # what is left of a look before goes first
        while count == LANE_EVENTS and looked_at < <Py_ssize_t>len(self.lanes):
            self.look()  # the last wait may know less than there is now
            count = self.watch.event_count
            self.take_all(True)
            looked_at += LANE_EVENTS - 3  # it tells of the socket, the waker and who listens as well
        self.came.reverse()
        return 0

    cdef int look(self) except -1:
        """Which lanes tell of something just now."""
        if self.watch.fd >= 0 and (self.lanes or self.listening >= 0):
            self.watch.look()
        return 0

    cdef int take_all(self, bint whole) except -1:
        """Take what has come by the lanes that tell of something, and do whatever else they ask for."""
        cdef Lane lane
        cdef LaneEvent event
        cdef int place, count = self.watch.event_count
        self.watch.event_count = 0
        for place in range(count):
            event = self.watch.events[place]
            if event.number == LISTENING:
                self.accept()
                continue
            lane = self.lanes.get(event.number)
            if lane is None:
                continue
            if event.can_write:
                self.flush(lane)
            if event.can_read and event.number in self.lanes:
                self.take(lane, whole)
        return 0

    cdef int take(self, Lane lane, bint whole) except -1:
        """Take some messages of a lane, or all; it ends where the other end has gone, or is none of ours."""
        cdef int place, count = LANE_MESSAGES, taken = 0
        while count == LANE_MESSAGES:
            count = lane_receive(lane.fd, self.memory)
            if count < 0:
                return 0 if errno == EAGAIN or errno == EINTR else self.end(lane)
            for place in range(count):
                if not self.take_one(lane, place):
                    close_passed(self.memory, place + 1, count)
                    return self.end(lane)
            taken += count
            if not whole or taken >= LANE_WHOLE:
                break
        return 0

    cdef bint take_one(self, Lane lane, int place) except -1:
        """Take a message, or what is told of a region; False: it is none of ours."""
        cdef bytes packet
        cdef list frames
        if lane.greeted and self.shared is not None:
            packet = region_packet_at(self.memory, place)
            if packet is not None:
                return self.shared.told(lane.name, packet, self.memory.fds[place])
        close_passed(self.memory, place, place + 1)
        frames = frames_at(self.memory, place)
        if frames is None or (not lane.greeted and frames != [GREETING]):
            return False
        if lane.greeted:
            self.came.append((lane.name, frames))
        else:
            lane.greeted = True
            self.ways[lane.peer] = lane.name
        return True

    cdef int accept(self) except -1:
        """Begin the lanes that were asked for; with no descriptors left nobody is listened to any more."""
        cdef Lane lane
        cdef int fd
        while True:
            fd = lane_accept(self.listening)
            if fd >= 0:
                lane = self.open(fd, None)
                if lane is not None:
                    self.give(lane, head_of_one(), GREETING)
            elif errno == ECONNABORTED:
                continue
            elif errno == EAGAIN or errno == EINTR:
                return 0
            else:
                self.leave(self.listening)
                self.listening = -1
                return 0

    # --- the end ------------------------------------------------------------------------------------------

    def drop(self, bytes name):
        """End a lane, if there is one of this name."""
        cdef Lane lane = self.lanes.get(number_of(name))
        if lane is not None:
            self.end(lane)

    cdef int end(self, Lane lane) except -1:
        del self.lanes[lane.number]
        if lane.peer is not None and self.ways.get(lane.peer) == lane.name:
            del self.ways[lane.peer]
        if self.shared is not None:
            self.shared.end(lane.name)
        self.waiting_count -= <int>len(lane.waiting)
        lane.waiting = []
        self.leave(lane.fd)
        lane.fd = -1
        return 0

    cdef int leave(self, int fd) except -1:
        if fd < 0:  # left to the parent
            return 0
        if self.process == lane_process():
            self.watch.forget(fd)
            lane_end(fd)
        lane_close(fd)
        return 0

    cdef int leave_to_parent(self) except -1:
        """Close a child's copies of the sockets: a lane ends when nobody has it; a child may live longer."""
        cdef Lane lane
        for lane in self.lanes.values():
            lane_close(lane.fd)
            lane.fd = -1
        if self.listening >= 0:
            lane_close(self.listening)
            self.listening = -1
        return 0

    def close(self):
        """End all lanes; what was sent and has room arrives all the same."""
        cdef Lane lane
        if self.watch.fd < 0:
            return
        for lane in list(self.lanes.values()) if self.process == lane_process() else ():
            self.flush(lane)
        for lane in list(self.lanes.values()):
            self.end(lane)
        if self.listening >= 0:
            self.leave(self.listening)
        self.listening = -1
        self.watch.close()
        self.came.clear()


def _leave_to_parent():
    cdef Lanes lanes
    for lanes in list(EVERY):
        lanes.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
