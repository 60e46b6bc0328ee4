"""Call log: numbers the collective calls of a script, and skips those that a checkpoint marks as done.

A script that resumes from a checkpoint of an unfinished `fit` makes the same calls again: done calls are
skipped, the one under way continues with its leases, and all others are new. A script that begins with a
read-only call, where the original script trained, does not resume: it may only read.

A training call that Ctrl-C has ended, made again in the same process, goes on where it was: calls within it
that are done are skipped, callbacks that have ended are not called again, and its `fit` opens its old number.
Reads and saves may come in between. With other arguments or data it is another call, and begins anew.

A load that a script left while it waited (Ctrl-C, caught) may continue at another trainer: rows are then half
of each, and this trainer does not know the position of its training. So the load must be the next call.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Number
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pslib.checkpoint import newest, read_manifest
from pslib.client.client import Client
from pslib.client.load import LoadSource, OpenLoad
from pslib.cluster import Cluster
from pslib.errors import ConfigurationError
from pslib.settings import Settings
from pslib.storage import shown
from pslib.trainer.collective import Job, JobSpec, PassedJob
from pslib.trainer.progress import Progress
from pslib.wire.messages import JobResult, Result

log = logging.getLogger(__name__)
LOOKS = ("evaluate", "predict", "rank", "recommend", "export")
"""Calls that read rows and change none."""
Given = ParamSpec("Given")
Back = TypeVar("Back")


class _OnACluster(Protocol):
    @property
    def cluster(self) -> Cluster: ...


class _Trains(Protocol):
    _calls: Calls

    @property
    def _position(self) -> Any: ...

    def _stand_at(self, position: Any) -> None: ...

    def _save_interrupted(self) -> str: ...


On = TypeVar("On", bound=_OnACluster)
Trained = TypeVar("Trained", bound=_Trains)


def collective(
    method: Callable[Concatenate[On, Given], Back],
) -> Callable[Concatenate[On, Given], Back]:
    """Decorate a collective `Trainer` method: refuse it while another thread is in such a call.

    The coordinator takes a later call as a sign that this trainer has left the earlier one.
    """

    @wraps(method)
    def call(trainer: On, /, *args: Given.args, **kwargs: Given.kwargs) -> Back:
        with trainer.cluster.calling(method.__name__.lstrip("_")):
            return method(trainer, *args, **kwargs)

    return call


def repeatable(
    method: Callable[Concatenate[Trained, Given], Back],
) -> Callable[Concatenate[Trained, Given], Back]:
    """Decorate a training call of `Trainer`: made again after Ctrl-C, it goes on where that has ended it."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(trainer: Trained, /, *args: Given.args, **kwargs: Given.kwargs) -> Back:
        try:
            bound = signature.bind(trainer, *args, **kwargs)
        except TypeError:
            return method(trainer, *args, **kwargs)  # Python says which argument is missing, and of what
        bound.apply_defaults()
        given = [method.__name__, *map(_comparable, bound.args[1:]), *map(_comparable, bound.kwargs.values())]
        return trainer._calls.again(trainer, given, lambda: method(trainer, *args, **kwargs))

    return call


def _comparable(value: object) -> object:
    """Return an argument to compare with another; of a table only its class: its rows have a fingerprint."""
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, str | Number | Settings | None) else type(value)


class _OtherCallError(Exception):
    """Signal that a call is another one than the interrupted one."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A step of a training call: a collective call, or work of this trainer alone and what it returned."""

    number: int
    what: str
    fingerprint: int
    returned: str = ""


@dataclass(frozen=True, slots=True)
class _Interrupted:
    """A training call that was ended: where it began, its arguments, and its steps so far."""

    began: Any
    given: list[object]
    made: list[_Made]


class Calls:
    """Numbering of the calls of one trainer's script.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._table: Mapping[str, Any] = {}
        self._followed = self._left = False
        self._made: list[_Made] | None = None  # within a training call that may be made again
        self._interrupted: _Interrupted | None = None
        self.told = False  # what becomes of the interrupted training call
        self._to_repeat: deque[_Made] = deque()

    @property
    def cluster(self) -> Cluster:
        """Cluster of the calls."""
        return self._cluster

    def resume(self, table: Mapping[str, Any]) -> None:
        """Resume from the jobs of a checkpoint.

        Raises
        ------
        ConfigurationError
            If calls have been made already.
        """
        if self._cluster.begun:
            raise ConfigurationError(
                "load: a checkpoint of an unfinished fit goes on from the beginning of its script; load it "
                "before all other calls, or with resume=False to train something else"
            )
        self._table = table

    def leave(self) -> bool:
        """Tell whether a read-only call departs from the checkpoint's calls, which begin with another.

        False after the first call: a script that has begun to resume must repeat all of them.
        """
        jobs = self._table.get("jobs", ())[1:]  # 0 is reserved for the load
        if self._followed or not jobs or jobs[0]["what"] in LOOKS:
            return False
        self._table, self._left = {}, True
        return True

    def begin_anew(self) -> None:
        """Prepare for a load of all rows: earlier read-only calls no longer matter."""
        self._left = False

    def source_of(self, given: str) -> LoadSource:
        """Return the checkpoint that a load of this path reads; for an abandoned load, its original one.

        Another trainer may have saved since and removed that checkpoint: the abandoned load may be done all
        the same.

        Raises
        ------
        CheckpointError
            If there is none.
        """
        left = self._cluster.open_load
        if left and given in (left.source.given, left.source.place):
            return left.source
        place = newest(given)
        return LoadSource(given, place, read_manifest(place))

    def again(self, trainer: _Trains, given: list[object], work: Callable[[], Back]) -> Back:
        """Do a training call; if it is the last one again, which Ctrl-C has ended, go on with that."""
        before, stands = self._interrupted, trainer._position
        if before is not None:
            try:
                if given != before.given:
                    raise _OtherCallError
                self._to_repeat.extend(before.made)
                trainer._stand_at(before.began)
                return self._noting(trainer, before.began, given, work)
            except _OtherCallError:  # so far it has passed over what is done, and has done nothing
                self._interrupted = before
                log.warning(
                    "pslib: this is another call than the interrupted one (other data or settings), which is "
                    "left as it is; this one begins anew"
                )
                trainer._stand_at(stands)
            except BaseException:
                if self._interrupted is before:  # refused before it has begun
                    trainer._stand_at(stands)
                raise
            finally:
                self._to_repeat.clear()
        return self._noting(trainer, stands, given, work)

    def _noting(self, trainer: _Trains, began: Any, given: list[object], work: Callable[[], Back]) -> Back:
        """Note the steps of a training call, for the same call made again."""
        made: list[_Made] = []
        self._made, self.told = made, False
        try:
            return work()
        except BaseException as error:
            ends = isinstance(error, KeyboardInterrupt) or self._to_repeat
            if made and ends and self._cluster.embedded:  # elsewhere its leases have gone to others
                self._interrupted = _Interrupted(began, given, [*made, *self._to_repeat])
                if isinstance(error, KeyboardInterrupt) and not self.told:
                    saved = trainer._save_interrupted()
                    log.warning("pslib: interrupted between two epochs%s; the same call goes on", saved)
            raise
        finally:
            self._made = None

    def once(self, what: str, work: Callable[[], str | None]) -> str:
        """Do work of this trainer alone; in a training call that is made again, only if it has not ended.

        Returns
        -------
        str
            Result of the call, or of the call then. Collective calls in it are no steps of the training call.
        """
        if self._to_repeat:
            done = self._next_step(what)
            self._note(self._to_repeat.popleft())
            return done.returned
        made, self._made = self._made, None
        try:
            returned = work() or ""
        finally:
            self._made = made
        if made is not None:
            made.append(_Made(0, what, 0, returned))
        return returned

    @property
    def may_repeat(self) -> bool:
        """True in a training call that goes on if it is made again after Ctrl-C."""
        return self._made is not None and self._cluster.embedded

    def open(
        self, client: Client, progress: Progress, spec: JobSpec, source: LoadSource | None = None
    ) -> Job:
        """Open the next call of the script; ``source`` is the checkpoint of a load.

        Raises
        ------
        ConfigurationError
            If it differs from the call of the script whose checkpoint was loaded, or from a load that
            was abandoned, or trains on after the script has only read.
        """
        if repeated := self._repeated(client, progress, spec):
            return repeated
        if self._left and spec.what not in (*LOOKS, "load"):
            raise ConfigurationError(
                f"{spec.what}: the script began with a look at its checkpoint, of an unfinished fit, which "
                "goes on with the calls of its own script; make those first, or load with resume=False"
            )
        number = self._number(spec)
        self._note(_Made(number, spec.what, spec.fingerprint))
        self._followed = self._followed or number > 0
        jobs, under_way = self._table.get("jobs", ()), self._table.get("job", 0)
        if number and number == under_way == len(jobs):  # a cut in a read-only call: this or another begins
            return Job(client, progress, number, replace(spec, resume=self._table))
        if number == 0 or number >= len(jobs):
            return self._joined(client, progress, number, spec, source)
        then = jobs[number]
        moved = spec.what in ("save", "load")  # their paths may differ now
        if spec.what != then["what"] or not (moved or spec.fingerprint == then["fingerprint"]):
            raise ConfigurationError(
                f"call {number} is {spec.what!r}, the checkpoint's was {then['what']!r} or had other data or "
                "settings; go on with the same script, or load with resume=False (to look at it, too)"
            )
        if number == under_way:
            return Job(client, progress, number, replace(spec, resume=self._table))
        return PassedJob(number, then["outcome"] or {}, self._table["ranks"])

    def _repeated(self, client: Client, progress: Progress, spec: JobSpec) -> Job | None:
        """Return the call of an interrupted training call that this one repeats; None: it is a new one."""
        if not self._to_repeat:
            return None
        made = self._next_step(spec.what, spec.fingerprint)
        jobs, ranks = self._table.get("jobs", ()), self._table.get("ranks", ())
        if made.number < len(jobs) and made.number != self._table["job"]:  # not opened in this run
            done, outcome = True, jobs[made.number]["outcome"] or {}
        else:
            answer = client.ask_coordinator(JobResult(made.number))
            assert isinstance(answer, Result)
            done, outcome = answer.values["done"], answer.values["outcome"]
        given_up = bool(outcome.get("given_up"))
        if given_up:
            log.warning(
                "pslib: the interrupted fit was given up by a later call: its epoch begins anew, and some of "
                "its examples count twice"
            )
        if given_up or not (done or spec.what == "fit"):  # what it did is void, and is done anew
            self._to_repeat.clear()
            return None
        self._note(self._to_repeat.popleft())
        resumed = replace(spec, resume=self._table) if made.number == self._table.get("job") else spec
        job = PassedJob(made.number, outcome, ranks) if done else Job(client, progress, made.number, resumed)
        job.repeated = True
        return job

    def _next_step(self, what: str, fingerprint: int = 0) -> _Made:
        """Return the next step of the interrupted training call, which must be this one."""
        made = self._to_repeat[0]
        if (what, fingerprint) != (made.what, made.fingerprint):
            raise _OtherCallError
        return made

    def _note(self, step: _Made) -> None:
        if self._made is not None:
            self._made.append(step)
        if self._made is not None or step.what not in (*LOOKS, "save"):
            self._interrupted = None

    def load_is_over(self) -> None:
        """Mark the last load as done or failed here: other calls may follow."""
        self._cluster.open_load = None

    def _number(self, spec: JobSpec) -> int:
        if self._cluster.open_load is None:
            return self._cluster.next_job(begins=spec.what == "load")
        left = self._cluster.open_load
        if spec.fingerprint != left.fingerprint:
            raise ConfigurationError(
                f"{spec.what}: expected load of {shown(left.source.place)} again, which was left before it "
                "was done: another trainer may be at it, and rows may be half of it; make the same call of "
                "load first"
            )
        return left.number

    def _joined(
        self, client: Client, progress: Progress, number: int, spec: JobSpec, source: LoadSource | None
    ) -> Job:
        if source:
            self._cluster.open_load = OpenLoad(number, spec.fingerprint, source)
        try:
            return Job(client, progress, number, spec)
        except ConfigurationError:  # the coordinator would refuse this call again
            self.load_is_over()
            raise
