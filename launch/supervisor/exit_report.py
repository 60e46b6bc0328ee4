"""What is told of processes that have ended: who ended how, what they said of it, where to read more."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from launch.supervisor.outcome import ALL_LOST, is_hopeless, is_own
from launch.supervisor.process import THIS_MACHINE, Running, Task, describe_exit
from launch.supervisor.worker_output import WorkerOutput
from pslib.errors import ConfigurationError, PreemptedError, UnavailableError
from pslib.process.machine import oom_kills

__all__ = ["ExitReport"]

NO_MEMORY = (
    "; the kernel has killed a process for want of memory (OOM) since the run began, perhaps this one: keep "
    "fewer rows (admission, eviction), bound them (server_memory_bytes), or run where there is more memory"
)


class ExitReport:
    """Lines on the ends of processes; nothing that a process has told people itself is said again.

    Parameters
    ----------
    running : mapping of Task to Running
        All processes of the run; it grows.
    worker_output : WorkerOutput
        What they have said.
    look : callable
        Takes in what they have said since.
    """

    def __init__(
        self, running: Mapping[Task, Running], worker_output: WorkerOutput, look: Callable[[], None]
    ) -> None:
        self._running, self._worker_output, self._look = running, worker_output, look
        self._oom_kills = oom_kills()

    def cause(self, culprit: Task | None, error: str | None) -> str | None:
        """Why all ends, in the words of the process that met it; None: none of them knows better than others.

        Parameters
        ----------
        culprit : Task or None
            Whose end made the run be over; a trainer's error is no cause of it.
        error : str or None
            What the coordinator, or the verdict, says. That all trainers are lost says nothing to who can
            read why they have ended.
        """
        if error == ALL_LOST.reason or not (error or culprit):
            return self._own_error() or self._of_lost_trainers()
        return None if culprit else self._own_error()

    def _of_lost_trainers(self) -> str | None:
        """What the first of them has said that has given up by itself, say as a server refused its pushes."""
        missed = UnavailableError.exit_code
        ended = [one for task, one in self._running.items() if task.role == "trainer"]
        return next(("; ".join(one.complaints()) for one in ended if one.exit_code == missed), None) or None

    def _own_error(self) -> str | None:
        """What a trainer has said of an error of its own, or anybody of a final one; None: nobody had one."""
        missed, final = UnavailableError.exit_code, self._worker_output.final
        failed = (
            one
            for task, one in self._running.items()
            if (task.role == "trainer" and is_own(one.exit_code))
            or (task in final and one.exit_code == missed)
        )
        return next(("; ".join(one.complaints()) for one in failed), None)

    def has_told_all(self, running: Running) -> bool:
        """Whether the process has said itself why it ends.

        That is what is wrong with data, that it was asked to leave, or an error that it would have again;
        or another has said it.
        """
        if running.task in self._worker_output.echoes:
            return True
        final = running.task in self._worker_output.final and running.exit_code == UnavailableError.exit_code
        told = (ConfigurationError.exit_code, PreemptedError.exit_code)
        if not final and running.exit_code not in told:
            return False
        complaints = running.complaints()
        self._look()
        return bool(complaints) and self._worker_output.said.issuperset(complaints)

    def why(self, running: Running, lost: str) -> str:
        """One line: who ended how, what was lost, and where to read more."""
        assert running.exit_code is not None
        how = describe_exit(running.exit_code)
        said = "; ".join(line for line in running.complaints() if line not in self._worker_output.said)
        name = f"{running.task.name} ({running.where}, pid {self._worker_output.pids.get(running.task, '?')})"
        end = f"{name} {how}{': ' + said if said else ''}"
        return f"{end}{self._no_memory(running)}{lost}; its log: {running.log}"

    def _no_memory(self, running: Running) -> str:
        """A clause for one that SIGKILL has ended, where the kernel says that it lacked memory; else empty.

        It tells how many it has killed, not whom: each of them may explain one end, and no more. Of another
        machine nothing is known here, and an exit code of 137 tells of one.
        """
        by_others = running.exit_code == -signal.SIGKILL and not running.killed
        if not by_others or running.where != THIS_MACHINE or oom_kills() <= self._oom_kills:
            return ""
        self._oom_kills += 1
        return NO_MEMORY

    def of_one(self, task: Task, exits: Mapping[Task, int | None], again: str) -> str | None:
        """One line on an end that does not end the run (``again``: what follows); None: all is told."""
        if not again and (task.role != "trainer" or self.has_told_all(self._running[task])):
            return None
        trainers = [code for one, code in exits.items() if one.role == "trainer"]
        left, code = trainers.count(None), exits[task]
        # One that misses a peer is soon followed by the others, one with an error of its own by the end.
        goes_on = ""
        if left and task.role == "trainer" and code != UnavailableError.exit_code and not is_hopeless(code):
            goes_on = f"; {left} of {len(trainers)} trainers go on"
        return self.why(self._running[task], (again and f"; {again}") or goes_on)
