"""Refusals of the codec, on either side: too much, what is not a message, and what may not be sent."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.config import Limits
from pslib.errors import LocalProtocolError, RemoteProtocolError
from pslib.wire.codec import NAME_CHARS_MAX, PROTOCOL_VERSION, Codec
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Pull, Result, Stats
from tests.wire.test_codec import CODEC, PUSH, header_of


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

    def test_a_limit_that_no_message_would_keep_can_t_be_set(self) -> None:
        with pytest.raises(TypeError, match="name_chars_max"):
            Limits(name_chars_max=5)  # type: ignore[call-arg]

    @pytest.mark.parametrize("kind", ["text", "array name"])
    def test_a_text_has_a_length_limit(self, kind: str) -> None:
        long = "x" * (NAME_CHARS_MAX + 1)
        message = Failure("c", long) if kind == "text" else Pull({long: np.empty(0, np.uint64)}, PUSH.blocks)
        with pytest.raises(LocalProtocolError):
            CODEC.encode(1, message)


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
        assert CODEC.decode([header_of()]).message.kind == "Pull"

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"version": 1}, "protocol version: expected 6, got 1; install one pslib everywhere"),
            ({"version": True}, "protocol version"),
            ({"version": [[]]}, "protocol version: expected 6, got list"),
            ({"cluster": "other"}, "cluster id: expected 'demo', got 'other'; this is another cluster"),
            ({"cluster": {}}, "cluster id: expected 'demo', got dict"),
            ({"kind": "Nothing"}, "message kind: unknown 'Nothing'"),
            ({"kind": ["Pull"]}, "message kind: unknown list"),
            ({"request_id": -1}, "request_id"),
            ({"request_id": True}, "request_id"),
            ({"request_id": 1.0}, "request_id"),
            ({"values": None}, "expected lists of values"),
            ({"values": []}, "keys: expected a list of names, got None"),
            (
                {"values": [["t"], 0, 0.0, "float32", "int8", [], 1]},
                "more fields than the message has, got 1",
            ),
            ({"values": [["t"], 0, 0]}, "time_s: expected float, got int"),
            ({"values": [["t"], 0, 0.0, 1]}, "rows_as: expected str, got int"),
            ({"values": [["t"], 0, float("nan")]}, "time_s: expected a finite number, got nan"),
            ({"values": [["t", "t"]], "arrays": [["u8", 1], ["u8", 0]]}, "keys: expected distinct names"),
            ({"values": [[1]]}, "array name: expected a short string, got 1"),
            ({"values": [[["t"]]]}, "array name: expected a short string, got list"),
            ({"small": None}, "bytes of small arrays"),
            ({"small": "12345678"}, "bytes of small arrays"),
            ({"arrays": [["u8", 1]]}, "blocks: expected 1-d uint32"),
            ({"arrays": [["u8", 1], ["u4", 0], ["u4", 0]]}, "got 1 more descriptions and 0 more frames"),
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
            CODEC.decode([header_of(**changes)])
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("frames", [[], [b""], [header_of(arrays=[["u8", 3000], ["u4", 0]], small=b"")]])
    def test_frames_that_are_missing(self, frames: list[bytes]) -> None:
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(frames)

    def test_a_frame_too_many(self) -> None:
        with pytest.raises(RemoteProtocolError, match="more arrays than the message has"):
            CODEC.decode([header_of(), b""])

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
            Pull({}, [1]),  # type: ignore[arg-type]
            Result({"number": np.int64(1)}),
            Result({"number": 1 << 64}),
            Result([1]),  # type: ignore[arg-type]
            Failure("internal", None),  # type: ignore[arg-type]
        ],
        ids=[
            "dtype",
            "shape",
            "byte order",
            "0-d",
            "no array",
            "numpy number",
            "too large",
            "a list",
            "no text",
        ],
    )
    def test_is_found_before_it_is_sent(self, message: Message) -> None:
        with pytest.raises(LocalProtocolError):
            CODEC.encode(1, message)

    @pytest.mark.parametrize("request_id", [-1, 1 << 64])
    def test_a_request_id_beyond_64_bits(self, request_id: int) -> None:
        with pytest.raises(LocalProtocolError):
            CODEC.encode(request_id, Stats())
