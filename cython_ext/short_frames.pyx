"""A short call of one table and its bytes: what each server is asked, and what it answers.

The other end is ``short_requests.pyx``; `ShortCalls` (``short_calls.pyx``) keeps those that are on their way.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint64_t
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
    taken,
)

from cython_ext.message_layouts import packed_text

__all__ = ["ShortCall"]


@cython.freelist(256)
cdef class ShortPart:
    """What one server was asked, under one request_id."""


cdef class ShortCall:
    """A call of short parts.

    Parameters
    ----------
    owner : object
        Its ``unfold(call)`` makes parts of it.
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
        `pslib.protocol.calls.PullCall` or `PushCall`, for the owner.

    Raises
    ------
    ValueError
        When arrays do not fit each other, or a name or number is not what a message holds.
    """

    def __init__(self, owner, number, table, keys, rows, order, starts, named, moment, memory):
        cdef const uint64_t[::1] all_keys = keys
        cdef const float[:, ::1] all_rows = rows
        cdef const int32_t[::1] places
        cdef const int64_t[::1] bounds = starts
        cdef Py_ssize_t place
        if all_rows.shape[0] != all_keys.shape[0]:
            raise ValueError(f"rows: expected one a key, {all_keys.shape[0]}, got {all_rows.shape[0]}")
        if bounds.shape[0] < 2 or bounds[0] != 0 or bounds[bounds.shape[0] - 1] != all_keys.shape[0]:
            raise ValueError(f"starts: expected 0 up to {all_keys.shape[0]}")
        for place in range(bounds.shape[0] - 1):
            if bounds[place] > bounds[place + 1]:
                raise ValueError("starts: expected them to rise")
        self.order = NULL
        if order is not None:
            places = order
            if places.shape[0] != all_keys.shape[0]:
                raise ValueError(f"order: expected {all_keys.shape[0]} places, got {places.shape[0]}")
            for place in range(places.shape[0]):
                if not 0 <= places[place] < all_keys.shape[0]:
                    raise ValueError(f"order: expected places below {all_keys.shape[0]}, got {places[place]}")
            if places.shape[0]:
                self.order = &places[0]
        self.owner, self.number, self.table = owner, number, table
        self.named, self.memory = named, memory
        self.kept = (keys, rows, order, starts)
        if type(table) is not str:
            raise ValueError(f"table: expected a str, got {type(table).__name__}")
        self.name = packed_text(table)
        for place in range(5 if named is not None else 0):
            self.names[place] = whole(named[place])
        self.step, self.time_s = whole(moment[0]), moment[1]
        if type(moment[1]) is not float:
            raise ValueError(f"time: expected a float, got {type(moment[1]).__name__}")
        self.keys = &all_keys[0] if all_keys.shape[0] else NULL
        self.rows = <float *>&all_rows[0, 0] if all_rows.size else NULL
        self.starts, self.servers, self.dim = &bounds[0], bounds.shape[0] - 1, all_rows.shape[1]

    cdef int64_t place(self, int64_t at) noexcept:
        return at if self.order == NULL else self.order[at]


cdef uint64_t whole(object number) except? 0:
    """A number as messages hold it, and nothing that only can be made one."""
    if type(number) is not int or not 0 <= number <= UINT64_MAX:
        raise ValueError(f"expected an int in 0..2^64-1, got {number!r:.80}")
    return number


cdef bytes part_frame(bytes head, ShortPart part, uint64_t request_id):
    """The request for a part, behind the head of all of its kind."""
    cdef Out out
    memset(&out, 0, sizeof(Out))
    try:
        put_bytes(&out, head)
        put_number(&out, request_id)
        if part.call.named is None:
            put_pull(&out, part)
        else:
            put_push(&out, part)
        return PyBytes_FromStringAndSize(<char *>out.data, out.size)
    finally:
        free(out.data)


cdef int put_pull(Out *out, ShortPart part) except -1:
    cdef ShortCall call = part.call
    put_list(out, 6)
    put_list(out, 1)
    put_bytes(out, call.name)
    put_time(out, call)
    put_bytes(out, PULL_TYPES)
    put_bytes(out, PULL_KEYS)
    put_number(out, part.count)
    put_bytes(out, PULL_BLOCKS)
    put_keys(out, part, 8 * part.count)
    return 0


cdef int put_push(Out *out, ShortPart part) except -1:
    cdef ShortCall call = part.call
    cdef int64_t at
    cdef int place
    put_list(out, 17)
    for place in range(5):
        put_number(out, call.names[place])
    for _twice in range(2):  # keys of this table, and gradients
        put_list(out, 1)
        put_bytes(out, call.name)
    put_time(out, call)
    put_bytes(out, PUSH_MANNER)
    put_bytes(out, PUSH_KEYS)
    put_number(out, part.count)
    put_bytes(out, PUSH_GRADIENTS)
    put_number(out, part.count)
    put_number(out, call.dim)
    put_bytes(out, PUSH_DENSE)
    put_keys(out, part, part.count * (8 + 4 * call.dim))
    for at in range(part.first, part.first + part.count):
        put(out, call.rows + call.place(at) * call.dim, 4 * call.dim)
    return 0


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


cdef bint take_applied(In *source, uint64_t *pushes_before) noexcept:
    """Whether a push is applied, all of it, and nothing else is said."""
    if take_list(source) != 1 or not take_number(source, pushes_before):
        return False
    return taken(source, PUSHED_REST) and source.at == source.end


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
