"""Verdict on a run from the exit codes of its processes: a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launch.supervisor.restarts import is_mishap
from launch.supervisor.run_spec import Task
from pslib.errors import EXIT_DONE, EXIT_SIGNALS, PreemptedError, UnavailableError


@dataclass(frozen=True, slots=True)
class Verdict:
    """Exit code of a run that is over, its culprit, and the reason unless a process has printed it."""

    exit_code: int
    culprit: Task | None = None
    reason: str | None = None


ALL_LOST = Verdict(UnavailableError.exit_code, reason="all trainers are lost before the work was done")
"""Verdict when all trainers ended with 0, will not be restarted, and did not leave."""


def judge(exits: Mapping[Task, int | None]) -> Verdict | None:
    """Decide whether the run is over, from the exit code of each process (None: running).

    A failed server or coordinator ends the run. One that ends with 0 was told to: a script may run on after
    it has left the cluster. A trainer may die while others live; when all have ended, at least one of them
    well, servers and coordinator get time to leave in order. Servers that give up after a trainer failed with
    its own error only follow it: that error is the run's. The same holds for servers of a run that can't
    continue without a trainer that was asked to leave, once all trainers have ended.

    A trainer whose error a successor would repeat ends the run: the others would train something else than
    requested, and data that a script has divided among its trainers would be left out.
    """
    trainers = [code for task, code in exits.items() if task.role == "trainer"]
    others = _ends_of_others(exits)
    over = bool(trainers) and None not in trainers
    failed, left = over and EXIT_DONE not in trainers, PreemptedError.exit_code
    own_error = next((code for code in trainers if is_own(code)), None)
    if failed and left in trainers:  # the leaving trainer is the cause of the others' failure
        own_error = left
    for task, code in others.items():
        if code == UnavailableError.exit_code and own_error is not None:
            return Verdict(own_error)
        if code not in (None, EXIT_DONE):
            return Verdict(_own_code(code), task)
    for code in trainers:
        if is_hopeless(code):
            return Verdict(_own_code(code))
    if failed:
        return Verdict(left if left in trainers else next(map(_own_code, trainers)))
    return Verdict(EXIT_DONE) if over and None not in others.values() else None


def _ends_of_others(exits: Mapping[Task, int | None]) -> dict[Task, int | None]:
    """Return exit codes of servers and coordinator.

    A server that was asked to leave counts as ended in order if the coordinator has: all work was done.
    """
    others = {task: code for task, code in exits.items() if task.role != "trainer"}
    if any(task.role == "coordinator" and code == EXIT_DONE for task, code in others.items()):
        return {
            task: EXIT_DONE if code == PreemptedError.exit_code else code for task, code in others.items()
        }
    return others


def is_own(code: int | None) -> bool:
    """Return whether a trainer has ended with its own error: not killed, without peers, or asked to leave."""
    others = (UnavailableError.exit_code, PreemptedError.exit_code)
    return code is not None and EXIT_DONE < code < EXIT_SIGNALS and code not in others


def is_hopeless(code: int | None) -> bool:
    """Return whether a trainer has ended with an error of its own that a restart would not fix."""
    return is_own(code) and code is not None and not is_mishap(code)


def _own_code(code: int | None) -> int:
    """Convert a failed process's exit code to the run's: a process killed by a signal is a lost peer."""
    return code if code is not None and 0 < code < EXIT_SIGNALS else UnavailableError.exit_code
