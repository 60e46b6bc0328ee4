"""Hosts over ssh as places to run: one ssh connection a process, which ends with it on either side.

The hosts file has a line a host::

    # host            what runs there          how
    node-a            servers=1 trainers=2     python=/opt/pslib/bin/python
    me@node-b         trainers=4               dir=/data/job  address=10.0.0.2

``servers`` and ``trainers``: how many; a host with neither gets one of each. ``python``: the interpreter that
has pslib (default ``python3``); ``dir``: the folder to run in (default: the same as here); ``address``: where
the other hosts reach it (default: its name). The coordinator runs on the first host.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import shlex
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.local import checkout_path
from launch.problems import unknown_key
from launch.process import Command, Task
from pslib.blas import TRAINERS_HERE
from pslib.errors import ConfigurationError, UnavailableError

__all__ = ["Host", "SshLauncher", "hosts_of", "read_hosts"]

SSH_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # never ask for a password: nobody would see the question
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)

LOOK_S = 30.0
"""For one look at one host: three times what ssh may take to connect."""
ASKED_AT_ONCE = 32

PROCESSES_MAX = 4096
"""Of one kind on one host: more is a typing error."""

_COUNTS = ("servers", "trainers")
_TEXTS = ("python", "dir", "address")


@dataclass(frozen=True, slots=True)
class Host:
    """One line of a hosts file.

    Attributes
    ----------
    name : str
        What ssh is called with, ``user@`` included.
    servers, trainers : int
        How many processes run there.
    python, dir : str
        Interpreter and folder there.
    address : str
        Numeric IPv4 address at which the other hosts reach it.
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
        Its contents.
    source : str
        Its name, for messages.
    folder : str
        Default of ``dir``.

    Raises
    ------
    ConfigurationError
        With all that is wrong, one line each.
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
        address=socket.gethostbyname(given.get("address", name.rpartition("@")[2])),
    )


def _together(hosts: Sequence[Host]) -> list[str]:
    """What is wrong with the hosts as a whole."""
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
class SshLauncher:
    """Runs processes on hosts over ssh.

    Attributes
    ----------
    hosts : sequence of Host
        Servers and trainers are numbered in this order; the coordinator runs on the first.
    insecure_network : bool
        Whether they may listen on addresses that other machines reach without having keys.
    port : int
        Port of the coordinator; 0 is any free one.
    ssh_config : str or None
        Given to ssh as ``-F``.
    options : str
        Those of the command line that ask for it.
    """

    hosts: Sequence[Host]
    insecure_network: bool = False
    port: int = 0
    ssh_config: str | None = None
    options: str = ""

    @property
    def open_addresses(self) -> list[str]:
        """Those of the hosts that other machines reach."""
        return sorted(
            {one.address for one in self.hosts if not ipaddress.ip_address(one.address).is_loopback}
        )

    def count(self, role: str) -> int:
        """How many servers or trainers there are."""
        return sum(getattr(host, f"{role}s") for host in self.hosts)

    def host_of(self, task: Task) -> Host:
        """Where a task runs."""
        if task.role == "coordinator":
            return self.hosts[0]
        places = [host for host in self.hosts for _ in range(getattr(host, f"{task.role}s"))]
        return places[task.number]

    def listen(self, task: Task) -> str:
        """The host's address."""
        return f"tcp://{self.host_of(task).address}:{self.port if task.role == 'coordinator' else 0}"

    def command(self, task: Task) -> Command:
        """The ssh that stands for the worker."""
        host = self.host_of(task)
        flags = ("--insecure-network",) if self.insecure_network and task.role != "trainer" else ()
        worker = (host.python, "-P", "-m", "launch.worker", "--guarded", task.role, *flags, *task.arguments)
        variables = {TRAINERS_HERE: str(host.trainers), **checkout_path({})}
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *worker]
        # A shell that stays turns a signal into 128 + n; without it ssh says 255 for every signal.
        script = f"cd {shlex.quote(host.dir)} && {shlex.join(words)}; exit $?"
        return Command(self._ssh(host, script), dict(os.environ), host.name)

    def _ssh(self, host: Host, script: str) -> tuple[str, ...]:
        config = () if self.ssh_config is None else ("-F", self.ssh_config)
        return ("ssh", *config, *SSH_OPTIONS, host.name, f"exec /bin/sh -c {shlex.quote(script)}")

    def not_seeing(self, path: str) -> list[str]:
        """Names of the hosts on which there is nothing at a path.

        Raises
        ------
        UnavailableError
            With ssh's own words, when hosts can't be asked.
        """
        hosts = {host.name: host for host in self.hosts}
        with ThreadPoolExecutor(min(len(hosts), ASKED_AT_ONCE)) as pool:
            looks = [self._ssh(host, f"test -e {shlex.quote(path)}") for host in hosts.values()]
            asked = dict(zip(hosts, pool.map(_ask, looks), strict=True))
        if failed := [f"{name}: {said}; try ssh {name} true" for name, (_, said) in asked.items() if said]:
            raise UnavailableError(*failed)
        return [name for name, (sees, _) in asked.items() if not sees]


def _ask(command: Sequence[str]) -> tuple[bool, str]:
    """Whether a test on a host says yes, and what is in the way of asking."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LOOK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer over ssh in {LOOK_S:.0f} s"
    if done.returncode in (0, 1):
        return done.returncode == 0, ""
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return False, f"ssh ended with exit code {done.returncode}: {said}"


def hosts_of(options: argparse.Namespace) -> SshLauncher | None:
    """The launcher that these options ask for; None: this machine.

    Raises
    ------
    ConfigurationError
        When the hosts file is wrong, or an option belongs to the other place.
    """
    if options.on != "ssh":
        if options.hosts is not None:
            raise ConfigurationError("--hosts is for --on ssh; leave one of them out")
        return None
    if options.hosts is None:
        raise ConfigurationError("--on ssh needs --hosts FILE: a line a host, HOST [servers=N] [trainers=N]")
    if options.servers is not None or options.trainers is not None:
        raise ConfigurationError(
            "--servers and --trainers stand in the hosts file with --on ssh: servers=N trainers=N"
        )
    try:
        text = Path(options.hosts).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{options.hosts}: the hosts file can't be read: {reason}") from error
    hosts = read_hosts(text, options.hosts, str(Path.cwd()))
    again = ["--on", "ssh", "--hosts", options.hosts]
    again += ["--ssh-config", options.ssh_config] if options.ssh_config else []
    again += ["--insecure-network"] if options.insecure_network else []
    return SshLauncher(
        hosts, options.insecure_network, options.port, options.ssh_config, options=shlex.join(again)
    )
