"""Cluster of Ray: the connection of the launcher, the nodes, and room for the processes of a run on them."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from launch.places.ray_process import RayProcess
from launch.supervisor.run_spec import Task
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, UnavailableError
from pslib.text import counted

OLDEST = (2, 40)
"""Oldest version of Ray with which a job has been trained; the tests run with 2.60."""

CONNECT_S = 20.0
"""Time limit of a connection by another process, which is tried first.

``ray.init`` alone tries for minutes, with lines of its own, where no cluster listens.
"""
GROUPED_S = 5.0
"""Time for room in which trainers stand beside servers, before each process may stand alone."""
ROOM_S = 45.0
"""Time limit for room that other jobs of the cluster hold."""
LOOK_S = 30.0
"""Time limit of a question to all nodes."""
END_S = 5.0
"""Time limit for the threads of ended processes."""

_TRY = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit(" ".join(str(error).split()) or type(error).__name__)
ray.shutdown()
"""
"""Program that connects to a cluster, and prints why it can't."""


@dataclass(frozen=True, slots=True)
class Node:
    """Node of the cluster.

    Attributes
    ----------
    id, address : str
    cpus : int
        CPUs that Ray counts there.
    """

    id: str
    address: str
    cpus: int


def connect(address: str) -> bool:
    """Connect this process to a cluster of Ray; return False if it was connected before.

    Parameters
    ----------
    address : str
        Address of the cluster, ``host:port``; auto: of the environment, or of the cluster on this machine.

    Raises
    ------
    ConfigurationError
        When Ray is not installed, or too old.
    UnavailableError
        When no cluster answers.
    """
    _check_version()
    if "://" in address:
        raise ConfigurationError(f"--address: expected HOST:PORT of a cluster or auto, got {address!r}")
    if _is_connected():
        return False
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else a call after the end would begin a cluster
    trial = subprocess.Popen(
        [sys.executable, "-P", "-c", _TRY, address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        import ray  # meanwhile: it takes as long

        said = trial.communicate(timeout=CONNECT_S)[1].strip()
        if trial.returncode != 0:
            raise ConnectionError(said.splitlines()[-1] if said else "it said nothing")
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = (
            f"no answer in {CONNECT_S:.0f} s to this machine, which must be one of its nodes"
            if late
            else " ".join(str(error).split())
        )
        raise UnavailableError(
            f"--address {address}: no Ray cluster: {why}; try ray status --address {address}"
        ) from error
    finally:
        trial.kill()
        trial.communicate()
    # Ray prints the logs of a lost node to the standard output of the launcher, which is the trainers'.
    ray._private.worker._worker_logs_enabled = False
    return True


def _check_version() -> None:
    oldest = ".".join(map(str, OLDEST))
    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise ConfigurationError(
            f"--on ray: Ray is not installed; `pip install 'ray>={oldest}'` brings it"
        ) from error
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise ConfigurationError(f"--on ray: expected Ray {oldest} or newer, got {found}; upgrade it")


def _is_connected() -> bool:
    """Return whether this process is part of a job of Ray; one that has not imported Ray is none."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def groups_of(servers: int, trainers: int) -> list[list[tuple[str, int]]]:
    """Return the processes that stand together: a server each, and its share of the trainers."""
    groups = [[("server", number)] for number in range(servers)]
    for number in range(trainers):
        groups[number % servers].append(("trainer", number))
    return groups


@dataclass
class RayCluster:
    """Cluster as one launcher sees it.

    Attributes
    ----------
    connected : bool
        True if the launcher has made the connection, and ends it.
    cpus : int
        CPUs of one server or trainer.
    """

    connected: bool
    cpus: int
    _room: Any = None
    _bundles: Mapping[tuple[str, int], int] = field(default_factory=dict)
    _processes: list[RayProcess] = field(default_factory=list)
    _starts: Counter[str] = field(default_factory=Counter)

    def nodes(self) -> list[Node]:
        """Return the nodes that run processes."""
        import ray

        alive = [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU", 0) >= 1]
        return [Node(one["NodeID"], one["NodeManagerAddress"], int(one["Resources"]["CPU"])) for one in alive]

    def own_address(self) -> str:
        """Return the address of this process's node."""
        import ray

        return str(ray.util.get_node_ip_address())

    def open_addresses(self) -> list[str]:
        """Return the addresses of nodes that other machines reach."""
        addresses = {self.own_address(), *(node.address for node in self.nodes())}
        return sorted(one for one in addresses if not ipaddress.ip_address(one).is_loopback)

    def not_seeing(self, path: str) -> list[str]:
        """Return the addresses of nodes on which a path does not exist.

        Raises
        ------
        UnavailableError
            When nodes can't be asked.
        """
        import ray

        from launch.places.ray_actor import sees

        _send_by_value()
        look, nodes = ray.remote(num_cpus=0, max_retries=0)(sees), self.nodes()
        asked = [
            look.options(name="pslib: looks for a folder", scheduling_strategy=_on_node(node.id)).remote(path)
            for node in nodes
        ]
        try:
            seen = ray.get(asked, timeout=LOOK_S)
        except ray.exceptions.RayError as error:
            why = (str(error).splitlines() or [""])[0]
            raise UnavailableError(
                f"a node of Ray can't be asked for {path}: {why}; see ray status"
            ) from error
        return [node.address for node, sees_it in zip(nodes, seen, strict=True) if not sees_it]

    def reserve(self, servers: int, trainers: int) -> None:
        """Reserve room for servers and trainers: a placement group, a bundle for what stands together.

        Ray moves the bundles of a lost node to another one. Servers are spread, trainers stand beside them;
        where no node has room for that, each process stands alone.

        Raises
        ------
        ConfigurationError
            When the cluster has fewer CPUs.
        UnavailableError
            When other jobs hold them.
        """
        nodes, groups = self.nodes(), groups_of(servers, trainers)
        hold = sum(node.cpus // self.cpus for node in nodes)
        if servers + trainers > hold:
            raise ConfigurationError(
                f"Ray has {counted(len(nodes), 'node')} with room for {hold} servers and trainers of "
                f"{counted(self.cpus, 'CPU')} each, got {servers} + {trainers}; give fewer, or fewer --cpus"
            )
        if len(groups[0]) * self.cpus <= max(node.cpus for node in nodes) and self._fits(groups, GROUPED_S):
            return
        alone = [[one] for one in sorted(one for group in groups for one in group)]  # servers first
        if not self._fits(alone, ROOM_S):
            raise UnavailableError(
                f"Ray had no room in {ROOM_S:.0f} s for {servers} + {trainers} processes of "
                f"{counted(self.cpus, 'CPU')} each, since other jobs have it; wait for them, see ray status"
            )

    def _fits(self, groups: Sequence[Sequence[tuple[str, int]]], limit_s: float) -> bool:
        """Reserve a bundle a group; return False when there is no room for them in time."""
        from ray.util.placement_group import placement_group

        clock = SystemClock()
        end_s = clock.now_s() + limit_s
        bundles = [{"CPU": self.cpus * len(group)} for group in groups]
        self._room = placement_group(bundles, strategy="SPREAD", name="pslib")
        self._bundles = {one: index for index, group in enumerate(groups) for one in group}
        while not self._room.wait(1):  # in pieces, between which Ctrl-C is handled
            if clock.now_s() > end_s:
                self._let_room_go()
                return False
        return True

    def release(self) -> None:
        """Give the room back, and end a connection of the launcher's own; all processes have ended."""
        import ray

        for process in self._processes:
            process.thread.join(END_S)
        self._processes.clear()
        self._let_room_go()
        if self.connected:
            ray.shutdown()

    def _let_room_go(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self._room is not None:
            remove_placement_group(self._room)
            self._room = None

    def keep(self, process: RayProcess) -> RayProcess:
        """Remember a started process, for `release`."""
        self._processes.append(process)
        return process

    def make_actor(self, task: Task, run: str) -> Any:
        """Make the actor of a task: in its bundle, or on this node, where a coordinator keeps its address.

        Parameters
        ----------
        task : Task
        run : str
            Name of the run, for Ray's dashboard.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from launch.places.ray_actor import ProcessActor

        _send_by_value()
        title = f"pslib {run} {task.name}"
        self._starts[title] += 1
        again = f" ({self._starts[title]})" if self._starts[title] > 1 else ""
        if task.role == "coordinator":
            where: Any = _on_node(ray.get_runtime_context().get_node_id())
        else:
            where = PlacementGroupSchedulingStrategy(
                self._room, placement_group_bundle_index=self._bundles[task.role, task.number]
            )
        actor = ray.remote(max_restarts=0, concurrency_groups={"output": 1})(ProcessActor)
        cpus = 0 if task.role == "coordinator" else self.cpus
        return actor.options(name=title + again, num_cpus=cpus, scheduling_strategy=where).remote(title)


def _on_node(id_: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=id_, soft=False)


def _send_by_value() -> None:
    """Let Ray send the code of actors to nodes, which need no pslib for it."""
    from ray.cloudpickle import register_pickle_by_value

    from launch.places import ray_actor

    register_pickle_by_value(ray_actor)
