"""Short pulls and pushes of one table at the client: from a call to bytes, and from answers to rows.

The other end is ``short_requests.pyx``. What is done is said by ``pslib/protocol/client_session.py`` and
``requests.py``: this is the same for parts of a few rows, as long as each is answered once and plainly, and
without Python objects for parts, messages and requests. Whatever else happens to a call *unfolds* it: parts
that are still open become those objects (``pslib/protocol/short_parts.py``), and the definition goes on.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from cython_ext.msgpack_parts cimport (
    In,
    Out,
    put,
    put_binary_start,
    put_list,
    put_number,
    put_tagged,
    take_binary,
    take_list,
    take_number,
)
from cython_ext.short_requests cimport (
    PULL_BLOCKS,
    PULL_KEYS,
    PULL_TYPES,
    PULLED_REST,
    PUSH_DENSE,
    PUSH_GRADIENTS,
    PUSH_KEYS,
    PUSH_MANNER,
    PUSHED_REST,
    TIME_S_MAX,
    made_tuple,
    taken,
)

import sys

from cython_ext.message_layouts import packed_text

__all__ = ["ShortCall", "ShortCalls"]

cnp.import_array()

cdef enum:
    BYTES_MAX = 8192  # of an array in a header: more travels as a frame of its own

cdef uint64_t NUMBER_MAX = 0xFFFFFFFFFFFFFFFF


@cython.freelist(256)
cdef class ShortPart:
    """What one server was asked, under one request_id."""

    cdef ShortCall call
    cdef object peer
    cdef int64_t first, count  # in the order of the call
    cdef uint64_t cost
    cdef double pause_s  # before it is asked again
    cdef int server


cdef class ShortCall:
    """A call of short parts.

    Parameters
    ----------
    number : int
        Of the call.
    table : str
    keys : (n,) uint64, contiguous
    rows : (n, dim) float32, contiguous
        A pull's output, or a push's gradients.
    order : (n,) int32 or None
        Places of the keys, those of each server side by side; None: one server has all.
    starts : (servers + 1,) int64
        Where each server's begin in it.
    named : (int, int, int, int, int) or None
        Of a push: stream, number, epoch, all_acked_below, home.
    moment : (int, float)
        Step and seconds.
    memory : object
        `pslib.protocol.calls.PullCall` or `PushCall`, for ``answered`` and for whoever unfolds it.
    """

    cdef readonly object number, table, memory, named
    cdef readonly double sent_s, next_try_s, deadline_s
    cdef readonly Py_ssize_t open
    cdef object kept  # arrays
    cdef object step
    cdef bytes name
    cdef double time_s
    cdef const uint64_t *keys
    cdef const int32_t *order
    cdef const int64_t *starts
    cdef float *rows
    cdef int64_t servers, dim
    cdef object seen

    def __init__(self, number, str table, keys, rows, order, starts, named, moment, memory):
        cdef const uint64_t[::1] all_keys = keys
        cdef const float[:, ::1] all_rows = rows
        cdef const int32_t[::1] places
        cdef const int64_t[::1] bounds = starts
        if all_rows.shape[0] != all_keys.shape[0]:
            raise ValueError(f"rows: expected one a key, {all_keys.shape[0]}, got {all_rows.shape[0]}")
        if bounds.shape[0] < 2 or bounds[0] != 0 or bounds[bounds.shape[0] - 1] != all_keys.shape[0]:
            raise ValueError(f"starts: expected 0 up to {all_keys.shape[0]}")
        self.order = NULL
        if order is not None:
            places = order
            if places.shape[0] != all_keys.shape[0]:
                raise ValueError(f"order: expected {all_keys.shape[0]} places, got {places.shape[0]}")
            if places.shape[0]:
                self.order = &places[0]
        self.number, self.table, self.named, self.memory = number, table, named, memory
        self.kept = (keys, rows, order, starts)
        self.name = packed_text(table)
        self.step, self.time_s = moment
        self.keys = &all_keys[0] if all_keys.shape[0] else NULL
        self.rows = <float *>&all_rows[0, 0] if all_rows.size else NULL
        self.starts, self.servers, self.dim = &bounds[0], bounds.shape[0] - 1, all_rows.shape[1]
        self.seen = None if named is not None else memory.seen

    cdef int64_t place(self, int64_t at) noexcept:
        return at if self.order == NULL else self.order[at]


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
    bytes_taken : int
        Of all answers so far.
    due_s : float
        When the first call has to be unfolded to be asked again.

    Raises
    ------
    ValueError
        When this machine or this name is not for it.
    """

    cdef readonly list over
    cdef readonly uint64_t bytes_taken
    cdef bytes pull, push, pulled, pushed  # headers up to the number of the request
    cdef uint64_t bytes_max
    cdef dict parts, calls, flying, waiting, took_s

    def __init__(self, version, cluster, bytes_max, dict flying, dict waiting, dict took_s):
        if sys.byteorder != "little":
            raise ValueError("expected a little-endian machine")
        start = b"\x97" + bytes([version]) + packed_text(cluster)
        self.pull, self.push = start + packed_text("Pull"), start + packed_text("Push")
        self.pulled, self.pushed = start + packed_text("Pulled"), start + packed_text("Pushed")
        self.bytes_max = bytes_max
        self.flying, self.waiting, self.took_s = flying, waiting, took_s
        self.parts, self.calls, self.over = {}, {}, []

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

    def begin(self, ShortCall call, addresses, first_id, credit, times, outgoing):
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

        Returns
        -------
        list or None
            One instruction a server that has any of the keys; None: the call is not for this, and nothing
            has changed.
        """
        cdef uint64_t share, small, request_id = first_id, back
        cdef int64_t server, count
        cdef ShortPart part
        cdef list parts = [], frames = []
        share, small = credit
        if not isfinite(call.time_s) or not 0 <= call.time_s <= TIME_S_MAX:
            return None
        for server in range(call.servers):
            count = call.starts[server + 1] - call.starts[server]
            if count == 0:
                continue
            if count < 0 or 8 * count > BYTES_MAX or 4 * count * call.dim > BYTES_MAX:
                return None
            if request_id == NUMBER_MAX:
                return None
            part = ShortPart.__new__(ShortPart)
            part.call, part.peer, part.server = call, addresses[server], <int>server
            part.first, part.count = call.starts[server], count
            frame = self.push_frame(part, request_id) if call.named is not None else self.pull_frame(
                part, request_id
            )
            back = 0 if call.named is not None else 4 * count * call.dim
            part.cost = back + PyBytes_GET_SIZE(frame)
            if <uint64_t>PyBytes_GET_SIZE(frame) > self.bytes_max or part.cost > small:
                return None
            if share and <uint64_t>self.flying.get(part.peer, 0) + part.cost > share:
                return None
            parts.append(part)
            frames.append(made_tuple(outgoing, part.peer, [frame]))
            request_id += 1
        if not parts:
            return None
        self.remember(call, parts, first_id, times)
        return frames

    cdef int remember(self, ShortCall call, list parts, uint64_t request_id, tuple times) except -1:
        cdef ShortPart part
        cdef double now_s, retry_s, factor, patience_s, took_s
        now_s, retry_s, factor, patience_s = times
        call.sent_s, call.next_try_s, call.deadline_s = now_s, now_s + patience_s, now_s + patience_s
        for part in parts:
            self.flying[part.peer] = self.flying.get(part.peer, 0) + part.cost
            self.parts[request_id] = part
            took_s = self.took_s.get(part.peer, 0.0)
            part.pause_s = max(retry_s, min(factor * took_s, patience_s / 6))
            call.next_try_s = min(call.next_try_s, now_s + part.pause_s)
            request_id += 1
        call.open = len(parts)
        self.calls[call.number] = call
        return 0

    cdef bytes pull_frame(self, ShortPart part, uint64_t request_id):
        cdef ShortCall call = part.call
        cdef Out out
        memset(&out, 0, sizeof(Out))
        try:
            put_bytes(&out, self.pull)
            put_number(&out, request_id)
            put_list(&out, 6)
            put_list(&out, 1)
            put_bytes(&out, call.name)
            put_time(&out, call)
            put_bytes(&out, PULL_TYPES)
            put_bytes(&out, PULL_KEYS)
            put_number(&out, part.count)
            put_bytes(&out, PULL_BLOCKS)
            put_keys(&out, part, 8 * part.count)
            return PyBytes_FromStringAndSize(<char *>out.data, out.size)
        finally:
            free(out.data)

    cdef bytes push_frame(self, ShortPart part, uint64_t request_id):
        cdef ShortCall call = part.call
        cdef Out out
        cdef int64_t at
        memset(&out, 0, sizeof(Out))
        try:
            put_bytes(&out, self.push)
            put_number(&out, request_id)
            put_list(&out, 17)
            for number in call.named:
                put_number(&out, number)
            for _twice in range(2):
                put_list(&out, 1)
                put_bytes(&out, call.name)
            put_time(&out, call)
            put_bytes(&out, PUSH_MANNER)
            put_bytes(&out, PUSH_KEYS)
            put_number(&out, part.count)
            put_bytes(&out, PUSH_GRADIENTS)
            put_number(&out, part.count)
            put_number(&out, call.dim)
            put_bytes(&out, PUSH_DENSE)
            put_keys(&out, part, part.count * (8 + 4 * call.dim))
            for at in range(part.first, part.first + part.count):
                put(&out, call.rows + call.place(at) * call.dim, 4 * call.dim)
            return PyBytes_FromStringAndSize(<char *>out.data, out.size)
        finally:
            free(out.data)

    # --- answers ------------------------------------------------------------------------------------------

    def receive(self, double now_s, list came, pushed):
        """Take answers that are short, plain, and to parts of a call here.

        Parameters
        ----------
        now_s : float
        came : list of (peer, list of frames)
        pushed : callable
            Hears of each push's part: what its call remembers, the server, one of its keys, pushes_before.

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
            elif not self.take(now_s, frames[0], pushed):
                rest.append(one)
        return rest

    cdef bint take(self, double now_s, bytes frame, object pushed) except -1:
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
        if is_push:
            if take_list(&source) != 1 or not take_number(&source, &pushes_before):
                return False
            if not taken(&source, PUSHED_REST) or source.at != source.end:
                return False
        elif not take_rows(&source, part, &pushes_before):
            return False
        self.answered(now_s, part, request_id)
        self.bytes_taken += PyBytes_GET_SIZE(frame)
        if is_push:
            at = part.first + <int64_t>(<uint64_t>part.call.named[1] % <uint64_t>part.count)
            pushed(part.call.memory, part.server, part.call.keys[part.call.place(at)], pushes_before)
        elif pushes_before:
            part.call.seen.setdefault(part.server, pushes_before)
        return True

    cdef int answered(self, double now_s, ShortPart part, uint64_t request_id) except -1:
        cdef double took_s = now_s - part.call.sent_s, known_s = self.took_s.get(part.peer, 0.0)
        self.took_s[part.peer] = max(took_s, known_s + (took_s - known_s) / 8)
        del self.parts[request_id]
        self.flying[part.peer] -= part.cost
        part.call.open -= 1
        if part.call.open == 0:
            del self.calls[part.call.number]
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
        order = call.kept[2]
        left = [(number, part) for number, part in self.parts.items() if part.call is call]
        del self.calls[call.number]
        unfolded = []
        for number, part in left:
            del self.parts[number]
            places = None if order is None else order[part.first : part.first + part.count]
            unfolded.append((number, part.peer, part.server, places, part.cost, part.pause_s))
        return unfolded

    def clear(self):
        """Forget all calls."""
        self.parts.clear()
        self.calls.clear()


cdef inline int put_bytes(Out *out, bytes data) except -1:
    return put(out, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef int put_time(Out *out, ShortCall call) except -1:
    cdef uint64_t bits
    put_number(out, call.step)
    memcpy(&bits, &call.time_s, 8)
    return put_tagged(out, 0xCB, bits, 8)


cdef int put_keys(Out *out, ShortPart part, uint64_t size) except -1:
    """The start of a binary of ``size`` bytes, and the keys of a part in it."""
    cdef ShortCall call = part.call
    cdef uint64_t key
    cdef int64_t at
    put_binary_start(out, size)
    for at in range(part.first, part.first + part.count):
        key = call.keys[call.place(at)]
        put(out, &key, 8)
    return 0


cdef bint take_rows(In *source, ShortPart part, uint64_t *pushes_before) noexcept:
    """Whether all of a part's rows have come, and nothing else; then they are where they belong."""
    cdef ShortCall call = part.call
    cdef uint64_t count, dim
    cdef int64_t at, row_bytes = 4 * call.dim
    if take_list(source) != 4 or take_list(source) != 1 or not taken(source, call.name):
        return False
    if take_list(source) != 0 or take_list(source) != 0 or not take_number(source, pushes_before):
        return False
    if take_list(source) != 4 or take_list(source) != 3 or not taken(source, b"\xa2f4"):
        return False
    if not take_number(source, &count) or not take_number(source, &dim) or not taken(source, PULLED_REST):
        return False
    if <int64_t>count != part.count or <int64_t>dim != call.dim:
        return False
    if take_binary(source) != part.count * row_bytes:
        return False
    for at in range(part.count):
        memcpy(call.rows + call.place(part.first + at) * call.dim, source.at + at * row_bytes, row_bytes)
    return True
