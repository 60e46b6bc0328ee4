"""Packed rows: each number becomes the value that the definition says, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cython_ext.table.store import vector_levels
from cython_ext.wire.packing import pack, pack_with_feedback, rounding_bases, unpack
from tests.support.definitions.storage import BFLOAT16, FLOAT16, INT8, bits_from, mix64_of, rounded

DTYPES = {BFLOAT16: np.uint16, FLOAT16: np.float16, INT8: np.int8}
NAMES = {BFLOAT16: "bfloat16", FLOAT16: "float16", INT8: "int8"}
KINDS = pytest.mark.parametrize("kind", list(DTYPES), ids=list(NAMES.values()))
KINDS16 = pytest.mark.parametrize("kind", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
TAG = np.uint64(0x8CB92BA72F3D8DD7)
EDGES = np.array(
    [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 3.4028235e38, 65504, 65520, 2.0**-24, 2.0**-25, 1.00390625],
    np.float32,
)
ROWS = st.tuples(st.integers(0, 5), st.integers(1, 40)).flatmap(
    lambda shape: arrays(
        np.float32,
        shape,
        elements=st.one_of(st.floats(width=32), st.floats(-1, 1, width=32), st.sampled_from(EDGES.tolist())),
    )
)


def there_and_back(rows: np.ndarray, kind: int, level: str, **more: object) -> tuple[np.ndarray, np.ndarray]:
    out, scales = np.zeros(rows.shape, DTYPES[kind]), np.zeros(len(rows), np.float32)
    pack(rows, out, scales if kind == INT8 else None, vectors=level, **more)
    back = np.full(rows.shape, 7.0, np.float32)
    unpack(out, scales if kind == INT8 else None, back, vectors=level)
    return out, back


def by_definition(rows: np.ndarray, kind: int, bits: np.ndarray | None = None) -> np.ndarray:
    whole = [rounded(kind, row, None if bits is None else bits[i])[0] for i, row in enumerate(rows)]
    return np.array(whole, np.float32).reshape(rows.shape)


def bits_of(keys: np.ndarray, dim: int, salt: int) -> np.ndarray:
    """The 16 random bits of each row and column of a push."""
    base = mix64_of(keys ^ mix64_of(np.array([salt], np.uint64) ^ TAG))
    return bits_from(base, dim)


@KINDS
@settings(deadline=None, max_examples=60)
@given(rows=ROWS)
@example(rows=np.array([EDGES, EDGES[::-1]]))
@example(rows=np.array([EDGES[np.isfinite(EDGES)]]))
def test_a_number_arrives_as_the_nearest_value_of_its_type(kind: int, rows: np.ndarray) -> None:
    packed = [there_and_back(rows, kind, level) for level in vector_levels()]
    want = by_definition(rows, kind)
    np.testing.assert_array_equal(packed[0][1], want)
    nonzero = ~np.isnan(want) & (want != 0)
    assert (np.signbit(packed[0][1]) == np.signbit(want))[nonzero].all()
    assert len({(out.tobytes(), back.tobytes()) for out, back in packed}) == 1


@settings(deadline=None, max_examples=60)
@given(rows=ROWS, salt=st.integers(0, 2**64 - 1))
@example(rows=np.array([EDGES[np.isfinite(EDGES)]] * 3), salt=0)
def test_int8_gradients_round_by_the_random_bits_of_key_column_and_push(rows: np.ndarray, salt: int) -> None:
    keys = np.arange(len(rows), dtype=np.uint64) * np.uint64(2**63 - 25)
    bases = rounding_bases(keys, salt)
    packed = [there_and_back(rows, INT8, level, bases=bases) for level in vector_levels()]
    want = by_definition(rows, INT8, bits_of(keys, rows.shape[1], salt))
    np.testing.assert_array_equal(packed[0][1], want)
    assert len({(out.tobytes(), back.tobytes()) for out, back in packed}) == 1


def test_int8_gradients_have_no_bias() -> None:
    rng = np.random.default_rng(3)
    row = rng.normal(size=(1, 17)).astype(np.float32)
    keys = np.arange(4000, dtype=np.uint64)
    rows = np.repeat(row, keys.size, axis=0)
    _, back = there_and_back(rows, INT8, vector_levels()[-1], bases=rounding_bases(keys, 5))
    step = np.abs(row).max() / 127
    assert np.abs(back.mean(axis=0) - row[0]).max() < 5 * step / np.sqrt(12 * keys.size) * 2


@KINDS
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), n=st.integers(0, 9), dim=st.integers(1, 33))
def test_rows_go_to_their_places_and_come_back_from_them(kind: int, seed: int, n: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, dim)).astype(np.float32)
    places = rng.permutation(12)[:n].astype(np.int32)
    straight, back = there_and_back(rows, kind, vector_levels()[-1])
    for level in vector_levels():
        out, scales = np.zeros((12, dim), DTYPES[kind]), np.zeros(12, np.float32)
        pack(rows, out, scales if kind == INT8 else None, places, vectors=level)
        assert out[places].tobytes() == straight.tobytes()
        assert not out[np.setdiff1d(np.arange(12), places)].any()
        whole = np.zeros((12, dim), np.float32)
        unpack(straight, scales[places] if kind == INT8 else None, whole, places, vectors=level)
        assert whole[places].tobytes() == back.tobytes()
        assert not whole[np.setdiff1d(np.arange(12), places)].any()


@KINDS16
def test_every_value_of_16_bits_comes_back_unchanged(kind: int) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    halves = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    values = (bits << 16).view(np.float32) if kind == BFLOAT16 else halves
    for level in vector_levels():
        packed = bits.astype(np.uint16).view(DTYPES[kind])[None]
        read = np.empty((1, values.size), np.float32)
        unpack(packed, None, read, vectors=level)
        np.testing.assert_array_equal(read[0], values)
        numbers = ~np.isnan(values)
        again = there_and_back(values[None], kind, level)[0]
        assert (again[0].view(np.uint16) == bits)[numbers].all()


def test_a_power_of_two_brings_small_float16_gradients_through() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 17)).astype(np.float32) * np.float32(1e-7)
    out, back = np.empty(rows.shape, np.float16), np.empty(rows.shape, np.float32)
    pack(rows, out, factor=2.0**20)
    unpack(out, np.array([2.0**-20], np.float32), back)
    assert np.abs(back - rows).max() <= np.abs(rows).max() * 2**-11
    pack(rows, out)
    unpack(out, np.empty(0, np.float32), back)
    assert np.abs(back - rows).max() > np.abs(rows).max() * 2**-4


@KINDS16
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), n=st.integers(0, 40))
def test_error_feedback_keeps_what_rounding_cuts_off(kind: int, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    levels = vector_levels()
    residuals = [np.zeros(n, np.float32) for _ in levels]
    sent = np.zeros(n, np.float64)
    given_ = np.zeros(n, np.float64)
    for _ in range(5):
        gradient = rng.normal(size=n).astype(np.float32)
        total = gradient + residuals[0]
        outs = [np.empty(n, DTYPES[kind]) for _ in levels]
        for out, residual, level in zip(outs, residuals, levels, strict=True):
            pack_with_feedback(gradient, residual, out, vectors=level)
        read = by_definition(total[None], kind)[0]
        np.testing.assert_array_equal(residuals[0], total - read)
        assert len({out.tobytes() for out in outs}) == len({one.tobytes() for one in residuals}) == 1
        sent, given_ = sent + read, given_ + gradient
    np.testing.assert_allclose(sent + residuals[0], given_, atol=1e-5)


def test_a_gradient_that_is_not_finite_leaves_no_residual() -> None:
    gradient = np.array([np.nan, np.inf, -np.inf, 1.001], np.float32)
    residual, out = np.zeros(4, np.float32), np.empty(4, np.uint16)
    pack_with_feedback(gradient, residual, out)
    assert residual.tolist()[:3] == [0, 0, 0]
    assert residual[3] != 0
    back = np.empty((1, 4), np.float32)
    unpack(out[None], None, back)
    np.testing.assert_array_equal(back[0, :3], gradient[:3])


FLOATS = np.zeros((2, 3), np.float32)
SMALL = np.zeros((2, 3), np.int8)
HALVES = np.zeros((2, 3), np.uint16)
SCALES = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pack(FLOATS, FLOATS.copy()), "expected uint16 .bfloat16., float16 or int8, got float32"),
        (lambda: pack(FLOATS, SMALL.copy()), "scales: expected C-contiguous float32 .2,., got NoneType"),
        (lambda: pack(FLOATS, HALVES[:1].copy()), "expected 2 rows, got 1"),
        (lambda: pack(FLOATS, HALVES.copy(), places=np.array([0, 2], np.int32)), "0..1, got 2"),
        (lambda: pack(FLOATS, HALVES.copy(), places=np.array([-1, 0], np.int32)), "0..1, got -1"),
        (lambda: pack(FLOATS, HALVES.copy(), factor=np.inf), "finite as float32"),
        (lambda: pack(FLOATS, HALVES.copy(), vectors="mmx"), "expected one of plain"),
        (lambda: pack(FLOATS.astype(np.float64), HALVES.copy()), "rows: expected C-contiguous float32"),
        (lambda: unpack(SMALL, SCALES[:1], FLOATS.copy()), "scales: expected C-contiguous float32 .2,."),
        (lambda: unpack(HALVES, SCALES, FLOATS.copy()), "scales: expected C-contiguous float32 .1,."),
        (lambda: unpack(HALVES, None, FLOATS[:, :2].copy()), "out: expected C-contiguous float32 .n, 3."),
        (lambda: pack_with_feedback(SCALES, SCALES.copy(), SMALL[0]), "float16, got int8"),
        (lambda: pack_with_feedback(SCALES, SCALES[:1].copy(), HALVES[0]), "residual: expected"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
