"""Large frames of requests between processes of one machine: laid into memory that both have mapped."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.cores import turn_s
from pslib.server.shard_thread import TURN_S
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
from tests.test_cores import HEEDS
from tests.waiting import WAIT_S, wait_until

__all__ = ["pair"]

REGIONS_BYTES_MAX = 256 << 20


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
    assert pair.asks.sizes == []
    assert pair.ask([b"", bytes(LAID_FROM)]) is not None


def test_a_frame_that_is_none_costs_nothing(pair: Pair) -> None:
    with pytest.raises((TypeError, BufferError)):
        pair.asks.lay("server", [b"", bytes(LAID_FROM), None])
    with pytest.raises((ValueError, BufferError)):
        pair.asks.lay("server", [b"", np.zeros((512, 512), np.uint8)[:, ::2].data])
    assert pair.asks.sizes == []


def test_a_region_is_used_again_when_the_last_view_of_it_is_gone_and_not_before(pair: Pair) -> None:
    one = pair.ask([b"", large(1), large(2)])
    other = pair.ask([b"", large(3), large(4)])
    assert len(pair.asks.sizes) == len(pair.takes.sizes) == 2
    last = np.frombuffer(one[2], np.uint8)
    del one
    third = pair.ask([b"", large(5), large(6)])
    assert len(pair.asks.sizes) == 3
    assert (last == 2).all()
    assert as_bytes(other) == [b"", bytes(large(3)), bytes(large(4))]
    del last, other, third
    for number in range(9):
        assert as_bytes(pair.ask([b"", large(number)])) == [b"", bytes(large(number))]
    assert len(pair.asks.sizes) == 3


def test_regions_of_a_link_are_bounded_and_zeromq_has_the_rest(pair: Pair) -> None:
    size, held = 31 << 20, []
    for number in range(6):
        held.append(pair.ask([b"", large(number, size)]))
        assert held[-1] is not None
    assert pair.ask([b"", large(9, size)]) is None
    assert sum(pair.asks.sizes) <= REGIONS_BYTES_MAX
    for number, (_first, frame) in enumerate(held):
        assert (np.frombuffer(frame, np.uint8) == number).all()
    del frame
    held.clear()
    assert pair.ask([b"", large(9, size)]) is not None


def test_who_has_no_room_for_a_large_message_gives_up_regions_that_were_idle(pair: Pair) -> None:
    """For a second; those that are in use would only have to be made again."""
    some, most = large(1, 4 << 20), large(1, 60 << 20)
    begun_s = time.monotonic()
    held = [pair.ask([b"", some]) for _ in range(50)]
    held.clear()
    assert len(pair.asks.sizes) == 50
    early = pair.ask([b"", most])
    if time.monotonic() - begun_s < 1.0:  # on a busy machine the first of them may be idle by now
        assert early is None
        assert len(pair.asks.sizes) == 50
    some_were_idle = early is not None  # only so many as the message had need of
    del early
    wait_until(lambda: pair.ask([b"", most]), WAIT_S, "idle regions to be given up", 0.1)
    assert len(pair.asks.sizes) == len(pair.takes.sizes) <= (50 if some_were_idle else 1)


def test_a_region_without_a_message_for_some_time_is_given_up_at_both_ends(pair: Pair) -> None:
    held = pair.ask([b"", large(1, 8 << 20)])
    assert pair.ask([b"", large(2)]) is not None
    pair.asks.trim(60.0)
    assert len(pair.asks.sizes) == 2
    pair.asks.trim(0.0)
    pair.settle()
    assert len(pair.asks.sizes) == len(pair.takes.sizes) == 1
    assert (np.frombuffer(held[1], np.uint8) == 1).all()
    del held
    pair.asks.trim(0.0)
    pair.settle()
    assert pair.asks.sizes == pair.takes.sizes == []


def test_a_region_that_is_about_to_be_sent_is_not_given_up(pair: Pair) -> None:
    placard = pair.asks.lay("server", [b"", large(1)])
    pair.asks.trim(0.0)
    pair.settle()
    assert as_bytes(pair.takes.taken(placard)) == [b"", bytes(large(1))]


@HEEDS
def test_who_lays_many_bytes_leaves_his_core_to_others_and_has_the_turns_of_before(pair: Pair) -> None:
    used_s = time.thread_time()
    for number in range(5):
        assert pair.ask([b"", large(number, 60 << 20)]) is not None
    used_s = time.thread_time() - used_s
    assert 5 <= pair.asks.given_way <= used_s / (0.8 * TURN_S)
    assert turn_s() != TURN_S
    before = pair.asks.given_way
    assert pair.ask([b"", large(1)]) is not None
    assert pair.asks.given_way == before


def test_a_small_message_takes_no_region_that_is_far_larger(pair: Pair) -> None:
    assert pair.ask([b"", large(1, 8 << 20)]) is not None
    assert pair.ask([b"", large(2)]) is not None
    assert sorted(pair.asks.sizes)[0] == REGION


def test_no_descriptor_is_left_open(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = [pair.ask([b"", large(number, 1 << 20)]) for number in range(50)]
    assert len(pair.asks.sizes) == 50
    assert len(os.listdir("/proc/self/fd")) == before
    del held


def test_a_message_that_could_not_be_sent_gives_its_region_back(pair: Pair) -> None:
    assert pair.asks.lay("server", [b"", large(1)]) is not None
    pair.asks.settle(False)
    assert pair.ask([b"", large(2)]) is not None
    assert len(pair.asks.sizes) == 1


def test_without_room_in_the_lane_nothing_is_laid(pair: Pair) -> None:
    more = told(b"12345678", 7, 0)
    wait_until(lambda: not pair.client.lanes.tell(pair.lane, more, -1), WAIT_S, "a full lane", pause_s=0)
    assert pair.asks.lay("server", [b"", large(1)]) is None
    assert pair.asks.sizes == []


def test_a_server_tells_of_no_regions(pair: Pair) -> None:
    assert pair.ask([b"", large(1)]) is not None
    token = pair.asks.lay("server", [b"", large(2)])[1:9]
    fd = region_file(REGION)
    lane = b"\0" + (1).to_bytes(8, "little")
    assert pair.server.lanes.tell(lane, told(token, 1, REGION), fd)
    os.close(fd)
    pair.client.settle(0)
    assert pair.asks.sizes == []
