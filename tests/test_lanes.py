"""Lanes: short messages between processes of one machine, beside ZeroMQ, which does all else."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.lanes import Lanes
from tests.waiting import WAIT_S, wait_until

BYTES_MAX = 1 << 16
WAITING_MAX = 1000
NOBODY = 65534
NAME_BYTES = 9


class End:
    """One end of lanes, and what else its epoll watches."""

    def __init__(self) -> None:
        self.others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self.lanes = Lanes(*self.others)

    def take(self, count: int) -> list[tuple[bytes, list[bytes]]]:
        """The next messages, once they are here."""
        came: list[tuple[bytes, list[bytes]]] = []

        def all_came() -> bool:
            came.extend(self.lanes.receive(count - len(came)))
            return len(came) == count

        wait_until(all_came, WAIT_S, lambda: f"{count} messages, of which {len(came)} came", pause_s=0)
        return came

    @property
    def is_woken(self) -> bool:
        """Whether a wait would end at once."""
        return bool(select.select([self.lanes.fd], [], [], 0)[0])

    def settle(self, lanes: int) -> None:
        """Look until so many lanes are open."""

        def settled() -> bool:
            if len(self.lanes) != lanes:
                assert self.lanes.receive(1) == []
            return len(self.lanes) == lanes

        wait_until(settled, WAIT_S, lambda: f"{lanes} lanes, where {len(self.lanes)} are open", pause_s=0)

    def close(self) -> None:
        self.lanes.close()
        for fd in self.others:
            os.close(fd)


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End, bytes]]:
    """A server's end that listens, a client's, and the name."""
    server, client, name = End(), End(), f"pslib-test-{os.getpid()}-{request.node.name}"[:90].encode()
    assert server.lanes.listen(name)
    yield server, client, name
    server.close()
    client.close()


def lane_to(name: bytes, server: End, client: End, peer: str = "server") -> bytes:
    """A new lane that is greeted."""
    lane = client.lanes.connect(name, peer)
    assert lane is not None

    def greeted() -> bool:
        assert server.lanes.receive(1) == []
        assert client.lanes.receive(1) == []
        return client.lanes.ways.get(peer) == lane

    wait_until(greeted, WAIT_S, "the greeting", pause_s=0)
    return lane


def raw(name: bytes) -> socket.socket:
    """A lane's other end in the hands of somebody who may send anything."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(b"\0" + name)
    return one


# --- one lane ---------------------------------------------------------------------------------------------


def test_messages_come_in_their_order_and_answers_go_to_whoever_has_asked(
    ends: tuple[End, End, bytes],
) -> None:
    server, client, name = ends
    first, second = (lane_to(name, server, client, peer) for peer in ("one", "other"))
    for number in range(20):
        assert client.lanes.send(first, b"first %d" % number) == 0
    assert client.lanes.send(second, b"second") == 0
    came = server.take(21)
    by_peer = {peer: [frames[0] for one, frames in came if one == peer] for peer, _ in came}
    assert sorted(by_peer.values()) == [[b"first %d" % number for number in range(20)], [b"second"]]
    for peer, frames in by_peer.items():
        assert server.lanes.send(peer, frames[0] + b"?") == 0
    assert sorted(client.take(2)) == sorted([(first, [b"first 0?"]), (second, [b"second?"])])
    assert all(len(peer) == NAME_BYTES and peer[0] == 0 for peer in by_peer)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=255))
def test_frames_come_as_they_were_sent(frames: list[bytes]) -> None:
    server, client, name = End(), End(), b"pslib-test-frames-%d" % os.getpid()
    assert server.lanes.listen(name)
    lane = lane_to(name, server, client)
    assert client.lanes.send_frames(lane, [memoryview(frame) for frame in frames]) == 0
    if len(frames) == 1:
        assert client.lanes.send(lane, frames[0]) == 0
        assert server.take(2)[1][1] == frames
    else:
        assert server.take(1)[0][1] == frames
    server.close()
    client.close()


def test_a_message_is_at_most_64_kib_long(ends: tuple[End, End, bytes]) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    longest = os.urandom(BYTES_MAX - 1)  # and one byte that says that it is one frame
    assert client.lanes.send(lane, longest) == 0
    assert server.take(1)[0][1] == [longest]
    assert client.lanes.send(lane, longest + b"x") == errno.EAGAIN
    assert client.lanes.send_frames(lane, [b"x" * 5, longest[:-8]]) == errno.EAGAIN
    assert client.lanes.send(lane, b"next") == 0
    assert server.take(1)[0][1] == [b"next"]


def test_what_a_lane_has_no_room_for_waits_and_comes_in_its_order(ends: tuple[End, End, bytes]) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    body, sent = bytes(8000), 0
    while (number := client.lanes.send(lane, b"%d " % sent + body)) == 0:
        sent += 1
    assert number == errno.EAGAIN
    assert WAITING_MAX < sent < 2 * WAITING_MAX  # those that wait, and those that are on their way
    came: list[int] = []
    while len(came) < sent:
        client.lanes.receive(1)  # in which what waits finds room
        came += [int(frames[0].split()[0]) for _peer, frames in server.lanes.receive(64)]
    assert came == list(range(sent))
    assert client.lanes.waiting_count == 0
    assert client.lanes.send(lane, b"after them") == 0
    assert server.take(1)[0][1] == [b"after them"]
    while client.lanes.waiting_count == 0:
        assert client.lanes.send(lane, body) == 0
    client.lanes.drop(lane)
    assert client.lanes.waiting_count == 0


def test_a_lane_with_room_again_ends_the_wait_of_whoever_has_more_for_it(
    ends: tuple[End, End, bytes],
) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    for _ in range(100):
        assert client.lanes.send(lane, bytes(8000)) == 0

    assert not client.is_woken
    server.take(10)
    assert client.is_woken
    taken = 10
    while taken < 100:
        client.lanes.receive(1)
        taken += len(server.lanes.receive(64))
    client.lanes.receive(1)
    assert not client.is_woken  # nothing waits any more: who is told of room now would never sleep


def test_whoever_hangs_up_is_forgotten(ends: tuple[End, End, bytes]) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    assert client.lanes.send(lane, b"the last words") == 0
    for _ in range(2):
        client.lanes.drop(lane)
    assert client.lanes.send(lane, b"too late") == errno.EHOSTUNREACH
    ((peer, frames),) = server.take(1)
    assert frames == [b"the last words"]
    server.settle(0)
    assert server.lanes.send(peer, b"answer") == errno.EHOSTUNREACH


def test_a_lane_that_breaks_when_it_is_written_to_is_forgotten_too(ends: tuple[End, End, bytes]) -> None:
    server, _client, name = ends
    with raw(name) as other:
        other.send(b"\1question")
        ((peer, _frames),) = server.take(1)
    assert server.lanes.send(peer, b"answer") == errno.EHOSTUNREACH
    assert len(server.lanes) == 0


NO_PACKETS = {
    "no frames": b"\0",
    "none and more": b"\0rest",
    "no size": b"\2",
    "half a size": b"\2\0\0\0",
    "a frame that is not there": b"\2" + struct.pack("<I", 1),
    "sizes beyond the end": b"\3" + struct.pack("<II", 2, 2**32 - 1) + b"four",
    "too many sizes": b"\377" + bytes(100),
    "too long": b"\1" + bytes(BYTES_MAX),
    "nothing": b"",
}


@pytest.mark.parametrize("packet", NO_PACKETS.values(), ids=NO_PACKETS)
def test_a_packet_that_is_none_ends_its_lane_and_no_other(
    ends: tuple[End, End, bytes], packet: bytes
) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    with raw(name) as other:
        other.send(b"\1plain")
        assert server.take(1)[0][1] == [b"plain"]
        other.send(packet)
        server.settle(1)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            other.send(b"\1plain")
    assert client.lanes.send(lane, b"still here") == 0
    assert server.take(1)[0][1] == [b"still here"]


def test_a_closed_end_says_that_nobody_is_there(ends: tuple[End, End, bytes]) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    assert client.lanes.send(lane, b"sent before") == 0
    client.lanes.close()
    client.lanes.close()
    assert client.lanes.send(lane, b"x") == errno.EHOSTUNREACH
    assert client.lanes.connect(name, "server") is None
    assert client.lanes.receive(1) == []
    assert server.take(1)[0][1] == [b"sent before"]
    server.lanes.close()
    assert End().lanes.connect(name, "server") is None


def test_no_descriptor_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        server, client, name = End(), End(), b"pslib-test-left-%d" % os.getpid()
        assert server.lanes.listen(name)
        lanes = [lane_to(name, server, client, f"peer {number}") for number in range(5)]
        server.settle(5)
        client.lanes.drop(lanes[0])
        server.settle(4)
        server.close()
        client.close()
    forgotten = End()
    assert forgotten.lanes.listen(b"pslib-test-forgotten-%d" % os.getpid())
    for fd in forgotten.others:
        os.close(fd)
    del forgotten  # nobody has closed it
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_name_belongs_to_whoever_has_it_first(ends: tuple[End, End, bytes]) -> None:
    _server, client, name = ends
    assert not client.lanes.listen(name)


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="it takes two users, and only root can be both; the kernel says whose a socket is, so nothing in "
    "its place would show that it is asked",
)
@pytest.mark.parametrize("listens", [True, False], ids=["who listens", "who connects"])
def test_another_user_has_no_lane(ends: tuple[End, End, bytes], listens: bool) -> None:
    server, client, name = ends
    if listens:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
            taken.bind(b"\0" + name + b"2")
            os.seteuid(NOBODY)
            try:
                taken.listen()
            finally:
                os.seteuid(0)
            assert client.lanes.connect(name + b"2", "server") is None
        return
    os.seteuid(NOBODY)
    try:
        other = raw(name)
    finally:
        os.seteuid(0)
    with other:
        lane_to(name, server, client)
        server.settle(1)
        assert other.recv(100) == b""


def test_a_process_that_was_forked_ends_no_lane_of_its_parent(ends: tuple[End, End, bytes]) -> None:
    server, client, name = ends
    lane = lane_to(name, server, client)
    child = os.fork()
    if child == 0:
        client.lanes.close()
        server.lanes.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.lanes.send(lane, b"question") == 0
    ((peer, _frames),) = server.take(1)
    assert server.lanes.send(peer, b"answer") == 0
    assert client.take(1)[0][1] == [b"answer"]
    lane_to(name, server, client, "another")
    server.settle(2)


KILLED = """
import os, signal, sys
from cython_ext.lanes import Lanes
lanes = Lanes(os.eventfd(0), os.eventfd(0))
assert lanes.connect(bytes.fromhex(sys.argv[1]), "server") is not None
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


def test_the_lane_of_a_process_that_is_killed_ends_though_a_child_of_it_lives(
    ends: tuple[End, End, bytes],
) -> None:
    """And with it the memory that the server keeps for it."""
    server, _client, name = ends
    with subprocess.Popen([sys.executable, "-c", KILLED, name.hex()], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            server.settle(1)
            parent.kill()
            server.settle(0)
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)


def test_a_quarter_of_all_descriptors_is_left_to_zeromq(ends: tuple[End, End, bytes]) -> None:
    """Which ends the process when it gets none."""
    server, client, name = ends
    lane = lane_to(name, server, client)
    filled, limits = [os.dup(0) for _ in range(64)], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 5, limits[1]))
    try:
        assert client.lanes.connect(name, "another") is None
        with raw(name) as other:
            assert server.lanes.receive(1) == []
            server.settle(1)
            assert other.recv(100) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in filled:
            os.close(fd)
    lane_to(name, server, client, "another")
    assert client.lanes.send(lane, b"who has one keeps it") == 0


def test_without_descriptors_nobody_is_listened_to_any_more_and_no_wait_ends_for_it(
    ends: tuple[End, End, bytes],
) -> None:
    server, client, name = ends
    first = lane_to(name, server, client)
    second, limits = raw(name), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert server.lanes.receive(1) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not server.is_woken
    second.close()
    assert client.lanes.connect(name, "server") is None
    assert client.lanes.send(first, b"who has one keeps it") == 0
    assert server.take(1)[0][1] == [b"who has one keeps it"]
