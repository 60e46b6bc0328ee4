"""Short pulls and pushes of one table, from the bytes of a request to the bytes of its answer.

What is done is said by ``pslib/shard/short.py`` (and by the codec, of what the bytes are): this is the same
for the one form that nearly all requests of few rows have, in one frame and without a Python object for each
field. Anything else gives None, and nothing has changed: the definition serves it, or says what is wrong.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from cython_ext.hashing cimport partition_number, pslib_mix64
from cython_ext.msgpack_parts cimport (
    In,
    Out,
    put,
    put_binary,
    put_list,
    put_number,
    take_big_endian,
    take_binary,
    take_list,
    take_number,
    take_text,
)
from cython_ext.push_marks cimport PushMarks
from cython_ext.store cimport Store

import sys

from cython_ext.message_layouts import packed_text
from cython_ext.push_marks import FencedError

__all__ = ["ShortRequests"]

cnp.import_array()

cdef double TIME_S_MAX = 1e12

# The rest of a header is as plain as it can be, or it is for the definition: no arrays but these, none with
# anything in it, rate 1.0, and float32 throughout. The other end is ``short_frames.pyx``.
cdef bytes PULL_TYPES = b"\xa7float32\xa7float32\x90"
cdef bytes PULL_KEYS = b"\x92\x92\xa2u8"
cdef bytes PULL_BLOCKS = b"\x92\xa2u4\0"
cdef bytes PULLED_REST = b"\x92\xa2f4\0\x92\xa2u4\0\x92\xa2u2\0"
cdef bytes PUSH_MANNER = b"\x90\x90\x90\xcb\x3f\xf0\0\0\0\0\0\0\xc2\0\xc2\x90"
cdef bytes PUSH_KEYS = b"\x94\x92\xa2u8"
cdef bytes PUSH_GRADIENTS = b"\x93\xa2f4"
cdef bytes PUSH_DENSE = b"\x92\xa2u4\0\x92\xa2f4\0"
cdef bytes PUSHED_REST = b"\x92\x92\xa2u4\0\x92\xa2u2\0\xc4\0"


cdef class ShortRequests:
    """Serves short requests of one cluster.

    Parameters
    ----------
    version : int
        Of the protocol, 0..127.
    cluster : str
        At most 255 bytes.
    rows_max : int
        Keys of a request that is short.

    Raises
    ------
    ValueError
        When this machine or this name is not for it.
    """

    def __init__(self, version, cluster, rows_max):
        self.pull, self.push, self.pulled, self.pushed = heads_of(version, cluster)
        self.rows_max = min(rows_max, KEYS_MAX)

    def answer_all(self, shard, list came, roles, reply):
        """Answer requests up to the first one that is not for this, and for which nothing has changed.

        Parameters
        ----------
        shard : pslib.shard.shard.Shard
            Without siblings, of which nobody else makes use meanwhile.
        came : list of (bytes, list of bytes)
            Peers and the frames that they sent.
        roles : set of str
            Of the keys that may both pull and push; a peer without a role may.
        reply : type
            A tuple of a peer and frames.

        Returns
        -------
        list of reply or Exception
            The first answers. An exception is the last one: half-way through a push, which has no mark.
        """
        cdef list answers = [], frames
        for peer, frames in came:
            if len(frames) != 1 or not PyBytes_CheckExact(frames[0]):
                break
            if not PyBytes_CheckExact(peer) and peer.role not in roles:
                break
            try:
                answer = self.answer(shard, frames[0])
            except Exception as error:
                answers.append(error)
                break
            if answer is None:
                break
            answers.append(made_tuple(reply, peer, [answer]))
        return answers

    cdef bytes answer(self, object shard, bytes frame):
        """The answer to a request; None: it is not for this."""
        cdef In source
        source.at = <const uint8_t *>PyBytes_AS_STRING(frame)
        source.end = source.at + PyBytes_GET_SIZE(frame)
        if shard is not self.shard:
            self.meet(shard)
        if taken(&source, self.pull):
            return self.answer_pull(shard, &source)
        if taken(&source, self.push):
            return self.answer_push(shard, &source)
        return None

    cdef int meet(self, object shard) except -1:
        """What a shard has for life is looked up once: an attribute costs as much as a row."""
        self.stores, self.tables, self.kinds = shard.stores, shard.tables, shard.kind_of_partition
        self.partition_bits, self.partitions = shard.partition_bits, shard.partitions
        self.shard = shard
        return 0

    cdef bytes answer_pull(self, object shard, In *source):
        cdef Request request
        cdef uint64_t keys[KEYS_MAX]
        cdef float rows[FLOATS_MAX]
        if not take_number(source, &request.request_id) or take_list(source) != 6:
            return None
        if not taken_name(source, &request) or not taken_time(source, &request):
            return None
        if not taken(source, PULL_TYPES) or not taken(source, PULL_KEYS):
            return None
        if not self.taken_count(source, &request):
            return None
        if not taken(source, PULL_BLOCKS) or not taken_data(source, &request, 8 * request.count):
            return None
        name = name_of(&request)
        store = None if name is None else self.stores.get(name)
        memcpy(keys, request.data, 8 * request.count)
        if store is None or self.partitions_mine(keys, request.count, NULL) < 0:
            return None
        cdef Store table = store
        cdef uint64_t dim = table.dim
        if request.count * dim > FLOATS_MAX:
            return None
        table.read_rows(keys, request.count, self.now_of(name, &request), rows)
        shard.counters.rows_pulled += request.count
        return self.rows_answer(&request, dim, rows, shard.pushes_before)

    cdef bytes rows_answer(self, Request *request, uint64_t dim, const float *rows, uint64_t pushes_before):
        cdef Out out
        memset(&out, 0, sizeof(Out))
        try:
            put(&out, PyBytes_AS_STRING(self.pulled), PyBytes_GET_SIZE(self.pulled))
            put_number(&out, request.request_id)
            put_list(&out, 4)
            put_list(&out, 1)
            put(&out, request.name, request.name_size)
            put_list(&out, 0)
            put_list(&out, 0)
            put_number(&out, pushes_before)
            put_list(&out, 4)
            put_list(&out, 3)
            put(&out, b"\xa2f4", 3)
            put_number(&out, request.count)
            put_number(&out, dim)
            put(&out, PyBytes_AS_STRING(PULLED_REST), PyBytes_GET_SIZE(PULLED_REST))
            put_binary(&out, rows, 4 * request.count * dim)
            return PyBytes_FromStringAndSize(<char *>out.data, out.size)
        finally:
            free(out.data)

    cdef bytes answer_push(self, object shard, In *source):
        cdef Request request
        cdef uint64_t named[5]  # stream, number, epoch, all_acked_below, home
        cdef uint64_t keys[KEYS_MAX]
        cdef float gradients[FLOATS_MAX]
        cdef uint64_t again, dim, pushes_before
        cdef const uint8_t *first
        cdef int place
        if not take_number(source, &request.request_id) or take_list(source) != 17:
            return None
        for place in range(5):
            if not take_number(source, &named[place]):
                return None
        if not taken_name(source, &request):
            return None
        first, again = request.name, request.name_size
        if not taken_name(source, &request) or again != <uint64_t>request.name_size:
            return None
        if memcmp(first, request.name, again) or not taken_time(source, &request):
            return None
        if not taken(source, PUSH_MANNER) or not taken(source, PUSH_KEYS):
            return None
        if not self.taken_count(source, &request):
            return None
        if not taken(source, PUSH_GRADIENTS) or not take_number(source, &again) or again != request.count:
            return None
        if not take_number(source, &dim) or dim > FLOATS_MAX or request.count * dim > FLOATS_MAX:
            return None
        if not taken(source, PUSH_DENSE) or not taken_data(source, &request, request.count * (8 + 4 * dim)):
            return None
        memcpy(keys, request.data, 8 * request.count)
        memcpy(gradients, request.data + 8 * request.count, 4 * request.count * dim)
        if not self.apply(shard, &request, named, keys, gradients, dim, &pushes_before):
            return None
        return self.applied_answer(request.request_id, pushes_before)

    cdef bint apply(
        self, object shard, Request *request, const uint64_t *named, const uint64_t *keys,
        const float *gradients, uint64_t dim, uint64_t *pushes_before
    ) except -1:
        """Apply a push unless it is known (pushes_before: OUT, 0 where it is); False: it is not for this."""
        cdef Store table
        cdef PushMarks marks
        cdef bytes bits
        cdef int64_t unit_count
        name = name_of(request)
        store = None if name is None else self.stores.get(name)
        if store is None or named[4] >= self.partitions:
            return False
        if shard.journal is not None or shard.room.limit_bytes:
            return False
        table = store
        if <uint64_t>table.dim != dim:
            return False
        bits = PyBytes_FromStringAndSize(NULL, (self.partitions + 7) >> 3)
        memset(PyBytes_AS_STRING(bits), 0, PyBytes_GET_SIZE(bits))
        unit_count = self.partitions_mine(keys, request.count, <uint8_t *>PyBytes_AS_STRING(bits))
        if unit_count < 0:
            return False
        units, marks = int.from_bytes(bits, "little"), shard.marks
        stream, number = named[0], named[1]
        try:
            fresh = marks.fresh(stream, number, named[2], units)
        except FencedError:  # the definition says so
            return False
        marks.raise_floor(stream, named[3])
        pushes_before[0] = 0
        if not fresh:
            return True
        if fresh != units:
            return False
        table.step_rows(
            keys, request.count, gradients, pslib_mix64(pslib_mix64(named[0]) ^ named[1]),
            self.now_of(name, request),
        )
        counters = shard.counters
        counters.rows_pushed += request.count
        marks.record(stream, number, fresh)
        counters.updates_applied += unit_count
        counters.pushes_applied += has_bit(bits, named[4])
        pushes_before[0] = shard.pushes_before
        shard.pushes_before = pushes_before[0] + 1
        return True

    cdef bytes applied_answer(self, uint64_t request_id, uint64_t pushes_before):
        cdef Out out
        memset(&out, 0, sizeof(Out))
        try:
            put(&out, PyBytes_AS_STRING(self.pushed), PyBytes_GET_SIZE(self.pushed))
            put_number(&out, request_id)
            put_list(&out, 1)
            put_number(&out, pushes_before)
            put(&out, PyBytes_AS_STRING(PUSHED_REST), PyBytes_GET_SIZE(PUSHED_REST))
            return PyBytes_FromStringAndSize(<char *>out.data, out.size)
        finally:
            free(out.data)

    cdef int64_t partitions_mine(self, const uint64_t *keys, uint64_t count, uint8_t *bits) noexcept:
        """How many bits of bits (OUT, or NULL) these keys' partitions set; -1: one is another shard's."""
        cdef const uint16_t *kinds = <const uint16_t *>cnp.PyArray_DATA(self.kinds)
        cdef uint32_t partition
        cdef uint64_t place
        cdef int64_t found = 0
        cdef uint8_t bit
        for place in range(count):
            partition = partition_number(keys[place], self.partition_bits)
            if kinds[partition] != 0:  # MINE
                return -1
            if bits != NULL:
                bit = <uint8_t>(1 << (partition & 7))
                found += not bits[partition >> 3] & bit
                bits[partition >> 3] |= bit
        return found

    cdef float now_of(self, str name, Request *request) except? -1:
        """As `TableSpec.now`."""
        return <float>request.step if self.tables[name].clock == "steps" else <float>request.time_s

    cdef bint taken_count(self, In *source, Request *request) noexcept:
        return take_number(source, &request.count) and request.count <= self.rows_max


cdef tuple heads_of(version, cluster):
    """Headers of pulls, pushes and their answers, up to the number; ValueError where there are none."""
    if sys.byteorder != "little":
        raise ValueError("expected a little-endian machine")
    start = b"\x97" + bytes([version]) + packed_text(cluster)
    return tuple([start + packed_text(kind) for kind in ("Pull", "Push", "Pulled", "Pushed")])


cdef object made_tuple(object cls, object first, object second):
    """A named tuple of two: its own ``__new__`` is a Python function."""
    cdef tuple items = ((first, second),)
    return (<PyTypeObject *>tuple).tp_new(cls, <PyObject *>items, NULL)


cdef bint taken(In *source, bytes wanted) noexcept:
    """Whether these bytes come next; then they are taken."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(wanted)
    if source.end - source.at < size or memcmp(source.at, PyBytes_AS_STRING(wanted), size):
        return False
    source.at += size
    return True


cdef bint taken_name(In *source, Request *request) noexcept:
    """A list of one name."""
    if take_list(source) != 1:
        return False
    request.name = source.at
    if not take_text(source, &request.text, &request.text_size):
        return False
    request.name_size = source.at - request.name
    return request.name[0] != 0xD9 or request.text_size > 31  # the shortest form, in which it goes back


cdef bint taken_time(In *source, Request *request) noexcept:
    """A step, and seconds in their range."""
    cdef uint64_t bits
    if not take_number(source, &request.step) or source.at >= source.end or source.at[0] != 0xCB:
        return False
    source.at += 1
    if not take_big_endian(source, 8, &bits):
        return False
    memcpy(&request.time_s, &bits, 8)
    return isfinite(request.time_s) and 0 <= request.time_s <= TIME_S_MAX


cdef bint taken_data(In *source, Request *request, uint64_t size) noexcept:
    """All arrays together, of which there are so many bytes, and nothing behind them."""
    if take_binary(source) != <Py_ssize_t>size:
        return False
    request.data = source.at
    return True


cdef str name_of(Request *request):
    """The table's name; None when it is no text."""
    try:
        return PyUnicode_DecodeUTF8(<const char *>request.text, request.text_size, NULL)
    except UnicodeDecodeError:
        return None


cdef uint64_t has_bit(bytes bits, uint64_t number) noexcept:
    """1 where a bit is set, else 0."""
    return <uint8_t>PyBytes_AS_STRING(bits)[number >> 3] >> (number & 7) & 1
