"""Short pulls and pushes of one table at the client: from a call to bytes, and from answers to rows.

The other end is ``short_requests.pyx``. What is done is said by ``pslib/protocol/client_session.py`` and
``requests.py``: this is the same for parts of a few rows, as long as each is answered once and plainly, and
without Python objects for parts, messages and requests. Whatever else happens to a call *unfolds* it: parts
that are still open become those objects (``pslib/protocol/short_parts.py``), and the definition goes on.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

from cython_ext.msgpack_parts cimport In, take_number
from cython_ext.short_frames cimport ShortCall, ShortPart, part_frame, take_applied, take_rows
from cython_ext.short_requests cimport FLOATS_MAX, KEYS_MAX, TIME_S_MAX, heads_of, made_tuple, taken

__all__ = ["ShortCalls"]


cdef class ShortCalls:
    """All calls of short parts that are on their way, of one cluster.

    Parameters
    ----------
    version : int
        Of the protocol, 0..127.
    cluster : str
        At most 255 bytes.
    bytes_max : int
        Of a message.
    flying, waiting : dict
        Of the peers' credit (`pslib.protocol.credit.ClientShares`): bytes on their way, into which parts here
        are counted, and peers for whom something waits, whose answers are not for this.
    took_s : dict
        How long answers of each peer take; answers here are counted in.

    Attributes
    ----------
    over : list of ShortCall
        Calls that are answered, for the owner to take.
    applied : list of (ShortCall, int, int, int)
        Parts of pushes that are, for the owner to take before those: call, server, one of their keys, and
        pushes_before.
    due_s : float
        When the first call has to be unfolded to be asked again.

    Raises
    ------
    ValueError
        When this machine or this name is not for it.
    """

    def __init__(self, version, cluster, bytes_max, dict flying, dict waiting, dict took_s):
        self.pull, self.push, self.pulled, self.pushed = heads_of(version, cluster)
        self.bytes_max = bytes_max
        self.flying, self.waiting, self.took_s = flying, waiting, took_s
        self.parts, self.calls, self.over, self.applied, self.by_socket = {}, {}, [], [], {}

    def __len__(self):
        """Parts that are not answered."""
        return len(self.parts)

    @property
    def due_s(self):
        """When the first call has to be unfolded, to be asked again or given up."""
        cdef ShortCall call
        cdef double due_s = float("inf")
        for call in self.calls.values():
            due_s = min(due_s, call.next_try_s)
        return due_s

    # --- questions ----------------------------------------------------------------------------------------

    def begin(self, ShortCall call, addresses, first_id, credit, times, outgoing, lanes=None):
        """Write a call's requests, and remember its parts.

        Parameters
        ----------
        call : ShortCall
        addresses : sequence of str
            Of all servers.
        first_id : int
            Request_id of the first part; others follow.
        credit : (int, int)
            Bytes in flight to one peer at most (0: no limit), and of a small request with its answer.
        times : (float, float, float, float)
            Now; seconds until it is asked again, at least, and that many times what answers take; patience.
        outgoing : type
            A tuple of a peer and its frames.
        lanes : (type, mapping, collection) or None
            The same for what goes by a lane; peers who have one; and those of them to whom another request
            goes by the socket, which no part may overtake. None: there are no lanes.

        Returns
        -------
        list or None
            One instruction a server that has any of the keys; None: the call is not for this, and nothing
            has changed.

        Raises
        ------
        ValueError
            When there are fewer addresses than servers in the call.
        """
        cdef uint64_t share, small, request_id = first_id
        cdef bytes head = self.pull if call.named is None else self.push
        cdef int64_t server, count
        cdef ShortPart part
        cdef list parts = [], frames = []
        share, small = credit
        if len(addresses) < call.servers:
            raise ValueError(f"addresses: expected {call.servers}, got {len(addresses)}")
        if not 0 <= call.time_s <= TIME_S_MAX:
            return None
        for server in range(call.servers):
            count = call.starts[server + 1] - call.starts[server]
            if count == 0:
                continue
            if count > KEYS_MAX or count * call.dim > FLOATS_MAX or request_id == UINT64_MAX:
                return None
            part = ShortPart.__new__(ShortPart)
            part.call, part.peer, part.server = call, addresses[server], <int>server
            part.first, part.count = call.starts[server], count
            frame = part_frame(head, part, request_id)
            part.cost = PyBytes_GET_SIZE(frame) + (4 * count * call.dim if call.named is None else 0)
            if <uint64_t>PyBytes_GET_SIZE(frame) > self.bytes_max or part.cost > small:
                return None
            if share and <uint64_t>self.flying.get(part.peer, 0) + part.cost > share:
                return None
            part.by_lane = (
                lanes is not None
                and part.peer in lanes[1]
                and part.peer not in lanes[2]
                and not self.by_socket.get(part.peer)
            )
            parts.append(part)
            frames.append(made_tuple(lanes[0] if part.by_lane else outgoing, part.peer, [frame]))
            request_id += 1
        if not parts:
            return None
        self.remember(call, parts, first_id, times)
        return frames

    cdef int remember(self, ShortCall call, list parts, uint64_t request_id, tuple times) except -1:
        cdef ShortPart part
        cdef double now_s, retry_s, factor, patience_s, took_s
        now_s, retry_s, factor, patience_s = times
        call.first_id = request_id
        call.sent_s, call.next_try_s, call.deadline_s = now_s, now_s + patience_s, now_s + patience_s
        for part in parts:
            self.flying[part.peer] = self.flying.get(part.peer, 0) + part.cost
            self.parts[request_id] = part
            if not part.by_lane:
                self.by_socket[part.peer] = self.by_socket.get(part.peer, 0) + 1
            took_s = self.took_s.get(part.peer, 0.0)
            part.pause_s = max(retry_s, min(factor * took_s, patience_s / 6))
            call.next_try_s = min(call.next_try_s, now_s + part.pause_s)
            request_id += 1
        call.open = call.parts = len(parts)
        self.calls[call.first_id] = call
        return 0

    # --- answers ------------------------------------------------------------------------------------------

    def receive(self, double now_s, list came):
        """Take answers that are short, plain, and to parts of a call here.

        Parameters
        ----------
        now_s : float
        came : list of (peer, list of frames)

        Returns
        -------
        list
            All others, in their order.
        """
        cdef list rest = [], frames
        for one in came:
            frames = one[1]
            if len(frames) != 1 or not PyBytes_CheckExact(frames[0]):
                rest.append(one)
            elif not self.take(now_s, frames[0]):
                rest.append(one)
        return rest

    cdef bint take(self, double now_s, bytes frame) except -1:
        """Whether an answer was one; then it is taken."""
        cdef In source
        cdef uint64_t request_id, pushes_before
        cdef ShortPart part
        cdef bint is_push
        source.at = <const unsigned char *>PyBytes_AS_STRING(frame)
        source.end = source.at + PyBytes_GET_SIZE(frame)
        is_push = not taken(&source, self.pulled)
        if is_push and not taken(&source, self.pushed):
            return False
        if not take_number(&source, &request_id):
            return False
        found = self.parts.get(request_id)
        if found is None:
            return False
        part = found
        if is_push != (part.call.named is not None) or self.waiting.get(part.peer):
            return False
        if is_push and not take_applied(&source, &pushes_before):
            return False
        if not is_push and not take_rows(&source, part, &pushes_before):
            return False
        self.answered(now_s, part, request_id)
        if is_push:
            at = part.first + <int64_t>(part.call.names[1] % <uint64_t>part.count)
            key = part.call.keys[part.call.place(at)]
            self.applied.append((part.call, part.server, key, pushes_before))
        elif pushes_before:
            part.call.memory.seen.setdefault(part.server, pushes_before)  # as `PullCall.has_seen`
        return True

    cdef int answered(self, double now_s, ShortPart part, uint64_t request_id) except -1:
        cdef double took_s = now_s - part.call.sent_s, known_s = self.took_s.get(part.peer, 0.0)
        self.took_s[part.peer] = max(took_s, known_s + (took_s - known_s) / 8)
        del self.parts[request_id]
        self.flying[part.peer] -= part.cost
        if not part.by_lane:
            self.by_socket[part.peer] -= 1
        part.call.open -= 1
        if part.call.open == 0:
            del self.calls[part.call.first_id]
            self.over.append(part.call)
        return 0

    # --- what else may happen -----------------------------------------------------------------------------

    def call_of(self, request_id):
        """The call of an open part; None when it has none here."""
        cdef ShortPart part = self.parts.get(request_id)
        return None if part is None else part.call

    def older(self, double sent_s, double due_s):
        """Calls that were sent before, or are to be looked at until then."""
        cdef ShortCall call
        return [
            call
            for call in self.calls.values()
            if call.sent_s < sent_s or call.next_try_s <= due_s
        ]

    def unfold(self, ShortCall call):
        """Forget a call; of each open part request_id, peer, server, places, bytes in flight, and pause.

        Places are an array, or None for all of the keys.
        """
        cdef ShortPart part
        cdef uint64_t number
        order, unfolded = call.kept[2], []
        del self.calls[call.first_id]
        for number in range(call.first_id, call.first_id + call.parts):
            part = self.parts.pop(number, None)
            if part is None:
                continue
            if not part.by_lane:
                self.by_socket[part.peer] -= 1
            places = None if order is None else order[part.first : part.first + part.count]
            unfolded.append((number, part.peer, part.server, places, part.cost, part.pause_s))
        return unfolded

    def clear(self):
        """Forget all calls."""
        self.parts.clear()
        self.calls.clear()
        self.by_socket.clear()
