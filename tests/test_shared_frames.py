"""Large frames of requests between processes of one machine: laid into memory that both have mapped."""

from __future__ import annotations

import fcntl
import gc
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.shared_frames import SharedFrames
from tests.links import WAIT_S
from tests.test_lanes import End, lane_to

HEAD, LAID_FROM = 64, 1 << 16
REGION = 1 << 17  # what a message of so few bytes gets
REGIONS_BYTES_MAX, FRAME_BYTES_MAX = 256 << 20, 64 << 20


class Pair:
    """Both ends of a lane, with shared memory: what a client lays a server takes."""

    def __init__(self, name: bytes, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.server, self.client = End(), End()
        assert self.server.lanes.listen(name)
        for end in (self.server, self.client):
            end.lanes.shared = SharedFrames(end.lanes, frame_bytes_max)
        self.lane = lane_to(name, self.server, self.client)
        self.asks, self.takes = self.client.lanes.shared, self.server.lanes.shared
        self.asks.begin(self.lane, "server")

    def settle(self) -> None:
        """Let both ends hear what lanes tell."""
        for end in (self.server, self.client):
            while end.is_woken:
                assert end.lanes.receive(1) == []

    def ask(self, frames: list[Any]) -> Any:
        """What the server takes of frames that the client lays; None: they are not for it."""
        placard = self.asks.lay("server", frames)
        self.asks.settle(True)
        self.settle()
        return None if placard is None else self.takes.taken(placard)

    def close(self) -> None:
        self.server.close()
        self.client.close()


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    one = Pair(f"pslib-shared-{os.getpid()}-{request.node.name}"[:90].encode())
    yield one
    one.close()


def large(number: int, size: int = LAID_FROM) -> np.ndarray[Any, Any]:
    return np.full(size, number % 251, np.uint8)


def as_bytes(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


@given(sizes=st.lists(st.integers(0, 3 * LAID_FROM), min_size=1, max_size=64), first=st.binary(max_size=300))
@settings(max_examples=30, deadline=None)
def test_frames_arrive_as_they_were_sent(sizes: list[int], first: bytes) -> None:
    pair = Pair(f"pslib-shared-{os.getpid()}-given".encode())
    try:
        frames = [first, *(np.arange(size, dtype=np.uint32).astype(np.uint8).data for size in sizes)]
        sent = as_bytes(frames)
        taken = pair.ask(frames)
        at_most = HEAD + sum(size + HEAD for size in sizes)
        if taken is None:
            assert at_most < LAID_FROM + HEAD * (len(sizes) + 1)
            taken = pair.ask([first, large(1), *frames[1:63]])
            sent = [first, bytes(large(1)), *sent[1:63]]
        assert as_bytes(taken) == sent
    finally:
        pair.close()


def test_frames_begin_where_vectors_do_and_are_views(pair: Pair) -> None:
    first, *arrays = pair.ask([b"header", large(1, 100_001), large(2, 3), large(3, 64)])
    assert first == b"header"
    for array, number in zip(arrays, (1, 2, 3), strict=True):
        view = np.frombuffer(array, np.uint8)
        assert view.ctypes.data % HEAD == 0
        assert not view.flags.owndata
        assert (view == number).all()


@pytest.mark.parametrize(
    ("key", "frames"),
    [
        ("server", [b"one frame alone"]),
        ("server", [b"", bytes(LAID_FROM - 2 * HEAD)]),
        ("server", [b"", *[bytes(LAID_FROM)] * 65]),
        ("server", [bytes((1 << 15) + 1), bytes(LAID_FROM)]),
        ("server", [b"", bytes(LAID_FROM), bytes(FRAME_BYTES_MAX + 1)]),
        ("another", [b"", bytes(LAID_FROM)]),
    ],
    ids=["one frame", "small", "too many", "a long first one", "too long", "a stranger"],
)
def test_what_it_is_not_for_is_left_to_zeromq(pair: Pair, key: str, frames: list[bytes]) -> None:
    assert pair.asks.lay(key, frames) is None
    assert pair.asks.sizes == ([], [])
    assert pair.ask([b"", bytes(LAID_FROM)]) is not None


def test_a_frame_that_is_none_costs_nothing(pair: Pair) -> None:
    with pytest.raises((TypeError, BufferError)):
        pair.asks.lay("server", [b"", bytes(LAID_FROM), None])
    with pytest.raises((ValueError, BufferError)):
        pair.asks.lay("server", [b"", np.zeros((512, 512), np.uint8)[:, ::2].data])
    assert pair.asks.sizes == ([], [])


def test_a_region_is_used_again_when_the_last_view_of_it_is_gone_and_not_before(pair: Pair) -> None:
    one = pair.ask([b"", large(1), large(2)])
    other = pair.ask([b"", large(3), large(4)])
    assert len(pair.asks.sizes[0]) == len(pair.takes.sizes[1]) == 2
    last = np.frombuffer(one[2], np.uint8)
    del one
    third = pair.ask([b"", large(5), large(6)])
    assert len(pair.asks.sizes[0]) == 3
    assert (last == 2).all()
    assert as_bytes(other) == [b"", bytes(large(3)), bytes(large(4))]
    del last, other, third
    for number in range(9):
        assert as_bytes(pair.ask([b"", large(number)])) == [b"", bytes(large(number))]
    assert len(pair.asks.sizes[0]) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(LAID_FROM, 4 * LAID_FROM)), max_size=60))
@settings(max_examples=20, deadline=None)
def test_what_somebody_holds_is_never_written_to(messages: list[tuple[int, int]]) -> None:
    pair = Pair(f"pslib-shared-{os.getpid()}-held".encode())
    try:
        held: dict[int, tuple[Any, int]] = {}
        for number, (place, size) in enumerate(messages):
            taken = pair.ask([b"", large(number, size)])
            held[place] = np.frombuffer(taken[1], np.uint8), number  # what was there before is let go of
            del taken
            for array, of in held.values():
                assert (array == of % 251).all()
    finally:
        held.clear()
        pair.close()


def test_views_live_on_when_lanes_and_links_have_gone(pair: Pair) -> None:
    taken = pair.ask([b"", large(5)])
    pair.client.lanes.close()
    pair.server.settle(0)
    assert pair.takes.sizes == ([], [])
    gc.collect()
    assert as_bytes(taken) == [b"", bytes(large(5))]


def test_a_fork_leaves_regions_as_they_are(pair: Pair) -> None:
    held = pair.ask([b"", large(1)])
    child = os.fork()
    if child == 0:  # which has neither these regions nor a say in them
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for number in range(3):
        assert as_bytes(pair.ask([b"", large(number)])) == [b"", bytes(large(number))]
    assert as_bytes(held) == [b"", bytes(large(1))]
    assert len(pair.asks.sizes[0]) == 2


def test_regions_of_a_link_are_bounded_and_zeromq_has_the_rest(pair: Pair) -> None:
    size, held = 31 << 20, []
    for number in range(6):
        held.append(pair.ask([b"", large(number, size)]))
        assert held[-1] is not None
    assert pair.ask([b"", large(9, size)]) is None
    assert sum(pair.asks.sizes[0]) <= REGIONS_BYTES_MAX
    for number, (_first, frame) in enumerate(held):
        assert (np.frombuffer(frame, np.uint8) == number).all()
    del frame
    held.clear()
    assert pair.ask([b"", large(9, size)]) is not None


def test_who_has_no_room_for_a_large_message_gives_up_regions_that_were_idle(pair: Pair) -> None:
    """For a second; those that are in use would only have to be made again."""
    held = [pair.ask([b"", large(number, 4 << 20)]) for number in range(50)]
    held.clear()
    assert len(pair.asks.sizes[0]) == 50
    assert pair.ask([b"", large(1, 60 << 20)]) is None
    assert len(pair.asks.sizes[0]) == 50
    until_s = time.monotonic() + WAIT_S
    while pair.ask([b"", large(1, 60 << 20)]) is None and time.monotonic() < until_s:
        time.sleep(0.1)
    assert len(pair.asks.sizes[0]) == len(pair.takes.sizes[1]) == 1


def test_a_region_without_a_message_for_some_time_is_given_up_at_both_ends(pair: Pair) -> None:
    held = pair.ask([b"", large(1, 8 << 20)])
    assert pair.ask([b"", large(2)]) is not None
    pair.asks.trim(60.0)
    assert len(pair.asks.sizes[0]) == 2
    pair.asks.trim(0.0)
    pair.settle()
    assert len(pair.asks.sizes[0]) == len(pair.takes.sizes[1]) == 1
    assert (np.frombuffer(held[1], np.uint8) == 1).all()
    del held
    pair.asks.trim(0.0)
    pair.settle()
    assert pair.asks.sizes[0] == pair.takes.sizes[1] == []


def test_a_region_that_is_about_to_be_sent_is_not_given_up(pair: Pair) -> None:
    placard = pair.asks.lay("server", [b"", large(1)])
    pair.asks.trim(0.0)
    pair.settle()
    assert as_bytes(pair.takes.taken(placard)) == [b"", bytes(large(1))]


def test_a_small_message_takes_no_region_that_is_far_larger(pair: Pair) -> None:
    assert pair.ask([b"", large(1, 8 << 20)]) is not None
    assert pair.ask([b"", large(2)]) is not None
    assert sorted(pair.asks.sizes[0])[0] == REGION


def test_what_was_sent_before_a_lane_ended_is_still_taken(pair: Pair) -> None:
    assert pair.ask([b"", large(1)]) is not None
    placards = [pair.asks.lay("server", [b"", large(number)]) for number in range(3)]
    pair.settle()
    pair.client.lanes.close()
    pair.server.settle(0)
    for number, one in enumerate(placards):
        assert as_bytes(pair.takes.taken(one)) == [b"", bytes(large(number))]


def test_no_descriptor_is_left_open(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = [pair.ask([b"", large(number, 1 << 20)]) for number in range(50)]
    assert len(pair.asks.sizes[0]) == 50
    assert len(os.listdir("/proc/self/fd")) == before
    del held


def test_a_message_that_could_not_be_sent_gives_its_region_back(pair: Pair) -> None:
    assert pair.asks.lay("server", [b"", large(1)]) is not None
    pair.asks.settle(False)
    assert pair.ask([b"", large(2)]) is not None
    assert len(pair.asks.sizes[0]) == 1


def test_a_forked_child_that_lets_go_of_a_view_frees_nothing(pair: Pair) -> None:
    taken = pair.ask([b"", large(1)])
    child = os.fork()
    if child == 0:
        del taken
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pair.ask([b"", large(2)]) is not None
    assert (np.frombuffer(taken[1], np.uint8) == 1).all()
    assert len(pair.asks.sizes[0]) == 2


# --- what lanes may tell -----------------------------------------------------------------------------------


def region_file(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def told(token: bytes, number: int, size: int) -> bytes:
    return b"\0" + token + struct.pack("<QQ", number, size)


@pytest.mark.parametrize(
    ("packet", "make"),
    [
        (b"\0", None),
        (told(b"12345678", 1, REGION)[:-1], lambda: region_file(REGION)),
        (told(b"12345678", 1, REGION), None),
        (told(b"12345678", 1, REGION), lambda: region_file(REGION - 4096)),
        (told(b"12345678", 1, REGION), lambda: region_file(REGION, 0)),
        (told(b"12345678", 1, REGION), lambda: os.open(tempfile.gettempdir(), os.O_RDONLY)),
        (told(b"12345678", 1, HEAD - 1), lambda: region_file(HEAD - 1)),
        (told(b"12345678", 1, 1 << 63), lambda: region_file(REGION)),
    ],
    ids=["short", "cut", "none", "smaller", "can shrink", "no such file", "no room for its head", "huge"],
)
def test_who_tells_of_a_region_that_is_none_has_no_lane_any_more(
    pair: Pair, packet: bytes, make: Any
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fd = make() if make else -1
    assert pair.client.lanes.tell(pair.lane, packet, fd)
    if fd >= 0:
        os.close(fd)
    pair.server.settle(0)
    pair.client.settle(0)
    assert len(os.listdir("/proc/self/fd")) == before - 2  # of the lane, at both ends
    assert pair.asks.lay("server", [b"", large(1)]) is None


def test_nobody_tells_of_regions_in_the_name_of_another(pair: Pair, request: pytest.FixtureRequest) -> None:
    assert pair.ask([b"", large(1)]) is not None
    token = pair.asks.lay("server", [b"", large(2)])[1:9]
    stranger = End()
    stranger.lanes.shared = SharedFrames(stranger.lanes, FRAME_BYTES_MAX)
    lane = lane_to(f"pslib-shared-{os.getpid()}-{request.node.name}"[:90].encode(), pair.server, stranger)
    fd = region_file(REGION)
    assert stranger.lanes.tell(lane, told(token, 1, REGION), fd)
    os.close(fd)
    pair.server.settle(1)
    assert pair.ask([b"", large(3)]) is not None
    stranger.close()


def placard(token: bytes, number: int, sizes: list[int], count: int | None = None) -> bytes:
    count = len(sizes) if count is None else count
    return b"\xc1" + token + struct.pack(f"<QB{len(sizes)}Q", number, count, *sizes) + b"header"


def test_a_placard_is_believed_as_far_as_its_region_goes(pair: Pair) -> None:
    taken = pair.ask([b"", large(1)])
    token = pair.asks.lay("server", [b"", large(2)])[1:9]
    del taken
    room = REGION - HEAD
    for good in (placard(token, 1, [room]), placard(token, 1, [0, room - HEAD, 1])):
        frames = pair.takes.taken(good)
        assert frames is not None
        assert frames[0] == b"header"
    for bad in (
        placard(token, 1, [room + 1]),
        placard(token, 1, [1, room - HEAD + 1]),
        placard(token, 1, [room, 1]),
        placard(token, 1, [(1 << 64) - 1]),
        placard(token, 1, [(1 << 64) - HEAD, room]),
        placard(token, 1, []),
        placard(token, 1, [1], count=200),
        placard(token, 99, [1]),
        placard(b"87654321", 1, [1]),
        b"\xc1",
        b"\xc1" + token,
        b"\xc1" + token + bytes(9),
    ):
        assert pair.takes.taken(bad) is None


def test_no_frame_is_longer_than_the_receiver_takes(request: pytest.FixtureRequest) -> None:
    pair = Pair(f"pslib-shared-{os.getpid()}-limit".encode(), frame_bytes_max=LAID_FROM)
    try:
        assert pair.ask([b"", large(1)]) is not None
        token = pair.asks.lay("server", [b"", large(1)])[1:9]
        assert pair.takes.taken(placard(token, 1, [LAID_FROM + 1])) is None
        assert pair.asks.lay("server", [b"", large(1, LAID_FROM + 1)]) is None
    finally:
        pair.close()


def test_without_room_in_the_lane_nothing_is_laid(pair: Pair) -> None:
    until_s = time.monotonic() + WAIT_S
    while pair.client.lanes.tell(pair.lane, told(b"12345678", 7, 0), -1) and time.monotonic() < until_s:
        pass
    assert pair.asks.lay("server", [b"", large(1)]) is None
    assert pair.asks.sizes == ([], [])


def test_a_server_tells_of_no_regions(pair: Pair) -> None:
    assert pair.ask([b"", large(1)]) is not None
    token = pair.asks.lay("server", [b"", large(2)])[1:9]
    fd = region_file(REGION)
    lane = b"\0" + (1).to_bytes(8, "little")
    assert pair.server.lanes.tell(lane, told(token, 1, REGION), fd)
    os.close(fd)
    pair.client.settle(0)
    assert pair.asks.sizes == ([], [])
