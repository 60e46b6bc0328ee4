"""Frames in shared memory at a server: views that hold a region, and who is believed about it."""

from __future__ import annotations

import gc
import os
import struct
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.shared_frames import SharedFrames
from tests.shared_memory import (
    FRAME_BYTES_MAX,
    HEAD,
    LAID_FROM,
    REGION,
    Pair,
    as_bytes,
    large,
    pair,
    region_file,
    told,
)
from tests.test_lanes import End, lane_to

__all__ = ["pair"]

ENDED_BYTES_MAX = 256 << 20


def test_frames_begin_where_vectors_do_and_are_views(pair: Pair) -> None:
    first, *arrays = pair.ask([b"header", large(1, 100_001), large(2, 3), large(3, 64)])
    assert first == b"header"
    for array, number in zip(arrays, (1, 2, 3), strict=True):
        view = np.frombuffer(array, np.uint8)
        assert view.ctypes.data % HEAD == 0
        assert not view.flags.owndata
        assert (view == number).all()


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
    assert pair.takes.sizes == []
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
    assert len(pair.asks.sizes) == 2


def test_what_was_sent_before_a_lane_ended_is_still_taken(pair: Pair) -> None:
    assert pair.ask([b"", large(1)]) is not None
    placards = [pair.asks.lay("server", [b"", large(number)]) for number in range(3)]
    pair.settle()
    pair.client.lanes.close()
    pair.server.settle(0)
    for number, one in enumerate(placards):
        assert as_bytes(pair.takes.taken(one)) == [b"", bytes(large(number))]


def test_of_many_lanes_that_ended_the_latest_ones_regions_are_kept() -> None:
    pair = Pair(f"pslib-shared-{os.getpid()}-ended".encode())
    try:
        lanes, held = [pair.lane], []
        for number in range(3):
            if number:
                lanes.append(lane_to(pair.name, pair.server, pair.client, "server"))
                pair.asks.begin(lanes[-1], "server")
            held.append([pair.ask([b"", large(number, 48 << 20)]) for _ in range(2 - number // 2)])
        for lane in lanes:
            pair.client.lanes.drop(lane)
            pair.server.settle(2 - lanes.index(lane))
        sizes = pair.takes.kept
        assert len(sizes) == 3
        assert sum(sizes) <= ENDED_BYTES_MAX
        for number, frames in enumerate(held):
            assert all((np.frombuffer(one[1], np.uint8) == number).all() for one in frames)
    finally:
        pair.close()


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
    assert len(pair.asks.sizes) == 2


# --- what lanes may tell -----------------------------------------------------------------------------------


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


def test_no_frame_is_longer_than_the_receiver_takes() -> None:
    pair = Pair(f"pslib-shared-{os.getpid()}-limit".encode(), frame_bytes_max=LAID_FROM)
    try:
        assert pair.ask([b"", large(1)]) is not None
        token = pair.asks.lay("server", [b"", large(1)])[1:9]
        assert pair.takes.taken(placard(token, 1, [LAID_FROM + 1])) is None
        assert pair.asks.lay("server", [b"", large(1, LAID_FROM + 1)]) is None
    finally:
        pair.close()
