"""Standard output and error of a launcher or of ``pslib role`` as JSON lines."""

from __future__ import annotations

import io
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO

from launch.worker.log_lines import USER, Entry, Origin, log_text, read_lines
from launch.worker.log_records import send_records, stop_records

LINE_CHARS_MAX = 1 << 16
"""Limit of a line: endless output without a line end must not fill the memory."""


class JsonOutput(io.TextIOBase):
    """Stream that writes each line as one of JSON to another stream.

    Lines are read like those of a worker (`read_lines`): ``pslib: `` is for the user, a record has level,
    logger and traceback of its own. Other lines are by pslib itself or by a library.

    Parameters
    ----------
    stream : file
        Where the lines go.
    origin : Origin
        This process.
    """

    def __init__(self, stream: IO[str], origin: Origin) -> None:
        super().__init__()
        self._stream, self.origin = stream, origin
        self._begun = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def fileno(self) -> int:
        """Return the number of the file below, which programs that are called write to."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream below."""
        return str(getattr(self._stream, "encoding", "utf-8"))

    def write(self, text: str, /) -> int:
        """Write each line that is complete."""
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if len(self._begun) > LINE_CHARS_MAX:
                lines, self._begun = [*lines, self._begun], ""
            for line in lines:
                for entry in read_lines(line.rstrip("\r")):
                    self.put(_of_this_process(entry), self.origin)
        return len(text)

    def put(self, entry: Entry, origin: Origin) -> None:
        """Write an entry of any process."""
        with self._lock:
            self._stream.write(log_text(entry, origin, as_json=True))
            self._stream.flush()

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def end(self) -> None:
        """Write a line that was not ended."""
        with self._lock:
            if self._begun:
                self.write("\n")


def _of_this_process(entry: Entry) -> Entry:
    """Return an entry of a line without prefix as one of pslib: a launcher prints no output of others so."""
    return replace(entry, logger="pslib") if entry.logger == "output" and not entry.exception else entry


@contextmanager
def restored_output() -> Iterator[None]:
    """Undo `write_json` at the end of a command."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        if isinstance(sys.stderr, JsonOutput):
            stop_records()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, JsonOutput):
                stream.end()
        sys.stdout, sys.stderr = streams


def write_json() -> None:
    """Write JSON lines to standard output and error from now on, as a launcher until `identify`."""
    if isinstance(sys.stderr, JsonOutput):
        return
    origin = Origin("launcher")
    sys.stdout, sys.stderr = JsonOutput(sys.stdout, origin), JsonOutput(sys.stderr, origin)
    send_records()


def identify(origin: Origin) -> None:
    """Set role, rank and run of this process in its JSON lines, once they are known."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, JsonOutput):
            stream.origin = origin


def show(stream: IO[str], entry: Entry, origin: Origin, text: str) -> None:
    """Write an entry of a process in JSON where the stream is so, else ``text`` in its place."""
    if isinstance(stream, JsonOutput):
        stream.put(entry, origin)
    else:
        stream.write(text)  # as one, which keeps lines of threads apart
        stream.flush()


def show_error(message: str, trace: bool) -> None:
    """Write the error with which a command ends, with its traceback if ``trace``."""
    entry = Entry(message, "error", "pslib", traceback.format_exc() if trace else None, USER)
    origin = sys.stderr.origin if isinstance(sys.stderr, JsonOutput) else Origin("launcher")
    show(sys.stderr, entry, origin, "".join(f"{line}\n" for line in entry.printed))
