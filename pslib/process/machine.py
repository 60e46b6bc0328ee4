"""What of this machine is for this process: cores and memory, and what its control groups leave of them.

In a container a process sees all cores and all memory of the machine, and gets what the control groups
(cgroups) allow that it is in: of Docker, Kubernetes, Slurm or systemd. A group allows no more than those
above it, so the tightest limit on the way to the root counts; a container sees the way up to its own root.
Where to look is in ``/proc/self/cgroup`` and ``/proc/self/mountinfo``, for cgroup v2, v1, and both at once.
What can't be read is no limit: nothing here fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = [
    "control_groups",
    "cores",
    "cpu_quota",
    "memory_bytes",
    "memory_limit",
    "oom_kills",
    "physical_bytes",
    "quota_words",
]

PROC = Path("/proc")

V2 = ""
"""In place of a controller's name: cgroup v2 has one tree for all of them."""


def cores(proc: Path = PROC) -> int:
    """Cores that this process may keep busy: those it may run on, at most as many as its CPU quota pays for.

    A quota of 1.5 cores is one core. Two threads would use it up after three quarters of each period, and
    then all threads of the group stand still, those that read, answer and send heartbeats among them. What is
    left over by rounding down is for these.
    """
    mine, quota = len(os.sched_getaffinity(0)), cpu_quota(proc)
    return mine if quota is None else max(1, min(mine, int(quota)))


def quota_words(proc: Path = PROC) -> str:
    """In brackets for a line that tells of cores, where a CPU quota is why they are so few; else empty."""
    mine, quota = len(os.sched_getaffinity(0)), cpu_quota(proc)
    return "" if quota is None or quota >= mine else f" (a CPU quota allows {quota:.4g} of {mine} cores)"


def cpu_quota(proc: Path = PROC) -> float | None:
    """The tightest CPU quota on this process, in cores; None where there is none."""
    v2 = (_ratio(_read(group / "cpu.max")) for group in control_groups(V2, proc))
    v1 = (
        _ratio(_read(group / "cpu.cfs_quota_us") + " " + _read(group / "cpu.cfs_period_us"))
        for group in control_groups("cpu", proc)
    )
    return min((quota for quota in (*v2, *v1) if quota is not None), default=None)


def memory_bytes(proc: Path = PROC) -> int:
    """Memory that this process and those beside it may take: the machine's, or less by a limit."""
    return min(physical_bytes(), memory_limit(proc) or physical_bytes())


def physical_bytes() -> int:
    """Memory of the machine, whoever may take it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit(proc: Path = PROC) -> int | None:
    """The tightest memory limit on this process; None where there is none.

    In cgroup v1 no limit is a number as well, 2 ** 63 less a page: larger than any machine.
    """
    v2 = (_number(_read(group / "memory.max")) for group in control_groups(V2, proc))
    v1 = (_number(_read(group / "memory.limit_in_bytes")) for group in control_groups("memory", proc))
    return min((limit for limit in (*v2, *v1) if limit is not None), default=None)


def oom_kills(proc: Path = PROC) -> int:
    """How many processes the kernel has killed so far for want of memory.

    Those of this process's control group, whether its own limit or the machine was the reason, as far as it
    counts them (the root of cgroup v2 does not); else those of the whole machine. Of use is only whether it
    grows.
    """
    groups = [group / "memory.events" for group in control_groups(V2, proc)]
    groups += [group / "memory.oom_control" for group in control_groups("memory", proc)]
    for file in (*groups, proc / "vmstat"):
        if found := re.search(r"^oom_kill (\d+)$", _read(file), re.MULTILINE):
            return _number(found[1]) or 0
    return 0


def control_groups(controller: str, proc: Path = PROC) -> list[Path]:
    """Folders of this process's control group and of all above it that can be seen from here, nearest first.

    Parameters
    ----------
    controller : str
        "cpu", "memory", ... of cgroup v1; `V2` for cgroup v2.
    proc : Path
        Another folder than ``/proc`` only in tests.
    """
    path = _own_path(controller, proc)
    if path is None or ".." in path.parts:  # it has been moved out of what its namespace shows
        return []
    mounts = list(_mounts(controller, proc))
    below = [(point, path.relative_to(root)) for root, point in mounts if path.is_relative_to(root)]
    # Not below: a container that is shown its group as the root, and the machine's name for it all the same.
    below = below or [(point, PurePosixPath()) for _, point in mounts[:1]]
    return [point / folder for point, rest in below for folder in (rest, *rest.parents)]


def _own_path(controller: str, proc: Path) -> PurePosixPath | None:
    """This process's group as the kernel names it, in lines ``4:cpu,cpuacct:/docker/8f3c`` or ``0::/``."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        found = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        if found and controller in found[1].split(","):
            return PurePosixPath(found[2])
    return None


def _mounts(controller: str, proc: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """``(root, point)`` of each mount of a tree of groups: which of its folders is seen where.

    A line is ``36 35 98:0 /root /point rw,noatime master:1 - type source rw,options``.
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
    r"""A path of ``mountinfo``, where a space is ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _read(file: Path) -> str:
    """The text of a file, empty where there is none to be had."""
    try:
        return os.fsdecode(file.read_bytes())
    except (OSError, ValueError):  # the latter of a zero byte in the name
        return ""


def _number(word: str) -> int | None:
    """None for ``max``, ``-1`` and whatever else is no number of something."""
    try:
        return int(word) if word.strip().isdecimal() else None
    except ValueError:  # of more digits than Python reads
        return None


def _ratio(text: str) -> float | None:
    """Cores of ``150000 100000``, microseconds of all cores together in each period of so many.

    No kernel takes a quota of 0, with which nothing would run.
    """
    quota, period = (*map(_number, text.split()), None, None)[:2]
    try:
        return quota / period if quota and period else None
    except OverflowError:  # more cores than a float holds
        return None
