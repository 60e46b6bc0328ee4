"""Graceful stop after Ctrl-C or SIGTERM: all processes leave in order, in bounded time.

Trainers leave first: they push what they have computed, wait until it is acknowledged, and return their
leases. Servers follow, after answering received requests. The coordinator ends by itself when all have left.
Without logs the training is saved before any process leaves: trainers stop for it after their batch and do
not go on, so that the checkpoint has all that was trained.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from launch.supervisor.outcome import Verdict, judge
from launch.supervisor.process import Running
from launch.supervisor.run_spec import Task
from launch.supervisor.status import Watcher
from pslib.clock import Clock, SystemClock
from pslib.errors import PreemptedError, PslibError
from pslib.process.shutdown import HARD_S

LOOK_S = 0.2
SERVERS_S = 10.0
"""Time limit of servers after the last trainer has left: received requests, and the end of their logs."""

COORDINATOR_S = 4.0
"""Time limit of the coordinator's own exit; it stays 3 s for readers of the last status."""


class LastSave:
    """Request for a last checkpoint, in a separate thread, that waits until it is written.

    Parameters
    ----------
    watch : callable
        Makes a `Watcher`; called in the separate thread.

    Attributes
    ----------
    over : bool
        True if the checkpoint is written, or will not be.
    """

    def __init__(self, watch: Callable[[], Watcher]) -> None:
        self.over = False
        self._watch = watch
        threading.Thread(target=self._run, name="last checkpoint", daemon=True).start()

    def _run(self) -> None:
        try:
            watcher = self._watch()
            try:
                soon = watcher.save_soon(last=True)
                while soon:
                    SystemClock().sleep_s(LOOK_S)
                    soon = bool(watcher.status().get("saves_soon"))
            finally:
                watcher.close()
        except PslibError:  # the coordinator has ended; its exit is reported elsewhere
            pass
        finally:
            self.over = True


class GracefulStop:
    """Sequence of leave requests to processes, which decides when the run is over.

    Parameters
    ----------
    running : mapping of Task to Running
        All processes of the run.
    drain_s : float
        Time limit of the trainers, `pslib.config.Timing.drain_s`.
    waited : callable
        Returns whether a named wait has exceeded its limit in seconds.
    exit_code : int
        Exit code of the run when all have left.
    save : LastSave or None
        Checkpoint that is awaited first, with the same limit as trainers.
    """

    def __init__(
        self,
        running: Mapping[Task, Running],
        drain_s: float,
        waited: Callable[[str, float], bool],
        exit_code: int,
        save: LastSave | None = None,
    ) -> None:
        self._running, self._waited, self._save, self._drain_s = running, waited, save, drain_s
        self._over = Verdict(exit_code)
        self._limits_s = {
            "trainer": drain_s + HARD_S,
            "server": SERVERS_S,
            "coordinator": COORDINATOR_S,
        }
        self._asked: set[Task] = set()

    def turn(self, exits: Mapping[Task, int | None]) -> Verdict | None:
        """Ask the next processes to leave; return the outcome when all have left or time is over.

        Parameters
        ----------
        exits : mapping of Task to int or None
            Exit code of each process.
        """
        over, verdict = self._over, judge(exits)
        left = PreemptedError.exit_code  # of a process that was asked to
        if verdict is not None and verdict.culprit is not None and verdict.exit_code != left:
            return verdict  # a server has died before trainers could push
        if self._save is not None and not self._save.over:
            if not self._waited("the checkpoint", self._drain_s):
                return None
            self._save = None
        for role, limit_s in self._limits_s.items():
            here = [task for task, code in exits.items() if code is None and task.role == role]
            if here:
                self._ask(here)
                who = role if role == "coordinator" else f"{role}s"
                return over if self._waited(f"the {who} to leave", limit_s) else None
        return over

    def _ask(self, tasks: list[Task]) -> None:
        for task in tasks:
            if task not in self._asked and task.role != "coordinator":
                self._asked.add(task)
                self._running[task].leave()


class WaitReporter:
    """Timer of named waits.

    Parameters
    ----------
    clock : Clock
    report_s : float
        Interval of lines on a continuing wait.
    say : callable
        Called with one line for the user.
    """

    def __init__(self, clock: Clock, report_s: float, say: Callable[[str], None]) -> None:
        self._clock, self._report_s, self._say = clock, report_s, say
        self._began_and_said_s: dict[str, tuple[float, float]] = {}

    def too_long(self, what: str, limit_s: float) -> bool:
        """Return whether the wait for ``what`` exceeds its limit; report it at intervals and at the end."""
        now_s = self._clock.now_s()
        begin_s, said_s = self._began_and_said_s.setdefault(what, (now_s, now_s))
        late = now_s - begin_s > limit_s
        if late or now_s - said_s > self._report_s:
            self._began_and_said_s[what] = (begin_s, now_s)
            self._say(f"waiting {now_s - begin_s:.0f} s for {what}{'; ended' if late else ''}")
        return late


CLOSES_S = 2.0
"""Interval within which signals count as one request: closing a terminal, session or job sends several."""


class EndSignals:
    """Handler of Ctrl-C, SIGTERM and a closed terminal (SIGHUP).

    Parameters
    ----------
    clock : Clock
    hurry : callable
        Called on a second request: all is to end at once.

    Attributes
    ----------
    number : int or None
        First signal that asked for the end; None: no request.
    hurried : bool
        Set by the second request, before ``hurry`` is called.
    """

    def __init__(self, clock: Clock, hurry: Callable[[], None]) -> None:
        self.number: int | None = None
        self.hurried = False
        self._clock, self._hurry = clock, hurry
        self._asked_s = 0.0
        self._told = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle the signals in this context; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: ignore SIGHUP
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def told(self) -> None:
        """Record that a worker got a signal sent to all processes of a job, which may also arrive here."""
        if self.number is None:
            self.number, self._asked_s, self._told = signal.SIGTERM, self._clock.now_s(), True

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first asks for the end, a second one hurries it."""
        now_s = self._clock.now_s()
        closes = (self.number == signal.SIGHUP or self._told) and now_s - self._asked_s < CLOSES_S
        if self.number is not None and (number == signal.SIGHUP or (closes and number == signal.SIGTERM)):
            return  # a closing terminal: one from kernel and shell each; an ending session: both kinds
        self._asked_s = now_s
        if self.number is None:
            self.number = number
        else:
            self.hurried = True
            self._hurry()
