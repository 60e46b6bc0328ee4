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

from cython_ext.zmq_frames import FUNCTIONS, ZmqFrames
from pslib.transport import ZmqTransport
from pslib.transport.zmq_link import _FUNCTIONS
from tests.links import LOOPBACK, WAIT_S, come

SHAPES: dict[str, tuple[Any, ...]] = {
    "zmq_msg_recv": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "zmq_send": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    "zmq_msg_close": (ctypes.c_int, ctypes.c_void_p),
}
LARGE = 1000


class Library:
    """ZeroMQ's functions; before some of them something is asked that says whether they are interrupted."""

    def __init__(self, **before: Callable[[], bool]) -> None:
        assert _FUNCTIONS is not None
        self.functions = list(_FUNCTIONS)
        self._kept = [self._wrapped(name, first) for name, first in before.items()]

    def _wrapped(self, name: str, first: Callable[[], bool]) -> Any:
        place, kind = FUNCTIONS.index(name), ctypes.CFUNCTYPE(*SHAPES[name], use_errno=True)
        real = kind(self.functions[place])

        def called(*arguments: Any) -> int:
            if not first():
                return int(real(*arguments))
            ctypes.set_errno(errno.EINTR)
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
        link._frames = ZmqFrames(link._socket.underlying, library.functions, LARGE)
    for number in range(20):
        client.send(server.address, [b"%d" % number])
    came: list[list[bytes]] = []
    while len(came) < 20:
        came += taken(server)
    assert came == [[b"%d" % number] for number in range(20)]
    server.close()
    client.close()


def test_memory_of_a_large_frame_is_given_back_when_nobody_looks_at_it_any_more(
    transport: ZmqTransport,
) -> None:
    closed: list[bool] = []
    library = Library(zmq_msg_close=lambda: bool(closed.append(False)))
    server, client = transport.listen(LOOPBACK), transport.connect()
    server._frames = ZmqFrames(server._socket.underlying, library.functions, LARGE)
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
from pslib.transport.zmq_link import _FUNCTIONS

functions, pause = list(_FUNCTIONS), ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
for name in ("zmq_msg_recv", "zmq_send"):
    functions[FUNCTIONS.index(name)] = pause
frames = ZmqFrames(0, functions, 100)
ends = iter((False, False, True) * 2)

def handler(*_):
    if next(ends):
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
for call in (lambda: frames.receive(1), lambda: frames.send(b"peer", b"frame")):
    try:
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
