"""Bias and relu in one pass, and their gradient: the bits of the NumPy expressions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.model.fused_layers import add_bias_relu, fm_gradient, fm_pairs, head_gradient, relu_gradient

SHAPES = st.tuples(st.integers(0, 9), st.integers(2, 40))
DTYPES = st.sampled_from([np.float32, np.float64])


def masked_and_total(gradient, values):
    masked, total = np.empty_like(values), np.zeros(values.shape[1], values.dtype)
    relu_gradient(gradient, values, masked, total)
    return masked, total


@given(SHAPES, DTYPES, st.integers(0, 99))
def test_the_bits_are_those_of_numpy(shape, dtype, seed):
    draw = np.random.default_rng(seed).standard_normal
    products, bias, gradient = (draw(some).astype(dtype) for some in (shape, shape[1], shape))
    values = products.copy()
    add_bias_relu(values, bias)
    assert values.tobytes() == np.maximum(products + bias, 0).tobytes()
    masked, total = masked_and_total(gradient, values)
    assert masked.tobytes() == np.where(values > 0, gradient, 0).astype(dtype).tobytes()
    assert total.tobytes() == np.add.reduce(masked, axis=0).tobytes()


def test_nan_goes_through_both_ways():
    values = np.array([[np.nan, 1.0], [-1.0, 2.0]], np.float32)
    add_bias_relu(values, np.zeros(2, np.float32))
    np.testing.assert_array_equal(values, [[np.nan, 1.0], [0.0, 2.0]])
    _, total = masked_and_total(np.ones((2, 2), np.float32), values)
    np.testing.assert_array_equal(total, [1.0, 2.0])
    masked, total = masked_and_total(np.full((2, 2), np.nan, np.float32), values)
    np.testing.assert_array_equal(masked, [[np.nan, np.nan], [0.0, np.nan]])
    assert np.isnan(total).all()


def test_no_examples_and_no_columns_are_ordinary():
    for shape in ((0, 3), (3, 0)):
        values = np.zeros(shape, np.float32)
        add_bias_relu(values, np.zeros(shape[1], np.float32))
        masked, total = masked_and_total(values, values)
        assert masked.shape == shape
        np.testing.assert_array_equal(total, np.zeros(shape[1]))


def test_a_bias_of_another_width_is_refused():
    with pytest.raises(ValueError, match="bias: expected 2 values, one a column, got 3"):
        add_bias_relu(np.ones((1, 2)), np.ones(3))


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"gradient: expected \(1, 2\), got \(2, 2\)"):
        masked_and_total(np.ones((2, 2)), np.ones((1, 2)))


# --- the last layers --------------------------------------------------------------------------------------


@given(SHAPES, DTYPES, st.integers(0, 99))
def test_the_gradient_of_the_last_layers_has_the_bits_of_sums_over_rows_in_order(shape, dtype, seed):
    draw = np.random.default_rng(seed).standard_normal
    values = np.maximum(draw(shape), 0).astype(dtype)
    gradient, weights = draw(shape[0]).astype(dtype), draw(shape[1]).astype(dtype)
    masked, total, of_weights = np.empty_like(values), np.zeros(shape[1], dtype), np.zeros(shape[1], dtype)
    head_gradient(gradient, values, weights, masked, total, of_weights)
    expected = np.where(values > 0, gradient[:, None] * weights, 0).astype(dtype)
    np.testing.assert_array_equal(masked, expected)
    np.testing.assert_array_equal(total, np.add.reduce(expected, axis=0))
    np.testing.assert_array_equal(of_weights, np.add.reduce(gradient[:, None] * values, axis=0))


# --- pairs ------------------------------------------------------------------------------------------------


@st.composite
def vectors(draw):
    """Vectors of fields with other floats between the examples, and a generator."""
    n, fields = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    dim = draw(st.sampled_from([1, 3, 16, 17, 35]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    wide = rng.normal(size=(n, fields * dim + 2)).astype(draw(DTYPES))
    return wide[:, : fields * dim].reshape(n, fields, dim), rng


def totals_and_values(v):
    totals, values = np.empty((v.shape[0], v.shape[2]), v.dtype), np.empty(v.shape[0], v.dtype)
    fm_pairs(v, totals, values)
    return totals, values


@given(vectors())
def test_pairs_have_the_bits_of_sums_over_fields_and_then_columns_in_order(case):
    v, _ = case
    expected, squares = (np.zeros((v.shape[0], v.shape[2]), v.dtype) for _ in range(2))
    for f in range(v.shape[1]):
        expected += v[:, f]
        squares += v[:, f] * v[:, f]
    sums = np.zeros(v.shape[0], v.dtype)
    for d in range(v.shape[2]):
        sums += expected[:, d] * expected[:, d] - squares[:, d]
    totals, values = totals_and_values(v)
    np.testing.assert_array_equal(totals, expected)
    np.testing.assert_array_equal(values, v.dtype.type(0.5) * sums)


@given(vectors())
def test_the_gradient_of_pairs_is_added_to_what_is_there(case):
    v, rng = case
    gradient, before = rng.normal(size=v.shape[0]).astype(v.dtype), rng.normal(size=v.shape).astype(v.dtype)
    totals, _ = totals_and_values(v)
    out = before.copy()
    fm_gradient(v, totals, gradient, out)
    np.testing.assert_array_equal(out, before + gradient[:, None, None] * (totals[:, None] - v))


def test_vectors_that_lie_apart_and_shapes_that_do_not_fit_are_refused():
    v = np.ones((2, 3, 4))
    with pytest.raises(ValueError, match="side by side"):
        totals_and_values(v[:, :, ::2])
    with pytest.raises(ValueError, match="values: expected 2 values, got 1"):
        fm_pairs(v, np.empty((2, 4)), np.empty(1))
    with pytest.raises(ValueError, match="out: expected 2 values, got 1"):
        fm_gradient(v, np.empty((2, 4)), np.empty(2), v[:1].copy())
    with pytest.raises(ValueError, match="weights: expected 2 values, got 3"):
        head_gradient(np.ones(1), np.ones((1, 2)), np.ones(3), np.ones((1, 2)), np.ones(2), np.ones(2))
