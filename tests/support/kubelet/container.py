"""One run of a pod's container: its namespaces, its root, its user, its memory; signals and its end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.kubelet.image import SYSTEM, Image
from tests.support.waiting import WAIT_S, wait_until

DEVICES = ("null", "zero", "full", "random", "urandom")
SHARED_MEMORY = "64m"
"""Size of /dev/shm: that of container runtimes."""
RUNTIME = ("ld.so.cache", "nsswitch.conf")
"""Files of /etc that programs of the system need."""
OUT_OF_MEMORY = 137


@dataclass(frozen=True, slots=True)
class Mount:
    """Folder that a container sees at a path."""

    source: Path
    path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Start of a container: image, command, mounts and limits.

    Attributes
    ----------
    argv : sequence of str
    environment : mapping of str to str
    image : Image
    mounts : sequence of Mount
    host_name : str
    network : str
        Name of its network namespace.
    etc : mapping of str to str
        Text of files of /etc.
    user, group : int
        The group is a further one, beside 0.
    memory_bytes : int or None
    read_only_root : bool
    root : Path
        Empty folder, over which the root is mounted.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    image: Image
    mounts: Sequence[Mount]
    host_name: str
    network: str
    etc: Mapping[str, str]
    user: int
    group: int
    memory_bytes: int | None
    read_only_root: bool
    root: Path


def setup_of(spec: ContainerSpec, memory_group: Path | None) -> str:
    """Return the shell script that makes the root of a container and runs its command, ``"$@"``, there."""
    root = spec.root
    lines = [] if memory_group is None else [f"echo 0 >{memory_group}/cgroup.procs"]
    lines += ["umask 022", f"hostname {spec.host_name}", f"mount -t tmpfs -o mode=755,size=4m root {root}"]
    links = [Path(name) for name in SYSTEM if Path(name).is_symlink()]
    lines += [f"ln -s {os.readlink(link)} {root}{link}" for link in links]
    folders = [Path(name) for name in SYSTEM if Path(name).is_dir() and not Path(name).is_symlink()]
    for folder in (*folders, *spec.image.folders):
        lines += _bound(Mount(folder, str(folder), True), root)
    lines += [f"mkdir {root}/etc {root}/dev {root}/proc {root}/sys", f"mount -t proc proc {root}/proc"]
    lines += [f"cp /etc/{name} {root}/etc/{name}" for name in RUNTIME if Path("/etc", name).exists()]
    lines += [f"printf %s {shlex.quote(text)} >{root}/etc/{name}" for name, text in spec.etc.items()]
    lines.append(f"mount --rbind /sys {root}/sys")
    for name in DEVICES:
        lines += [f": >{root}/dev/{name}", f"mount --bind /dev/{name} {root}/dev/{name}"]
    lines.append(f"mkdir {root}/dev/shm; mount -t tmpfs -o mode=1777,size={SHARED_MEMORY} shm {root}/dev/shm")
    for mount in spec.mounts:
        lines += _bound(mount, root)
    for folder in spec.image.folders:  # one that a volume hides, as /tmp does a checkout below it
        if any(folder.is_relative_to(mount.path) for mount in spec.mounts):
            lines += _bound(Mount(folder, str(folder), True), root)
    if spec.read_only_root:
        lines.append(f"mount -o remount,ro {root}")
    lines.append(f'exec chroot {root} "$@"')
    return "\n".join(lines)


def _bound(mount: Mount, root: Path) -> Iterable[str]:
    """Yield the lines that mount a folder below a root."""
    place = shlex.quote(f"{root}{mount.path}")
    yield f"mkdir -p {place}"
    yield f"mount --bind {shlex.quote(str(mount.source))} {place}"
    if mount.read_only:
        yield f"mount -o remount,bind,ro {place}"


def as_user(spec: ContainerSpec, argv: Sequence[str]) -> list[str]:
    """Return a command as the container's user, without capabilities, with its environment only."""
    return [
        "setpriv", f"--reuid={spec.user}", "--regid=0", f"--groups={spec.group}", "--inh-caps=-all",
        "--bounding-set=-all", "--no-new-privs", "--pdeathsig=KILL", "env", "-i",
        *(f"{name}={value}" for name, value in spec.environment.items()), *argv,
    ]  # fmt: skip


@dataclass(slots=True)
class Container:
    """Running container.

    Parameters
    ----------
    spec : ContainerSpec
    log : Path
        File to which its output is appended.
    """

    spec: ContainerSpec
    log: Path
    exit_code: int | None = None
    out_of_memory: bool = False
    kill_at_s: float | None = None
    """Time of SIGKILL, once it was asked to leave."""
    _group: Path | None = field(init=False)
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Start it."""
        spec = self.spec
        self._group = memory_group(f"{spec.network}-{os.getpid()}", spec.memory_bytes)
        # The outer shell dies with the thread that has started it, the program (`as_user`) with the shell.
        # It forks the program's process: unshare --fork has exit code 1 after a SIGKILL (util-linux 2.38).
        command = [
            "setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{spec.network}",
            "unshare", "--mount", "--uts", "--ipc", "--pid", "--propagation=private",
            "sh", "-c", 'sh -ec "$@"; exit $?', "outer", setup_of(spec, self._group), "container",
            *as_user(spec, spec.argv),
        ]  # fmt: skip
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def poll(self) -> bool:
        """Return whether it runs; note its exit code when it has ended."""
        if self.exit_code is None and (code := self._process.poll()) is not None:
            self.exit_code = code if code >= 0 else 128 - code
            self.out_of_memory = self.exit_code == OUT_OF_MEMORY and passed_limit(self._group)
            if self._group is not None:
                wait_until(lambda: _removed(self._group), WAIT_S, "all processes of a container to end")
        return self.exit_code is None

    def pid(self) -> int | None:
        """Return the id of its first process, None before and after its time."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                return int(child.pid)
        return None

    def has_begun(self) -> bool:
        """Return whether its own program runs, and no longer the making of its root."""
        pid = self.pid()
        with suppress(psutil.NoSuchProcess):
            return pid is not None and psutil.Process(pid).uids().real == self.spec.user
        return False

    def signal(self, number: int) -> None:
        """Send a signal to its first process, if there is one."""
        with suppress(ProcessLookupError):
            if (pid := self.pid()) is not None:
                os.kill(pid, number)
            elif number == signal.SIGKILL:
                os.killpg(self._process.pid, number)

    def ask_to_leave(self, kill_at_s: float) -> None:
        """Send SIGTERM, once; SIGKILL is due at a time, or sooner if that was said before."""
        if self.kill_at_s is None:
            self.signal(signal.SIGTERM)
        self.kill_at_s = min(kill_at_s, kill_at_s if self.kill_at_s is None else self.kill_at_s)

    def kill_if_due(self, now_s: float) -> None:
        """Send SIGKILL if its grace period is over."""
        if self.kill_at_s is not None and now_s >= self.kill_at_s:
            self.signal(signal.SIGKILL)

    def run(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as ``kubectl exec`` does."""
        enter = ["nsenter", f"--target={self.pid()}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        command = [*enter, "--root", "--wd=/", *as_user(self.spec, argv)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def end(self) -> None:
        """Kill it, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.poll()


# --- memory -----------------------------------------------------------------------------------------------

LIMIT = ("memory.limit_in_bytes", "memory.max")
EVENTS = ("memory.oom_control", "memory.events")


def memory_group(name: str, limit_bytes: int | None) -> Path | None:
    """Make a control group (v1 or v2) below this process's; None without a limit, or where that fails."""
    if limit_bytes is None:
        return None
    group = _own_group() / name
    try:
        group.mkdir(exist_ok=True)
        file = next(group / one for one in LIMIT if (group / one).exists())
        file.write_text(str(limit_bytes))
    except (OSError, StopIteration) as error:
        print(f"kubelet: no memory limits, since no control group can be made: {error or group}")
        return None
    return group


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # the last process is still ending
        return not group.exists()
    return True


def _own_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory", path.lstrip("/"))
    return Path("/sys/fs/cgroup", path.lstrip("/"))  # the last line is that of v2


def passed_limit(group: Path | None) -> bool:
    """Return whether the kernel has ended a process of a group that wanted more memory."""
    if group is None:
        return False
    text = next(((group / one).read_text() for one in EVENTS if (group / one).exists()), "")
    return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in text.splitlines())
