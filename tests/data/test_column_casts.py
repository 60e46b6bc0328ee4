"""Ids agree whether they are integers or texts; texts of lists and of numbers are read as what they say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib import RaggedField, Schema
from pslib.data.column_casts import NUMBERS, ColumnCasts, as_integers, integers_in, numbers_in, split
from pslib.errors import DataError

BORDERS = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**18, 10**19, -(10**19)]


@given(st.lists(st.one_of(st.integers(), st.sampled_from(BORDERS)), min_size=1))
def test_the_text_of_every_int64_is_that_integer_and_no_other_is(numbers: list[int]) -> None:
    texts = pa.array(list(map(str, numbers)))
    fit = [-(2**63) <= one < 2**63 for one in numbers]
    assert integers_in(texts).to_pylist() == fit
    assert [one for one, held in zip(as_integers(texts).to_pylist(), fit, strict=True) if held] == [
        one for one, held in zip(numbers, fit, strict=True) if held
    ]


@given(st.lists(st.integers(2**63, 2**64 - 1), min_size=1))
def test_the_text_of_a_larger_uint64_has_its_bits(numbers: list[int]) -> None:
    found = as_integers(pa.array(list(map(str, numbers))))
    assert found.cast(pa.uint64(), safe=False).to_pylist() == numbers


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_are_the_integers_that_they_are_where_ids_are_integers(kind: pa.DataType) -> None:
    casts = ColumnCasts(Schema(label=None, sparse=["u"]), {"u": "integer"})
    given = pa.array([np.nan, -7.0, 2047.0, 0.0]).cast(kind)
    assert casts.column("u", given).to_pylist() == [None, -7, 2047, 0]


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ([7.0, 0.5, 2.0**53], pa.float64(), "below 9007199254740992, .* got 0.5;"),
        ([7.0, None, 2.0**53, 0.5], pa.float64(), "got 9007199254740992.0;"),
        ([-(2.0**53)], pa.float64(), "got -9007199254740992.0;"),
        ([float("inf"), 0.5], pa.float64(), "got inf;"),
        ([16777217.0], pa.float32(), "below 16777216, .* got 16777216.0; give the column as integers"),
    ],
)
def test_floats_that_may_be_rounded_ids_are_refused_by_the_first_of_them(
    values: list[float], kind: pa.DataType, told: str
) -> None:
    casts = ColumnCasts(Schema(label=None, sparse=["u"]), {"u": "integer"})
    with pytest.raises(DataError, match=f"column 'u': expected whole numbers .*{told}"):
        casts.column("u", pa.array(values, pa.float64()).cast(kind, safe=False))


@pytest.mark.parametrize("text", ["007", "+7", "7.0", " 7", "7 ", "-0", "", "1e3", "٣", "0x7", "7\n"])
def test_a_text_that_python_would_not_write_for_an_integer_is_none(text: str) -> None:
    assert integers_in(pa.array([text])).to_pylist() == [False]


def test_other_texts_are_integers_of_their_own_truth_values_are_0_and_1_and_null_stays_null() -> None:
    texts = pa.array(["A12", "007", "7", None, "True", "false", "", "A12"])
    found = as_integers(texts).to_pylist()
    assert found[2:6] == [7, None, 1, 0]
    assert found[0] == found[7]
    assert len({*found[:3], found[6]}) == 4
    assert all(abs(found[i]) > 2**32 for i in (0, 1, 6))


def test_a_text_is_split_at_its_separator_without_empty_parts() -> None:
    texts = pa.array(["x", "a|b", "", None, "|a||b|", "|", "a b"])
    expected = [["a", "b"], [], None, ["a", "b"], [], ["a b"]]
    assert split(texts[1:], "|").to_pylist() == expected
    assert split(texts[1:].dictionary_encode(), "|").to_pylist() == expected
    assert split(pa.array(["a, b", "c"]), ", ").to_pylist() == [["a", "b"], ["c"]]


def test_an_integer_where_texts_are_split_is_a_list_of_one() -> None:
    assert split(pa.array([5, None]), "|").to_pylist() == [["5"], None]


def test_texts_of_numbers_are_numbers_however_they_are_written() -> None:
    texts = pa.array([" 7", "007", "+7", "1e2", "NA", "nan", "", None, "-inf"])
    assert numbers_in(texts).to_pylist() == [7, 7, 7, 100, None, None, None, None, float("-inf")]
    with pytest.raises(pa.ArrowInvalid):
        numbers_in(pa.array(["7", "seven"]))


SCHEMA = Schema(label="y", sparse=["u"], dense=["x"], ragged=[RaggedField("tags", separator="|"), "given"])
BATCH = pa.record_batch(
    {
        "y": ["0", "1"],
        "u": [7, 8],
        "x": ["NA", "3"],
        "tags": ["1|b", None],
        "given": pa.array([["1"], []]),
    }
)


def test_columns_are_cast_by_their_fields_and_to_the_kind_of_their_keys() -> None:
    casts = ColumnCasts(SCHEMA, {"u": "string", "tags": "integer", "given": "integer", "y": "string"})
    found = casts.batch(BATCH).to_pydict()
    assert found["u"] == ["7", "8"]
    assert (found["x"], found["y"]) == ([None, 3.0], [0.0, 1.0])
    (first, second), other = found["tags"]
    assert (first, second, other) == (1, as_integers(pa.array(["b"]))[0].as_py(), None)
    assert found["given"] == [[1], []]


def test_a_float_that_is_no_id_is_refused_with_its_file() -> None:
    casts = ColumnCasts(SCHEMA, {"u": "integer"})
    assert casts.batch(pa.record_batch({"u": [7.0, float("nan"), None]})).to_pydict()["u"] == [7, None, None]
    for value in (1.5, float("inf"), 2.0**53):
        batch = pa.record_batch({"u": [7.0, value]})
        with pytest.raises(DataError, match=r"^data/a.parquet: column 'u': expected whole numbers below 9"):
            casts.batch(batch, "data/a.parquet")


def test_a_batch_that_needs_no_cast_is_the_same_batch() -> None:
    batch = BATCH.select(["u", "given"])
    assert ColumnCasts(Schema(label=None, sparse=["u"], ragged=["given"])).batch(batch) is batch


def test_only_marked_columns_of_text_have_the_type_of_numbers() -> None:
    fields = [pa.field("x", pa.string(), metadata={NUMBERS: ""}), pa.field("y", pa.string())]
    found = ColumnCasts(SCHEMA).schema(pa.schema([*fields, pa.field("tags", pa.string())]))
    assert [str(kind) for kind in found.types] == ["double", "string", "list<item: string>"]
