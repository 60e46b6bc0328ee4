"""Actor of Ray that runs one worker as a child process on its node, and does nothing else.

Ray gets this module's contents by value (`launch.places.ray_cluster.connect`). It needs the standard library
and Ray only, so that a node whose Python lacks pslib is reported by the worker that can't start there.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

LOOK_S = 0.1
"""Interval at which the end of the process is looked for while it prints nothing."""
CHUNK_BYTES = 1 << 16
"""Most output of one answer; Ray sends up to 100 KiB without its object store."""


class ProcessActor:
    """Actor with one child process.

    Reading runs in the concurrency group ``output``, all else in order in the default one.

    Parameters
    ----------
    title : str
        Name of the worker in Ray's dashboard.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return self._title

    def node(self) -> tuple[str, str]:
        """Return id and address of the node."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], folder: str) -> str:
        """Start this node's Python with arguments; return why it can't be started, else an empty text.

        Parameters
        ----------
        arguments : sequence of str
        variables : mapping
            Environment variables beside those of the actor; a PYTHONPATH comes before the actor's.
        folder : str
            Folder to run in.
        """
        path = [one["PYTHONPATH"] for one in (variables, os.environ) if one.get("PYTHONPATH")]
        own = {"PYTHONPATH": os.pathsep.join(path)} if path else {}
        try:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, **own},
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return ""

    def read(self) -> tuple[bytes, int | None]:
        """Return the next output and, after the last, the exit code (128 + n for signal n)."""
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while True:
            ended = self._process.poll() is not None
            ready, _, _ = select.select([output], [], [], 0 if ended else LOOK_S)
            data = os.read(output, CHUNK_BYTES) if ready else b""
            if data:
                return data, None
            if ended or ready:
                code = self._process.wait()
                self._process.stdout.close()
                return b"", code if code >= 0 else 128 - code

    def write(self, data: bytes) -> None:
        """Write to the standard input of the process."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, or its input is closed
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def close(self) -> None:
        """Close the standard input of the process, which ends it."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


def sees(path: str) -> bool:
    """Return whether a path exists on this node."""
    return os.path.exists(path)
