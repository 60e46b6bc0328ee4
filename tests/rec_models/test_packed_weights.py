"""Weights that are packed once a step: what layers get is what plain weights give, by kernel or by NumPy."""

import threading

import numpy as np
import pytest

from cython_ext.model.products import has_products
from rec_models.engine.buffers import Scratch
from rec_models.engine.products import DenseVar, packed_of, times, times_transposed, transposed_times
from rec_models.engine.tape import Var


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def layers_of(dtype, rows=70):
    """Weights with and without a packed twin, and what they are multiplied with."""
    weights = drawn(1, 48, 64).astype(dtype)
    dense = DenseVar(weights, packed_of("w", weights, Scratch()))
    return Var(weights), dense, drawn(2, rows, 48).astype(dtype), drawn(3, rows, 64).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "NumPy"])
def test_packed_weights_give_what_plain_ones_give(kernel, dtype, monkeypatch):
    if not kernel:  # as on a processor that has none
        monkeypatch.setattr("rec_models.engine.products.OWN_FLOAT32", False)
    plain, dense, x, gradient = layers_of(dtype)
    assert (dense.packed is not None) == (kernel and dtype == np.float32 and has_products())
    bias = drawn(4, 64).astype(dtype)
    for how in ({}, {"bias": bias}, {"bias": bias, "relu": True}):
        found, wanted = (times(x, one, np.empty((70, 64), dtype), **how) for one in (dense, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    found, wanted = (times_transposed(gradient, one, np.empty((70, 48), dtype)) for one in (dense, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    found = np.empty((48, 64), dtype)
    transposed_times(x, gradient, found)
    np.testing.assert_allclose(found, x.T @ gradient, rtol=1e-4, atol=1e-5)


def test_what_the_kernel_can_not_read_is_multiplied_all_the_same():
    plain, dense, x, _gradient = layers_of(np.float32)
    for strange in (np.asfortranarray(x), x[::-1]):
        found, wanted = (times(strange, one, np.empty((70, 64), np.float32)) for one in (dense, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_threads_that_ask_at_once_get_the_same_packed_weights():
    _plain, dense, x, _gradient = layers_of(np.float32)
    outs = [np.empty((70, 64), np.float32) for _ in range(4)]
    threads = [threading.Thread(target=times, args=(x, dense, out)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len({out.tobytes() for out in outs}) == 1
