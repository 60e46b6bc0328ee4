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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.local import checkout_path
from launch.problems import unknown_key
from launch.process import Command, Task
from pslib.blas import TRAINERS_HERE
from pslib.errors import ConfigurationError

__all__ = ["Host", "SshLauncher", "read_hosts", "ssh_launcher"]

SSH_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # never ask for a password: nobody would see the question
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)

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
            except OSError as error:
                wrong.append(f"{words[0]}: its address is not known here ({error.strerror}); add address=IP")
        problems += [f"{source}:{number}: {problem}" for problem in wrong]
    if not hosts and not problems:
        problems.append(f"{source}: expected at least one host, got none")
    problems = problems or [f"{source}: {problem}" for problem in _together(hosts)]
    if problems:
        raise ConfigurationError(*problems)
    return hosts


def _problems(given: Mapping[str, str], words: Sequence[str]) -> list[str]:
    problems = [f"{word}: expected key=value" for word in words if "=" not in word]
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
    """

    hosts: Sequence[Host]
    insecure_network: bool = False
    port: int = 0
    ssh_config: str | None = None

    @property
    def open_addresses(self) -> list[str]:
        """Those of the hosts that other machines reach."""
        return sorted(
            {one.address for one in self.hosts if not ipaddress.ip_address(one.address).is_loopback}
        )

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
        config = () if self.ssh_config is None else ("-F", self.ssh_config)
        arguments = ("ssh", *config, *SSH_OPTIONS, host.name, f"exec /bin/sh -c {shlex.quote(script)}")
        return Command(arguments, dict(os.environ), host.name)


def ssh_launcher(options: argparse.Namespace) -> tuple[SshLauncher, int, int]:
    """The launcher for the arguments of ``pslib launch --on ssh``, and its numbers of servers and trainers.

    Raises
    ------
    ConfigurationError
        When the hosts file is wrong.
    """
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
    launcher = SshLauncher(hosts, options.insecure_network, options.port, options.ssh_config)
    return launcher, sum(host.servers for host in hosts), sum(host.trainers for host in hosts)
