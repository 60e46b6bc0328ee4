"""Rows to places and gradients back, each beside its NumPy definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.model.row_places import gather_fields, occurrences, sum_occurrences, weigh_fields

DTYPES = st.sampled_from([np.float32, np.float64])


@st.composite
def cases(draw):
    """Rows as columns of a wider array, and places that name them."""
    count, fields, examples = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(0, 6))
    rng, dtype = np.random.default_rng(draw(st.integers(0, 999))), draw(DTYPES)
    dim = draw(st.sampled_from([1, 2, 3, 16, 17]))
    wide = rng.normal(size=(count, dim + 3)).astype(dtype)
    return wide[:, 1 : 1 + dim], rng.integers(0, count, (examples, fields)).astype(np.int32), rng


def listed(places, rows):
    order, starts = np.empty(places.size, np.int32), np.empty(rows + 1, np.int32)
    occurrences(places.reshape(-1), order, starts)
    return order, starts


@given(cases())
def test_gathering_is_indexing_into_columns_of_a_wider_array(case):
    rows, places, _ = case
    width = places.shape[1] * rows.shape[1]
    out = np.zeros((places.shape[0], width + 2), rows.dtype)
    gather_fields(rows, places, out[:, :width])
    np.testing.assert_array_equal(out[:, :width], rows[places].reshape(places.shape[0], width))
    assert not out[:, width:].any()


@given(cases())
def test_weighing_sums_one_float_a_place_in_the_order_of_fields(case):
    rows, places, _ = case
    out, expected = np.empty(places.shape[0], rows.dtype), np.zeros(places.shape[0], rows.dtype)
    weigh_fields(rows[:, :1], places, out)
    for f in range(places.shape[1]):
        expected += rows[places[:, f], 0]
    assert out.tobytes() == expected.tobytes()


@given(cases())
def test_places_are_listed_row_by_row_in_their_order(case):
    rows, places, _ = case
    order, starts = listed(places, len(rows))
    for r in range(len(rows)):
        expected = np.flatnonzero(places.reshape(-1) == r)
        np.testing.assert_array_equal(order[starts[r] : starts[r + 1]], expected)


@given(cases(), st.booleans())
def test_a_row_sums_what_its_places_give_in_order_however_the_rows_are_shared_out(case, shared):
    rows, places, rng = case
    examples, fields = places.shape
    dim = rows.shape[1]
    addends = rng.normal(size=(examples, dim if shared else fields * dim)).astype(rows.dtype)
    each = np.repeat(addends, fields, axis=0) if shared else addends.reshape(examples * fields, dim)
    expected, out = rows.copy(), rows.copy()
    np.add.at(expected, places.reshape(-1), each)
    middle = int(rng.integers(0, len(rows) + 1))
    for first, last in ((middle, len(rows)), (0, middle)):
        sum_occurrences(*listed(places, len(rows)), first, last, addends, fields, None, out)
    assert out.tobytes() == expected.tobytes()


@given(cases())
def test_places_may_each_say_which_field_they_belong_to(case):
    rows, places, rng = case
    flat = places.reshape(-1)
    owners = rng.integers(0, 3, flat.size).astype(np.int32)
    addends = rng.normal(size=(3, rows.shape[1])).astype(rows.dtype)
    expected, out = np.zeros_like(rows), np.zeros_like(rows)
    np.add.at(expected, flat, addends[owners])
    sum_occurrences(*listed(places, len(rows)), 0, len(rows), addends, 1, owners, out)
    assert out.tobytes() == expected.tobytes()


ROWS, PLACES = np.ones((3, 2)), np.zeros((2, 2), np.int32)
ORDER, STARTS = listed(PLACES, 3)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_place_beyond_the_rows_is_refused(place):
    places = np.array([[0, place]], np.int32)
    with pytest.raises(ValueError, match=rf"0\.\.2, got {place}"):
        gather_fields(ROWS, places, np.empty((1, 4)))
    with pytest.raises(ValueError, match=rf"0\.\.2, got {place}"):
        weigh_fields(ROWS[:, :1], places, np.empty(1))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        listed(places, 3)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("out: expected", lambda: gather_fields(ROWS, PLACES, np.empty((2, 3)))),
        ("side by side", lambda: gather_fields(ROWS[:, ::-1], PLACES, np.empty((2, 4)))),
        ("one float a row", lambda: weigh_fields(ROWS, PLACES, np.empty(2))),
        ("out: expected", lambda: weigh_fields(ROWS[:, :1], PLACES, np.empty(3))),
        ("places in order", lambda: occurrences(PLACES[0], ORDER, STARTS)),
        ("rows: expected", lambda: sum_occurrences(ORDER, STARTS, 0, 4, ROWS[:2], 2, None, ROWS.copy())),
        ("addends: expected", lambda: sum_occurrences(ORDER, STARTS, 0, 3, ROWS, 2, None, ROWS.copy())),
        (
            "addends: expected",
            lambda: sum_occurrences(ORDER, STARTS, 0, 3, ROWS[:2, :1], 2, None, ROWS.copy()),
        ),
        ("owners must be", lambda: sum_occurrences(ORDER, STARTS, 0, 3, ROWS, 1, ORDER + 2, ROWS.copy())),
        ("owners: expected", lambda: sum_occurrences(ORDER, STARTS, 0, 3, ROWS, 1, ORDER[:1], ROWS.copy())),
    ],
)
def test_what_does_not_fit_is_refused(match, call):
    with pytest.raises(ValueError, match=match):
        call()
