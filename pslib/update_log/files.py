"""Files of a log folder, replaced by simulated ones in tests; one owner of a folder at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pslib.clock import AwakeClock, Clock
from pslib.errors import LogCorruptError, LogError, LogFullError, UnavailableError
from pslib.process.platform import sync_data, sync_file

Buffer = bytes | bytearray | memoryview
PIECES_MAX = 512
"""Pieces of one call; the system allows 1,024."""
LOCK, NUMBER = "lock", "generation"
TRY_AGAIN_S = 0.05
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""System errors that end when disk space is freed."""


@contextmanager
def in_words(place: str) -> Iterator[None]:
    """Convert system errors while opening a log folder to pslib errors that name the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise LogFullError(
                f"{place}: no space to begin; nothing was changed: make room on its disk"
            ) from error
        raise LogError(f"{place}: can't be opened: {error.strerror}") from error


class DiskFiles:
    """Files of one folder of a local or shared file system, by name; the folder is created if missing.

    Every method may raise OSError. Appended bytes survive the end of this process; after `sync` they survive
    a power loss.

    Parameters
    ----------
    folder : str or Path
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            _sync_folder(self._folder.parent)
        self._open: dict[str, int] = {}
        self._new: set[str] = set()
        self._locks: list[int] = []

    def list(self) -> list[str]:
        """Names of all files, in order."""
        return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return (self._folder / name).stat().st_size

    def read(self, name: str, start: int, size: int) -> bytes:
        """Bytes of a file from ``start`` on; fewer than ``size`` at its end."""
        descriptor = self._descriptor(name, 0)
        found = os.pread(descriptor, size, start)
        while 0 < len(found) < size and (more := os.pread(descriptor, size - len(found), start + len(found))):
            found += more  # one call returns at most 2 GiB
        return found

    def append(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Append to a file, creating it if missing; an error may leave a part behind."""
        descriptor = self._descriptor(name)
        for start in range(0, len(pieces), PIECES_MAX):
            _write_all(descriptor, [memoryview(piece) for piece in pieces[start : start + PIECES_MAX]])

    def sync(self, name: str) -> None:
        """Return once all appended bytes and the file's name survive a power loss."""
        sync_data(self._descriptor(name))
        if name in self._new:
            _sync_folder(self._folder)
            self._new.discard(name)

    def close_file(self, name: str) -> None:
        """Close a file that is not appended to soon; a later append reopens it."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def cut(self, name: str, size: int) -> None:
        """Truncate a file, durably."""
        descriptor = self._descriptor(name, 0)
        os.ftruncate(descriptor, size)
        sync_file(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file; it may reappear after a power loss, until `sync_names`."""
        self.close_file(name)
        self._new.discard(name)
        (self._folder / name).unlink()

    def sync_names(self) -> None:
        """Return once created and removed names are durable."""
        _sync_folder(self._folder)
        self._new.clear()

    def replace(self, name: str, content: bytes) -> None:
        """Replace a small file atomically and durably: after a crash it is the old one or the new one."""
        beside = self._folder / f"{name}.new"
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        beside.replace(self._folder / name)
        _sync_folder(self._folder)

    def lock(self, name: str) -> bool:
        """Try to take a lock, held until the end of this process or `close`; False: already held."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._locks.append(descriptor)
        return True

    def close(self) -> None:
        """Close all files and release all locks."""
        for name in list(self._open):
            self.close_file(name)
        while self._locks:
            os.close(self._locks.pop())

    def _descriptor(self, name: str, create: int = os.O_CREAT) -> int:
        descriptor = self._open.get(name)
        if descriptor is None:
            path = self._folder / name
            if create and not path.exists():
                self._new.add(name)
            descriptor = os.open(path, os.O_RDWR | create | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._open[name] = descriptor
        return descriptor


def _write_all(descriptor: int, pieces: Sequence[memoryview]) -> None:
    """Write all pieces; one system call may write only a part."""
    left = [piece.cast("B") for piece in pieces if piece.nbytes]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that its names survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


# --- owner of a folder ------------------------------------------------------------------------------------


def claim(files: DiskFiles, clock: Clock, patience_s: float, place: str) -> int:
    """Lock a folder until this process ends; return the number of earlier owners.

    Waits for a predecessor that still holds the lock: a killed process releases it within milliseconds, a
    stopped one holds it until it is ended. The number is durable before this returns.

    Parameters
    ----------
    files : DiskFiles
        The folder; closed on failure.
    clock : Clock
        Clock of the machine.
    patience_s : float
        Longest wait for the predecessor, excluding time in which this process was stopped.
    place : str
        Its name, for messages.

    Raises
    ------
    UnavailableError
        If another process still owns it after ``patience_s``.
    LogCorruptError
        If the number can't be read.
    LogFullError
        If there is no disk space for the next number.
    """
    try:
        with in_words(place):
            return _claimed(files, AwakeClock(clock), patience_s, place)
    except BaseException:
        files.close()  # else the lock would be held as long as this process lives
        raise


def _claimed(files: DiskFiles, clock: Clock, patience_s: float, place: str) -> int:
    end_s = clock.now_s() + patience_s
    while not files.lock(LOCK):
        if clock.now_s() >= end_s:
            raise UnavailableError(
                f"{place}: another process has used this folder for {patience_s:g} s; end it (is it stopped?)"
            )
        clock.sleep_s(TRY_AGAIN_S)
    before = 0
    if NUMBER in files.list():
        text = files.read(NUMBER, 0, 32)
        if not text.strip().isdigit():
            raise LogCorruptError(f"{place}/{NUMBER}: expected a number, got {text!r}")
        before = int(text) + 1
    files.replace(NUMBER, b"%d\n" % before)
    return before
