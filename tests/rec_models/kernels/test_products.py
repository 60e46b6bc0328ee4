"""Our matrix products: within what float32 allows, the bits of the definition in bfloat16, wherever cut."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.model.products import has_products, multiply, outer, pack, packed_length
from tests.support.definitions.products import aligned, drawn, needs_bfloat16, product

SIZES = st.sampled_from([1, 2, 3, 13, 14, 15, 16, 17, 31, 32, 33, 48, 65, 129, 216, 217, 440, 450])
calm = settings(deadline=None, max_examples=60)  # under the address sanitizer, too
needs_vectors = pytest.mark.skipif(
    not has_products(),
    reason="the kernels are written in AVX-512, which this processor lacks: NumPy multiplies instead, as "
    "tests/rec_models/test_products_of_steps.py shows on every processor",
)


BF16 = "avx512_bf16"
both = pytest.mark.parametrize(
    "vectors",
    [
        pytest.param(None, marks=needs_vectors, id="float32"),
        pytest.param(BF16, marks=needs_bfloat16, id="bfloat16"),
    ],
)


def amid_nan(matrix):
    """The same as a part of a larger matrix of which nothing else may be read."""
    rows, columns = matrix.shape
    room = np.full((rows + 3, columns + 4), np.nan, np.float32)
    room[1 : 1 + rows, 2 : 2 + columns] = matrix
    return room[1 : 1 + rows, 2 : 2 + columns]


def packed(matrix, vectors=None):
    out = aligned(packed_length(*matrix.shape, vectors))
    out[:] = np.nan  # nothing of what was there may be read
    pack(matrix, out, vectors)
    return out


def close(found, left, right):
    """Each product and each sum is rounded once at most."""
    exact = left.astype(np.float64) @ right.astype(np.float64)
    bound = (left.shape[1] + 1) * 2.0**-24 * (np.abs(left).astype(np.float64) @ np.abs(right)) + 1e-30
    return (np.abs(found - exact) <= bound).all()


def assert_product(found, left, right, vectors):
    """That of float64 but for rounding, or the bits of the definition of bfloat16."""
    if vectors is None:
        assert close(found, left, right)
    else:
        np.testing.assert_array_equal(found, product(left, right))


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


@both
@calm
@given(SIZES, SIZES, SIZES, st.booleans(), st.integers(0, 9))
def test_the_product_is_what_its_precision_allows_and_bias_and_relu_come_last(
    vectors, m, k, n, transposed, seed
):
    left, right, bias = amid_nan(drawn(seed, m, k)), drawn(seed + 1, k, n), drawn(seed + 2, n)
    matrix = amid_nan(right.T).T if transposed else amid_nan(right)
    out, fused = np.full((m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    multiply(left, packed(matrix, vectors), out, vectors=vectors)
    assert_product(out, left, right, vectors)
    multiply(left, packed(matrix, vectors), fused, bias, True, vectors)
    np.testing.assert_array_equal(fused, np.maximum(out + bias, 0))


@both
@calm
@given(SIZES, SIZES, st.integers(1, 250), st.data())
def test_rows_may_be_cut_and_stand_apart_and_nothing_is_written_between_them(vectors, k, n, m, data):
    """The bits of an element depend on its row and column alone."""
    left, right, out = amid_nan(drawn(1, m, k)), drawn(2, k, n), np.full((m, n + 3), 7, np.float32)
    weights, whole = packed(right, vectors), np.empty((m, n), np.float32)
    multiply(left, weights, whole, vectors=vectors)
    cut = data.draw(st.integers(0, m))
    for some in (slice(0, cut), slice(cut, m)):
        multiply(left[some], weights, out[some, 1 : 1 + n], vectors=vectors)
    assert whole.tobytes() == out[:, 1 : 1 + n].tobytes()
    assert (out[:, [0, n + 1, n + 2]] == 7).all()


@both
@calm
@given(SIZES, SIZES, SIZES, st.data())
def test_gradients_of_weights_are_what_their_precision_allows_wherever_they_are_cut(vectors, m, k, n, data):
    left, gradient = amid_nan(drawn(1, m, k)), amid_nan(drawn(3, m, n))
    whole, parts = np.full((k, n), np.nan, np.float32), np.full((k, n), np.nan, np.float32)
    cut = data.draw(st.integers(0, k))
    outer(left, gradient, whole, vectors)
    assert_product(whole, left.T, gradient, vectors)
    for some in (slice(0, cut), slice(cut, k)):
        outer(left[:, some], gradient, parts[some], vectors)
    assert whole.tobytes() == parts.tobytes()


@both
def test_nothing_to_multiply_is_an_ordinary_case(vectors):
    out = np.ones((0, 40), np.float32)
    multiply(np.ones((0, 3), np.float32), packed(np.ones((3, 40), np.float32), vectors), out, vectors=vectors)
    result = np.ones((4, 5), np.float32)
    outer(np.ones((0, 4), np.float32), np.ones((0, 5), np.float32), result, vectors)
    assert not result.any()


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


# --- factors in bfloat16: the bits that the definition says, wherever matrices are cut ----------------------


@needs_bfloat16
def test_long_sums_over_a_whole_batch_are_those_of_the_definition():
    left, gradient = drawn(1, 1037, 33), drawn(2, 1037, 40)
    out = np.empty((33, 40), np.float32)
    outer(left, gradient, out, BF16)
    np.testing.assert_array_equal(out, product(left.T, gradient))


@needs_bfloat16
def test_nan_stays_what_is_too_large_becomes_infinite_and_subnormal_numbers_count_as_0():
    right = np.eye(33, 40, dtype=np.float32)
    for value, wanted in [
        (np.nan, np.nan),
        (np.inf, np.inf),
        (3.4e38, np.inf),
        (-3.4e38, -np.inf),
        (3.389e38, np.float32(3.38953139e38)),
        (1e-39, 0.0),
        (1.00390625, 1.0),  # halfway: to the even one
        (1.01171875, 1.015625),
    ]:
        left = np.zeros((15, 33), np.float32)
        left[14, 32] = value
        out = np.empty((15, 40), np.float32)
        multiply(left, packed(right, BF16), out, vectors=BF16)
        assert out[14, 32] == wanted or (np.isnan(wanted) and np.isnan(out[14, 32]))
        assert not out[:14].any()


@needs_bfloat16
def test_what_does_not_fit_in_bfloat16_is_refused():
    assert packed_length(3, 40, BF16) == 2 * 48  # 40 columns of two words, filled up to 48
    for_float32 = aligned(packed_length(3, 40))
    with pytest.raises(ValueError, match="packed: expected 96 floats"):
        multiply(np.ones((2, 3), np.float32), for_float32, np.ones((2, 40), np.float32), vectors=BF16)
    with pytest.raises(ValueError, match="expected one of avx512, avx512_bf16 on this machine, got avx2"):
        outer(np.ones((1, 4), np.float32), np.ones((1, 5), np.float32), np.ones((4, 5), np.float32), "avx2")


def test_another_level_than_the_best_one_may_be_asked_for_and_then_there_is_no_bfloat16():
    line = "from cython_ext.model.products import has_bfloat16 as h, has_products as p; print(h(), p())"
    environment = os.environ | {"PSLIB_VECTORS": "plain"}
    told = subprocess.run(
        [sys.executable, "-c", line], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["False", "False"]
