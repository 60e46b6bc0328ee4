"""A push holds finite numbers, or nothing of it is sent: no NaN reaches a row, in any type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.table.store import vector_levels
from cython_ext.wire.packing import first_beyond
from pslib.client.calls import Manner
from pslib.client.client import Client
from pslib.errors import ConfigurationError, PslibError
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.policies import Score
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.table.wire_format import ROW_TYPES
from tests.support.clusters import cluster_of

KEYS = np.arange(100, 200, dtype=np.uint64)
LARGEST = float(np.finfo(np.float32).max)
BAD = [np.nan, np.inf, -np.inf]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster_of(2, shard_threads=2) as running:
        client = running.client()
        part = PartSpec("v", 2, SGD(1.0), Constant(0.0))
        counted = TableSpec("counted", (part,), score=Score())
        client.setup([TableSpec("item", (part,)), counted], DenseSpec(10, SGD(1.0)), np.zeros(10, np.float32))
        yield client
        client.close()


def with_one(number: float, shape: tuple[int, ...] = (100, 2), place: int = 11) -> np.ndarray:
    gradients = np.ones(shape, np.float32)
    gradients.flat[place] = number
    return gradients


def refusal(client: Client, table: str = "item", gradients: np.ndarray | None = None, **push) -> str:
    """Return the error of a refused push; nothing of it may have been sent."""
    before = client.stats()["pushes_applied"], client.session.pushes_sent
    with pytest.raises(PslibError) as refused:
        client.push({table: (KEYS, with_one(1.0) if gradients is None else gradients)}, **push).wait()
    assert (client.stats()["pushes_applied"], client.session.pushes_sent) == before
    after = client.pull({"item": KEYS, "counted": KEYS}, dense=True).wait()
    assert all(np.isfinite(one).all() for one in (*after.rows.values(), after.dense))
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


@pytest.mark.parametrize("kind", ROW_TYPES)
@pytest.mark.parametrize("number", BAD)
def test_a_gradient_that_is_not_finite_is_refused_with_its_key(
    client: Client, number: float, kind: str
) -> None:
    said = refusal(client, gradients=with_one(number), gradients_as=kind)
    as_kind = "" if kind == "float32" else f" as {kind}"
    assert said == (
        f"gradients of item: expected finite numbers{as_kind}, got {number:g} of key 105; nothing of the "
        "push was sent: look for the example that gives it, or lower the learning rate"
    )


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_a_gradient_that_rounds_up_to_infinity_is_refused(client: Client, kind: str) -> None:
    said = refusal(client, gradients=with_one(LARGEST), gradients_as=kind)
    assert f"expected finite numbers as {kind}, got 3.40282e+38 of key 105" in said


@pytest.mark.parametrize("kind", ROW_TYPES)
@pytest.mark.parametrize("number", [1e30, 2.0**115, 3.396e38])
def test_large_gradients_arrive_as_finite_numbers(client: Client, kind: str, number: float) -> None:
    keys, gradients = np.array([7], np.uint64), np.float32([[number, -number]])
    before = client.pull({"item": keys}).wait().rows["item"]
    client.push({"item": (keys, gradients)}, gradients_as=kind).wait()
    client.push({"item": (keys, -gradients)}, gradients_as=kind).wait()
    assert np.isfinite(before).all()
    assert np.isfinite(client.pull({"item": keys}).wait().rows["item"]).all()


def test_repeated_keys_whose_sum_is_infinite_are_refused(client: Client) -> None:
    keys = np.array([3, 3], np.uint64)
    with pytest.raises(ConfigurationError, match="got inf of key 3"), np.errstate(over="ignore"):
        client.push({"item": (keys, np.full((2, 2), LARGEST, np.float32))})


@pytest.mark.parametrize("dtype", ["float32", "uint16", "float16"])
@pytest.mark.parametrize("number", BAD)
def test_dense_gradients_are_looked_at_as_they_travel(client: Client, number: float, dtype: str) -> None:
    wide = with_one(number, (10,), 4)
    dense = wide.view(np.uint32) >> 16 if dtype == "uint16" else wide
    said = refusal(client, dense=dense.astype(dtype))
    named = {"float32": "", "uint16": " as bfloat16", "float16": " as float16"}[dtype]
    shown = "inf" if dtype == "uint16" and np.isinf(number) else f"{number:g}"
    assert f"dense gradient: expected finite numbers{named}, got {shown} at place 4; nothing" in said


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"shows": np.inf}, "shows of counted: expected finite numbers >= 1.17549e-38"),
        ({"shows": np.nan}, "shows of counted: expected finite numbers >= 1.17549e-38"),
        ({"shows": 0.0}, "shows of counted: expected finite numbers >= 1.17549e-38"),
        ({"clicks": -1.0}, "clicks of counted: expected finite numbers >= 0"),
        ({"clicks": np.nan}, "clicks of counted: expected finite numbers >= 0"),
    ],
    ids=str,
)
def test_counts_that_can_not_be_are_refused_before_one_server_counts_its_part(
    client: Client, counts: dict[str, float], text: str
) -> None:
    given_counts = {what: {"counted": with_one(number, (100,))} for what, number in counts.items()}
    assert text in refusal(client, "counted", **given_counts)


@pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf])
def test_rates_and_times_that_can_not_be_are_refused(client: Client, rate: float) -> None:
    assert "rate: expected " in refusal(client, manner=Manner(rate=rate))
    assert "time_s: expected " in refusal(client, time_s=rate)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 9000),
    st.lists(st.tuples(st.integers(0, 8999), st.sampled_from([*BAD, LARGEST, 3.39e38, -1e-45])), max_size=3),
    st.sampled_from(["float32", "float16", "uint16"]),
    st.sampled_from(vector_levels()),
)
def test_the_first_number_beyond_is_that_of_numpy_on_every_instruction_set(n, placed, dtype, level) -> None:
    wide = np.ones(n, np.float32)
    for place, number in placed:
        wide[place : place + 1] = number
    with np.errstate(over="ignore"):
        values = (wide.view(np.uint32) >> 16 if dtype == "uint16" else wide).astype(dtype)
    told = values if dtype != "uint16" else (values.astype(np.uint32) << 16).view(np.float32)
    assert first_beyond(values, vectors=level) == next(iter(np.flatnonzero(~np.isfinite(told))), n)
    if dtype == "float32":
        rounds_up = (wide.view(np.uint32) & 0x7FFFFFFF) >= 0x7F7F8000
        assert first_beyond(values, narrow=True, vectors=level) == next(iter(np.flatnonzero(rounds_up)), n)


@pytest.mark.parametrize("values", [np.ones(4), np.ones((4, 4), np.float32)[:, 1:], [1.0], None])
def test_what_is_no_contiguous_array_of_numbers_is_refused(values) -> None:
    with pytest.raises(ValueError, match="first_beyond: values: expected"):
        first_beyond(values)
