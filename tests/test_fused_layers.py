"""Bias and relu in one pass, and their gradient: the bits of the NumPy expressions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.fused_layers import add_bias_relu, relu_gradient

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
