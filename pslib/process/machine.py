"""Cores, memory and open files available to this process, control-group limits included.

In a container a process sees all cores and all memory of the machine, but may only use what its control
groups (cgroups) allow: those of Docker, Kubernetes, Slurm or systemd. A group cannot allow more than its
ancestors, so the tightest limit on the path to the root counts; a container sees the path up to its own root.
The groups are found through ``/proc/self/cgroup`` and ``/proc/self/mountinfo``, for cgroup v2, v1, and both
at once. A value that cannot be read counts as no limit: reading never fails.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pslib.errors import ConfigurationError
from pslib.process.platform import PROC, usable_cores

V2 = ""
"""Controller name for cgroup v2, which has one tree for all controllers."""

FILES_OWN = 96
"""Files open without any peer: 12 to 18 (2026-11-21), plus data and log files."""
FILES_A_PEER = 2
"""Files per peer: one connection, and a second one briefly while it is reopened."""


def cores(proc: Path = PROC) -> int:
    """Return the number of usable cores: the CPU affinity, capped by the CPU quota.

    A quota of 1.5 cores counts as one core. Two threads would exhaust it after three quarters of each period,
    and then all threads of the group stall, including those that read, reply and send heartbeats. The
    fraction that is rounded away is left for these.
    """
    mine, quota = usable_cores(), cpu_quota(proc)
    return mine if quota is None else max(1, min(mine, int(quota)))


def quota_words(proc: Path = PROC) -> str:
    """Return a bracketed note on the CPU quota where it limits the cores; else empty."""
    mine, quota = usable_cores(), cpu_quota(proc)
    return "" if quota is None or quota >= mine else f" (a CPU quota allows {quota:.4g} of {mine} cores)"


def cpu_quota(proc: Path = PROC) -> float | None:
    """Return the tightest CPU quota on this process, in cores; None without one."""
    v2 = (_ratio(_read(group / "cpu.max")) for group in control_groups(V2, proc))
    v1 = (
        _ratio(_read(group / "cpu.cfs_quota_us") + " " + _read(group / "cpu.cfs_period_us"))
        for group in control_groups("cpu", proc)
    )
    return min((quota for quota in (*v2, *v1) if quota is not None), default=None)


def memory_bytes(proc: Path = PROC) -> int:
    """Return the memory for this process and others in its group: the machine's, or the limit."""
    return min(physical_bytes(), memory_limit(proc) or physical_bytes())


def physical_bytes() -> int:
    """Return the machine's physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit(proc: Path = PROC) -> int | None:
    """Return the tightest memory limit on this process; None without one.

    cgroup v1 expresses "no limit" as a number, 2 ** 63 less a page: larger than any machine.
    """
    v2 = (_number(_read(group / "memory.max")) for group in control_groups(V2, proc))
    v1 = (_number(_read(group / "memory.limit_in_bytes")) for group in control_groups("memory", proc))
    return min((limit for limit in (*v2, *v1) if limit is not None), default=None)


def oom_kills(proc: Path = PROC) -> int:
    """Return the number of processes that the kernel has killed so far for lack of memory.

    Counts the kills in this process's control group, caused by its own limit or by the machine, as far as the
    group counts them (the root of cgroup v2 does not); else those of the whole machine. Only growth of the
    number is meaningful.
    """
    groups = [group / "memory.events" for group in control_groups(V2, proc)]
    groups += [group / "memory.oom_control" for group in control_groups("memory", proc)]
    for file in (*groups, proc / "vmstat"):
        if found := re.search(r"^oom_kill (\d+)$", _read(file), re.MULTILINE):
            return _number(found[1]) or 0
    return 0


def process_began_s() -> float:
    """Return the Unix time at which this process began, to a second."""
    import psutil

    return float(psutil.Process().create_time())


def files_for(peers: int) -> int:
    """Return the number of open files that a process needs for this many peers."""
    return FILES_OWN + FILES_A_PEER * peers


def allow_peers(peers: int) -> None:
    """Ensure that this process may connect to this many peers; raise its limit where possible.

    Parameters
    ----------
    peers : int
        Number of processes to connect with.

    Raises
    ------
    ConfigurationError
        If the system does not allow that many open files; beyond its limit, ZeroMQ aborts the process.
    """
    needed = files_for(peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigurationError(
            f"open files: {peers} peers need {needed}, and the limit is {hard}; raise it (ulimit -n "
            f"{needed}, or nofile in limits.conf)"
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except ValueError as error:  # macOS: a limit of the system below a hard limit without end
        raise ConfigurationError(
            f"open files: {peers} peers need {needed}, and the system allows fewer; raise its limit "
            "(macOS: sysctl kern.maxfilesperproc)"
        ) from error


def control_groups(controller: str, proc: Path = PROC) -> list[Path]:
    """Return the folders of this process's control group and its visible ancestors, nearest first.

    Parameters
    ----------
    controller : str
        A cgroup v1 controller ("cpu", "memory", ...), or `V2` for cgroup v2.
    proc : Path
        Other than ``/proc`` only in tests.
    """
    path = _own_path(controller, proc)
    if path is None or ".." in path.parts:  # the group was moved outside its namespace
        return []
    mounts = list(_mounts(controller, proc))
    below = [(point, path.relative_to(root)) for root, point in mounts if path.is_relative_to(root)]
    # Not below the mount: a container sees its group as root, but the path has the machine's name for it.
    below = below or [(point, PurePosixPath()) for _, point in mounts[:1]]
    return [point / folder for point, rest in below for folder in (rest, *rest.parents)]


def _own_path(controller: str, proc: Path) -> PurePosixPath | None:
    """Parse this process's group from lines such as ``4:cpu,cpuacct:/docker/8f3c`` or ``0::/``."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        found = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        if found and controller in found[1].split(","):
            return PurePosixPath(found[2])
    return None


def _mounts(controller: str, proc: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield ``(root, point)`` of each cgroup mount: the folder of the tree and its mount point.

    Line format: ``36 35 98:0 /root /point rw,noatime master:1 - type source rw,options``.
    """
    for line in _read(proc / "self" / "mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words, (kind, _, options) = left.split(" "), (*right.split(" "), "", "", "")[:3]
        wanted = kind == "cgroup" and controller in options.split(",")
        if controller == V2:
            wanted = kind == "cgroup2"
        if wanted and len(words) > 4:
            yield PurePosixPath(_unescaped(words[3])), Path(_unescaped(words[4]))


def _unescaped(word: str) -> str:
    r"""Decode a path of ``mountinfo``, where a space is ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _read(file: Path) -> str:
    """Read a file; return an empty string if it is unreadable."""
    try:
        return os.fsdecode(file.read_bytes())
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return ""


def _number(word: str) -> int | None:
    """Parse a number; None for ``max``, ``-1`` and anything else that is not a whole number."""
    try:
        return int(word) if word.strip().isdecimal() else None
    except ValueError:  # more digits than Python parses
        return None


def _ratio(text: str) -> float | None:
    """Return the cores of ``150000 100000``: CPU microseconds per period, and the period.

    The kernel rejects a quota of 0, under which nothing would run.
    """
    quota, period = (*map(_number, text.split()), None, None)[:2]
    try:
        return quota / period if quota and period else None
    except OverflowError:  # more cores than a float holds
        return None
