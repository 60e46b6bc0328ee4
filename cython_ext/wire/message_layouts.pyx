"""What writer and reader of messages know of each kind of message, looked up once."""

import sys

import numpy as np

__all__ = ["MessageLayouts"]


cdef class MessageLayouts:
    """Layouts of the common messages of one cluster, and limits.

    Parameters
    ----------
    version : int
        0..127.
    cluster : str
    limits : (int, int, int, int)
        Most frames (one an array and one more), bytes of header, of a frame, and of a message.
    small : (int, int)
        Arrays of at most so many bytes travel in the header, so many bytes together at most.
    dtypes : sequence of (str, int)
        What the wire knows: two letters and NumPy's number of it.
    kinds : mapping of str to (class, fields)
        The class of each kind of message and for each of its fields ``(name, rule)``: the rule is int,
        float, bool or str, or ``(many, allowed, ndim)`` with places in ``dtypes``.
    """

    def __init__(self, version, cluster, limits, small, dtypes, kinds):
        self.frames_max, self.header_max, self.frame_max, self.message_max = limits
        self.small_max, self.small_room = small
        self.native = sys.byteorder == "little"
        self.dtype_count = len(dtypes)
        self.descriptors = [np.dtype(code) for code, _number in dtypes]
        for place, (code, number) in enumerate(dtypes):
            self.codes[place][0], self.codes[place][1] = code.encode()
            self.type_numbers[place] = number
            self.sizes[place] = self.descriptors[place].itemsize
        self.start = b"\x97" + bytes([version]) + packed_text(cluster)
        self.of_kind, self.of_bytes = {}, {}
        for kind, (cls, rules) in kinds.items():
            self.of_kind[kind] = self.of_bytes[kind.encode()] = self.layout(cls, kind, rules)

    cdef Layout layout(self, object cls, str kind, object rules):
        cdef Layout layout = Layout.__new__(Layout)
        cdef int place
        if len(rules) > FIELDS_MAX:
            raise ValueError(f"{kind}: expected at most {FIELDS_MAX} fields, got {len(rules)}")
        layout.cls, layout.count = cls, len(rules)
        layout.start = self.start + packed_text(kind)
        layout.names = [name for name, _rule in rules]
        for place, (_name, rule) in enumerate(rules):
            if isinstance(rule, tuple):
                many, allowed, layout.ndims[place] = rule
                layout.dtypes[place] = sum(1 << dtype for dtype in allowed)
                layout.rules[place] = ARRAYS if many else ARRAY
            else:
                layout.rules[place] = {int: INTEGER, float: FLOAT, bool: BOOLEAN, str: TEXT}[rule]
            layout.values += layout.rules[place] != ARRAY
        return layout

    cdef bint fits(self, object frames) except -1:
        """Whether frames keep to the limits on bytes."""
        cdef unsigned long long size, total = len(frames[0])
        cdef Py_ssize_t place
        if total > <unsigned long long>self.header_max or total > <unsigned long long>self.frame_max:
            return False
        for place in range(1, len(frames)):
            size = len(frames[place])
            total += size
            if size > <unsigned long long>self.frame_max:
                return False
        return total <= self.message_max


def packed_text(text):
    """A text as the header holds it; at most 255 bytes."""
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"expected a text of at most 255 bytes, got {len(data)}")
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data
