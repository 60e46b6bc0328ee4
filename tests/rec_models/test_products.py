"""Our products: those of float64 within what float32 allows, and the same bits wherever matrices are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.model.products import has_products, multiply, outer, pack, packed_length
from tests.support.definitions.products import aligned, drawn

SIZES = st.sampled_from([1, 2, 13, 14, 15, 16, 17, 31, 32, 33, 48, 65, 216, 217, 440, 450])
calm = settings(deadline=None, max_examples=60)  # under the address sanitizer, too
needs_vectors = pytest.mark.skipif(
    not has_products(),
    reason="the kernels are written in AVX-512, which this processor lacks: NumPy multiplies instead, as "
    "tests/rec_models/test_packed_weights.py shows on every processor",
)


def packed(matrix):
    out = aligned(packed_length(*matrix.shape))
    pack(matrix, out)
    return out


def close(found, left, right):
    """Each product and each sum is rounded once at most."""
    exact = left.astype(np.float64) @ right.astype(np.float64)
    bound = (left.shape[1] + 1) * 2.0**-24 * (np.abs(left).astype(np.float64) @ np.abs(right)) + 1e-30
    return (np.abs(found - exact) <= bound).all()


def test_the_kernel_multiplies_where_it_says_that_it_can_and_refuses_in_one_line_elsewhere():
    left, right, out = drawn(1, 20, 33), drawn(2, 33, 40), np.empty((20, 40), np.float32)
    room = aligned(packed_length(*right.shape))
    calls = (
        (lambda: pack(right, room)),
        (lambda: multiply(left, room, out)),
        (lambda: outer(np.ascontiguousarray(left.T), right, out)),
    )
    for call in calls:
        if has_products():
            out[:] = np.nan
            call()
            assert call is calls[0] or close(out, left, right)
        else:
            with pytest.raises(ValueError, match=r"with AVX-512: ask has_products\(\) first"):
                call()


@needs_vectors
@calm
@given(SIZES, SIZES, SIZES, st.booleans(), st.integers(0, 9))
def test_the_product_is_that_of_float64_but_for_rounding(m, k, n, transposed, seed):
    left, right, bias = drawn(seed, m, k), drawn(seed + 1, k, n), drawn(seed + 2, n)
    matrix = np.ascontiguousarray(right.T).T if transposed else right
    out, fused = np.full((m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    multiply(left, packed(matrix), out)
    assert close(out, left, right)
    multiply(left, packed(matrix), fused, bias, True)
    np.testing.assert_array_equal(fused, np.maximum(out + bias, 0))


@needs_vectors
@calm
@given(SIZES, SIZES, st.integers(1, 140), st.data())
def test_the_bits_of_an_element_depend_on_its_row_and_column_alone(k, n, m, data):
    left, right = drawn(1, m, k), drawn(2, k, n)
    whole, parts = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    cut = data.draw(st.integers(0, m))
    weights = packed(right)
    multiply(left, weights, whole)
    for some in (slice(0, cut), slice(cut, m)):
        multiply(left[some], weights, parts[some])
    assert whole.tobytes() == parts.tobytes()


@needs_vectors
@calm
@given(SIZES, SIZES, SIZES, st.data())
def test_gradients_of_weights_are_those_of_float64_but_for_rounding_wherever_they_are_cut(m, k, n, data):
    left, gradient = drawn(1, m, k), drawn(3, m, n)
    whole, parts = np.full((k, n), np.nan, np.float32), np.full((k, n), np.nan, np.float32)
    cut = data.draw(st.integers(0, k))
    outer(left, gradient, whole)
    assert close(whole, left.T, gradient)
    for some in (slice(0, cut), slice(cut, k)):
        outer(left[:, some], gradient, parts[some])
    assert whole.tobytes() == parts.tobytes()


@needs_vectors
def test_bias_and_relu_come_after_the_whole_sum_and_nan_stays():
    left, right, bias = drawn(1, 20, 300), drawn(2, 300, 37), drawn(3, 37)
    left[3, 7] = np.nan
    plain, fused = np.empty((20, 37), np.float32), np.empty((20, 37), np.float32)
    multiply(left, packed(right), plain)
    multiply(left, packed(right), fused, bias)
    assert fused.tobytes() == (plain + bias).tobytes()
    multiply(left, packed(right), fused, bias, True)
    np.testing.assert_array_equal(fused, np.maximum(plain + bias, 0))
    assert np.isnan(fused[3]).all()


@needs_vectors
def test_rows_may_stand_apart_and_nothing_is_written_between_them():
    room, left = np.full((9, 50), 7, np.float32), drawn(1, 9, 60)[:, 5:45]
    right = drawn(2, 40, 50)[:, 3:36]
    multiply(left, packed(right), room[:, 4:37])
    assert close(room[:, 4:37], left, right)
    assert (room[:, :4] == 7).all()
    assert (room[:, 37:] == 7).all()


@needs_vectors
def test_nothing_to_multiply_is_an_ordinary_case():
    out = np.ones((0, 40), np.float32)
    multiply(np.ones((0, 3), np.float32), packed(np.ones((3, 40), np.float32)), out)
    result = np.ones((4, 5), np.float32)
    outer(np.ones((0, 4), np.float32), np.ones((0, 5), np.float32), result)
    assert not result.any()


@needs_vectors
def test_what_does_not_fit_is_refused():
    left, out = np.ones((2, 3), np.float32), np.ones((2, 40), np.float32)
    right = packed(np.ones((3, 40), np.float32))
    with pytest.raises(ValueError, match="packed: expected 144 floats"):
        multiply(left, right[:-16], out)
    with pytest.raises(ValueError, match=r"out and bias: expected shapes \(2, 40\) and \(40,\)"):
        multiply(left, right, np.ones((1, 40), np.float32))
    with pytest.raises(ValueError, match=r"out and bias: expected shapes"):
        multiply(left, right, out, np.ones(39, np.float32))
    with pytest.raises(ValueError, match="left: expected rows whose floats stand side by side"):
        multiply(np.ones((3, 2), np.float32).T, right, out)
    with pytest.raises(ValueError, match=r"vectors: expected one of avx512.* on this machine, got sse"):
        multiply(left, right, out, vectors="sse")


@needs_vectors
def test_gradients_whose_shapes_do_not_fit_are_refused():
    left, out = np.ones((2, 3), np.float32), np.ones((2, 40), np.float32)
    with pytest.raises(ValueError, match=r"right and out: expected shapes \(2, 4\) and \(3, 4\)"):
        outer(left, np.ones((2, 4), np.float32), out)
