"""Supervisor of one cluster: start its processes, watch them, and end all of them in every case.

`launch.supervisor.outcome.judge`, a pure function of exit codes, makes the decisions; this module observes
and acts. A `Launcher` knows the place to run: a new place is one file with one such class.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from launch.supervisor.discovery import note_cluster, note_targets
from launch.supervisor.exit_report import ExitReport
from launch.supervisor.graceful_stop import EndSignals, GracefulStop, LastSave, WaitReporter
from launch.supervisor.launcher_process import this_process
from launch.supervisor.outcome import ALL_LOST, Verdict, judge
from launch.supervisor.process import Running, Starts
from launch.supervisor.restarts import Restarts
from launch.supervisor.run_spec import Launcher, Outcome, Plan, Task
from launch.supervisor.status import StatusPoller, Watcher, lost_with, watch_coordinator
from launch.supervisor.worker_output import WorkerOutput
from pslib.clock import AwakeClock, SystemClock
from pslib.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigurationError, PreemptedError, UnavailableError
from pslib.text import counted

LOOK_S = 0.1
"""Poll interval of processes: a dead server is reported long before its peers notice."""

STOP_S = 6.0
"""Time from the stop request to the kill: a little more than `launch.worker.watchdog.GRACE_S`."""

LEAVE_S = 30.0
"""Time limit for servers and coordinator to leave when all trainers have finished."""

FOLLOW_S = 5.0
"""Time limit for trainers to end after a server has given up, perhaps for the same cause: they learn of it up
to a heartbeat later, and a busy machine ends a process slowly."""

LOST_S = 5.0
"""Time limit of a lost trainer after all others have left, since it has been silent before. The same for a
trainer that was restarted as they left."""


def run_cluster(
    launcher: Launcher,
    plan: Plan,
    *,
    observe: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] | None = None,
    show: Callable[[str], None] | None = None,
    watch: Callable[[str, str], Watcher] | None = None,
    began: Callable[[str], None] | None = None,
) -> Outcome:
    """Run coordinator, servers and trainers to their end.

    Parameters
    ----------
    launcher : Launcher
        Place to run.
    plan : Plan
        Description of the run.
    observe : callable, optional
        Called with each new status of the coordinator, from this thread.
    say : callable, optional
        Called with one line for the user; default: print it to standard error with prefix ``pslib: ``.
    show : callable, optional
        The same for a line that a process has said, which is in its log; default: ``say``.
    watch : callable
        Called with the coordinator's address and the cluster id; returns a reader of the status. Default: a
        reader with the plan's key.
    began : callable, optional
        Called once with the coordinator's address, when it listens.

    Raises
    ------
    ConfigurationError
        When a process can't be started.
    """
    own_watch = partial(watch_coordinator, keys=plan.key_of("admin"))
    run = _Run(
        launcher,
        plan,
        observe or (lambda status: None),
        say or _to_stderr,
        show,
        watch or own_watch,
        began or (lambda address: None),
    )
    with run.signals.heard():
        try:
            return run.to_the_end()
        finally:
            run.end_all()


def end_as_asked(outcome: Outcome) -> None:
    """End a command like its interrupted cluster: by Ctrl-C or by SIGTERM.

    Raises
    ------
    KeyboardInterrupt
    PreemptedError
    """
    if outcome.exit_code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if outcome.exit_code == PreemptedError.exit_code:
        raise PreemptedError("asked to leave (SIGTERM), and not done")


def _to_stderr(line: str) -> None:
    print(f"pslib: {line}", file=sys.stderr, flush=True)


def _is_over(exits: Mapping[Task, int | None]) -> bool:
    """Return whether all work is done: the coordinator has left in order."""
    return any(task.role == "coordinator" and code == EXIT_DONE for task, code in exits.items())


class _Run:
    def __init__(
        self,
        launcher: Launcher,
        plan: Plan,
        observe: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
        show: Callable[[str], None] | None,
        watch: Callable[[str, str], Watcher],
        began: Callable[[str], None],
    ) -> None:
        self._launcher, self._began = launcher, began
        self._plan = plan
        self._observe = observe
        self._say = say
        self._watch = watch
        self._clock = AwakeClock(SystemClock())  # excludes the time in which this process is stopped
        self._running: dict[Task, Running] = {}
        self._reported: set[Task] = set()
        self._noted: dict[str, str] = {}
        self._worker_output = WorkerOutput(echo=plan.echo, trainers=plan.config.trainers, say=say, show=show)
        self._poller: StatusPoller | None = None
        self.signals = EndSignals(SystemClock(), self._hurry)
        self._draining: GracefulStop | None = None
        self._waits = WaitReporter(self._clock, plan.config.timing.report_s, say)
        self._restarts = Restarts(plan.config)
        self._starts = Starts(
            launcher, plan, self._running, self._worker_output, self._restarts.generation, say
        )
        self._last_words = ExitReport(self._running, self._worker_output, self._look)
        self._gave_up_s = 0.0

    def to_the_end(self) -> Outcome:
        """Start all processes, follow them, and return the outcome."""
        self._starts.coordinator()
        verdict = self._follow(lambda: self._worker_output.address is not None)
        if verdict is None:
            self._start_the_others()
            verdict = self._follow(lambda: False)
        assert verdict is not None
        return self._outcome(verdict)

    def _start_the_others(self) -> None:
        address, plan = self._worker_output.address, self._plan
        assert address is not None
        self._poller = StatusPoller(
            lambda: self._watch(address, plan.cluster_id), lambda: self._worker_output.last_status
        )
        launch = self._starts.launch.launch
        note_cluster(
            plan.logs, address, plan.cluster_id, launch, plan.log, plan.config, launcher=this_process()
        )
        self._starts.the_others()
        self._began(address)

    def _follow(self, until: Callable[[], bool]) -> Verdict | None:
        """Poll until the run is over (its outcome) or ``until`` holds (None)."""
        while not until():
            self._look()
            exits = {task: running.exit_code for task, running in self._running.items()}
            exits = self._take_ends(exits)
            verdict = self._asked_to_end(exits) if self.signals.number else self._judge(exits)
            if verdict is not None and not self._may_follow_a_trainer(verdict, exits):
                self._look()
                return verdict
            self._clock.sleep_s(LOOK_S)
        return None

    def _judge(self, exits: Mapping[Task, int | None]) -> Verdict | None:
        """Decide whether the run is over: by exit codes, messages of processes, or an exceeded wait."""
        verdict = judge(exits) or self._late(exits)
        final = self._final(exits)
        if final is None or (verdict is not None and verdict.exit_code != UnavailableError.exit_code):
            return verdict
        return Verdict(UnavailableError.exit_code)  # the process has reported the cause

    def _final(self, exits: Mapping[Task, int | None]) -> Task | None:
        """Return the process that has reported an error which its successor would repeat."""
        missed = UnavailableError.exit_code
        return next((task for task in self._worker_output.final if exits.get(task) == missed), None)

    def _may_follow_a_trainer(self, verdict: Verdict, exits: Mapping[Task, int | None]) -> bool:
        """Return whether a server has given up, perhaps after failures of trainers, which get time to end."""
        if verdict.culprit is None or exits.get(verdict.culprit) != UnavailableError.exit_code:
            return False
        now_s = self._clock.now_s()
        self._gave_up_s = self._gave_up_s or now_s
        left = any(code is None for task, code in exits.items() if task.role == "trainer")
        return left and now_s - self._gave_up_s < FOLLOW_S

    def _take_ends(self, exits: Mapping[Task, int | None]) -> dict[Task, int | None]:
        """Report ended processes and restart those due; processes that await a restart count as running."""
        now_s, over, awaited = self._clock.now_s(), _is_over(exits), False
        self._end_lost_servers()
        for task, code in exits.items():
            # After a second request the ends are this launcher's own kills.
            if code not in (None, EXIT_DONE) and task not in self._reported and not self.signals.hurried:
                assert code is not None
                self._reported.add(task)
                missed = task.role != "coordinator" and code == UnavailableError.exit_code
                if missed and not awaited and not self._has_failed():
                    awaited = True  # once for all ended processes: an unresponsive coordinator sends none
                    self._await_news()  # it may have ended with the run: no restart then
                ends = over or self.signals.number is not None or self._has_failed()
                self._running[task].hear_out()
                self._worker_output.take_in()
                ends = ends or self._final(exits) is not None
                again = "" if ends else self._restarts.ended(now_s, task, code)
                line = self._last_words.of_one(task, exits, again)
                if line and not (self._draining and code == PreemptedError.exit_code):
                    self._say(line)
        if over or self.signals.number is not None or self._has_failed() or self._final(exits) is not None:
            self._restarts.give_up()
        alive = {**exits, **dict.fromkeys(self._restarts.waiting())}
        for task in self._restarts.due(now_s):
            self._running.pop(task).stop()  # closes its pipe
            self._reported.discard(self._starts.again(task))
        return alive

    def _has_failed(self) -> bool:
        return self._poller is not None and bool(self._poller.latest.get("error"))

    def _late(self, exits: Mapping[Task, int | None]) -> Verdict | None:
        """Return an outcome if a wait of the launcher, for the coordinator or all exits, takes too long."""
        timing = self._plan.config.timing
        if self._worker_output.address is None:
            late = self._waits.too_long("the coordinator to say where it listens", timing.start_s)
            return Verdict(UnavailableError.exit_code) if late else None
        if all(task.role != "trainer" for task in exits):
            return None
        left = [task for task, code in exits.items() if code is None]
        names = ", ".join(task.name for task in left)
        if all(task.role != "trainer" for task in left):
            if self._are_lost([task for task in exits if task.role == "trainer"]):
                return ALL_LOST
            names = ", ".join([*self._guests(), names])
            return Verdict(EXIT_DONE) if self._waits.too_long(f"{names} to leave", LEAVE_S) else None
        if all(task.role == "trainer" and self._has_no_part(task, exits) for task in left):
            late = self._waits.too_long(f"{names} to end, whose work others have done", LOST_S)
            return judge({**exits, **dict.fromkeys(left, UnavailableError.exit_code)}) if late else None
        return None

    def _guests(self) -> Sequence[str]:
        """Return the trainers started by others, for which servers stay."""
        return () if self._poller is None else self._poller.latest.get("guests", ())

    def _counts_as_lost(self, task: Task) -> bool:
        """Return whether the coordinator counts a process as lost: stopped, unreachable or ended."""
        return self._poller is not None and self._poller.has_lost(
            task.role, *self._worker_output.process_of(task)
        )

    def _has_no_part(self, task: Task, exits: Mapping[Task, int | None]) -> bool:
        """Return whether a trainer counts as lost, or was restarted after all work was done.

        The latter would ask for the coordinator, which has left, for `Timing.start_s`. A trainer that has
        left in order may continue its script.
        """
        if self._counts_as_lost(task):
            return True
        if self._poller is None or not _is_over(exits) or not self._restarts.generation(task):
            return False
        return not self._poller.has_left(task.role, *self._worker_output.process_of(task))

    def _are_lost(self, tasks: list[Task]) -> bool:
        """Return whether all of these count as lost, also in a fresh status: they may have left meanwhile."""
        if all(map(self._counts_as_lost, tasks)):
            self._await_news()
        return all(map(self._counts_as_lost, tasks))

    def _end_lost_servers(self) -> None:
        """End lost servers that still run: they hold the lock on their log, for which the successor waits."""
        for task, running in self._running.items():
            alive = running.exit_code is None and task.role == "server" and self._restarts.may_follow(task)
            if alive and self._counts_as_lost(task):
                running.kill()

    def _asked_to_end(self, exits: Mapping[Task, int | None]) -> Verdict | None:
        asked, hurried = signal.Signals(self.signals.number or 0), self.signals.hurried
        if self._draining is not None and not hurried:
            return self._draining.turn(exits)
        code = EXIT_INTERRUPTED if asked == signal.SIGINT else PreemptedError.exit_code
        if not hurried and any(task.role == "trainer" for task in exits):
            drain_s = self._plan.config.timing.drain_s
            self._say(f"got {asked.name}: all leave in order, trainers within {drain_s:g} s; again: at once")
            self._worker_output.leaving = True
            address, cluster_id = self._worker_output.address or "", self._plan.cluster_id
            saves = self._plan.saves and LastSave(lambda: self._watch(address, cluster_id))
            self._draining = GracefulStop(self._running, drain_s, self._waits.too_long, code, saves or None)
            return None
        processes = counted(len(self._running), "process", "processes")
        self._say(f"got {asked.name}{' and another signal' if hurried else ''}: ending {processes}")
        return Verdict(code)

    def _hurry(self) -> None:
        """Handle a second request to end."""
        for running in self._running.values():
            running.kill()

    def _await_news(self) -> None:
        if self._poller is not None:
            self._poller.await_next(self._clock)

    def _outcome(self, verdict: Verdict) -> Outcome:
        if verdict.culprit is not None and verdict.culprit.role == "server":
            self._await_news()
        for running in self._running.values():
            if running.exit_code is not None:
                running.hear_out()
        self._look()
        status = self._poller.latest if self._poller is not None else {}
        error = status.get("error") or verdict.reason or None
        cause = self._last_words.cause(verdict.culprit, error)
        reason = cause or error
        if reason and reason != cause:
            self._worker_output.say_once(reason)
        if verdict.culprit is not None:
            running = self._running[verdict.culprit]
            line = self._last_words.why(running, self._lost_with(running, status))
            reason = reason or line
            if not self._last_words.has_told_all(running):
                self._say(line)
        return Outcome(
            verdict.exit_code, self._worker_output.results, status, reason, bool(self._worker_output.final)
        )

    def _lost_with(self, running: Running, status: dict[str, Any]) -> str:
        """Describe the loss; after an error, which may be one of the logs, logs are not promised."""
        log, errors = self._plan.log, (ConfigurationError.exit_code, UnavailableError.exit_code)
        if log is not None and running.exit_code in errors:
            return ""
        return lost_with(running.task, status, log)

    def end_all(self) -> None:
        """End all running processes: ask, wait a bounded time, kill."""
        if self._poller is not None:
            self._poller.close()
        for running in self._running.values():
            running.stop()
        if not self._all_ended_within(STOP_S):
            for running in self._running.values():
                running.kill()
            self._all_ended_within(STOP_S)
        for running in self._running.values():
            running.hear_out()

    def _all_ended_within(self, limit_s: float) -> bool:
        end_s = self._clock.now_s() + limit_s
        while any(running.exit_code is None for running in self._running.values()):
            if self._clock.now_s() > end_s:
                return False
            self._clock.sleep_s(LOOK_S / 4)
        return True

    def _look(self) -> None:
        """Process received output and the newest status."""
        awake_s = self._clock.now_s()
        self._worker_output.take_in()
        self._note_metrics()
        if self._worker_output.asked:
            self.signals.told()
        if self._poller is not None and (status := self._poller.news()) is not None:
            self._worker_output.tell_events(status, awake_s)
            self._start_awaited(status)
            self._observe(status)

    def _note_metrics(self) -> None:
        """Write the addresses of the processes' metrics, when they have changed."""
        metrics, known = self._plan.metrics, self._worker_output.metrics
        if metrics is None or known == self._noted:
            return
        if not self._noted:
            self._say(f"metrics: {metrics.targets} tells Prometheus where they are")
        self._noted = dict(known)
        note_targets(metrics.targets, known)

    def _start_awaited(self, status: Mapping[str, Any]) -> None:
        """Start servers requested by ``pslib scale``, if this place can."""
        if not getattr(self._launcher, "takes_more_servers", False) or self.signals.number is not None:
            return
        started = {task.number for task in self._running if task.role == "server"}
        for rank in status.get("moves", {}).get("awaited_ranks", ()):
            if rank not in started:
                self._say(f"starting server {rank}")
                self._starts.server(rank)
