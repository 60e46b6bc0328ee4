"""Products with a weight matrix, which is packed once per step for all parts of a batch.

With AVX-512, float32 is multiplied by `cython_ext.model.products`, otherwise by NumPy's BLAS. With
``products="bfloat16"`` the factors of products in this module are rounded to bfloat16 and their products
added in float32 (Micikevicius et al., arXiv:1710.03740; Kalamkar et al., arXiv:1905.12322), if the processor
is faster at it; otherwise nothing is rounded. Products inside a layer (h U of a GRU, cross matrices,
attention's q k^T) stay float32, but factors in gradients of their weights are rounded too. If a step uses a
parameter several times, only the first product of its gradient is rounded.
"""

from __future__ import annotations

import threading
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.fused_layers import add_bias_relu
from cython_ext.model.products import (
    has_bfloat16,
    has_products,
    multiply,
    outer,
    pack,
    packed_length,
)
from pslib.errors import ConfigurationError
from rec_models.engine.buffers import Scratch
from rec_models.engine.tape import Array, Var

OWN_FLOAT32 = has_products()
"""True if the kernel also multiplies float32. With NumPy's BLAS instead, a step takes 1.06 (DeepFM) and 1.07
(DNN) times its processor time at batch 4,096, 1.06 and 1.04 at 512."""

WIDTH_MIN = 32
"""Minimum width for the kernel; below, its panels are not full and the gain is small."""
ALIGNMENT = 64

Float32 = NDArray[np.float32]


def vectors_of(products: str) -> str | None:
    """Return the instruction set that multiplies float32 matrices; None: the best, without rounding.

    Parameters
    ----------
    products : "float32" or "bfloat16"

    Raises
    ------
    ConfigurationError
        When ``products`` is neither.
    """
    if products not in ("float32", "bfloat16"):
        raise ConfigurationError(f"products: expected float32 or bfloat16, got {products!r}")
    return "avx512_bf16" if products == "bfloat16" and has_bfloat16() else None


class PackedWeights:
    """A weight matrix packed for the kernel, lazily by the first thread that needs it.

    Parameters
    ----------
    matrix : (N, M) float32
    name : str
        Name of the parameter, for its arrays in ``scratch``.
    scratch : Scratch
        Arrays kept for the next step.
    vectors : str or None
        See `vectors_of`.
    """

    def __init__(self, matrix: Float32, name: str, scratch: Scratch, vectors: str | None = None) -> None:
        self.vectors = vectors
        self._matrix, self._name, self._scratch = matrix, name, scratch
        self._lock = threading.Lock()
        self._made: dict[bool, Float32] = {}

    def of(self, transposed: bool) -> Float32:
        """Return the packed matrix, or its transpose."""
        with self._lock:
            if transposed not in self._made:
                matrix = self._matrix.T if transposed else self._matrix
                rows, columns = matrix.shape
                length, spare = packed_length(rows, columns, self.vectors), ALIGNMENT // 4
                room = self._scratch.take((self._name, transposed), (length + spare,), np.float32)
                skipped = -room.ctypes.data % ALIGNMENT // 4
                self._made[transposed] = room[skipped : skipped + length]
                pack(matrix, self._made[transposed], self.vectors)
            return self._made[transposed]


class DenseVar(Var):
    """A dense parameter in the tape of one part; records products and sums other gradients.

    Parameters
    ----------
    value : array
    packed : PackedWeights or None
        Shared by all parts.
    """

    __slots__ = ("packed", "products")

    def __init__(self, value: Array, packed: PackedWeights | None = None) -> None:
        super().__init__(value)
        self.packed = packed
        self.products: list[tuple[Array, Array]] = []

    def accumulate_product(self, left: Array, right: Array) -> None:
        """Record ``left^T right``."""
        self.products.append((left, right))


def packed_of(name: str, value: Array, scratch: Scratch, vectors: str | None = None) -> PackedWeights | None:
    """Return the packed parameter for the kernel; None if NumPy multiplies it."""
    wide = value.ndim == 2 and min(value.shape) >= WIDTH_MIN
    return PackedWeights(value, name, scratch, vectors) if wide and _is_for_kernel(value, vectors) else None


def _is_for_kernel(array: Array, vectors: str | None) -> TypeGuard[Float32]:
    """Return True for arrays that the kernel reads: float32 matrices with contiguous rows in order."""
    return (
        array.ndim == 2
        and array.dtype == np.float32
        and array.strides[1] == array.itemsize
        and array.strides[0] >= 0
        and (OWN_FLOAT32 or vectors is not None)
    )


def _packed(weights: Var, left: Array) -> PackedWeights | None:
    packed: PackedWeights | None = weights.packed if isinstance(weights, DenseVar) else None
    return packed if packed is not None and _is_for_kernel(left, packed.vectors) else None


def times(x: Array, weights: Var, out: Array, bias: Array | None = None, relu: bool = False) -> Array:
    """Compute ``x W + b``, with ``relu`` ``max(x W + b, 0)``.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    out : (B, M), changed
    bias : (M,) or None
    relu : bool

    Returns
    -------
    (B, M)
        ``out``.
    """
    packed = _packed(weights, x)
    if packed is not None:
        multiply(x, packed.of(transposed=False), out, bias, relu, packed.vectors)
        return out
    np.matmul(x, weights.value, out=out)
    if bias is not None and relu:
        add_bias_relu(out, bias)
    elif bias is not None:
        out += bias
    return out


def times_transposed(gradient: Array, weights: Var, out: Array) -> Array:
    """Compute ``dy W^T``, the gradient of ``x`` in ``y = x W``.

    Parameters
    ----------
    gradient : (B, M)
    weights : (N, M)
    out : (B, N), changed

    Returns
    -------
    (B, N)
        ``out``.
    """
    packed = _packed(weights, gradient)
    if packed is not None:
        multiply(gradient, packed.of(transposed=True), out, vectors=packed.vectors)
        return out
    return np.matmul(gradient, weights.value.T, out=out)


def transposed_times(left: Array, right: Array, out: NDArray[Any], vectors: str | None = None) -> None:
    """Compute ``left^T right``, the gradient of a weight matrix.

    Parameters
    ----------
    left : (B, N)
    right : (B, M)
    out : (N, M), changed
    vectors : str or None
        See `vectors_of`.
    """
    wide = min(left.shape[1], right.shape[1]) >= WIDTH_MIN
    if wide and all(_is_for_kernel(matrix, vectors) for matrix in (left, right, out)):
        outer(left, right, out, vectors)
    else:
        np.matmul(left.T, right, out=out)
