"""Interactions of the fields of an example: pairwise, cross and compressed, and weights of fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.fused_layers import fm_gradient, fm_pairs
from rec_models.engine.tape import Array, Tape, Var, layer


def pairs_of(fields: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return left and right fields of all pairs ``i < j``, (P,): (0, 1), (0, 2), ...; P = F (F - 1) / 2."""
    left, right = np.triu_indices(fields, 1)
    return left, right


def summed_by_field(gradient: Array, fields: NDArray[np.intp], count: int) -> Array:
    """Sum values of pairs, (P, B, D), by the field of each pair, (P,), to (B, F, D)."""
    chosen: NDArray[Any] = np.zeros((count, fields.size), gradient.dtype)
    chosen[fields, np.arange(fields.size)] = 1
    pairs, examples, dim = gradient.shape
    sums = chosen @ gradient.reshape(pairs, examples * dim)
    return np.ascontiguousarray(sums.reshape(count, examples, dim).transpose(1, 0, 2))


@layer
def fm(tape: Tape, vectors: Var) -> Var:
    """Second-order term of a factorization machine, in time linear in the number of fields.

    Parameters
    ----------
    vectors : (B, F, D)
        ``v_i x_i`` of each field: the row of a sparse field, the pooled rows of a ragged one.

    Returns
    -------
    (B,)
        ``sum over i < j of <v_i, v_j> = 1/2 sum over d of ((sum_i v_id)^2 - sum_i v_id^2)``;
        backward ``dv_i = dy (s - v_i)`` with ``s = sum_i v_i``.

    Notes
    -----
    Rendle, Factorization Machines, ICDM 2010, pairwise term of eq. 1 by lemma 3.1. A ragged field counts as
    one vector: its elements are not paired with each other.
    """
    v = vectors.value
    total = tape.empty((v.shape[0], v.shape[2]), v.dtype)
    value = tape.empty((v.shape[0],), v.dtype)
    fm_pairs(v, total, value)

    def backward(gradient: Array) -> None:
        dy = np.ascontiguousarray(gradient)
        if vectors.owns_gradient and vectors.gradient is not None:  # in place, after an MLP's gradient
            fm_gradient(v, total, dy, vectors.gradient)
            return
        onward = tape.empty_like(v)
        onward[...] = 0
        fm_gradient(v, total, dy, onward)
        vectors.accumulate(onward, owned=True)

    return tape.record(value, backward)


@layer
def bi_interaction(tape: Tape, vectors: Var) -> Var:
    """Bi-interaction pooling: the sum of the element-wise products of all pairs of fields.

    Parameters
    ----------
    vectors : (B, F, D)

    Returns
    -------
    (B, D)
        ``sum over i < j of v_i * v_j = 1/2 ((sum_i v_i)^2 - sum_i v_i^2)``; backward ``dv_i = dy (s - v_i)``
        with ``s = sum_i v_i``.

    Notes
    -----
    He and Chua, Neural Factorization Machines, SIGIR 2017, arXiv:1708.05027, eq. 3 and 4.
    """
    v = vectors.value
    total = v.sum(axis=1)

    def backward(gradient: Array) -> None:
        onward = np.subtract(total[:, None], v, out=tape.empty_like(v))
        onward *= gradient[:, None]
        vectors.accumulate(onward, owned=True)

    return tape.record((total * total - np.einsum("bfd,bfd->bd", v, v)) * v.dtype.type(0.5), backward)


@layer
def inner_products(tape: Tape, vectors: Var) -> Var:
    """Inner products of all pairs of fields.

    Parameters
    ----------
    vectors : (B, F, D)

    Returns
    -------
    (B, F (F - 1) / 2)
        ``p_ij = <v_i, v_j>`` for ``i < j``, in the order of `pairs_of`; backward
        ``dv_i = sum over j of dp_ij v_j``.

    Notes
    -----
    Qu et al., Product-based Neural Networks, ICDM 2016, arXiv:1611.00144, section III-B, with one number
    per pair; Naumov et al., DLRM, arXiv:1906.00091, section 2.1.3.
    """
    v = vectors.value
    left, right = pairs_of(v.shape[1])
    value = np.matmul(v, v.transpose(0, 2, 1))[:, left, right]

    def backward(gradient: Array) -> None:
        square = np.zeros((v.shape[0], v.shape[1], v.shape[1]), v.dtype)
        square[:, left, right] = gradient
        square[:, right, left] = gradient
        vectors.accumulate(np.matmul(square, v, out=tape.empty_like(v)), owned=True)

    return tape.record(value, backward)


def matrices_of(kind: str, fields: int) -> NDArray[np.intp]:
    """Return the index of the matrix of each pair, (P,); ``kind`` as for `bilinear_pairs`."""
    left, _ = pairs_of(fields)
    return {"all": np.zeros_like(left), "each": left, "interaction": np.arange(left.size)}[kind]


@layer
def bilinear_pairs(tape: Tape, vectors: Var, weights: Var, kind: str) -> Var:
    """Bilinear interaction: a vector for each pair of fields.

    Parameters
    ----------
    vectors : (B, F, D)
    weights : (K, D, D)
        K matrices, as many as `matrices_of` selects.
    kind : {"all", "each", "interaction"}
        One matrix for all pairs, for each left field, or for each pair.

    Returns
    -------
    (B, P, D)
        ``p_ij = u * v_j`` with ``u = v_i W_ij`` for ``i < j``, in the order of `pairs_of`; backward
        ``dv_j += dp * u``, ``du = dp * v_j``, ``dv_i += du W_ij^T``, ``dW_ij += v_i^T du``.

    Notes
    -----
    Huang, Zhang and Zhang, FiBiNET, RecSys 2019, arXiv:1905.09433, section 3.4.
    """
    v = vectors.value
    fields = v.shape[1]
    left, right = pairs_of(fields)
    matrices = matrices_of(kind, fields)
    by_field = np.ascontiguousarray(v.transpose(1, 0, 2))  # (F, B, D)
    v_i, v_j, between = by_field[left], by_field[right], weights.value[matrices]
    u = v_i @ between

    def backward(gradient: Array) -> None:
        dp = gradient.transpose(1, 0, 2)
        du = dp * v_j
        onward = summed_by_field(du @ between.swapaxes(1, 2), left, fields)
        onward += summed_by_field(dp * u, right, fields)
        vectors.accumulate(onward, owned=True)
        by_matrix = np.zeros_like(weights.value)
        np.add.at(by_matrix, matrices, v_i.swapaxes(1, 2) @ du)
        weights.accumulate(by_matrix, owned=True)

    return tape.record(np.ascontiguousarray((u * v_j).transpose(1, 0, 2)), backward)


@layer
def bilinear_fusion(tape: Tape, x: Var, y: Var, weights: Var) -> Var:
    """Bilinear fusion of two vectors to one number, head by head.

    Parameters
    ----------
    x : (B, H M)
    y : (B, H N)
    weights : (H, M, N)

    Returns
    -------
    (B,)
        ``sum over heads h of x_h^T W_h y_h``; backward ``dx_h = dz W_h y_h``, ``dy_h = dz x_h^T W_h``,
        ``dW_h = sum over the batch of dz x_h y_h^T``.

    Notes
    -----
    Mao et al., FinalMLP, AAAI 2023, arXiv:2304.00902, eq. 12 and 13, the quadratic terms.
    """
    H, M, N = weights.value.shape
    B = x.value.shape[0]
    x_h = x.value.reshape(B, H, M).transpose(1, 0, 2)
    y_h = y.value.reshape(B, H, N).transpose(1, 0, 2)
    u = x_h @ weights.value  # (H, B, N)

    def backward(gradient: Array) -> None:
        dy = (u * gradient[:, None]).transpose(1, 0, 2)
        scaled = y_h * gradient[:, None]
        dx = (scaled @ weights.value.swapaxes(1, 2)).transpose(1, 0, 2)
        x.accumulate(dx.reshape(B, H * M), owned=True)
        y.accumulate(dy.reshape(B, H * N), owned=True)
        weights.accumulate(x_h.swapaxes(1, 2) @ scaled, owned=True)

    return tape.record(np.einsum("hbn,hbn->b", u, y_h), backward)


@layer
def cross(tape: Tape, x0: Var, x: Var, weights: Var, bias: Var) -> Var:
    """Cross layer of DCN, with a vector of weights.

    Parameters
    ----------
    x0, x : (B, N)
        The network's input and the layer's; the same Var in the first layer.
    weights, bias : (N,)

    Returns
    -------
    (B, N)
        ``y = x0 <x, w> + b + x``; backward ``dx0 = dy <x, w>``, ``dx = dy + s w`` with ``s = <dy, x0>``,
        ``dw = x^T s``, ``db = sum over the batch of dy``.

    Notes
    -----
    Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017, arXiv:1708.05123, eq. 3.
    """
    heights = x.value @ weights.value
    value = np.multiply(x0.value, heights[:, None], out=tape.empty_like(x.value))
    value += bias.value
    value += x.value

    def backward(gradient: Array) -> None:
        slopes = np.einsum("bn,bn->b", gradient, x0.value)
        onward = np.multiply(slopes[:, None], weights.value, out=tape.empty_like(x.value))
        onward += gradient
        x0.accumulate(gradient * heights[:, None], owned=True)
        x.accumulate(onward, owned=True)
        weights.accumulate(x.value.T @ slopes, owned=True)
        bias.accumulate(gradient.sum(axis=0), owned=True)

    return tape.record(value, backward)


@layer
def cross_matrix(tape: Tape, x0: Var, x: Var, weights: Var, bias: Var) -> Var:
    """Cross layer of DCN-v2, with a matrix of weights.

    Parameters
    ----------
    x0, x : (B, N)
        The network's input and the layer's; the same Var in the first layer.
    weights : (N, N)
    bias : (N,)

    Returns
    -------
    (B, N)
        ``y = x0 * u + x`` with ``u = x W + b``; backward ``dx0 = dy * u``, ``du = dy * x0``,
        ``dx = dy + du W^T``, ``dW = x^T du``, ``db = sum over the batch of du``.

    Notes
    -----
    Wang et al., DCN V2, WWW 2021, arXiv:2008.13535, eq. 1.
    """
    u = np.matmul(x.value, weights.value, out=tape.empty_like(x.value))
    u += bias.value
    value = np.multiply(x0.value, u, out=tape.empty_like(x.value))
    value += x.value

    def backward(gradient: Array) -> None:
        du = np.multiply(gradient, x0.value, out=tape.empty_like(x.value))
        onward = np.matmul(du, weights.value.T, out=tape.empty_like(x.value))
        onward += gradient
        x0.accumulate(gradient * u, owned=True)
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, du)
        bias.accumulate(du.sum(axis=0), owned=True)

    return tape.record(value, backward)


@layer
def compress(tape: Tape, x: Var, x0: Var, weights: Var) -> Var:
    """Layer of a compressed interaction network (CIN).

    Parameters
    ----------
    x : (B, H, D)
        Vectors of the layer before; the fields themselves in the first layer.
    x0 : (B, F, D)
    weights : (H F, M)

    Returns
    -------
    (B, M, D)
        ``y_m = sum over h, f of W_hfm (x_h * x0_f)``; backward with ``g_hf = sum over m of W_hfm dy_m``:
        ``dx_h = sum over f of g_hf * x0_f``, ``dx0_f = sum over h of g_hf * x_h``,
        ``dW_hfm = sum over the batch of <dy_m, x_h * x0_f>``.

    Notes
    -----
    Lian et al., xDeepFM, KDD 2018, arXiv:1803.05170, eq. 6.
    """
    B, H, D = x.value.shape
    F, M = x0.value.shape[1], weights.value.shape[1]
    left = x.value.transpose(0, 2, 1)[:, :, :, None]  # (B, D, H, 1)
    right = x0.value.transpose(0, 2, 1)[:, :, None, :]  # (B, D, 1, F)
    products = np.multiply(left, right, out=tape.empty((B, D, H, F), x.value.dtype)).reshape(B * D, H * F)
    value = (products @ weights.value).reshape(B, D, M).transpose(0, 2, 1)

    def backward(gradient: Array) -> None:
        columns = np.ascontiguousarray(gradient.transpose(0, 2, 1)).reshape(B * D, M)
        inner = (columns @ weights.value.T).reshape(B, D, H, F)
        of_x = (inner @ right.swapaxes(2, 3))[:, :, :, 0]
        of_x0 = (left.swapaxes(2, 3) @ inner)[:, :, 0, :]
        x.accumulate(np.ascontiguousarray(of_x.transpose(0, 2, 1)), owned=True)
        x0.accumulate(np.ascontiguousarray(of_x0.transpose(0, 2, 1)), owned=True)
        weights.accumulate_product(products, columns)

    return tape.record(np.ascontiguousarray(value), backward)


@layer
def squeeze_excite(tape: Tape, vectors: Var, squeeze: Var, excite: Var) -> Var:
    """Squeeze-excitation (SENET): scale each field by a weight that depends on all fields.

    Parameters
    ----------
    vectors : (B, F, D)
    squeeze : (F, R)
    excite : (R, F)

    Returns
    -------
    (B, F, D)
        ``z_f = mean over d of v_fd``, ``h = relu(z W_1)``, ``a = relu(h W_2)``, ``y_f = a_f v_f``; backward
        ``da_f = <dy_f, v_f>`` where ``a_f > 0``, ``dh = da W_2^T`` where ``h > 0``, ``dz = dh W_1^T``,
        ``dv_f = a_f dy_f + dz_f / D``, ``dW_2 = h^T da``, ``dW_1 = z^T dh``.

    Notes
    -----
    Huang, Zhang and Zhang, FiBiNET, RecSys 2019, arXiv:1905.09433, eq. 2 to 4.
    """
    v = vectors.value
    z = v.mean(axis=2)
    h = np.maximum(z @ squeeze.value, 0)
    a = np.maximum(h @ excite.value, 0)

    def backward(gradient: Array) -> None:
        da = np.einsum("bfd,bfd->bf", gradient, v) * (a > 0)
        dh = (da @ excite.value.T) * (h > 0)
        onward = np.multiply(gradient, a[:, :, None], out=tape.empty_like(v))
        onward += ((dh @ squeeze.value.T) / v.dtype.type(v.shape[2]))[:, :, None]
        vectors.accumulate(onward, owned=True)
        excite.accumulate_product(h, da)
        squeeze.accumulate_product(z, dh)

    return tape.record(v * a[:, :, None], backward)
