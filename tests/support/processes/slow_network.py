"""A TCP proxy that lets answers through slowly, and a transport of which some addresses lead through it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from pslib.transport import ZmqTransport

PIECE_BYTES = 16 << 10


class SlowProxy:
    """Listens on the loopback address; what a server answers passes at so many bytes a second.

    ``rate`` may be changed while it runs.
    """

    def __init__(self, target: str, bytes_per_s: float) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = host, int(port)
        self.rate = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
            self._sockets += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, slowly: bool) -> None:
        try:
            while data := source.recv(PIECE_BYTES):
                if slowly:
                    time.sleep(len(data) / self.rate)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            one.close()


class _Link:
    """A client's link whose peers' addresses are others on the wire."""

    def __init__(self, link: Any, ways: dict[str, str]) -> None:
        self._link, self._ways = link, ways
        self._back = {way: address for address, way in ways.items()}

    def send_all(self, messages: Sequence[tuple[str, Sequence[Any]]]) -> None:
        self._link.send_all([(self._ways.get(peer, peer), frames) for peer, frames in messages])

    def receive(self) -> list[tuple[str, list[Any]]]:
        return [(self._back.get(peer, peer), frames) for peer, frames in self._link.receive()]

    def refusals(self) -> list[tuple[str, str]]:
        return [(self._back.get(peer, peer), why) for peer, why in self._link.refusals()]

    def forget(self, peer: str) -> None:
        self._link.forget(self._ways.get(peer, peer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


class DetouredTransport(ZmqTransport):
    """ZeroMQ, but some addresses are reached by another way: ``{server: proxy}``."""

    def __init__(self, ways: dict[str, str]) -> None:
        super().__init__()
        self._ways = ways

    def connect(self) -> Any:
        return _Link(super().connect(), self._ways)
