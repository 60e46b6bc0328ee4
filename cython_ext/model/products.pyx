"""Products of float32 matrices with the weights packed once: `products.h`. Needs AVX-512, see `has_products`.

On another processor the functions raise; callers check `has_products` once, and use NumPy otherwise.
``vectors`` names the instructions: ``avx512``, which is the default, or ``avx512_bf16``; the same for `pack`
and `multiply`.

``avx512_bf16`` needs `has_bfloat16`: both factors are rounded to bfloat16 (to the nearest, ties to even),
their products are added in float32, of terms 2 i and 2 i + 1 the odd one first. Subnormal factors and sums
count as 0.
"""

from libc.stdint cimport int64_t, uintptr_t

from cython_ext.common.checks cimport level_of

cdef extern from "model/products.h" nogil:
    enum:
        PSLIB_AVX512
    bint pslib_has_products()
    bint pslib_has_bfloat16()
    int64_t pslib_packed_length(int rounded, int64_t k, int64_t n)
    void pslib_pack(
        int rounded, const float* matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n,
        float* out)
    int pslib_multiply(
        int rounded, const float* left, int64_t row, const float* packed, float* out, int64_t out_row,
        int64_t m, int64_t n, int64_t k, const float* bias, int relu)
    int pslib_outer(
        int rounded, const float* left, int64_t left_row, const float* right, int64_t right_row, float* out,
        int64_t out_row, int64_t m, int64_t n, int64_t k)

cdef bint HAVE = level_of(None) >= PSLIB_AVX512 and pslib_has_products()
cdef bint HAVE_BFLOAT16 = HAVE and pslib_has_bfloat16()


cdef int is_rounded(vectors) except -1:
    """Return True if these instructions are those of bfloat16."""
    if not HAVE:
        raise ValueError("these products need a processor with AVX-512: ask has_products() first")
    known = ("avx512", "avx512_bf16") if HAVE_BFLOAT16 else ("avx512",)
    if vectors is not None and vectors not in known:
        raise ValueError(f"vectors: expected one of {', '.join(known)} on this machine, got {vectors}")
    return vectors == "avx512_bf16"


cdef int64_t row_step(name, const float[:, :] matrix) except -1:
    """Return the floats from row to row; raise ValueError unless the floats of a row are contiguous."""
    cdef Py_ssize_t step = matrix.strides[0]
    if matrix.shape[1] > 1 and matrix.strides[1] != sizeof(float):
        raise ValueError(f"{name}: expected rows whose floats stand side by side in memory")
    if step < 0 or step % sizeof(float) != 0:
        raise ValueError(f"{name}: expected rows in rising order in memory")
    return step // sizeof(float)


cdef object check_packed(const float[::1] packed, bint rounded, Py_ssize_t k, Py_ssize_t n):
    cdef int64_t length = pslib_packed_length(rounded, k, n)
    if packed.shape[0] != length or (length and <uintptr_t>&packed[0] % 64 != 0):
        raise ValueError(f"packed: expected {length} floats from a multiple of 64 bytes on")


def has_products():
    """Return True if the kernels multiply here: with AVX-512, unless ``PSLIB_VECTORS`` names less."""
    return HAVE


def has_bfloat16():
    """Return True if this machine multiplies faster in bfloat16: AMD processors from Zen 4 on (AVX512_BF16).

    Intel's have the instruction too, but there it takes longer than the two multiplications that it replaces.
    False also where the compiler was older than GCC 10 or clang 9, or ``PSLIB_VECTORS`` names less than
    ``avx512``.
    """
    return HAVE_BFLOAT16


def packed_length(Py_ssize_t rows, Py_ssize_t columns, vectors=None):
    """Return the floats of a packed matrix, whose columns are padded to a multiple of 16.

    In bfloat16 two numbers share the place of a float.

    Parameters
    ----------
    rows, columns : int
    vectors : str or None

    Returns
    -------
    int

    Raises
    ------
    ValueError
        When this machine has no such ``vectors``.
    """
    return pslib_packed_length(vectors is not None and is_rounded(vectors), rows, columns)


def pack(const float[:, :] matrix, float[::1] packed, vectors=None):
    """Pack a matrix for `multiply`.

    Parameters
    ----------
    matrix : (k, n) float32
        Its rows or, as in a transposed view, its columns are contiguous.
    packed : (`packed_length` of it,) float32, changed
        From a multiple of 64 bytes on.
    vectors : str or None

    Raises
    ------
    ValueError
        When the length, the place in memory or the processor does not fit.
    """
    cdef bint rounded = is_rounded(vectors)
    cdef Py_ssize_t k = matrix.shape[0], n = matrix.shape[1]
    cdef bint by_rows = n <= 1 or matrix.strides[1] == sizeof(float)
    cdef int64_t step = row_step("matrix", matrix if by_rows else matrix.T)
    check_packed(packed, rounded, k, n)
    if step * n >= 1 << 31:
        raise ValueError(f"matrix: expected columns less than 2^31 floats apart, got {step * n}")
    if k == 0 or n == 0:
        return
    with nogil:
        if by_rows:
            pslib_pack(rounded, &matrix[0, 0], step, 1, k, n, &packed[0])
        else:
            pslib_pack(rounded, &matrix[0, 0], 1, step, k, n, &packed[0])


def multiply(const float[:, :] left, const float[::1] packed, float[:, :] out, const float[::1] bias=None,
             bint relu=False, vectors=None):
    """Compute ``out = left matrix``, then ``+ bias`` and ``max(., 0)`` where given; NaN stays NaN.

    Parameters
    ----------
    left : (m, k) float32
    packed : (`packed_length` of (k, n),) float32
        The (k, n) matrix, from `pack`.
    out : (m, n) float32, changed
    bias : (n,) float32 or None
    relu : bool
    vectors : str or None

    Raises
    ------
    ValueError
        When shapes, places in memory or the processor do not fit.
    MemoryError
        When there is none for rounded rows.
    """
    cdef bint rounded = is_rounded(vectors)
    cdef Py_ssize_t m = left.shape[0], k = left.shape[1], n = out.shape[1]
    cdef int64_t step = row_step("left", left), out_step = row_step("out", out)
    cdef const float* added = NULL
    cdef int failed
    check_packed(packed, rounded, k, n)
    if out.shape[0] != m or (bias is not None and bias.shape[0] != n):
        raise ValueError(f"out and bias: expected shapes {(m, n)} and {(n,)}")
    if k == 0:
        raise ValueError("left: expected at least one column")
    if m == 0 or n == 0:
        return
    if bias is not None:
        added = &bias[0]
    with nogil:
        failed = pslib_multiply(
            rounded, &left[0, 0], step, &packed[0], &out[0, 0], out_step, m, n, k, added, relu)
    if failed:
        raise MemoryError("no memory for rounded rows of a matrix")


def outer(const float[:, :] left, const float[:, :] right, float[:, :] out, vectors=None):
    """Compute ``out = left^T right``; the terms of an element are added in the order of the rows.

    Parameters
    ----------
    left : (k, m) float32
    right : (k, n) float32
    out : (m, n) float32, changed
    vectors : str or None

    Raises
    ------
    ValueError
        When shapes, places in memory or the processor do not fit.
    MemoryError
        When there is none for a packed piece.
    """
    cdef Py_ssize_t k = left.shape[0], m = left.shape[1], n = right.shape[1]
    cdef int64_t left_step = row_step("left", left), right_step = row_step("right", right)
    cdef int64_t out_step = row_step("out", out)
    cdef int failed
    cdef bint rounded = is_rounded(vectors)
    if right.shape[0] != k or out.shape[0] != m or out.shape[1] != n:
        raise ValueError(f"right and out: expected shapes {(k, n)} and {(m, n)}")
    if k == 0:
        out[:, :] = 0
        return
    if m == 0 or n == 0:
        return
    with nogil:
        failed = pslib_outer(
            rounded, &left[0, 0], left_step, &right[0, 0], right_step, &out[0, 0], out_step, m, n, k)
    if failed:
        raise MemoryError("no memory for a packed piece of a matrix")
