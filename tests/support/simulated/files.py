"""A disk that loses what was not synced, tears what was being written, gets full and is slow. Seeded.

`SimulatedDisk.files` gives what `pslib.update_log.DiskFiles` promises, for one folder and one process. When
that process is killed (`SimulatedDisk.kill`) its locks are free, and the bytes that it has written stay. When
the power is lost (`lose_power`) every file falls back to what was synced and a random part of what was not.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

from pslib.update_log import DiskFiles

BLOCK = 512


class KilledError(Exception):
    """A process that has been killed goes on using its files: a fault of the test."""


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    named: bool = False  # whether its name is safe


class SimulatedDisk:
    """All folders of one machine.

    Parameters
    ----------
    seed : int
    space : int or None
        Bytes that it has room for; None: for all.
    """

    def __init__(self, seed: int = 0, space: int | None = None) -> None:
        self.random = random.Random(seed)
        self.space = space
        self.folders: dict[str, dict[str, _File]] = {}
        self.removed: dict[str, dict[str, _File]] = {}
        self.locks: dict[tuple[str, str], SimulatedFiles] = {}
        self.fail_next: str | None = None
        """Name of a method whose next call ends with an I/O error."""
        self.tear_next: int | None = None
        """The next append writes so many bytes, then the process counts as killed."""
        self.synced_calls = 0

    def files(self, folder: str) -> SimulatedFiles:
        """Files of one folder, for one process."""
        return SimulatedFiles(self, folder)

    @property
    def used(self) -> int:
        return sum(len(one.content) for files in self.folders.values() for one in files.values())

    def kill(self, *owners: SimulatedFiles) -> None:
        """kill -9: nothing that was written is lost, locks are free."""
        for owner in owners:
            owner.dead = True
        self.locks = {lock: owner for lock, owner in self.locks.items() if not owner.dead}

    def lose_power(self) -> None:
        """All processes end; of what was not synced a random part is left."""
        self.kill(*self.locks.values())
        for folder, files in self.folders.items():
            for name, one in list(files.items()):
                if not one.named and self.random.random() < 0.5:
                    del files[name]
                else:
                    one.content = bytearray(self._left(one))
                    one.safe, one.named = bytes(one.content), True
            for name, one in self.removed.pop(folder, {}).items():
                if self.random.random() < 0.5:
                    files.setdefault(name, one)

    def _left(self, one: _File) -> bytes:
        """Return the synced bytes and a part of the later ones, some blocks of which may be zeros."""
        if not bytes(one.content).startswith(one.safe):
            return self.random.choice([one.safe, bytes(one.content)])
        tail = bytearray(one.content[len(one.safe) :])
        del tail[self.random.randint(0, len(tail)) :]
        for start in range(0, len(tail), BLOCK):
            if self.random.random() < 0.2:
                tail[start : start + BLOCK] = bytes(len(tail[start : start + BLOCK]))
        return one.safe + bytes(tail)


class SimulatedFiles(DiskFiles):
    """`DiskFiles` of one folder of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, folder: str) -> None:
        self._disk, self._folder, self.dead = disk, folder, False
        disk.folders.setdefault(folder, {})

    def _files(self, call: str) -> dict[str, _File]:
        if self.dead:
            raise KilledError(f"{call} after the process has been killed")
        if self._disk.fail_next == call:
            self._disk.fail_next = None
            raise OSError(errno.EIO, "Input/output error")
        return self._disk.folders[self._folder]

    def list(self) -> list[str]:
        return sorted(self._files("list"))

    def size(self, name: str) -> int:
        return len(self._files("size")[name].content)

    def read(self, name: str, start: int, size: int) -> bytes:
        return bytes(self._files("read")[name].content[start : start + size])

    def append(self, name: str, pieces: object) -> None:
        one = self._files("append").setdefault(name, _File())
        data = b"".join(bytes(piece) for piece in pieces)  # type: ignore[attr-defined]
        if self._disk.tear_next is not None:
            data, self._disk.tear_next, self.dead = data[: self._disk.tear_next], None, True
        space = len(data) if self._disk.space is None else max(0, self._disk.space - self._disk.used)
        one.content += data[:space]
        if self.dead:
            raise KilledError("killed while it wrote")
        if space < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, name: str) -> None:
        one = self._files("sync")[name]
        one.safe, one.named = bytes(one.content), True
        self._disk.synced_calls += 1

    def close_file(self, name: str) -> None:
        self._files("close_file")

    def cut(self, name: str, size: int) -> None:
        one = self._files("cut")[name]
        del one.content[size:]
        one.safe = bytes(one.content)

    def remove(self, name: str) -> None:
        one = self._files("remove").pop(name)
        if one.named:
            self._disk.removed.setdefault(self._folder, {})[name] = one

    def sync_names(self) -> None:
        for one in self._files("sync_names").values():
            one.named = True
        self._disk.removed.pop(self._folder, None)

    def replace(self, name: str, content: bytes) -> None:
        one = self._files("replace").setdefault(name, _File())
        one.content, one.safe, one.named = bytearray(content), content, True

    def lock(self, name: str) -> bool:
        self._files("lock")
        return self._disk.locks.setdefault((self._folder, name), self) is self

    def close(self) -> None:
        self._files("close")
        self._disk.locks = {lock: owner for lock, owner in self._disk.locks.items() if owner is not self}
