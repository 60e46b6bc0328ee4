"""Frames of a ZeroMQ socket, with functions in place of its library's that do what is hard to bring about."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from cython_ext.zmq_frames import FUNCTIONS, ZmqFrames
from pslib.transport import ZmqTransport
from pslib.transport.router import ZMQ_FUNCTIONS
from tests.links import LOOPBACK, come
from tests.waiting import WAIT_S

SHAPES: dict[str, tuple[Any, ...]] = {
    "zmq_msg_recv": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "zmq_send": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    "zmq_msg_close": (ctypes.c_int, ctypes.c_void_p),
}
LARGE = 1000


class Library:
    """ZeroMQ's functions; before some of them something is asked that says whether they are interrupted.

    Or it says by which of ZeroMQ's numbers they fail.
    """

    def __init__(self, **before: Callable[[], bool | int]) -> None:
        assert ZMQ_FUNCTIONS is not None
        self.functions = list(ZMQ_FUNCTIONS)
        self._kept = [self._wrapped(name, first) for name, first in before.items()]

    def _wrapped(self, name: str, first: Callable[[], bool | int]) -> Any:
        place, kind = FUNCTIONS.index(name), ctypes.CFUNCTYPE(*SHAPES[name], use_errno=True)
        real = kind(self.functions[place])

        def called(*arguments: Any) -> int:
            number = int(first())
            if not number:
                return int(real(*arguments))
            ctypes.set_errno(errno.EINTR if number == 1 else number)
            return -1

        kept = kind(called)
        self.functions[place] = int(ctypes.cast(kept, ctypes.c_void_p).value or 0)
        return kept


def every_third() -> Callable[[], bool]:
    """Two calls are interrupted, the third is not."""
    calls = iter(range(1, 1 << 30))
    return lambda: next(calls) % 3 != 0


@pytest.fixture
def transport() -> Iterator[ZmqTransport]:
    made = ZmqTransport()
    yield made
    made.close()


def taken(link: Any) -> list[list[bytes]]:
    """The next messages, without who sent them."""
    came: list[Any] = []
    while not came:  # a connection that comes about ends a wait too
        came = come(link, WAIT_S)
    return [[bytes(frame) for frame in frames] for _, frames in came]


def test_what_is_interrupted_is_done_again_and_no_frame_is_lost_or_sent_twice(
    transport: ZmqTransport,
) -> None:
    library = Library(zmq_msg_recv=every_third(), zmq_send=every_third())
    server, client = transport.listen(LOOPBACK), transport.connect()
    for link in (server, client):
        link.frames = ZmqFrames(link._socket.underlying, library.functions, LARGE)
    for number in range(20):
        client.send(server.address, [b"%d" % number])
    came: list[list[bytes]] = []
    while len(came) < 20:
        came += taken(server)
    assert came == [[b"%d" % number] for number in range(20)]
    server.close()
    client.close()


@pytest.mark.parametrize(
    ("fails", "sent", "place"),
    [
        ({}, ["a", "b", "c", "d"], 4),
        ({2: errno.EAGAIN, 4: errno.EHOSTUNREACH}, ["a", "c"], 4),  # as if sent, and lost
        ({3: errno.EINTR}, ["a", "b", "c", "d"], 4),
        ({2: errno.ENOTSOCK}, ["a"], 1),
    ],
    ids=["all well", "no room and nobody there", "interrupted", "an error"],
)
def test_all_are_sent_up_to_an_error_and_who_has_no_room_is_passed(
    fails: dict[int, int], sent: list[str], place: int
) -> None:
    """A message fails by its first frame, which says to whom it goes: ``fails`` has the places of those."""
    began: list[bytes] = []
    calls = iter(range(1, 1 << 30))
    shape = ctypes.CFUNCTYPE(*SHAPES["zmq_send"], use_errno=True)

    def send(_socket: Any, data: int, size: int, flags: int) -> int:
        ends = not flags & zmq.SNDMORE
        number = 0 if ends else fails.pop(next(calls), 0)
        if number:
            ctypes.set_errno(number)
            return -1
        if ends:
            began.append(ctypes.string_at(data, size))
        return size

    library, kept = Library(), shape(send)
    library.functions[FUNCTIONS.index("zmq_send")] = int(ctypes.cast(kept, ctypes.c_void_p).value or 0)
    frames, silent = ZmqFrames(0, library.functions, LARGE), set[str]()
    messages = [(name, [name.encode()]) for name in "abcd"]
    ids = {name: b"to " + name.encode() for name in "abcd"}
    assert frames.send_all(messages, 0, ids, silent) == place
    assert began == [name.encode() for name in sent]
    assert silent == set("abcd"[: place + 1])


def test_a_message_that_is_not_one_small_frame_of_a_known_peer_is_left() -> None:
    library = Library(zmq_send=lambda: errno.EHOSTUNREACH)
    frames = ZmqFrames(0, library.functions, LARGE)
    small, large = [b"x"], [bytes(LARGE)]
    for other in (("a", large), ("a", [b"x", b"y"]), ("a", [memoryview(b"x")]), ("stranger", small)):
        assert frames.send_all([("a", small), other, ("a", small)], 0, {"a": b"id"}, None) == 1
        assert frames.send_all([other], 0, {"a": b"id"}, None) == 0
    assert frames.send_all([("a", small)] * 2, 1, {"a": b"id"}, None) == 2
    assert frames.send_all([(b"id", small), ("no bytes", small)], 0, None, None) == 1


def test_memory_of_a_large_frame_is_given_back_when_nobody_looks_at_it_any_more(
    transport: ZmqTransport,
) -> None:
    closed: list[bool] = []
    library = Library(zmq_msg_close=lambda: bool(closed.append(False)))
    server, client = transport.listen(LOOPBACK), transport.connect()
    server.frames = ZmqFrames(server._socket.underlying, library.functions, LARGE)
    client.send(server.address, [b"small", bytes(LARGE)])
    came: list[Any] = []
    while not came:
        came = come(server, WAIT_S)
    ((_, (_, large)),) = came
    before = len(closed)
    part = large[10:20]
    del came, large
    assert len(closed) == before, "a part of it is looked at"
    del part
    assert len(closed) == before + 1
    server.close()
    client.close()


def test_a_signal_whose_handler_raises_ends_what_is_interrupted_again_and_again() -> None:
    """pause() answers as ZeroMQ's functions do when a signal comes; what goes on for ever is killed."""
    script = """
import ctypes, signal
from cython_ext.zmq_frames import FUNCTIONS, ZmqFrames
from pslib.transport.router import ZMQ_FUNCTIONS

functions, pause = list(ZMQ_FUNCTIONS), ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
for name in ("zmq_msg_recv", "zmq_send"):
    functions[FUNCTIONS.index(name)] = pause
frames = ZmqFrames(0, functions, 100)
came = 3

def handler(*_):
    global came
    came += 1
    if came == 3:  # the third one of a call: none comes between calls, however slow this process is
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
for call in (lambda: frames.receive(1), lambda: frames.send(b"peer", b"frame")):
    try:
        came = 0
        call()
    except KeyboardInterrupt:
        print("ended")
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent.parent, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("ended\nended\n", "")
