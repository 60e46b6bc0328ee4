"""Memory-bound parts of a model, each in one pass over its arrays: bias and relu, the pairs of an FM.

NumPy expressions would take several passes over arrays of a batch by a layer, most of them temporary. Loops
and formulas are in `layer_loops.h`; here their arguments are checked. No function allocates an array.
"""

from cython_ext.model.layers cimport (
    pslib_best_level,
    pslib_bias_relu_double,
    pslib_bias_relu_float,
    pslib_fm_double,
    pslib_fm_float,
    pslib_fm_gradient_double,
    pslib_fm_gradient_float,
    pslib_head_gradient_double,
    pslib_head_gradient_float,
    pslib_layer_level,
    pslib_relu_gradient_double,
    pslib_relu_gradient_float,
)

pslib_layer_level = pslib_best_level()

ctypedef fused real:
    float
    double


cdef object check_length(name, Py_ssize_t came, Py_ssize_t expected):
    if came != expected:
        raise ValueError(f"{name}: expected {expected} values, got {came}")


cdef object check_shape(name, Py_ssize_t n, Py_ssize_t m, Py_ssize_t rows, Py_ssize_t columns):
    if n != rows or m != columns:
        raise ValueError(f"{name}: expected {(rows, columns)}, got {(n, m)}")


cdef Py_ssize_t vectors_stride(name, const real[:, :, :] vectors) except -1:
    """Return the floats from example to example; raise ValueError unless its vectors are contiguous."""
    cdef Py_ssize_t fields = vectors.shape[1], dim = vectors.shape[2], size = sizeof(real)
    cdef bint sound = (dim <= 1 or vectors.strides[2] == size) and (
        fields <= 1 or vectors.strides[1] == dim * size)
    if not sound or vectors.strides[0] % size != 0 or vectors.strides[0] < 0:
        raise ValueError(f"{name}: expected the vectors of an example side by side in memory")
    return vectors.strides[0] // size


def add_bias_relu(real[:, ::1] values, const real[::1] bias):
    """Compute ``values = max(values + bias, 0)`` in place; NaN stays NaN.

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
    cdef Py_ssize_t n = values.shape[0], m = values.shape[1]
    if bias.shape[0] != m:
        raise ValueError(f"bias: expected {m} values, one a column, got {bias.shape[0]}")
    if n == 0 or m == 0:
        return
    with nogil:
        if real is float:
            pslib_bias_relu_float(&values[0, 0], &bias[0], n, m)
        else:
            pslib_bias_relu_double(&values[0, 0], &bias[0], n, m)


def relu_gradient(
    const real[:, ::1] gradient, const real[:, ::1] values, real[:, ::1] masked, real[::1] total
):
    """Compute the gradients of the products and the bias of ``values = max(products + bias, 0)``.

    Parameters
    ----------
    gradient : (n, m) float32 or float64
        Of the loss with respect to ``values``.
    values : (n, m)
        The result of `add_bias_relu`; same dtype.
    masked : (n, m), changed
        ``gradient`` where ``values`` is above 0 (or NaN), else 0; may be ``gradient`` itself.
    total : (m,), changed
        The sum of ``masked`` over rows, in their order, is added to it.

    Raises
    ------
    ValueError
        When the shapes differ.
    """
    cdef Py_ssize_t n = values.shape[0], m = values.shape[1]
    check_shape("gradient", gradient.shape[0], gradient.shape[1], n, m)
    check_shape("masked", masked.shape[0], masked.shape[1], n, m)
    check_length("total", total.shape[0], m)
    if n == 0 or m == 0:
        return
    with nogil:
        if real is float:
            pslib_relu_gradient_float(&gradient[0, 0], &values[0, 0], &masked[0, 0], &total[0], n, m)
        else:
            pslib_relu_gradient_double(&gradient[0, 0], &values[0, 0], &masked[0, 0], &total[0], n, m)


def head_gradient(
    const real[::1] gradient,
    const real[:, ::1] values,
    const real[::1] weights,
    real[:, ::1] masked,
    real[::1] total,
    real[::1] weights_gradient,
):
    """Compute the gradients of ``values @ weights`` where ``values = max(products + bias, 0)``.

    Parameters
    ----------
    gradient : (n,) float32 or float64
        Of the loss with respect to the outputs, one an example.
    values : (n, m)
        The result of `add_bias_relu`; same dtype.
    weights : (m,)
    masked : (n, m), changed
        Of the products: ``gradient[i] * weights[j]`` where ``values`` is above 0 (or NaN), else 0. Not
        ``values`` itself.
    total : (m,), changed
        The sum of ``masked`` over rows, in their order, is added to it: of the bias.
    weights_gradient : (m,), changed
        The sum of ``gradient[i] * values[i]`` over rows, in their order, is added to it.

    Raises
    ------
    ValueError
        When the shapes differ.
    """
    cdef Py_ssize_t n = values.shape[0], m = values.shape[1]
    check_length("gradient", gradient.shape[0], n)
    check_length("weights", weights.shape[0], m)
    check_shape("masked", masked.shape[0], masked.shape[1], n, m)
    check_length("total", total.shape[0], m)
    check_length("weights_gradient", weights_gradient.shape[0], m)
    if n == 0 or m == 0:
        return
    with nogil:
        if real is float:
            pslib_head_gradient_float(
                &gradient[0], &values[0, 0], &weights[0], &masked[0, 0], &total[0],
                &weights_gradient[0], n, m)
        else:
            pslib_head_gradient_double(
                &gradient[0], &values[0, 0], &weights[0], &masked[0, 0], &total[0],
                &weights_gradient[0], n, m)


def fm_pairs(const real[:, :, :] vectors, real[:, ::1] totals, real[::1] values):
    """Sum the pairs of fields of each example: ``1/2 sum over d of ((sum_f v_fd)^2 - sum_f v_fd^2)``.

    Parameters
    ----------
    vectors : (n, F, D) float32 or float64
        The vectors of an example are contiguous; there may be gaps between examples.
    totals : (n, D), changed
        Becomes the sum over fields.
    values : (n,), changed
        Becomes the sum over pairs; sums over f and d run in rising order.

    Raises
    ------
    ValueError
        When the shapes differ or the vectors of an example are apart.
    """
    cdef Py_ssize_t n = vectors.shape[0], fields = vectors.shape[1], dim = vectors.shape[2]
    cdef Py_ssize_t stride = vectors_stride("vectors", vectors)
    check_shape("totals", totals.shape[0], totals.shape[1], n, dim)
    check_length("values", values.shape[0], n)
    if n == 0:
        return
    if fields == 0 or dim == 0:
        totals[:, :] = 0
        values[:] = 0
        return
    with nogil:
        if real is float:
            pslib_fm_float(&vectors[0, 0, 0], stride, n, fields, dim, &totals[0, 0], &values[0])
        else:
            pslib_fm_double(&vectors[0, 0, 0], stride, n, fields, dim, &totals[0, 0], &values[0])


def fm_gradient(
    const real[:, :, :] vectors, const real[:, ::1] totals, const real[::1] gradient, real[:, :, :] out
):
    """Add the gradient of `fm_pairs`, ``gradient[i] * (totals[i] - vectors[i, f])``, to ``out``.

    Parameters
    ----------
    vectors : (n, F, D) float32 or float64
    totals : (n, D)
        From `fm_pairs`.
    gradient : (n,)
    out : (n, F, D), changed
        Like ``vectors``: the vectors of an example are contiguous.

    Raises
    ------
    ValueError
        When the shapes differ or the vectors of an example are apart.
    """
    cdef Py_ssize_t n = vectors.shape[0], fields = vectors.shape[1], dim = vectors.shape[2]
    cdef Py_ssize_t stride = vectors_stride("vectors", vectors), out_stride = vectors_stride("out", out)
    check_shape("totals", totals.shape[0], totals.shape[1], n, dim)
    check_length("gradient", gradient.shape[0], n)
    check_length("out", out.shape[0], n)
    check_shape("out", out.shape[1], out.shape[2], fields, dim)
    if n == 0 or fields == 0 or dim == 0:
        return
    with nogil:
        if real is float:
            pslib_fm_gradient_float(&vectors[0, 0, 0], stride, &totals[0, 0], &gradient[0], n, fields, dim,
                                    &out[0, 0, 0], out_stride)
        else:
            pslib_fm_gradient_double(&vectors[0, 0, 0], stride, &totals[0, 0], &gradient[0], n, fields, dim,
                                     &out[0, 0, 0], out_stride)
