"""A real S3 server as a process of its own (moto's), and a proxy before it that breaks at a chosen byte."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyarrow import fs

BUCKET = "bucket"
START_S = 60.0


class S3Server:
    """A running S3 server: its port, and URIs and file systems that reach it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def uri(self, path: str, port: int | None = None) -> str:
        """The URI of a path in the bucket, with keys and settings as a user writes them."""
        endpoint = f"endpoint_override=127.0.0.1:{port or self.port}&scheme=http&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{path}?{endpoint}"

    @property
    def filesystem(self) -> fs.S3FileSystem:
        """To look at the store from aside."""
        return fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def names(self, path: str) -> list[str]:
        """Names of all objects below a path of the bucket."""
        found = self.filesystem.get_file_info(
            fs.FileSelector(f"{BUCKET}/{path}", allow_not_found=True, recursive=True)
        )
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run the server for the body; skip the test where moto is not installed."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip(
            "moto, an S3 server, is no dependency of pslib and is not here; make test and CI install it. "
            "test_dataset, test_checkpoint_start, test_cuts and test_checkpoint_tools do the same in folders"
        )
    log = folder / "s3.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        server = S3Server(_port_in(log, process))
        server.filesystem.create_dir(BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()


def _port_in(log: Path, process: subprocess.Popen[bytes]) -> int:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no S3 server after {START_S:g} s: {log.read_text()}")


class BreakingProxy:
    """Passes bytes on to a port until so many have gone to the server; then all connections end."""

    def __init__(self, port: int, bytes_until_broken: int) -> None:
        self._target, self.left = port, bytes_until_broken
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def broken(self) -> bool:
        return self.left <= 0

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.left -= len(data) if counted else 0
                if self.broken:
                    self.close()
                    return
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.close()

    def close(self) -> None:
        """Break now."""
        self.left = 0
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                one.close()
