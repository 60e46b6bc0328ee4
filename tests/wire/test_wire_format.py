"""Packed rows and dense parameters on the wire: what arrives, what comes back, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pslib.client.calls import PushName
from pslib.client.client import Client
from pslib.errors import ConfigurationError
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES, WireFormat
from pslib.wire.messages import Failure, Pull, Pulled, Push, Pushed, Setup, Stats
from pslib.wire.quantization import QuantizedRows, pack_gradients
from tests.support.clients import client_of, client_with
from tests.support.definitions.storage import BFLOAT16, FLOAT16, INT8, rounded
from tests.support.simulated.protocol_worlds import (
    NO_BLOCKS,
    NO_FLOATS,
    OneServer,
    answer,
    asked,
    completed,
    keys_in,
    make_client,
    setup_of,
)

KINDS = pytest.mark.parametrize("kind", list(ROW_TYPES))
DENSE_KINDS = pytest.mark.parametrize("kind", list(DENSE_TYPES))
STORED = {"bfloat16": BFLOAT16, "float16": FLOAT16, "int8": INT8}
NO_UNITS = np.empty(0, np.uint32)
NO_OWNERS = np.empty(0, np.uint16)
DIM = 17


def nearest(rows: np.ndarray, kind: str) -> np.ndarray:
    """Rows after one way over the wire, by the definition."""
    return rows if kind == "float32" else np.array([rounded(STORED[kind], row)[0] for row in rows])


def some_rows(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def filled(shards: int) -> tuple[OneServer, np.ndarray, np.ndarray]:
    """A server with random rows, exactly known: SGD of rate 1 on minus the row."""
    server = OneServer(shards)
    server.ask(Setup({"tables": [SPEC.to_dict()]}, 7, SGD(1.0).to_dict(), np.arange(7, dtype=np.float32)))
    keys = keys_in(*range(16))
    zero = server.ask(Pull({"t": keys}, NO_BLOCKS)).rows["t"]
    server.ask(Push(7, 0, 0, 0, 0, {"t": keys}, {"t": zero - some_rows(keys.size)}, NO_BLOCKS, NO_FLOATS))
    return server, keys, server.ask(Pull({"t": keys}, NO_BLOCKS)).rows["t"]


SPEC = TableSpec("t", (PartSpec("v", DIM, SGD(1.0)),))


@KINDS
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_come_back_as_the_pull_wants_them(kind: str, shards: int) -> None:
    server, keys, rows = filled(shards)
    pulled = server.ask(Pull({"t": keys}, NO_BLOCKS, rows_as=kind))
    assert pulled.rows["t"].dtype == ROW_TYPES[kind]
    assert list(pulled.row_scales) == (["t"] if kind == "int8" else [])
    packed = QuantizedRows(pulled.rows["t"], pulled.row_scales.get("t", NO_FLOATS))
    np.testing.assert_array_equal(packed.floats(), nearest(rows, kind))


@KINDS
@pytest.mark.parametrize("shards", [1, 3])
def test_a_push_takes_its_step_with_what_its_gradients_say(kind: str, shards: int) -> None:
    server, keys, rows = filled(shards)
    packed = pack_gradients(keys, some_rows(keys.size, 2), kind, salt=5)
    scales = {"t": packed.scales} if packed.scales.size else {}
    push = Push(
        7, 1, 0, 0, 0, {"t": keys}, {"t": packed.values}, NO_BLOCKS, NO_FLOATS, gradient_scales=scales
    )
    assert isinstance(server.ask(push), Pushed)
    after = server.ask(Pull({"t": keys}, NO_BLOCKS)).rows["t"]
    np.testing.assert_array_equal(after, rows - packed.floats())


@DENSE_KINDS
@pytest.mark.parametrize("shards", [1, 3])
def test_dense_blocks_travel_in_16_bits_both_ways(kind: str, shards: int) -> None:
    server, _keys, _rows = filled(shards)
    blocks = np.arange(4, dtype=np.uint32)
    gradient = QuantizedRows.empty(1, 7, kind)
    gradient.put(np.full((1, 7), 0.3, np.float32))
    server.ask(Push(7, 1, 0, 0, 0, {}, {}, blocks, gradient.values[0]))
    want = np.arange(7, dtype=np.float32) - gradient.floats()[0]
    pulled = server.ask(Pull({}, blocks, dense_as=kind))
    assert pulled.dense.dtype == DENSE_TYPES[kind]
    np.testing.assert_array_equal(QuantizedRows(pulled.dense[None]).floats()[0], nearest(want[None], kind)[0])


def push_of(values: Any, scales: Any = None, dense: Any = NO_FLOATS, blocks: Any = NO_BLOCKS) -> Push:
    given = {} if scales is None else {"t": np.asarray(scales, np.float32)}
    return Push(7, 0, 0, 0, 0, {"t": keys_in(0, 1)}, {"t": values}, blocks, dense, gradient_scales=given)


SMALL = np.ones((2, 1), np.int8)
REFUSED = {
    "rows as float64": (Pull({"t": keys_in(0)}, NO_BLOCKS, rows_as="float64"), "rows_as: expected one of"),
    "dense as int8": (Pull({}, NO_BLOCKS, dense_as="int8"), "dense_as: expected one of .*, got 'int8'"),
    "a long type": (Pull({}, NO_BLOCKS, rows_as="x" * 4000), "rows_as: expected one of"),
    "int8 without scales": (push_of(SMALL), "gradients of t: expected 2 scales for int8 rows, got 0"),
    "a scale too few": (push_of(SMALL, [1]), "expected 2 scales for int8 rows, got 1"),
    "a negative scale": (push_of(SMALL, [1, -1]), "expected scales >= 0, finite or NaN"),
    "an infinite scale": (push_of(SMALL, [1, np.inf]), "expected scales >= 0, finite or NaN"),
    "scales of bfloat16": (push_of(np.ones((2, 1), np.uint16), [1]), "expected 0 scales for uint16"),
    "two of float16": (push_of(np.ones((2, 1), np.float16), [1, 1]), "expected 0 or 1 scales for float16"),
    "too wide": (push_of(np.ones((2, 2), np.uint16)), r"expected \(2, 1\), got \(2, 2\)"),
    "scales of another table": (
        Push(7, 0, 0, 0, 0, {}, {}, NO_BLOCKS, NO_FLOATS, gradient_scales={"u": NO_FLOATS}),
        "scales of u: there are no gradients of it",
    ),
    "a long dense block": (
        push_of(SMALL, [1, 1], np.ones(3, np.uint16), np.array([0], np.uint32)),
        "dense gradient: expected 2 floats, got 3",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_packed_frames_that_do_not_fit_get_one_line_and_change_nothing(mistake: str) -> None:
    request, text = REFUSED[mistake]
    server = OneServer(2, setup=setup_of(dense_length=7, t=1))
    before = server.ask(Stats()).values
    refusal = server.ask(request)
    assert isinstance(refusal, Failure)
    assert refusal.code == "configuration"
    assert "\n" not in refusal.text
    assert re.search(text, refusal.text)
    assert server.ask(Stats()).values == before
    assert not any(shard.broken for shard in server.shards)


@pytest.mark.parametrize(
    "came",
    [
        Pulled({"t": np.ones((2, 1), np.float32)}, NO_FLOATS, NO_UNITS, NO_OWNERS),
        Pulled({"t": np.ones((2, 1), np.int8)}, NO_FLOATS, NO_UNITS, NO_OWNERS),
        Pulled(
            {"t": np.ones((2, 1), np.int8)}, NO_FLOATS, NO_UNITS, NO_OWNERS, {"t": np.ones(1, np.float32)}
        ),
        Pulled(
            {"t": np.ones((2, 1), np.int8)}, NO_FLOATS, NO_UNITS, NO_OWNERS, {"u": np.ones(2, np.float32)}
        ),
        Pulled({"t": SMALL}, np.ones(1, np.float32), NO_UNITS, NO_OWNERS, {"t": np.ones(2, np.float32)}),
    ],
    ids=["float32 rows", "no scales", "a scale too few", "scales of another table", "a dense block too many"],
)
def test_an_answer_that_is_packed_otherwise_than_asked_is_an_error_not_a_crash(came: Pulled) -> None:
    client = make_client(1, {"t": 1})
    call = client.pull(0.0, {"t": keys_in(0, 1)}, rows_as="int8")
    answer(client, 0.1, asked(client)["0"][0], came)
    ((number, text),) = completed(client)
    assert number == call
    assert "does not fit" in (text or "")


@KINDS
def test_a_row_that_is_refused_goes_on_with_the_same_bytes(kind: str) -> None:
    client = make_client(2, {"t": DIM})
    keys = keys_in(1, 2, 3)
    packed = pack_gradients(keys, some_rows(3), kind, salt=9)
    client.push(0.0, PushName(7, 0), {"t": (keys, packed)})
    request_id, sent = asked(client)["0"]
    np.testing.assert_array_equal(sent.gradients["t"], packed.values)
    refused = Pushed(np.array([2], np.uint32), np.array([1], np.uint16))
    answer(client, 0.1, request_id, refused)
    again = asked(client)["1"][1]
    assert again.keys["t"].tolist() == keys_in(2).tolist()
    np.testing.assert_array_equal(again.gradients["t"], packed.values[1:2])
    if kind == "int8":
        assert again.gradient_scales["t"].tolist() == packed.scales[1:2].tolist()
    if kind == "float16":
        assert again.gradient_scales["t"].tolist() == packed.scales.tolist()


def test_the_bits_of_int8_gradients_follow_from_the_names_of_push_and_key_alone() -> None:
    keys, rows = keys_in(1, 2, 3), some_rows(3)
    whole = pack_gradients(keys, rows, "int8", salt=9)
    part = pack_gradients(keys[1:], rows[1:], "int8", salt=9)
    assert part.values.tobytes() == whole.values[1:].tobytes()
    assert pack_gradients(keys, rows, "int8", salt=10).values.tobytes() != whole.values.tobytes()


@KINDS
def test_rows_of_several_servers_are_put_together_again(kind: str) -> None:
    client = make_client(2, {"t": DIM})
    keys, rows = keys_in(1, 9, 2, 10), some_rows(4)
    call = client.pull(0.0, {"t": keys}, rows_as=kind)
    for server, places in (("1", [1, 3]), ("0", [0, 2])):
        packed = QuantizedRows.empty(2, DIM, kind)
        packed.put(rows[places])
        scales = {"t": packed.scales} if packed.scales.size else {}
        came = Pulled({"t": packed.values}, NO_FLOATS, NO_UNITS, NO_OWNERS, scales)
        answer(client, 0.1, asked(client)[server][0] if server == "0" else _first(client, server), came)
    assert completed(client) == [(call, None)]
    np.testing.assert_array_equal(client.pulled(call).rows["t"], nearest(rows, kind))


def _first(client: Any, server: str) -> int:
    """Request of one server, leaving the others' in the outbox."""
    outbox = list(client.requests.outbox)
    request_id = asked(client)[server][0]
    client.requests.outbox = [one for one in outbox if one.peer != server]
    return int(request_id)


class TestClient:
    @KINDS
    def test_what_a_client_pushes_packed_it_pulls_packed(self, kind: str) -> None:
        with client_with(SPEC, servers=2) as client:
            keys, rows = keys_in(1, 2, 3), some_rows(3)
            first = client.pull({"t": keys}).wait(5.0).rows["t"]
            client.push({"t": (keys, rows)}, name=PushName(5, 1), gradients_as=kind).wait(5.0)
            got = client.pull({"t": keys}).wait(5.0).rows["t"]
            step = np.abs(rows).max(axis=1, keepdims=True) / (127 if kind == "int8" else 256)
            assert (np.abs(first - rows - got) <= step + 1e-6).all()
            packed = client.pull({"t": keys}, rows_as=kind).wait(5.0).rows["t"]
            np.testing.assert_array_equal(packed, nearest(got, kind))

    @DENSE_KINDS
    def test_dense_gradients_travel_as_they_are_given(self, kind: str) -> None:
        with client_of() as (client, _running):
            client.setup([SPEC], DenseSpec(6, SGD(1.0)), np.arange(6, dtype=np.float32))
            gradient = QuantizedRows.empty(1, 6, kind)
            gradient.put(np.ones((1, 6), np.float32))
            client.push({}, gradient.values[0]).wait(5.0)
            pulled = client.pull({}, dense=True, dense_as=kind).wait(5.0).dense
            assert pulled.tolist() == [-1, 0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda c: c.pull({}, rows_as="half"), "rows_as: expected one of float32, bfloat16"),
            (
                lambda c: c.pull({}, dense_as="int8"),
                "dense_as: expected one of float32, bfloat16, float16, got",
            ),
            (lambda c: c.push({}, gradients_as="half"), "gradients_as: expected one of"),
        ],
    )
    def test_an_unknown_type_gets_one_line(self, call: Any, text: str) -> None:
        with client_with(SPEC, servers=2) as client:
            with pytest.raises(ConfigurationError, match=text):
                call(client)
            assert isinstance(client, Client)


class TestSettings:
    def test_all_that_is_wrong_is_said_at_once(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            WireFormat(rows="half", gradients=8, dense="int8")  # type: ignore[arg-type]
        assert len(caught.value.problems) == 3
        assert "wire.dense: expected one of float32, bfloat16, float16, got 'int8'" in str(caught.value)

    def test_an_unknown_field_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match="wire: unknown 'row'; it takes rows, gradients, dense"):
            WireFormat.from_dict({"row": "int8"})
        assert WireFormat.from_dict({"rows": "int8"}) == WireFormat("int8")


@pytest.mark.parametrize("largest", [1e-30, 1e-7, 1.0, 3e4, 1e30])
def test_float16_gradients_of_any_size_keep_eleven_digits(largest: float) -> None:
    rows = (some_rows(20) * np.float32(largest)).astype(np.float32)
    packed = pack_gradients(np.empty(20, np.uint64), rows, "float16", 0)
    assert np.isfinite(packed.values).all()
    big = np.abs(rows) > np.abs(rows).max() * 2**-10
    assert (np.abs(packed.floats() - rows)[big] <= np.abs(rows)[big] * 2**-11).all()


@pytest.mark.parametrize(
    "rows", [np.zeros((3, 2)), np.full((3, 2), np.nan), np.full((2, 2), np.inf), np.ones((0, 2))]
)
@KINDS
def test_gradients_that_have_no_size_travel_too(kind: str, rows: np.ndarray) -> None:
    rows = rows.astype(np.float32)
    back = pack_gradients(np.arange(len(rows), dtype=np.uint64), rows, kind, 1).floats()
    np.testing.assert_array_equal(np.isfinite(back), np.isfinite(rows))
    assert (back[rows == 0] == 0).all()


@pytest.mark.parametrize("every", [0, 1.5, True, 1 << 17])
def test_how_often_dense_parameters_are_pulled_is_a_whole_number(every: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"wire.dense_every_batches: expected a whole number in 1\.\."
    ):
        WireFormat(dense_every_batches=every)
