"""System calls that only Linux has, each with a plain fallback, and one that only macOS has.

No other file of the package asks which system it runs on; the same for the kernels is
``cython_ext/common/platform.h``. Fallbacks cost time or comfort, never a result: all cores count as usable,
processes of one machine talk over TCP, a wait for a process polls.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

LINUX = sys.platform == "linux"

PROC = Path("/proc")
"""Folder in which Linux describes processes and control groups; elsewhere nothing is there to be read."""

ABSTRACT_SOCKETS = LINUX
"""True if Unix sockets may have names that are no files, and vanish with their process."""

PORTS_CAN_BE_HELD = LINUX
"""True if one socket may listen at a port to which another one is bound, both with SO_REUSEADDR.

BSD and macOS want SO_REUSEPORT of both for that, which ZeroMQ does not set.
"""

WAKE = (1).to_bytes(8, sys.byteorder)
"""Bytes that end a wait when they are written: an eventfd takes 8, a pipe takes any number."""

WAKES_BYTES = 8 if LINUX else 1 << 16
"""Bytes to read at once: the counter of an eventfd, all that a pipe of macOS holds."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""Command of macOS, whose fsync leaves the bytes in the cache of the disk."""

_NO_FULL_SYNC = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
"""Errors of a file system that does not know it, such as NFS or SMB."""


def usable_cores() -> int:
    """Return the number of cores in the CPU affinity; all of the machine where there is none."""
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1


def processor_text() -> str:
    """Return the description of the processors; empty where the system gives none as text."""
    with suppress(OSError):
        return (PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    return ""


def system_text() -> str:
    """Return name, release and machine of the system."""
    found = os.uname()
    return f"{found.sysname} {found.release} {found.machine}"


def private_bytes(process: psutil.Process) -> int:
    """Return the memory that only this process has; all it has where that is hidden, as macOS does."""
    from psutil import AccessDenied

    try:
        return int(process.memory_full_info().uss)
    except AccessDenied:
        return int(process.memory_info().rss)


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM, in 20 us (2026-11-28)."""
    with suppress(OSError, ValueError, IndexError):
        return int((PROC / "self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    from psutil import Process

    return int(Process().memory_info().rss)


def set_allocator(options: Iterable[tuple[int, int]]) -> bool:
    """Set ``(parameter, value)`` of glibc's mallopt; False where the C library is another one."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    for parameter, value in options:
        library.mallopt(parameter, value)
    return True


def wake_descriptors() -> tuple[int, int]:
    """Return a descriptor to wait for and one to write `WAKE` to; neither blocks.

    Both are one eventfd; where there is none, the ends of a pipe.
    """
    if LINUX:
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return event, event
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def process_descriptor(pid: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; None where the caller must poll."""
    if LINUX:
        with suppress(OSError, AttributeError):  # a kernel before 5.3; Python built on one
            return os.pidfd_open(pid)
    return None


def listening_user(name: str) -> int | None:
    """Return the user whose process listens at an abstract Unix socket; None without one.

    Parameters
    ----------
    name : str
        Its name, without the zero byte.
    """
    if not ABSTRACT_SOCKETS:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as trial:
            trial.connect("\0" + name)
            found = trial.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # no listener, a full queue, or no such sockets allowed
        return None
    _process, user, _group = _CREDENTIALS.unpack(found)
    return int(user)


def sync_file(descriptor: int) -> None:
    """Return once a file, or the names of a folder, survive a power loss.

    Raises
    ------
    OSError
        If the system can't promise it.
    """
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Return once the bytes of a file survive a power loss; its times need not.

    Raises
    ------
    OSError
        If the system can't promise it.
    """
    if LINUX:
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)
