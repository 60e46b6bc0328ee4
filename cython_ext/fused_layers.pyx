"""Parts of a model that memory bounds, each in one pass over its arrays: bias and relu, and their gradient.

As NumPy expressions the same work goes four times over arrays of a batch by a layer, two of them new ones.
Every element is computed as the NumPy definition computes it and columns are summed in order of their rows
(``np.add.reduce(axis=0)``), so the bits are the same.
"""

import numpy as np

ctypedef fused real:
    float
    double


cdef inline void add_bias_relu_row(real* values, const real* bias, Py_ssize_t m) noexcept nogil:
    """y = x + b < 0 ? 0 : x + b, so NaN stays NaN. By pointers, which the compiler turns into vectors."""
    cdef Py_ssize_t j
    cdef real biased
    for j in range(m):
        biased = values[j] + bias[j]
        values[j] = 0 if biased < 0 else biased


cdef inline void relu_gradient_row(
    const real* gradient, const real* values, real* masked, real* total, Py_ssize_t m
) noexcept nogil:
    """dz = y <= 0 ? 0 : dy;  total += dz

    The gradient is read whether it is kept or not: a read that depends on y would be a branch, a coin toss.
    """
    cdef Py_ssize_t j
    cdef real kept
    for j in range(m):
        kept = gradient[j]
        kept = 0 if values[j] <= 0 else kept
        masked[j] = kept
        total[j] += kept


def add_bias_relu(real[:, ::1] values, const real[::1] bias):
    """``values = max(values + bias, 0)`` in place; NaN stays NaN.

    Parameters
    ----------
    values : (n, m) float32 or float64, changed
        The products of a fully connected layer.
    bias : (m,)
        Same dtype.

    Raises
    ------
    ValueError
        When the widths differ.
    """
    cdef Py_ssize_t i, n = values.shape[0], m = values.shape[1]
    if bias.shape[0] != m:
        raise ValueError(f"bias: expected {m} values, one a column, got {bias.shape[0]}")
    if m == 0:
        return
    with nogil:
        for i in range(n):
            add_bias_relu_row(&values[i, 0], &bias[0], m)


def relu_gradient(const real[:, ::1] gradient, const real[:, ::1] values):
    """Gradients of the inputs and of the bias of ``values = max(products + bias, 0)``.

    Parameters
    ----------
    gradient : (n, m) float32 or float64
        Of the loss with respect to ``values``.
    values : (n, m)
        What `add_bias_relu` gave; same dtype.

    Returns
    -------
    products_gradient : (n, m)
        ``gradient`` where ``values`` is above 0 (or NaN), else 0.
    bias_gradient : (m,)
        Its sum over rows, in their order.

    Raises
    ------
    ValueError
        When the shapes differ.
    """
    cdef Py_ssize_t i, n = values.shape[0], m = values.shape[1]
    if gradient.shape[0] != n or gradient.shape[1] != m:
        raise ValueError(f"gradient: expected {(n, m)}, got {(gradient.shape[0], gradient.shape[1])}")
    dtype = np.float32 if real is float else np.float64
    products_gradient, bias_gradient = np.empty((n, m), dtype), np.zeros(m, dtype)
    if n == 0 or m == 0:
        return products_gradient, bias_gradient
    cdef real[:, ::1] masked = products_gradient
    cdef real[::1] total = bias_gradient
    with nogil:
        for i in range(n):
            relu_gradient_row(&gradient[i, 0], &values[i, 0], &masked[i, 0], &total[0], m)
    return products_gradient, bias_gradient
