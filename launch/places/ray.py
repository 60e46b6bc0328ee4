"""Cluster of Ray as a place to run: an actor a process, which it starts, and relays its input and output.

The launcher is a driver of Ray, so that Ray ends the actors when it ends in any way. Only starts, exits and
lines for the launcher go through Ray; data stays on ZeroMQ. Servers and trainers have room in one placement
group; the coordinator runs on the node of the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.places.local import checkout_path, worker_arguments
from launch.places.options import HostOptions
from launch.places.ray_cluster import RayCluster, connect
from launch.places.ray_process import RayProcess, Start
from launch.supervisor.run_spec import Command, Task
from pslib.errors import ConfigurationError
from pslib.process.blas import TRAINERS_HERE
from pslib.process.listening import url_host

OPTIONS = ("address", "cpus")
"""Options of the command line that this place takes."""

CPUS_MAX = 4096
"""Limit of CPUs of one process; more is a typing error."""

_AT_NODE = "tcp://node.ray.invalid:0"
"""Listen address of a process whose node is not known yet."""


@dataclass(frozen=True)
class RayCommand(Command):
    """Worker in an actor of Ray."""

    task: Task = Task("", 0)
    cluster: RayCluster | None = None

    def start(self) -> RayProcess:
        """Make the actor, which starts the worker once it has a node."""
        cluster, task = self.cluster, self.task
        assert cluster is not None
        run = task.arguments[task.arguments.index("--cluster-id") + 1]
        needed = task.role != "trainer"
        return cluster.keep(RayProcess(lambda: cluster.make_actor(task, run), self._start_on, needed))

    def _start_on(self, node: str, address: str) -> Start:
        """Return the start of the worker on a node."""
        assert self.cluster is not None
        cpus = next((one.cpus for one in self.cluster.nodes() if one.id == node), 1)
        sharing = {TRAINERS_HERE: str(max(1, cpus // self.cluster.cpus))}
        arguments = [f"tcp://{url_host(address)}:0" if word == _AT_NODE else word for word in self.arguments]
        return Start(arguments, {**sharing, **checkout_path({})}, str(Path.cwd()))


@dataclass(frozen=True)
class RayLauncher:
    """Launcher that runs processes in actors of Ray (`launch.places.options.RemoteLauncher`).

    Attributes
    ----------
    cluster : RayCluster
    servers, trainers : int or None
        Numbers of processes; None: not given.
    insecure_network : bool
        True if processes without keys may listen on addresses that other machines reach.
    port : int
        Port of the coordinator; 0 is any free one.
    options : str
        Options of the command line that select this launcher.
    """

    cluster: RayCluster
    servers: int | None
    trainers: int | None
    insecure_network: bool
    port: int
    options: str = ""

    @property
    def open_addresses(self) -> list[str]:
        """Addresses of the nodes that other machines reach."""
        return self.cluster.open_addresses()

    def count(self, role: str) -> int | None:
        """Return the number of servers or trainers; None if it is not given."""
        return self.servers if role == "server" else self.trainers

    @contextmanager
    def hold(self, servers: int, trainers: int) -> Iterator[None]:
        """Hold room for these processes in the context."""
        try:
            self.cluster.reserve(servers, trainers)
            yield
        finally:
            self.cluster.release()

    def not_seeing(self, path: str) -> list[str]:
        """Return addresses of the nodes on which a path does not exist."""
        return self.cluster.not_seeing(path)

    def listen(self, task: Task) -> str:
        """Return the address of the launcher's node for the coordinator; others get that of their node."""
        if task.role != "coordinator":
            return _AT_NODE
        return f"tcp://{url_host(self.cluster.own_address())}:{self.port}"

    def command(self, task: Task) -> Command:
        """Return the command that makes the worker's actor."""
        words = worker_arguments(task, self.insecure_network)
        return RayCommand(words, {}, "Ray", task=task, cluster=self.cluster)


def launcher_of(options: HostOptions) -> RayLauncher:
    """Return the launcher of a cluster of Ray, to which it connects.

    Raises
    ------
    ConfigurationError
        When Ray is not installed or too old, or an option is wrong.
    UnavailableError
        When no cluster answers.
    """
    cpus = 1 if options.cpus is None else options.cpus
    if not 1 <= cpus <= CPUS_MAX:
        raise ConfigurationError(f"--cpus: expected a whole number from 1 to {CPUS_MAX}, got {cpus}")
    connected = connect(options.address or "auto")
    cluster = RayCluster(connected, cpus)
    return RayLauncher(cluster, options.servers, options.trainers, options.insecure_network, options.port)
