"""A launcher that gets SIGTERM: the real `GracefulStop` and `judge`, on simulated processes and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launch.supervisor.graceful_stop import GracefulStop
from launch.supervisor.outcome import Verdict
from launch.supervisor.run_spec import Task
from pslib.errors import EXIT_DONE, PreemptedError, UnavailableError
from tests.simulation.cluster.network import Process
from tests.simulation.cluster.server import Server
from tests.simulation.cluster.trainer import Trainer

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["DRAIN_S", "Leaving", "exit_code_of"]

DRAIN_S = 6.0
"""More than the weather lasts when a process is asked to go late in it."""
LOOK_S = 0.1
KILLED = -9


def exit_code_of(process: Process) -> int | None:
    """Return the exit code of a server or trainer as its launcher sees it; None: it runs."""
    if process.alive:
        return None
    if process.ended not in ("has left", "has not joined yet"):
        return UnavailableError.exit_code if process.ended.startswith("fails") else KILLED
    early = (
        process.early if isinstance(process, Server) else isinstance(process, Trainer) and process.draining
    )
    return PreemptedError.exit_code if early else EXIT_DONE


@dataclass(frozen=True)
class _Running:
    """The part of a `launch.supervisor.process.Running` that `GracefulStop` uses."""

    process: Process

    def leave(self) -> None:
        """SIGTERM, unless it has ended meanwhile."""
        if isinstance(self.process, Trainer) and self.process.alive:
            self.process.drain(DRAIN_S)
        elif isinstance(self.process, Server) and self.process.alive:
            self.process.drain()


class _AllRunning(dict[Task, Any]):
    """The running processes, as the launcher's own mapping gives them."""

    def __init__(self, processes: Callable[[], dict[Task, Process]]) -> None:
        super().__init__()
        self._processes = processes

    def __missing__(self, task: Task) -> _Running:
        return _Running(self._processes()[task])


class Leaving:
    """From SIGTERM to the end of all processes.

    Parameters
    ----------
    world : World

    Attributes
    ----------
    verdict : Verdict or None
        Outcome of the run.
    killed : list of str
        Processes that had not left when it did.
    waited_for : list of str
        Events that the launcher has waited for too long.
    took_s : float
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.verdict: Verdict | None = None
        self.killed: list[str] = []
        self.waited_for: list[str] = []
        self.took_s = 0.0
        self._began_s = world.network.now_s
        self._waits: dict[str, float] = {}
        self._draining = GracefulStop(
            _AllRunning(self.processes), DRAIN_S, self._waited, PreemptedError.exit_code
        )
        self._turn()

    def processes(self) -> dict[Task, Process]:
        """All that have been started, some of them since the launcher was asked to leave."""
        world = self._world
        servers = {Task("server", number): one for number, one in enumerate(world.servers)}
        trainers = {Task("trainer", number): one for number, one in enumerate(world.trainers)}
        return {Task("coordinator", 0): world.coordinator, **servers, **trainers}

    def _exits(self) -> dict[Task, int | None]:
        exits = {task: exit_code_of(process) for task, process in self.processes().items()}
        if self._world.coordinator.session.over:
            exits[Task("coordinator", 0)] = EXIT_DONE
        return exits

    def _waited(self, what: str, limit_s: float) -> bool:
        now_s = self._world.network.now_s
        late = now_s - self._waits.setdefault(what, now_s) > limit_s
        self.waited_for += [what] if late else []
        return late

    def _turn(self) -> None:
        self.verdict = self._draining.turn(self._exits())
        if self.verdict is None:
            self._world.network.after(LOOK_S, self._turn)
            return
        self.took_s = self._world.network.now_s - self._began_s
        members = [*self._world.trainers, *self._world.servers]
        self.killed = [str(member) for member in members if member.alive]
        self._world.lives.ended()
