"""Messages to frames and back; and bytes that are not messages, of which nothing but one error may come."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pslib.errors import RemoteProtocolError
from pslib.wire.codec import DTYPES, PROTOCOL_VERSION, SMALL_BYTES_MAX, SMALL_ROOM_BYTES, Codec
from pslib.wire.fields import ArrayRule, Message, Plain, PlainList
from pslib.wire.messages import ALL_MESSAGES, EndLease, Pull, Pulled, Push

CODEC = Codec("demo")
U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | NAMES
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def _array(rule: ArrayRule) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    dtypes = st.sampled_from(sorted(rule.dtypes or DTYPES.values(), key=str))
    shape = npst.array_shapes(min_dims=rule.ndim, max_dims=rule.ndim, min_side=0, max_side=5)
    return npst.arrays(dtypes, shape)


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: U64,
    str: NAMES,
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    Plain: st.dictionaries(NAMES, PLAIN, max_size=3),
    PlainList: st.lists(PLAIN, max_size=3),
}


def _messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of one kind, from what its fields say about themselves."""
    hints, values = get_type_hints(cls), {}
    for spec in fields(cls):  # type: ignore[arg-type]
        if one := spec.metadata.get("array"):
            values[spec.name] = _array(one)
        elif many := spec.metadata.get("arrays"):
            values[spec.name] = st.dictionaries(NAMES, _array(many), max_size=3)
        else:
            values[spec.name] = VALUES[hints[spec.name]]
    return st.builds(cls, **values)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    return type(left) is type(right) and repr(left) == repr(right)  # NaN in a list is itself, not equal


PUSH = Push(
    stream=7,
    number=3,
    epoch=1,
    all_acked_below=2,
    home=5,
    keys={"item": np.array([1, 2], np.uint64)},
    gradients={"item": np.array([[1.0], [-2.0]], np.float32)},
    blocks=np.array([4], np.uint32),
    dense=np.array([0.5], np.float32),
    step=300,
    time_s=1.5,
    shows={"item": np.array([3.0, 1.0], np.float32)},
    clicks={"item": np.array([1.0, 0.0], np.float32)},
)


SMALL, LARGE = (
    Pull({"item": np.arange(count, dtype=np.uint64)}, np.empty(0, np.uint32)) for count in (3, 3000)
)


def header_of(**changes: Any) -> bytes:
    parts = {
        "version": PROTOCOL_VERSION,
        "cluster": "demo",
        "kind": "Pull",
        "request_id": 1,
        "values": [["t"], 0, 0.0, "float32", "bfloat16", []],
        "arrays": [["u8", 1], ["u4", 0]],
        "small": bytes(8),
    }
    return msgpack.packb(list((parts | changes).values()))


class TestRoundTrip:
    @pytest.mark.parametrize("kind", sorted(ALL_MESSAGES))
    def test_every_message_comes_back_as_it_went(self, kind: str) -> None:
        @given(_messages(ALL_MESSAGES[kind]), U64)
        def check(message: Message, request_id: int) -> None:
            frames = [bytes(frame) for frame in CODEC.encode(request_id, message)]
            envelope = CODEC.decode(frames)
            assert envelope.request_id == request_id
            assert type(envelope.message) is type(message)
            for name in message.__dataclass_fields__:  # type: ignore[attr-defined]
                assert _same(getattr(message, name), getattr(envelope.message, name))

        check()

    def test_large_arrays_are_views_of_the_frames_that_came(self) -> None:
        frames = [bytes(frame) for frame in CODEC.encode(1, LARGE)]
        keys = CODEC.decode(frames).message.keys["item"]  # type: ignore[attr-defined]
        assert np.shares_memory(keys, np.frombuffer(frames[1], np.uint8))

    def test_large_arrays_are_sent_as_views_of_what_was_given(self) -> None:
        frames = CODEC.encode(1, LARGE)
        assert np.shares_memory(np.frombuffer(frames[1], np.uint8), LARGE.keys["item"])

    @pytest.mark.parametrize("pull", [SMALL, LARGE], ids=["small", "large"])
    def test_a_frame_may_start_at_any_byte(self, pull: Pull) -> None:
        """Sockets give views into their receive buffer, aligned to nothing."""
        moved = [memoryview(b"x" + bytes(frame))[1:] for frame in CODEC.encode(1, pull)]
        message = CODEC.decode(moved).message
        assert isinstance(message, Pull)
        assert message.keys["item"].tolist() == pull.keys["item"].tolist()

    @pytest.mark.parametrize("count", [10, 10_000], ids=["small", "large"])
    def test_an_array_that_is_not_contiguous_is_sent_in_order(self, count: int) -> None:
        keys = np.arange(count, dtype=np.uint64)[::-2]
        frames = [bytes(frame) for frame in CODEC.encode(1, Pull({"t": keys}, np.empty(0, np.uint32)))]
        received = CODEC.decode(frames).message
        assert isinstance(received, Pull)
        assert received.keys["t"].tolist() == keys.tolist()


class TestSmallArrays:
    """Arrays that travel in the header."""

    @staticmethod
    def frames_of(*byte_counts: int) -> int:
        """Return the number of frames of a message with arrays of so many bytes, which decodes unchanged."""
        payload = {str(i): np.arange(count).astype(np.uint8) for i, count in enumerate(byte_counts)}
        message = EndLease(0, 1, 2, 3, 4, payload)
        frames = [bytes(frame) for frame in CODEC.encode(1, message)]
        received = CODEC.decode(frames).message
        assert isinstance(received, EndLease)
        assert _same(received.payload, payload)
        return len(frames)

    def test_a_small_array_takes_no_frame_of_its_own(self) -> None:
        assert self.frames_of(SMALL_BYTES_MAX) == 1
        assert self.frames_of(SMALL_BYTES_MAX + 1) == 2

    def test_when_there_is_no_room_for_more_the_next_take_frames_and_smaller_ones_the_rest(self) -> None:
        full = SMALL_ROOM_BYTES // SMALL_BYTES_MAX
        assert self.frames_of(*[SMALL_BYTES_MAX] * full) == 1
        assert self.frames_of(*[SMALL_BYTES_MAX] * full, 1) == 2
        assert self.frames_of(*[SMALL_BYTES_MAX] * (full - 1), SMALL_BYTES_MAX - 8, SMALL_BYTES_MAX, 8) == 2

    def test_each_starts_where_its_numbers_may(self) -> None:
        """Kernels read them without a copy."""
        keys = {name: np.arange(n, dtype=np.uint64) for n, name in enumerate("abcdefg")}
        odd = EndLease(0, 1, 2, 3, 4, {"x": np.zeros(3, np.uint8), **keys})
        received = CODEC.decode([bytes(frame) for frame in CODEC.encode(1, odd)]).message
        assert isinstance(received, EndLease)
        assert all(
            array.flags.aligned and not array.flags.writeable
            for array in received.payload.values()
            if array.size
        )

    @pytest.mark.parametrize("spare", [b"", b"12345678"], ids=["too few", "too many"])
    def test_bytes_that_do_not_add_up_are_refused(self, spare: bytes) -> None:
        small = bytes(8 if spare else 7) + spare
        with pytest.raises(RemoteProtocolError, match="small arrays"):
            CODEC.decode([header_of(small=small)])


class TestGoldenBytes:
    """A change here is a new PROTOCOL_VERSION."""

    def test_a_push(self) -> None:
        assert [bytes(frame).hex() for frame in CODEC.encode(9, PUSH)] == [
            "9706a464656d6fa45075736809dc00110703010205"
            "91a46974656d91a46974656dcd012ccb3ff800000000000091a46974656d91a46974656d90"
            "cb3ff0000000000000c200c290"
            "9692a275380293a26634020192a275340192a266340192a266340292a2663402"
            "c438"
            "01000000000000000200000000000000"
            "0000803f000000c0"
            "0400000000000000"
            "0000003f00000000"
            "000040400000803f"
            "0000803f00000000"
        ]

    def test_a_pull_with_a_large_array(self) -> None:
        keys = np.arange(1025, dtype=np.uint64)
        frames = CODEC.encode(9, Pull({"item": keys}, np.array([4], np.uint32), 7, 1.5))
        assert [bytes(frame).hex() for frame in frames] == [
            "9706a464656d6fa450756c6c099691a46974656d07cb3ff8000000000000a7666c6f61743332a7666c6f6174333290"
            "9292a27538cd040192a2753401"
            "c40404000000",
            keys.astype("<u8").tobytes().hex(),
        ]

    def test_an_answer_to_a_pull(self) -> None:
        rows = {"item": np.array([[1.5, 2.0]], np.float32)}
        refused = np.array([3], np.uint32), np.array([0xFFFF], np.uint16)
        answer = Pulled(rows, np.empty(0, np.float32), *refused, pushes_before=300)
        assert [bytes(frame).hex() for frame in CODEC.encode(2**64 - 1, answer)] == [
            "9706a464656d6fa650756c6c6564cfffffffffffffffff"
            "9491a46974656d9090cd012c9493a26634010292a266340092a275340192a2753201"
            "c412"
            "0000c03f00000040"
            "0300000000000000"
            "ffff"
        ]

    def test_a_push_of_int8_rows_and_a_bfloat16_block(self) -> None:
        packed = {
            "gradients": {"item": np.array([[127, -64], [0, 1]], np.int8)},
            "gradient_scales": {"item": np.array([0.5, 2.0], np.float32)},
            "dense": np.array([0x3F80], np.uint16),
        }
        push = replace(PUSH, shows={}, clicks={}, **packed)
        assert [bytes(frame).hex() for frame in CODEC.encode(9, push)] == [
            "9706a464656d6fa45075736809dc00110703010205"
            "91a46974656d91a46974656dcd012ccb3ff8000000000000909091a46974656d"
            "cb3ff0000000000000c200c290"
            "9592a275380293a26931020292a275340192a275320192a2663402"
            "c430"
            "01000000000000000200000000000000"
            "7fc0000100000000"
            "0400000000000000"
            "803f000000000000"
            "0000003f00000040"
        ]
