"""Values of a run: tasks, their commands, identity, plan and outcome; the protocol of a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from pslib.config import ClusterConfig

if TYPE_CHECKING:
    from pslib.transport import Keys


THIS_MACHINE = "localhost"
"""Host name of the launcher's own children, whose exits this machine's kernel can explain."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process of a cluster, independent of its place.

    Attributes
    ----------
    role : str
        "coordinator", "server" or "trainer".
    number : int
        0-based number within its role, in the launcher's order; a server or trainer gets it as ``--rank``.
    arguments : tuple of str
        Arguments after ``python -m launch.worker.main ROLE``.
    """

    role: str
    number: int
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name for the user: ``server 1``."""
        return self.role if self.role == "coordinator" else f"{self.role} {self.number}"


@dataclass(frozen=True, slots=True)
class Command:
    """Local process that represents a worker: the worker itself, or ssh, srun, kubectl.

    It must pass on standard output, end when the worker ends, with its exit code (128 + n for signal n), and
    end the worker when its own standard input closes.

    Attributes
    ----------
    arguments : tuple of str
        Command line.
    environment : mapping
        Whole environment of the command.
    where : str
        The machine, for people.
    remarks : str
        Prefix of lines of the command itself, not of the worker. They go into the log, and are shown if the
        worker has printed nothing. Empty: no such lines.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    where: str
    remarks: str = ""

    def start(self) -> Process:
        """Start it; a place whose workers have no local process replaces this method.

        Raises
        ------
        OSError
            When it can't be started.
        """
        return LocalProcess(self)


class Input(Protocol):
    """Standard input of a started worker; none of its methods may block."""

    def write(self, data: bytes, /) -> object:
        """Send bytes to the worker."""
        ...

    def flush(self) -> object:
        """Send them now."""
        ...

    def close(self) -> object:
        """Close the worker's standard input, which ends it."""
        ...


class Process(Protocol):
    """Local end of a started worker."""

    @property
    def stdin(self) -> Input | None:
        """Its standard input."""
        ...

    @property
    def stdout(self) -> IO[bytes] | None:
        """Its output, with its errors; ends when it ends."""
        ...

    @property
    def where(self) -> str:
        """The machine, for people."""
        ...

    def poll(self) -> int | None:
        """Return the exit code; None while it runs, -n if killed by signal n."""
        ...

    def kill(self) -> None:
        """Kill it at once, with its child processes as far as they are on this machine."""
        ...


class LocalProcess(subprocess.Popen[bytes]):
    """Process of a command, which leads its own group.

    So Ctrl-C of a terminal reaches only the launcher, which then ends all processes in order.
    """

    def __init__(self, command: Command) -> None:
        super().__init__(
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(command.environment),
            start_new_session=True,
        )
        self.where = command.where

    def kill(self) -> None:
        """Kill the group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


GENERATIONS = 1 << 16
"""Generations per launch, so that every process of the next launch is newer than all restarts of this one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the processes of a launch.

    Attributes
    ----------
    cluster_id : str
    launch : int
        Number of earlier launches of this cluster.
    log : str or None
        Folder of the logs of the previous launch.
    """

    cluster_id: str
    launch: int = 0
    log: str | None = None

    @property
    def generation(self) -> int:
        """First generation of all its processes."""
        return self.launch * GENERATIONS


class Launcher(Protocol):
    """Place to run processes."""

    def command(self, task: Task) -> Command:
        """Return the command that starts a task there; see `Command` for its obligations."""
        ...

    def listen(self, task: Task) -> str:
        """Return the listen address of a coordinator or server task; port 0 is any free one."""
        ...

    def hold(self, servers: int, trainers: int) -> AbstractContextManager[None]:
        """Hold the room for a run of so many processes, in the context."""
        ...


@dataclass(frozen=True, slots=True)
class MetricsPlan:
    """Metrics of a run's processes.

    Attributes
    ----------
    port : int
        Port of the coordinator's metrics; 0 is any free one, as of all other processes.
    targets : Path
        File for Prometheus with their addresses.
    """

    port: int
    targets: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """Description of a run.

    Attributes
    ----------
    config : ClusterConfig
    cluster_id : str
        Id shared by all processes of this cluster only.
    trainer_arguments : tuple of str
        Arguments of each trainer: ``--job FILE``, or a script and its arguments.
    logs : Path
        Folder of one output log per process; must exist.
    echo : bool
        True to show the trainers' output.
    keys : mapping of str to Keys, or None
        Encryption keys by role; each process gets its own, the coordinator a server's.
    log : str or None
        Folder of the update logs and the coordinator's journal, on the machines of these processes.
    launch : Identity or None
        Identity in a resumed run; None: a new run.
    saves : bool
        True to save when the launcher is asked to leave.
    metrics : MetricsPlan or None
        None: no process serves metrics.
    """

    config: ClusterConfig
    cluster_id: str
    trainer_arguments: tuple[str, ...]
    logs: Path
    echo: bool = False
    keys: Mapping[str, Keys] | None = field(default=None, repr=False)
    log: str | None = None
    launch: Identity | None = None
    saves: bool = False
    metrics: MetricsPlan | None = None

    def key_of(self, role: str) -> Keys | None:
        """Return the key of a coordinator, server or trainer, or of the launcher itself ("admin")."""
        return None if self.keys is None else self.keys["server" if role == "coordinator" else role]


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a run, with its results; `launch.supervisor.outcome.Verdict` has its exit code only.

    Attributes
    ----------
    exit_code : int
        0 or the code of an error: see `pslib.errors`.
    results : list of dict
        Results reported by trainers, in order of arrival.
    status : dict
        Last status of the coordinator; empty when there was none.
    reason : str or None
        Cause of a failure in one line.
    final : bool
        True if a restart would fail again.
    """

    exit_code: int
    results: list[dict[str, Any]] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    final: bool = False
