"""Pages of Parquet columns of numbers, flat or in lists, or strings (`pages.h`, `pslib/data/pages.py`)."""

cimport numpy as cnp
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cython_ext.checks cimport checked_array, checked_target, whole_number
from cython_ext.distinct cimport scratch_of

import numpy as np

__all__ = ["VALUES_MAX", "codecs_known", "flat_page", "list_page", "page_headers", "plain_texts"]

cnp.import_array()

cdef extern from "footer.h" nogil:
    int pslib_footer_codecs(const uint8_t *data, int64_t size)

cdef extern from "pages.h" nogil:
    ctypedef struct PslibPage:
        int64_t type, plain_bytes, bytes, values, encoding, level_encoding, repeat_encoding
        int64_t level_bytes, repeat_bytes, compressed

    ctypedef struct PslibDictionary:
        const void *values
        uint32_t count

    ctypedef struct PslibColumn:
        int64_t values, level_bytes, repeat_bytes
        int optional, width
        PslibDictionary dictionary

    ctypedef struct PslibBody:
        const uint8_t *at
        const uint8_t *end

    ctypedef struct PslibListPage:
        int most, empty
        int64_t rows, elements

    int64_t pslib_page_header(const uint8_t *data, int64_t size, PslibPage *page)
    int64_t pslib_flat_page(
        const PslibColumn *column, PslibBody body, uint8_t *out, uint8_t *valid, uint8_t *dense)
    int pslib_list_page(
        const PslibColumn *column, PslibListPage *page, PslibBody body, uint8_t *out, int32_t *ends,
        uint8_t *levels)
    int pslib_plain_texts(PslibBody body, int64_t n, int32_t *ends, uint8_t *to)

VALUES_MAX = 1 << 24
"""Values of a page; of more Arrow takes care."""

_U8, _I32 = np.dtype(np.uint8), np.dtype(np.int32)
_WIDTHS = (4, 8)


cdef class _Bytes:
    """What a buffer holds, for as long as this lives: Arrow's say that their bytes have a sign."""
    cdef Py_buffer view
    cdef PslibBody bounds

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_C_CONTIGUOUS)
        self.bounds.at = <const uint8_t *>self.view.buf
        self.bounds.end = self.bounds.at + self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def codecs_known(footer):
    """Whether all columns of a file are said to be compressed by codecs that the format has.

    Parameters
    ----------
    footer : buffer
        parquet.thrift's FileMetaData, as it stands in the file.

    Returns
    -------
    bool
        False also where it is damaged, or encrypted.
    """
    cdef _Bytes all_of_it = _Bytes(footer)
    return pslib_footer_codecs(all_of_it.bounds.at, all_of_it.view.len) == 0


def page_headers(data, first):
    """The headers of the pages that follow each other from a place of some bytes on.

    Parameters
    ----------
    data : buffer
    first : int
        0 to the length of ``data``.

    Returns
    -------
    list of tuple of int
        Bytes of the header, and of parquet.thrift's PageHeader: type, uncompressed and compressed size,
        values, encoding, encodings of definition and repetition levels, bytes of both (version 2 only),
        whether values are compressed; -1 for what it does not say. The last page may go on behind the bytes;
        what begins with a header that is cut off, or with none, is not among them.

    Raises
    ------
    ValueError
        When ``first`` is out of range.
    """
    cdef _Bytes all_of_it = _Bytes(data)
    cdef const uint8_t *end = all_of_it.bounds.end
    cdef const uint8_t *at = all_of_it.bounds.at
    cdef PslibPage page
    cdef int64_t size
    at += <int64_t>whole_number("first", first, 0, all_of_it.view.len)
    found = []
    while True:
        size = pslib_page_header(at, end - at, &page)
        if size < 0:
            return found
        found.append((
            size, page.type, page.plain_bytes, page.bytes, page.values, page.encoding, page.level_encoding,
            page.repeat_encoding, page.level_bytes, page.repeat_bytes, page.compressed))
        at += size
        if not 0 <= page.bytes < end - at:
            return found
        at += page.bytes


def plain_texts(body, values):
    """Strings that stand in a page, each after its length.

    Parameters
    ----------
    body : buffer
    values : int
        How many; at most VALUES_MAX.

    Returns
    -------
    (offsets, data) or None
        As Arrow has them, (n + 1,) int32 and uint8: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
        None: the page is damaged.

    Raises
    ------
    ValueError
        When ``values`` is out of range.
    """
    cdef _Bytes page = _Bytes(body)
    cdef int64_t count = whole_number("values", values, 0, VALUES_MAX), size = page.view.len
    if size < 4 * count or size > 0x7FFFFFFF:
        return None
    offsets, data = np.empty(count + 1, np.int32), np.empty(size - 4 * count, np.uint8)
    cdef int32_t *ends = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>offsets)
    cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>data)
    cdef int wrong
    with nogil:
        wrong = pslib_plain_texts(page.bounds, count, ends, to)
    return None if wrong else (offsets, data)


cdef int set_column(
    PslibColumn *column, object values, object level_bytes, object dictionary, object out,
) except -1:
    column.values = whole_number("values", values, 0, VALUES_MAX)
    column.level_bytes = whole_number("level bytes", level_bytes, -1, 1 << 31)
    column.repeat_bytes = -1
    column.width = out.dtype.itemsize if isinstance(out, np.ndarray) else 0
    if column.width not in _WIDTHS:
        raise ValueError("out: expected an array of 4 or 8 bytes a value")
    column.dictionary.values, column.dictionary.count = NULL, 0
    if dictionary is not None:
        checked_array("dictionary", dictionary, out.dtype, (None,))
        if len(dictionary) > VALUES_MAX:
            raise ValueError(f"dictionary: expected at most {VALUES_MAX} values, got {len(dictionary)}")
        column.dictionary.values = cnp.PyArray_DATA(<cnp.ndarray>dictionary)
        column.dictionary.count = <uint32_t>len(dictionary)
    return 0


def flat_page(body, values, level_bytes, optional, dictionary, out, valid):
    """Values of a page of a flat column.

    Parameters
    ----------
    body : buffer
        The page, decompressed: levels where ``optional``, then values.
    values : int
        How many, with those that are null; at most VALUES_MAX.
    level_bytes : int
        Of the levels; -1: their length stands before them (version 1).
    optional : bool
        Whether values may be null.
    dictionary : (d,) array or None
        What values are places of; None: they are plain.
    out : (n,) array
        Of 4 or 8 bytes a value; gets the values, and anything where one is null.
    valid : (n,) uint8
        Gets 0 where a value is null, else 1.

    Returns
    -------
    int
        How many are null; -1: the page is damaged, or it is of a kind that is not understood.

    Raises
    ------
    ValueError
        When an argument does not fit.
    """
    cdef PslibColumn column
    cdef _Bytes page = _Bytes(body)
    cdef int64_t nulls
    set_column(&column, values, level_bytes, dictionary, out)
    column.optional = bool(optional)
    checked_target("out", out, out.dtype, (values,))
    checked_target("valid", valid, _U8, (values,))
    cdef uint8_t[::1] dense = scratch_of((column.values + 1) * column.width)
    cdef uint8_t *room = &dense[0]
    cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>out)
    cdef uint8_t *marks = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>valid)
    with nogil:
        nulls = pslib_flat_page(&column, page.bounds, to, marks, room)
    return nulls


def list_page(body, values, level_bytes, most, empty, dictionary, out, ends, rows):
    """Elements of a page of a column of lists.

    Parameters
    ----------
    body, dictionary
        As for `flat_page`.
    values : int
        Elements, and one for each list without any.
    level_bytes : (int, int)
        Of repetition and of definition levels; -1: their lengths stand before them.
    most, empty : int
        The definition level of an element, 1 to 3, and the highest one of a list that has none.
    out : (n,) array
        Of 4 or 8 bytes a value; gets the elements.
    ends : (m,) int32
        ``ends[:rows + 1]`` is where lists begin and end that came before this page, the last of which may go
        on in it; gets those of this page.
    rows : int

    Returns
    -------
    rows : int
        Lists after this page; -1: as for `flat_page`, or an element is null.

    Raises
    ------
    ValueError
        When an argument does not fit.
    """
    cdef PslibColumn column
    cdef _Bytes page = _Bytes(body)
    cdef PslibListPage lists
    cdef int wrong
    set_column(&column, values, level_bytes[1], dictionary, out)
    column.repeat_bytes = whole_number("level bytes", level_bytes[0], -1, 1 << 31)
    column.optional = 0
    lists.most = whole_number("most", most, 1, 3)
    lists.empty = whole_number("empty", empty, 0, lists.most - 1)
    checked_target("out", out, out.dtype, (values,))
    checked_target("ends", ends, _I32, (None,))
    lists.rows = whole_number("rows", rows, 0, len(ends) - 1 - column.values)
    cdef int32_t *bound = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>ends)
    lists.elements = bound[lists.rows]
    if not 0 <= lists.elements <= 0x7FFFFFFF - column.values:
        raise ValueError("ends: expected at most 2^31-1 elements")
    cdef uint8_t[::1] levels = scratch_of(max(1, 2 * column.values))
    cdef uint8_t *room = &levels[0]
    cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>out)
    with nogil:
        wrong = pslib_list_page(&column, &lists, page.bounds, to, bound, room)
    return -1 if wrong else lists.rows
