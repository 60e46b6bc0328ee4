"""Messages to frames and back; and bytes that are not messages, of which nothing but one error may come."""

from __future__ import annotations

import random
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
from pslib.protocol.codec import _LAYOUT, DTYPES, PROTOCOL_VERSION, Codec
from pslib.protocol.messages import (
    ALL_MESSAGES,
    ArrayRule,
    Done,
    Failure,
    Message,
    Pull,
    Pulled,
    Push,
    Result,
    Stats,
)

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

    def test_arrays_are_views_of_the_frames_that_came(self) -> None:
        frames = [bytes(frame) for frame in CODEC.encode(1, PUSH)]
        keys = CODEC.decode(frames).message.keys["item"]  # type: ignore[attr-defined]
        assert np.shares_memory(keys, np.frombuffer(frames[1], np.uint8))

    def test_arrays_are_sent_as_views_of_what_was_given(self) -> None:
        frames = CODEC.encode(1, PUSH)
        assert np.shares_memory(np.frombuffer(frames[1], np.uint8), PUSH.keys["item"])

    def test_a_frame_may_start_at_any_byte(self) -> None:
        """Sockets give views into their receive buffer, aligned to nothing."""
        moved = [memoryview(b"x" + bytes(frame))[1:] for frame in CODEC.encode(1, PUSH)]
        message = CODEC.decode(moved).message
        assert isinstance(message, Push)
        assert message.keys["item"].tolist() == [1, 2]
        assert message.gradients["item"].tolist() == [[1.0], [-2.0]]

    def test_an_array_that_is_not_contiguous_is_sent_in_order(self) -> None:
        keys = np.arange(10, dtype=np.uint64)[::-2]
        frames = CODEC.encode(1, Pull({"t": keys}, np.empty(0, np.uint32)))
        assert np.frombuffer(frames[1], np.uint64).tolist() == [9, 7, 5, 3, 1]


class TestGoldenBytes:
    """A change here is a new PROTOCOL_VERSION."""

    def test_a_push(self) -> None:
        assert [bytes(frame).hex() for frame in CODEC.encode(9, PUSH)] == [
            "9603a464656d6fa450757368099c0703010205"
            "91a46974656d91a46974656dcd012ccb3ff800000000000091a46974656d91a46974656d90"
            "9692a275380293a26634020192a275340192a266340192a266340292a2663402",
            "01000000000000000200000000000000",
            "0000803f000000c0",
            "04000000",
            "0000003f",
            "000040400000803f",
            "0000803f00000000",
        ]

    def test_an_answer_to_a_pull(self) -> None:
        rows = {"item": np.array([[1.5, 2.0]], np.float32)}
        answer = Pulled(
            rows, np.empty(0, np.float32), np.array([3], np.uint32), np.array([0xFFFF], np.uint16)
        )
        assert [bytes(frame).hex() for frame in CODEC.encode(2**64 - 1, answer)] == [
            "9603a464656d6fa650756c6c6564cfffffffffffffffff"
            "9391a46974656d90909493a26634010292a266340092a275340192a2753201",
            "0000c03f00000040",
            "",
            "03000000",
            "ffff",
        ]

    def test_a_push_of_int8_rows_and_a_bfloat16_block(self) -> None:
        packed = {
            "gradients": {"item": np.array([[127, -64], [0, 1]], np.int8)},
            "gradient_scales": {"item": np.array([0.5, 2.0], np.float32)},
            "dense": np.array([0x3F80], np.uint16),
        }
        push = replace(PUSH, shows={}, clicks={}, **packed)
        assert [bytes(frame).hex() for frame in CODEC.encode(9, push)] == [
            "9603a464656d6fa450757368099c0703010205"
            "91a46974656d91a46974656dcd012ccb3ff8000000000000909091a46974656d"
            "9592a275380293a26931020292a275340192a275320192a2663402",
            "01000000000000000200000000000000",
            "7fc00001",
            "04000000",
            "803f",
            "0000003f00000040",
        ]


class TestLimits:
    LIMITS = Limits(header_bytes_max=200, frames_max=4, frame_bytes_max=256, message_bytes_max=500)

    @pytest.mark.parametrize(
        ("message", "what"),
        [
            (Failure("internal", "x" * 300), "header bytes"),
            (Pull({str(i): np.empty(0, np.uint64) for i in range(4)}, np.empty(0, np.uint32)), "frames"),
            (Pull({"t": np.zeros(33, np.uint64)}, np.empty(0, np.uint32)), "bytes in one frame"),
            (Pull({n: np.zeros(30, np.uint64) for n in "tu"}, np.empty(0, np.uint32)), "bytes in all frames"),
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
        header = [PROTOCOL_VERSION, "demo", "Stats", 1, [], [["f4", *lengths]]]
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
    }
    return msgpack.packb(list((parts | changes).values()))


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


FRAMES = [bytes(8), b""]


class TestWhatIsNotAMessage:
    def test_the_header_that_the_others_change_is_good(self) -> None:
        assert CODEC.decode([_header(), *FRAMES]).message.kind == "Pull"

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
            ({"arrays": [["u8", 1]]}, "header names 1 arrays, 2 frames came"),
            ({"arrays": [["u8", 1], ["u4", 0], ["u4", 0]]}, "header names 3 arrays, 2 frames came"),
            ({"arrays": [[["u8"], 1], ["u4", 0]]}, "array dtype: .* got list"),
            ({"arrays": [[{}, 1], ["u4", 0]]}, "array dtype: .* got dict"),
            ({"arrays": [["O", 1], ["u4", 0]]}, "array dtype: .* got 'O'"),
            ({"arrays": [["u8", 2], ["u4", 0]]}, "frame has 8 bytes"),
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
            CODEC.decode([_header(**changes), *FRAMES])
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("keep", range(3))
    def test_frames_that_are_missing(self, keep: int) -> None:
        with pytest.raises(RemoteProtocolError):
            CODEC.decode([_header(), *FRAMES][:keep])

    @pytest.mark.parametrize("depth", [10, 500, 900, 990, 1020, 1030, 100_000])
    @pytest.mark.parametrize("place", range(6))
    def test_deep_nesting_is_refused_wherever_it_stands(self, depth: int, place: int) -> None:
        """A text made of a nested value would walk into Python's recursion limit."""
        parts = [msgpack.packb(part) for part in (1, "demo", "Pull", 1, [["t"]], [["u8", 1], ["u4", 0]])]
        parts[place] = _nested(depth)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode([b"\x96" + b"".join(parts), *FRAMES])

    @pytest.mark.parametrize("depth", [10, 300])
    def test_deep_nesting_in_a_name_is_refused(self, depth: int) -> None:
        parts = [msgpack.packb(part) for part in (1, "demo", "Pull", 1, [["t"]], [["u8", 1], ["u4", 0]])]
        parts[4] = b"\x91\x91" + _nested(depth)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode([b"\x96" + b"".join(parts), *FRAMES])

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


SEEDS_OF_MUTANTS: tuple[Message, ...] = (
    PUSH,
    Done(),
    Failure("protocol", "no"),
    Pull({"a": np.zeros(3, np.uint64), "b": np.zeros(0, np.uint64)}, np.arange(3, dtype=np.uint32)),
    ALL_MESSAGES["Adopt"](
        1, 2, {"done_below": 0, "streams": [[1, 0, 0, [1]]]}, {"w": np.zeros((1, 2), np.float32)}, {}
    ),  # type: ignore[call-arg]
    ALL_MESSAGES["Heartbeat"]("server", 0, 1, 1, {"rows": 1}),  # type: ignore[call-arg]
)


def _mutants(count: int, seed: int) -> int:
    """Decode ``count`` messages with some bytes or frames changed; return how many still were messages."""
    choice = random.Random(seed)
    encoded = [[bytes(frame) for frame in CODEC.encode(5, message)] for message in SEEDS_OF_MUTANTS]
    survived = 0
    for _ in range(count):
        frames = [bytearray(frame) for frame in choice.choice(encoded)]
        for _ in range(choice.randint(1, 3)):
            _mutate(choice, frames)
        try:
            CODEC.decode(frames)
            survived += 1
        except RemoteProtocolError:
            continue
    return survived


def _mutate(choice: random.Random, frames: list[bytearray]) -> None:
    if not frames:
        return
    frame = frames[0] if choice.random() < 0.7 else choice.choice(frames)
    what = choice.randrange(7)
    if what == 0:
        frames.insert(choice.randint(0, len(frames)), bytearray(choice.randbytes(choice.randint(0, 9))))
    elif what == 1:
        frames.remove(frame)
    elif what == 2:
        del frame[choice.randint(0, len(frame)) :]
    elif what == 3:
        frame.insert(choice.randint(0, len(frame)), choice.randrange(256))
    elif what == 4 and frame:
        del frame[choice.randrange(len(frame))]
    elif frame:
        frame[choice.randrange(len(frame))] = choice.choice(
            [choice.randrange(256), 0x90, 0x80, 0xC0, 0xC4, 0xCF, 0xDD, 0xDF, 0xFF]
        )


def test_a_changed_message_is_a_message_or_a_protocol_error_and_nothing_else() -> None:
    survived = _mutants(100_000, seed=1)
    assert 1_000 < survived < 90_000  # both ways are taken


@pytest.mark.soak
def test_two_million_changed_messages() -> None:
    _mutants(2_000_000, seed=2)
