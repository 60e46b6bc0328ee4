"""Hosts as places to run: the hosts file, and a local command for each remote process.

The file has a line a host::

    # host            what runs there          how
    node-a            servers=1 trainers=2     python=/opt/pslib/bin/python
    me@node-b         trainers=4               dir=/data/job  address=10.0.0.2

``servers`` and ``trainers``: number of processes; a host with neither gets one of each. ``python``:
interpreter that has pslib (default ``python3``). ``dir``: folder to run in (default: the launcher's).
``address``: address for the other hosts (default: the name). ``~/`` at the beginning of ``python`` and
``dir`` is the home on that host. The coordinator runs on the first host.
"""

from __future__ import annotations

import ipaddress
import shlex
import socket
import subprocess
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from launch.places.local import checkout_path, worker_arguments
from launch.supervisor.run_spec import Command, Task
from pslib.errors import ConfigurationError, UnavailableError
from pslib.process.blas import TRAINERS_HERE
from pslib.process.listening import url_host
from pslib.suggestions import unknown_key

LOOK_S = 30.0
"""Time limit of a test on one host: three times ssh's limit to connect."""
ASKED_AT_ONCE = 32
UNSEEN = 3
"""Exit code of a test for a missing path; 1 is also srun's code when it can't run anything."""

PROCESSES_MAX = 4096
"""Limit of processes of one kind on one host; more is a typing error."""

_COUNTS = ("servers", "trainers")
_TEXTS = ("python", "dir", "address")


@dataclass(frozen=True, slots=True)
class Host:
    """One line of a hosts file.

    Attributes
    ----------
    name : str
        Name of the host, ``user@`` included.
    servers, trainers : int
        Number of processes on the host.
    python, dir : str
        Interpreter and folder on the host.
    address : str
        Numeric address at which the other hosts reach it.
    """

    name: str
    servers: int
    trainers: int
    python: str
    dir: str
    address: str


def read_hosts(text: str, source: str, folder: str) -> list[Host]:
    """Read a hosts file.

    Parameters
    ----------
    text : str
        Contents of the file.
    source : str
        Name of the file, for messages.
    folder : str
        Default of ``dir``.

    Raises
    ------
    ConfigurationError
        With all problems, one line each.
    """
    hosts, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        given = dict(word.partition("=")[::2] for word in words[1:])
        wrong = _problems(given, words[1:])
        if not wrong:
            try:
                hosts.append(_host(words[0], given, folder))
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "no host can be named so"
                wrong.append(f"{words[0]}: its address is not known here ({why}); add address=IP")
        problems += [f"{source}:{number}: {problem}" for problem in wrong]
    if not hosts and not problems:
        problems.append(f"{source}: expected at least one host, got none")
    problems = problems or [f"{source}: {problem}" for problem in _together(hosts)]
    if problems:
        raise ConfigurationError(*problems)
    return hosts


def _there(path: str) -> str:
    """Quote a path for a shell on that host; ``~/`` becomes the home of its user."""
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~/") else shlex.quote(path)


def _problems(given: Mapping[str, str], words: Sequence[str]) -> list[str]:
    problems = [f"{word}: expected key=value" for word in words if "=" not in word]
    counts = Counter(word.partition("=")[0] for word in words if "=" in word)
    problems += [f"{key}: expected once, got it {count} times" for key, count in counts.items() if count > 1]
    problems += [
        unknown_key(key, (*_COUNTS, *_TEXTS))
        for key in given
        if f"{key}={given[key]}" in words and key not in (*_COUNTS, *_TEXTS)
    ]
    problems += [
        f"{key}: expected a whole number from 0 to {PROCESSES_MAX}, got {given[key]!r}"
        for key in _COUNTS
        if key in given
        and not (given[key].isascii() and given[key].isdigit() and int(given[key]) <= PROCESSES_MAX)
    ]
    return problems + [f"{key}: expected a text, got none" for key in _TEXTS if given.get(key) == ""]


def _host(name: str, given: Mapping[str, str], folder: str) -> Host:
    default = 0 if any(key in given for key in _COUNTS) else 1
    return Host(
        name=name,
        servers=int(given.get("servers", default)),
        trainers=int(given.get("trainers", default)),
        python=given.get("python", "python3"),
        dir=given.get("dir", folder),
        address=_address_of(given.get("address", name.rpartition("@")[2])),
    )


def _address_of(host: str) -> str:
    """Return the numeric address of a host: one of IPv4, else of IPv6."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def _together(hosts: Sequence[Host]) -> list[str]:
    """Return problems of the hosts as a whole."""
    problems = [
        f"expected at least one of {what}, got none; give a host {what}=1"
        for what in _COUNTS
        if not sum(getattr(host, what) for host in hosts)
    ]
    if len({host.address for host in hosts}) > 1:
        problems += [
            f"{host.name}: the other hosts can't reach its address {host.address}; add address=IP"
            for host in hosts
            if ipaddress.ip_address(host.address).is_loopback
        ]
    return problems


@dataclass(frozen=True)
class HostsLauncher(ABC):
    """Launcher that runs each process on a host by a local command.

    Attributes
    ----------
    hosts : sequence of Host
        Hosts in the order of server and trainer numbers; the coordinator runs on the first.
    insecure_network : bool
        True if processes without keys may listen on addresses that other machines reach.
    port : int
        Port of the coordinator; 0 is any free one.
    options : str
        Options of the command line that select this launcher.
    """

    hosts: Sequence[Host]
    insecure_network: bool = False
    port: int = 0
    options: str = ""

    @abstractmethod
    def over(self, host: Host, script: str) -> Command:
        """Return the local command that runs a /bin/sh script on a host."""

    @abstractmethod
    def try_it(self, name: str) -> str:
        """Return a command that shows the user why a host can't be reached."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a worker on a host."""
        return {}

    @property
    def open_addresses(self) -> list[str]:
        """Addresses of the hosts that other machines reach."""
        return sorted(
            {one.address for one in self.hosts if not ipaddress.ip_address(one.address).is_loopback}
        )

    def count(self, role: str) -> int:
        """Return the number of servers or trainers."""
        return sum(getattr(host, f"{role}s") for host in self.hosts)

    def host_of(self, task: Task) -> Host:
        """Return the host of a task."""
        if task.role == "coordinator":
            return self.hosts[0]
        places = [host for host in self.hosts for _ in range(getattr(host, f"{task.role}s"))]
        return places[task.number]

    def listen(self, task: Task) -> str:
        """Return the address of the task's host."""
        port = self.port if task.role == "coordinator" else 0
        return f"tcp://{url_host(self.host_of(task).address)}:{port}"

    def command(self, task: Task) -> Command:
        """Return the local command of the worker."""
        host = self.host_of(task)
        worker = worker_arguments(task, self.insecure_network)
        variables = {TRAINERS_HERE: str(host.trainers), **self.variables, **checkout_path({})}
        env = shlex.join(["env", *(f"{name}={value}" for name, value in variables.items())])
        words = f"{env} {_there(host.python)} {shlex.join(worker)}"
        # A shell that stays turns a signal into 128 + n; without it ssh exits with 255 for every signal.
        return self.over(host, f"cd {_there(host.dir)} && {words}; exit $?")

    def hold(self, servers: int, trainers: int) -> AbstractContextManager[None]:
        """Return an empty context: hosts are there without being asked."""
        return nullcontext()

    def not_seeing(self, path: str) -> list[str]:
        """Return names of the hosts on which a path does not exist.

        Raises
        ------
        UnavailableError
            When hosts can't be asked; a line for each, with the error of its command.
        """
        hosts = {host.name: host for host in self.hosts}
        look = f"test -e {shlex.quote(path)} || exit {UNSEEN}"
        with ThreadPoolExecutor(min(len(hosts), ASKED_AT_ONCE)) as pool:
            looks = [self.over(host, look) for host in hosts.values()]
            asked = dict(zip(hosts, pool.map(_ask, looks), strict=True))
        if failed := {name: said for name, (_, said) in asked.items() if said}:
            lines = (f"{name}: {said}; try {self.try_it(name)}" for name, said in failed.items())
            raise UnavailableError("\n".join(lines))
        return [name for name, (sees, _) in asked.items() if not sees]


def _ask(command: Command) -> tuple[bool, str]:
    """Run a test on a host; return its result, and the error if it could not run."""
    what = command.arguments[0]
    try:
        done = subprocess.run(
            command.arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOK_S,
            check=False,
            env=dict(command.environment),
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer over {what} in {LOOK_S:.0f} s"
    except OSError as error:
        return False, f"{what} can't be called: {error.strerror}"
    if done.returncode in (0, UNSEEN):
        return done.returncode == 0, ""
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return False, f"{what} ended with exit code {done.returncode}: {said}"
