"""Reports on ended processes: exit status, their own error lines, and log file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from launch.supervisor.outcome import ALL_LOST, is_hopeless, is_own
from launch.supervisor.process import Running, describe_exit
from launch.supervisor.run_spec import THIS_MACHINE, Task
from launch.supervisor.worker_output import WorkerOutput
from pslib.errors import ConfigurationError, PreemptedError, UnavailableError
from pslib.process.machine import oom_kills

NO_MEMORY = (
    "; the kernel has killed a process for want of memory (OOM) since the run began, perhaps this one: keep "
    "fewer rows (admission, eviction), bound them (server_memory_bytes), or run where there is more memory"
)


class ExitReport:
    """Lines on ended processes, without repetition of lines that a process has printed itself.

    Parameters
    ----------
    running : mapping of Task to Running
        All processes of the run; it grows.
    worker_output : WorkerOutput
        Output of the processes.
    look : callable
        Processes the output received since.
    """

    def __init__(
        self, running: Mapping[Task, Running], worker_output: WorkerOutput, look: Callable[[], None]
    ) -> None:
        self._running, self._worker_output, self._look = running, worker_output, look
        self._oom_kills = oom_kills()

    def cause(self, culprit: Task | None, error: str | None) -> str | None:
        """Return the cause of a run's end, as printed by the process concerned; None: no process knows more.

        Parameters
        ----------
        culprit : Task or None
            Process whose exit ended the run; errors of trainers are then not the cause.
        error : str or None
            Error from the coordinator or the outcome. "All trainers are lost" is dropped when their own
            errors are known.
        """
        if error == ALL_LOST.reason or not (error or culprit):
            return self._own_error() or self._of_lost_trainers()
        return None if culprit else self._own_error()

    def _of_lost_trainers(self) -> str | None:
        """Return the error of the first trainer that gave up by itself, for example after refused pushes."""
        missed = UnavailableError.exit_code
        ended = [one for task, one in self._running.items() if task.role == "trainer"]
        return next(("; ".join(one.complaints()) for one in ended if one.exit_code == missed), None) or None

    def _own_error(self) -> str | None:
        """Return a trainer's own error, or the final error of any process; None if there is none."""
        missed, final = UnavailableError.exit_code, self._worker_output.final
        failed = (
            one
            for task, one in self._running.items()
            if (task.role == "trainer" and is_own(one.exit_code))
            or (task in final and one.exit_code == missed)
        )
        return next(("; ".join(one.complaints()) for one in failed), None)

    def has_told_all(self, running: Running) -> bool:
        """Return whether the process has printed its cause of exit.

        Such causes are an error in the data, a request to leave, or an error that a successor would repeat;
        another process may have printed the same line.
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
        """Return one line: process, exit status, loss, and log file."""
        assert running.exit_code is not None
        how = describe_exit(running.exit_code)
        said = "; ".join(line for line in running.complaints() if line not in self._worker_output.said)
        name = f"{running.task.name} ({running.where}, pid {self._worker_output.pids.get(running.task, '?')})"
        end = f"{name} {how}{': ' + said if said else ''}"
        return f"{end}{self._no_memory(running)}{lost}; its log: {running.log}"

    def _no_memory(self, running: Running) -> str:
        """Return a clause for an exit by SIGKILL if the kernel reports an out-of-memory kill; else empty.

        The kernel counts its kills without naming processes, so each kill explains one exit at most. Kills on
        other machines, with exit code 137, are unknown here.
        """
        by_others = running.exit_code == -signal.SIGKILL and not running.killed
        if not by_others or running.where != THIS_MACHINE or oom_kills() <= self._oom_kills:
            return ""
        self._oom_kills += 1
        return NO_MEMORY

    def of_one(self, task: Task, exits: Mapping[Task, int | None], again: str) -> str | None:
        """Return a line on an exit that does not end the run (``again``: what follows); None if printed."""
        if not again and (task.role != "trainer" or self.has_told_all(self._running[task])):
            return None
        trainers = [code for one, code in exits.items() if one.role == "trainer"]
        left, code = trainers.count(None), exits[task]
        # Other trainers soon miss the same peer; a trainer's own hopeless error ends the run.
        goes_on = ""
        if left and task.role == "trainer" and code != UnavailableError.exit_code and not is_hopeless(code):
            goes_on = f"; {left} of {len(trainers)} trainers go on"
        return self.why(self._running[task], (again and f"; {again}") or goes_on)
