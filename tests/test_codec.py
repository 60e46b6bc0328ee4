"""Messages to frames and back; and bytes that are not messages, of which nothing but one error may come."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pslib.config import Limits
from pslib.errors import LocalProtocolError, RemoteProtocolError
from pslib.protocol.codec import _LAYOUT, DTYPES, PROTOCOL_VERSION, SMALL_BYTES_MAX, SMALL_ROOM_BYTES, Codec
from pslib.protocol.messages import (
    ALL_MESSAGES,
    ArrayRule,
    Done,
    EndLease,
    Failure,
    Message,
    Pull,
    Pulled,
    Push,
    Pushed,
    Result,
    Stats,
)
from tests.every_message import SEEDS
from tests.mutants import mutants

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


def _messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of one kind, from what its fields say about themselves."""
    plain = {
        int: U64,
        str: NAMES,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        dict: st.dictionaries(NAMES, PLAIN, max_size=3),
        list: st.lists(PLAIN, max_size=3),
    }
    values = {}
    for spec in _LAYOUT[cls.kind]:
        if spec.one:
            values[spec.name] = _array(spec.one)
        elif spec.many:
            values[spec.name] = st.dictionaries(NAMES, _array(spec.many), max_size=3)
        else:
            assert spec.plain is not None
            values[spec.name] = plain[spec.plain]
    return st.builds(cls, **values)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


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
        """How many frames a message with arrays of so many bytes takes; it comes back as it went."""
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
            CODEC.decode([_header(small=small)])


class TestDefinition:
    """What is compiled and what it is defined by are the same function."""

    @pytest.mark.parametrize("kind", sorted(ALL_MESSAGES))
    def test_they_write_the_same_bytes_and_read_the_same_message(self, kind: str) -> None:
        @given(_messages(ALL_MESSAGES[kind]), U64)
        def check(message: Message, request_id: int) -> None:
            frames = [bytes(frame) for frame in CODEC.encode_by_definition(request_id, message)]
            assert [bytes(frame) for frame in CODEC.encode(request_id, message)] == frames
            _check_reading(frames)

        check()

    def test_the_messages_of_every_step_are_compiled(self) -> None:
        for message in (SMALL, LARGE, PUSH, Pushed(PUSH.blocks, np.zeros(1, np.uint16)), Done(), Stats()):
            frames = CODEC._writer.encode(7, message.kind, message)  # type: ignore[union-attr]
            assert frames is not None
            assert CODEC._reader.decode(frames) is not None  # type: ignore[union-attr]

    def test_they_take_and_refuse_the_same_bytes(self) -> None:
        for frames in mutants(CODEC, SEEDS, 20_000, seed=3):
            _check_reading(frames)

    @pytest.mark.parametrize("cluster", ["x" * 256, "\udc80"])
    def test_a_cluster_with_an_odd_name_does_without(self, cluster: str) -> None:
        assert Codec(cluster)._writer is None

    def test_an_odd_name_of_a_cluster_that_fits_a_header(self) -> None:
        codec = Codec("ä" * 200)
        assert codec.decode([bytes(frame) for frame in codec.encode(1, SMALL)]).message.kind == "Pull"


def _check_reading(frames: list[Any]) -> None:
    """Both ways of reading give the same message, or the same refusal."""
    try:
        expected = CODEC.decode_by_definition(frames)
    except RemoteProtocolError as error:
        refusal = str(error)
        with pytest.raises(RemoteProtocolError) as caught:
            CODEC.decode(frames)
        assert str(caught.value) == refusal
        return
    envelope = CODEC.decode(frames)
    assert envelope.request_id == expected.request_id
    assert type(envelope.message) is type(expected.message)
    for name in expected.message.__dataclass_fields__:  # type: ignore[attr-defined]
        assert _same(getattr(envelope.message, name), getattr(expected.message, name))


class TestGoldenBytes:
    """A change here is a new PROTOCOL_VERSION."""

    def test_a_push(self) -> None:
        assert [bytes(frame).hex() for frame in CODEC.encode(9, PUSH)] == [
            "9703a464656d6fa45075736809dc00110703010205"
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
            "9703a464656d6fa450756c6c099691a46974656d07cb3ff8000000000000a7666c6f61743332a7666c6f6174333290"
            "9292a27538cd040192a2753401"
            "c40404000000",
            keys.astype("<u8").tobytes().hex(),
        ]

    def test_an_answer_to_a_pull(self) -> None:
        rows = {"item": np.array([[1.5, 2.0]], np.float32)}
        answer = Pulled(
            rows, np.empty(0, np.float32), np.array([3], np.uint32), np.array([0xFFFF], np.uint16)
        )
        assert [bytes(frame).hex() for frame in CODEC.encode(2**64 - 1, answer)] == [
            "9703a464656d6fa650756c6c6564cfffffffffffffffff"
            "9391a46974656d90909493a26634010292a266340092a275340192a2753201"
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
            "9703a464656d6fa45075736809dc00110703010205"
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


class TestLimits:
    LIMITS = Limits(header_bytes_max=200, frames_max=4, frame_bytes_max=9000, message_bytes_max=17_000)

    @pytest.mark.parametrize(
        ("message", "what"),
        [
            (Failure("internal", "x" * 300), "header bytes"),
            (Pull({str(i): np.empty(0, np.uint64) for i in range(4)}, np.empty(0, np.uint32)), "frames"),
            (Pull({"t": np.zeros(1200, np.uint64)}, np.empty(0, np.uint32)), "bytes in one frame"),
            (
                Pull({n: np.zeros(1100, np.uint64) for n in "tu"}, np.empty(0, np.uint32)),
                "bytes in all frames",
            ),
        ],
        ids=["header", "frames", "frame", "message"],
    )
    def test_both_sides_refuse_what_is_too_large(self, message: Message, what: str) -> None:
        with pytest.raises(LocalProtocolError, match=f"{what}: at most"):
            Codec("demo", self.LIMITS).encode(1, message)
        with pytest.raises(RemoteProtocolError, match=f"{what}: at most"):
            Codec("demo", self.LIMITS).decode(CODEC.encode(1, message))

    @pytest.mark.parametrize("lengths", [[1 << 40], [1 << 62, 1 << 62], [2**64 - 1], [1 << 32, 1 << 32]])
    def test_a_stated_length_takes_no_memory_before_it_is_checked(self, lengths: list[int]) -> None:
        header = [PROTOCOL_VERSION, "demo", "EndLease", 1, [0, 1, 2, 3, 4, ["x"]], [["f4", *lengths]], b""]
        tracemalloc.start()
        with pytest.raises(RemoteProtocolError, match="frame has 0 bytes"):
            CODEC.decode([msgpack.packb(header), b""])
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1 << 20

    def test_a_stated_list_length_takes_no_memory_before_it_is_checked(self) -> None:
        header = b"\xdd\xff\xff\xff\xff"  # msgpack: a list of 2^32 - 1
        tracemalloc.start()
        with pytest.raises(RemoteProtocolError, match="not msgpack"):
            CODEC.decode([header])
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1 << 20

    @pytest.mark.parametrize("kind", ["text", "array name"])
    def test_a_text_has_a_length_limit(self, kind: str) -> None:
        long = "x" * (Limits().name_chars_max + 1)
        message = Failure("c", long) if kind == "text" else Pull({long: np.empty(0, np.uint64)}, PUSH.blocks)
        with pytest.raises(LocalProtocolError):
            CODEC.encode(1, message)


def _header(**changes: Any) -> bytes:
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


PARTS = (
    PROTOCOL_VERSION,
    "demo",
    "Pull",
    1,
    [["t"], 0, 0.0, "int8", "float32", []],
    [["u8", 1], ["u4", 0]],
    bytes(8),
)


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


class TestWhatIsNotAMessage:
    def test_the_header_that_the_others_change_is_good(self) -> None:
        assert CODEC.decode([_header()]).message.kind == "Pull"

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"version": 1}, "protocol version: expected 3, got 1; install one pslib everywhere"),
            ({"version": True}, "protocol version"),
            ({"version": [[]]}, "protocol version: expected 3, got list"),
            ({"cluster": "other"}, "cluster id: expected 'demo', got 'other'; this is another cluster"),
            ({"cluster": {}}, "cluster id: expected 'demo', got dict"),
            ({"kind": "Nothing"}, "message kind: unknown 'Nothing'"),
            ({"kind": ["Pull"]}, "message kind: unknown list"),
            ({"request_id": -1}, "request_id"),
            ({"request_id": True}, "request_id"),
            ({"request_id": 1.0}, "request_id"),
            ({"values": None}, "expected lists of values"),
            ({"values": []}, "keys: expected a list of names"),
            ({"values": [["t"], 0, 0.0, "float32", "int8", [], 1]}, "more fields than the message has"),
            ({"values": [["t"], 0, 0]}, "time_s: expected float, got int"),
            ({"values": [["t"], 0, 0.0, 1]}, "rows_as: expected str, got int"),
            ({"values": [["t"], 0, float("nan")]}, "time_s: expected a finite number, got nan"),
            ({"values": [["t", "t"]], "arrays": [["u8", 1], ["u8", 0]]}, "keys: expected distinct names"),
            ({"values": [[1]]}, "array name: expected a short string"),
            ({"values": [[["t"]]]}, "array name: expected a short string"),
            ({"small": None}, "bytes of small arrays"),
            ({"small": "12345678"}, "bytes of small arrays"),
            ({"arrays": [["u8", 1]]}, "blocks: expected 1-d uint32"),
            ({"arrays": [["u8", 1], ["u4", 0], ["u4", 0]]}, "more arrays than the message has"),
            ({"arrays": [[["u8"], 1], ["u4", 0]]}, "array dtype: .* got list"),
            ({"arrays": [[{}, 1], ["u4", 0]]}, "array dtype: .* got dict"),
            ({"arrays": [["O", 1], ["u4", 0]]}, "array dtype: .* got 'O'"),
            ({"arrays": [["u8", 2], ["u4", 0]]}, "small arrays end at 8 bytes"),
            ({"arrays": [["u8", 0], ["u4", 0]]}, "small arrays of 0 bytes, 8 came"),
            ({"arrays": [["u8", 3000], ["u4", 0]]}, "frame has 0 bytes"),
            ({"arrays": [["u8", -1], ["u4", 0]]}, "expected lengths >= 0"),
            ({"arrays": [["u8", True], ["u4", 0]]}, "expected lengths >= 0"),
            ({"arrays": [["u8", 1.0], ["u4", 0]]}, "expected lengths >= 0"),
            ({"arrays": [["u8"], ["u4", 0]]}, r"expected \[dtype, length\]"),
            ({"arrays": [["u8", 1, 1, 1], ["u4", 0]]}, r"expected \[dtype, length\]"),
            ({"arrays": [["u8", 1, 1], ["u4", 0]]}, "keys: expected 1-d uint64"),
            ({"arrays": [["i8", 1], ["u4", 0]]}, "keys: expected 1-d uint64"),
            (
                {"kind": "Pulled", "values": [["t"], [], []], "arrays": [["u4", 1, 2], ["f4", 0]]},
                "rows: expected 2-d float32 or uint16 or float16 or int8",
            ),
        ],
    )
    def test_a_wrong_header_gets_one_line_that_says_what_was_expected(
        self, changes: dict[str, Any], error: str
    ) -> None:
        with pytest.raises(RemoteProtocolError, match=error) as caught:
            CODEC.decode([_header(**changes)])
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("frames", [[], [b""], [_header(arrays=[["u8", 3000], ["u4", 0]], small=b"")]])
    def test_frames_that_are_missing(self, frames: list[bytes]) -> None:
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(frames)

    def test_a_frame_too_many(self) -> None:
        with pytest.raises(RemoteProtocolError, match="more arrays than the message has"):
            CODEC.decode([_header(), b""])

    @pytest.mark.parametrize("depth", [10, 500, 900, 990, 1020, 1030, 100_000])
    @pytest.mark.parametrize("place", range(7))
    def test_deep_nesting_is_refused_wherever_it_stands(self, depth: int, place: int) -> None:
        """A text made of a nested value would walk into Python's recursion limit."""
        parts = [msgpack.packb(part) for part in PARTS]
        parts[place] = _nested(depth)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode([b"\x97" + b"".join(parts)])

    @pytest.mark.parametrize("depth", [10, 300])
    def test_deep_nesting_in_a_name_is_refused(self, depth: int) -> None:
        parts = [msgpack.packb(part) for part in PARTS]
        parts[4] = b"\x91\x91" + _nested(depth)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode([b"\x97" + b"".join(parts)])

    @given(st.lists(st.binary(max_size=40), max_size=4))
    def test_noise(self, frames: list[bytes]) -> None:
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(frames)


class TestWhatThisSideMayNotSend:
    @pytest.mark.parametrize(
        "message",
        [
            Pull({"t": np.zeros(1, np.int64)}, np.empty(0, np.uint32)),
            Pull({"t": np.zeros((1, 1), np.uint64)}, np.empty(0, np.uint32)),
            Pull({"t": np.zeros(1, ">u8")}, np.empty(0, np.uint32)),
            Pull({}, np.array(1, np.uint32)),
            Result({"number": np.int64(1)}),
            Result({"number": 1 << 64}),
            Result([1]),  # type: ignore[arg-type]
            Failure("internal", None),  # type: ignore[arg-type]
        ],
        ids=["dtype", "shape", "byte order", "0-d", "numpy number", "too large", "a list", "no text"],
    )
    def test_is_found_before_it_is_sent(self, message: Message) -> None:
        with pytest.raises(LocalProtocolError):
            CODEC.encode(1, message)

    def test_a_request_id_beyond_64_bits(self) -> None:
        with pytest.raises(LocalProtocolError):
            CODEC.encode(1 << 64, Stats())
