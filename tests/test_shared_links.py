"""Large requests between links of one machine: their frames in shared memory, all else by ZeroMQ as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pslib.config import Limits, Timing
from pslib.protocol.request_records import Outgoing, ShortOutgoing
from pslib.transport import ZmqTransport
from pslib.transport.keys import make_keys
from tests.clusters import cluster_of
from tests.links import LOOPBACK, poll, poll_all
from tests.test_client import PLAIN
from tests.test_lane_links import ask, greeted, met, opened
from tests.waiting import PATIENCE_S, WAIT_S, wait_until

__all__ = ["opened"]

SIZE = 1 << 17
KEYS = make_keys()


def large(number: int, size: int = SIZE) -> list[Any]:
    return [b"header %d" % number, np.full(size, number % 251, np.uint8).data, b"tail"]


def as_bytes(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def ask_large(client: Any, server: Any, number: int = 1, size: int = SIZE) -> bytes:
    """A large question and a large answer; who has asked, as the server sees it."""
    client.send(server.address, large(number, size))
    peer, frames = poll(server)
    assert frames == as_bytes(large(number, size))
    server.send(peer, large(number + 1, size))
    assert poll(client) == (server.address, as_bytes(large(number + 1, size)))
    return peer


def taken(server: Any, count: int) -> list[Any]:
    """The next messages; their frames stay where they lie."""
    came: list[Any] = []

    def all_came() -> bool:
        came.extend(server.poll(0.05))
        return len(came) >= count

    wait_until(all_came, WAIT_S, lambda: f"{count} messages, of which {len(came)} came", pause_s=0)
    return came


def shared_bytes(link: Any) -> int:
    """Of all regions: those that a client has made, or that a server has been told of."""
    return sum(link.shared.sizes)


def test_large_frames_of_requests_go_by_shared_memory_once_a_lane_is_greeted(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    for number in range(3):  # before it they go by ZeroMQ, or not, as the greeting comes
        ask_large(client, server, number)
    met(client, server)
    for number in range(20):
        ask_large(client, server, number)
    assert shared_bytes(client) == shared_bytes(server) > SIZE
    before = shared_bytes(client)
    ask(client, server)
    ask(client, server, bytes(1 << 16))
    assert shared_bytes(client) == before


@pytest.mark.parametrize(
    ("listens", "connects"),
    [
        ({"keys": KEYS["server"]}, {"keys": KEYS["trainer"]}),
        ({"same_host": False}, {}),
        ({}, {"same_host": False}),
        ({}, {"limits": Limits(frame_bytes_max=SIZE - 1)}),
    ],
    ids=["keys", "a server that is told to go by TCP", "a client that is", "frames beyond the limit"],
)
def test_without_a_lane_they_go_by_zeromq(
    opened: Any, listens: dict[str, Any], connects: dict[str, Any]
) -> None:
    server, client = opened(LOOPBACK, **listens), opened(**connects)
    for number in range(3):
        client.send(server.address, large(number))
        assert poll(server)[1] == as_bytes(large(number))
        time.sleep(0.02)
    for link in (server, client):
        assert link.shared is None or shared_bytes(link) == 0


def test_messages_keep_their_order_large_and_small(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    sent: list[list[bytes]] = []
    for number in range(60):
        frames = large(number, SIZE + 997 * number) if number % 3 else [b"small %d" % number]
        sent.append(as_bytes(frames))
        client.send(server.address, frames)
    assert [frames for _peer, frames in poll_all(server, 60)] == sent
    assert shared_bytes(client) > 0


def test_short_messages_of_lanes_keep_their_order_beside_new_regions(opened: Any) -> None:
    """Lanes are asked for regions while messages of ZeroMQ are taken; other lanes speak then too."""
    server, client, other = opened(LOOPBACK), opened(), opened()
    met(client, server)
    met(other, server)
    held = []
    for turn in range(20):
        for number in range(5):
            other.send_all([ShortOutgoing(server.address, [b"%d %d" % (turn, number)])])
            client.send(server.address, large(number, SIZE * (1 + turn)))
        came = taken(server, 10)
        short = [bytes(frames[0]) for _peer, frames in came if len(frames) == 1]
        assert short == [b"%d %d" % (turn, number) for number in range(5)]
        sizes = [len(frames[1]) for _peer, frames in came if len(frames) == 3]
        assert sizes == [SIZE * (1 + turn)] * 5
        held.append(came)


def turns_of_the_socket(server: Any, client: Any) -> None:
    """Let the server take messages of its socket next, before it looks at lanes again."""
    client.send_all([ShortOutgoing(server.address, [b"turn"])] * 5)
    time.sleep(0.05)
    assert len(server.frames.receive(5)) == 5


def of_the_socket(server: Any, count: int) -> list[Any]:
    """So many messages, once the socket has some; which of them goes first is the server's business."""
    assert server._socket.poll(int(1000 * PATIENCE_S))
    time.sleep(0.05)  # and those that were sent with it, as a rule
    came: list[Any] = []
    wait_until(
        lambda: came.extend(server.frames.receive(10)) or len(came) >= count,
        WAIT_S,
        lambda: f"{count} messages, of which {len(came)} came",
    )
    return came


def test_what_lanes_bring_while_regions_are_asked_for_keeps_its_order(opened: Any) -> None:
    server, client, other = opened(LOOPBACK), opened(), opened()
    met(client, server)
    met(other, server)
    turns_of_the_socket(server, other)
    for number in range(2):
        client.send(server.address, large(number))  # each in a region of its own, of which its lane tells
        other.send_all([ShortOutgoing(server.address, [b"short %d" % number])])
    came = [frames for _peer, frames in of_the_socket(server, 4)]
    assert [frames for frames in came if len(frames) == 1] == [[b"short 0"], [b"short 1"]]
    assert [as_bytes(frames) for frames in came if len(frames) > 1] == [as_bytes(large(n)) for n in range(2)]


def test_what_came_by_a_lane_that_has_ended_goes_before_what_was_sent_behind_it(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    turns_of_the_socket(server, client)
    client.send_all([ShortOutgoing(server.address, [b"first"])])
    client.send(server.address, large(2))
    client.lanes.drop(client.lanes.ways[server.address])
    came = [as_bytes(frames) for _peer, frames in of_the_socket(server, 2)]
    assert came == [[b"first"], as_bytes(large(2))]


IDLE_S = 5.0


def test_a_link_without_large_requests_gives_up_its_regions_as_it_goes_on(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    begun_s = time.monotonic()
    ask_large(client, server)

    def given_up() -> bool:
        ask(client, server, kind=Outgoing)
        return not client.shared.sizes

    wait_until(given_up, IDLE_S, "the regions to be given up", pause_s=0.1)
    assert time.monotonic() - begun_s >= IDLE_S
    ask(client, server)
    assert shared_bytes(client) == shared_bytes(server) == 0


def test_what_lanes_that_ended_have_not_sent_after_all_is_forgotten_as_a_server_goes_on(opened: Any) -> None:
    server, client, other = opened(LOOPBACK), opened(), opened()
    met(client, server)
    met(other, server)
    client.send(server.address, large(1))
    ((_peer, held),) = taken(server, 1)
    client.lanes.close()
    begun_s = time.monotonic()

    def kept() -> bool:
        ask(other, server, kind=Outgoing)
        return bool(server.shared.kept)

    wait_until(kept, WAIT_S, "the server to keep what it has not sent", pause_s=0)
    wait_until(lambda: not kept(), IDLE_S, "it to be forgotten", pause_s=0.1)
    assert IDLE_S <= time.monotonic() - begun_s < 3 * IDLE_S
    assert as_bytes(held) == as_bytes(large(1))


@pytest.mark.parametrize("end", ["client", "server"])
def test_when_a_lane_breaks_large_frames_go_by_zeromq(opened: Any, end: str) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    ask_large(client, server)
    lane = client.lanes.ways[server.address] if end == "client" else ask(client, server)
    (client if end == "client" else server).lanes.drop(lane)
    for link in (client, server):
        link.wait(0.05)
        assert link.receive() == []
    for number in range(3):
        ask_large(client, server, number)
    assert shared_bytes(client) == shared_bytes(server) == 0


def test_a_message_in_memory_that_is_known_no_more_is_nobodys_and_the_link_goes_on(opened: Any) -> None:
    """The lane broke while it was on its way: it is lost, and asked for again."""
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    peer = ask_large(client, server)
    lane = ask(client, server)
    client.send(server.address, large(1, 4 * SIZE))  # of a new region, of which the lane tells
    time.sleep(0.05)
    server.lanes.drop(lane)
    sender, frames = poll(server)
    assert (sender, frames) == (b"", [b""])
    server.send(sender, [b"answer"])
    server.send_all([(sender, [b"answer"])])
    server.send(sender, large(2))
    assert client.receive() == []
    client.send(server.address, large(3))
    assert poll(server) == (peer, as_bytes(large(3)))


def test_a_message_that_nobody_is_there_for_leaves_its_region_free(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    ask_large(client, server)
    routing_id, client._ids[server.address] = client._ids[server.address], b"gone"
    for number in range(5):
        client.send(server.address, large(number))
    client._ids[server.address] = routing_id
    assert len(client.shared.sizes) == 1
    ask_large(client, server)
    assert len(client.shared.sizes) == 1


class SignalError(Exception):
    """By a signal."""


def test_who_is_interrupted_as_he_sends_loses_no_region(opened: Any) -> None:
    def interrupt(_number: int, _frame: Any) -> None:
        raise SignalError

    server, client = opened(LOOPBACK), opened()
    met(client, server)
    ask_large(client, server)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(30):
            with suppress(SignalError):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0002 * turn)
                while True:
                    client.send(server.address, large(turn, 4 << 20))
            while server.poll(0.05):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    def all_are_free() -> bool:
        server.poll(0.02)  # what the last turn sent may have come since
        client.shared.trim(0.0)
        return not client.shared.sizes

    wait_until(all_are_free, WAIT_S, lambda: f"regions to be free: {client.shared.sizes}", pause_s=0)


def test_a_child_that_uses_and_closes_what_it_has_inherited_touches_no_region(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    ask_large(client, server)
    client.send(server.address, large(2))
    time.sleep(0.05)
    ((_peer, held),) = taken(server, 1)
    placard = client.shared.lay(server.address, large(3))
    client.shared.settle(False)
    server.wait(0.05)
    assert server.receive() == []
    assert server.shared.taken(placard) is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.shared.trim(0.0)
            assert client.shared.lay(server.address, large(1)) is None
            assert server.shared.taken(placard) is None
            for link in (client, server):
                link.lanes.close()
            del held
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert as_bytes(held) == as_bytes(large(2))
    ask_large(client, server, 5)
    assert len(client.shared.sizes) == 2


def test_links_of_many_clients_have_memory_of_their_own(opened: Any) -> None:
    server, clients = opened(LOOPBACK), [opened() for _ in range(8)]
    for client in clients:
        met(client, server)
    for turn in range(5):
        for number, client in enumerate(clients):
            client.send(server.address, large(number + turn))
        came = {peer: frames for peer, frames in poll_all(server, 8)}
        assert sorted(came.values()) == sorted(as_bytes(large(number + turn)) for number in range(8))
        for peer, frames in came.items():
            server.send(peer, [b"back", *frames[1:]])
        for number, client in enumerate(clients):
            assert poll(client)[1] == [b"back", *as_bytes(large(number + turn))[1:]]
    assert len(server.shared.sizes) == 8
    clients[0].close()

    def seven_left() -> bool:
        server.poll(0.01)
        return len(server.shared.sizes) <= 7

    wait_until(seven_left, WAIT_S, "a region to be given up", pause_s=0)
    assert len(server.shared.sizes) == 7


# --- processes that die ------------------------------------------------------------------------------------

ECHO = f"""
from pslib.transport import ZmqTransport, listen_short
link = listen_short(ZmqTransport().listen("{LOOPBACK}"))
print(link.address, flush=True)
while True:
    for peer, frames in link.poll(0.1):
        link.send(peer, [bytes(frame) for frame in frames])
"""


def test_a_server_that_was_killed_leaves_no_regions(opened: Any) -> None:
    client = opened()
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        greeted(client, address)
        for number in range(3):
            client.send(address, large(number))
            assert poll(client)[1] == as_bytes(large(number))
        assert shared_bytes(client) > 0
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    client.wait(0.1)
    client.receive()
    assert shared_bytes(client) == 0
    client.send(address, large(6))
    assert client.receive() == []


# --- a cluster ---------------------------------------------------------------------------------------------

MANY = np.arange(20_000, dtype=np.uint64)
ONES = np.ones((MANY.size, 2), np.float32)


def push_thirty(client: Any) -> None:
    """Three at a time, and a pull beside them."""
    for _ in range(10):
        waiting = [client.push({"plain": (MANY, ONES)}) for _ in range(3)]
        client.pull({"plain": MANY}).wait()
        for one in waiting:
            one.wait()


@pytest.mark.parametrize("shard_threads", [1, 2])
@pytest.mark.parametrize("breaks", [False, True])
def test_large_pushes_are_applied_once_each_also_when_lanes_break(shard_threads: int, breaks: bool) -> None:
    transport, rng = ZmqTransport(), np.random.default_rng(3)
    with cluster_of(
        2, transport=transport, listen=LOOPBACK, shard_threads=shard_threads, timing=Timing(retry_s=0.1)
    ) as running:
        clients = [running.client() for _ in range(2)]
        clients[0].setup([PLAIN])
        clients[1].setup([PLAIN])
        links = [(client.endpoint._link, client.endpoint.lock) for client in clients]
        links += [(server._link, server._lock) for server in running.embedded.servers]

        threads = [threading.Thread(target=push_thirty, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for link, lock in rng.permutation(np.array(links, object)) if breaks else ():
            time.sleep(0.05)
            with lock:
                for lane in range(1, 10):
                    link.lanes.drop(b"\0" + lane.to_bytes(8, "little"))
        for thread in threads:
            thread.join()
        assert np.unique(clients[0].pull({"plain": MANY}).wait().rows["plain"]).tolist() == [-60.0]
        if not breaks:
            assert all(shared_bytes(link) > 0 for link, _lock in links)
    transport.close()


def test_rows_that_somebody_keeps_are_theirs_alone() -> None:
    """However many pulls and pushes come after, also in a child, and when the cluster is gone."""
    transport = ZmqTransport()
    with cluster_of(1, transport=transport, listen=LOOPBACK) as running:
        client = running.client()
        client.setup([PLAIN])
        kept = []
        for done in range(1, 21):
            client.push({"plain": (MANY, ONES)}).wait()
            rows = client.pull({"plain": MANY}).wait().rows["plain"]
            child = os.fork()
            if child == 0:
                rows += 5.0
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            rows += 1000.0
            kept.append((rows, 1000.0 - done))
        for rows, value in kept:
            assert (rows == value).all()
        assert shared_bytes(client.endpoint._link) > 0
    transport.close()
    for rows, value in kept:
        assert (rows == value).all()


def test_large_requests_of_many_kinds_go_otherwise_without_a_word_changing(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    for kind in (Outgoing, ShortOutgoing):
        client.send_all([kind(server.address, large(1)), kind(server.address, [b"small"])])
        assert [frames for _peer, frames in poll_all(server, 2)] in (
            [as_bytes(large(1)), [b"small"]],
            [[b"small"], as_bytes(large(1))],
        )
