"""Start of the processes of a run and their successors, each with arguments, key and log."""

from __future__ import annotations

import json
from collections.abc import Callable

from launch.supervisor.process import Running, Task, start
from launch.supervisor.resume import Identity
from launch.supervisor.run_spec import Launcher, Plan
from launch.supervisor.worker_output import WorkerOutput
from launch.worker.key_input import FROM_INPUT
from pslib.errors import ConfigurationError

__all__ = ["Starts"]


class Starts:
    """Starter of coordinator, servers and trainers of one run.

    Parameters
    ----------
    launcher : Launcher
        Place to run.
    plan : Plan
        Description of the run.
    running : dict of Task to Running
        Receives each started process.
    worker_output : WorkerOutput
        Receives output of the processes; has the coordinator's address.
    generation : callable
        Returns the number of restarts of a task.
    say : callable
        Called with a line when a log can't be written after the run has begun; before, it is an error.

    Attributes
    ----------
    launch : Identity
        Identity of the processes.
    """

    def __init__(
        self,
        launcher: Launcher,
        plan: Plan,
        running: dict[Task, Running],
        worker_output: WorkerOutput,
        generation: Callable[[Task], int],
        say: Callable[[str], None],
    ) -> None:
        self.launch = plan.launch or Identity(plan.cluster_id)
        self._launcher, self._plan, self._generation = launcher, plan, generation
        self._running, self._worker_output, self._say = running, worker_output, say
        self._own: dict[tuple[str, int], tuple[str, ...]] = {}
        self._begun = False
        """Whether all processes have been started."""

    def coordinator(self) -> None:
        """Start the coordinator, which reports its address."""
        config, id_ = self._plan.config, ("--cluster-id", self._plan.cluster_id)
        journal = () if self._plan.log is None else ("--journal", f"{self._plan.log}/coordinator")
        again = ("--resume",) if self.launch.launch else ()
        self._start("coordinator", 0, (*id_, "--config", json.dumps(config.to_dict()), *journal, *again))

    def the_others(self) -> None:
        """Start all servers and trainers, after the coordinator listens."""
        for number in range(self._plan.config.servers):
            self.server(number)
        for number in range(self._plan.config.trainers):
            own = ("--rank", str(number), *self._plan.trainer_arguments)
            self._start("trainer", number, (*self._common(), *own))
        self._begun = True

    def server(self, rank: int) -> None:
        """Start a server."""
        log = () if self._plan.log is None else ("--log", self._plan.log)
        self._start("server", rank, (*self._common(), "--rank", str(rank), *log))

    def again(self, task: Task) -> Task:
        """Start a successor of an ended process, with a higher generation."""
        return self._start(task.role, task.number, self._own[task.role, task.number])

    def _common(self) -> tuple[str, ...]:
        assert self._worker_output.address is not None
        return "--cluster-id", self._plan.cluster_id, "--coordinator", self._worker_output.address

    def _start(self, role: str, number: int, own: tuple[str, ...]) -> Task:
        """Start a process with its own arguments."""
        self._own[role, number] = own
        task = Task(role, number)
        generation = self.launch.generation + self._generation(task)
        again = generation > 0 and role != "coordinator"
        arguments = ("--generation", str(generation), *own) if again else own
        if role != "trainer":
            arguments = ("--listen", self._listen(task), *arguments)
        key = self._plan.key_of(role)
        task = Task(role, number, arguments if key is None else ("--keys", FROM_INPUT, *arguments))
        command = self._launcher.command(task)
        log = self._plan.logs / f"{task.name.replace(' ', '-')}.log"
        self._worker_output.pids.pop(task, None)
        self._worker_output.hosts.pop(task, None)
        try:
            self._running[task] = start(
                task,
                command,
                log,
                self._worker_output.hear,
                None if key is None else key.to_text(),
                self._say if self._begun else None,
            )
        except OSError as error:
            raise ConfigurationError(
                f"{task.name} can't be started with {command.arguments[0]!r}: {error.strerror}"
            ) from error
        return task

    def _listen(self, task: Task) -> str:
        """Return the listen address; a coordinator's successor keeps the known one."""
        before = self._worker_output.address if task.role == "coordinator" else None
        return before or self._launcher.listen(task)
