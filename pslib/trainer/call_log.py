"""Which collective call of a script comes next, and which of them a checkpoint says are done.

A script that goes on from a checkpoint of an unfinished `fit` makes the same calls again: those that were
done are passed over, the one that was under way goes on with its leases, and all others are new. One that
begins with a look at it, where that script trained, does not go on with it: it may look, and nothing else.

A load that a script has left while it waited (Ctrl-C, which it has caught) may go on at another trainer: rows
are half of each then, and this trainer has not heard where its training goes on. So it is the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pslib.checkpoint import newest, read_manifest
from pslib.client.client import Client
from pslib.client.load import LoadSource, OpenLoad
from pslib.cluster import Cluster
from pslib.errors import ConfigurationError
from pslib.storage import shown
from pslib.trainer.collective import Job, JobSpec, PassedJob
from pslib.trainer.progress import Progress

__all__ = ["Calls", "collective"]

LOOKS = ("evaluate", "predict", "rank", "recommend", "export")
"""Calls that read rows and change none."""
Given = ParamSpec("Given")
Back = TypeVar("Back")


class _OnACluster(Protocol):
    @property
    def cluster(self) -> Cluster: ...


On = TypeVar("On", bound=_OnACluster)


def collective(
    method: Callable[Concatenate[On, Given], Back],
) -> Callable[Concatenate[On, Given], Back]:
    """A method of a `Trainer` that all trainers call alike: refused while another thread is in such a one.

    The coordinator takes a later call as a sign that this trainer has left the earlier one.
    """

    @wraps(method)
    def call(trainer: On, /, *args: Given.args, **kwargs: Given.kwargs) -> Back:
        with trainer.cluster.calling(method.__name__.lstrip("_")):
            return method(trainer, *args, **kwargs)

    return call


class Calls:
    """Numbers the calls of one trainer's script.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._table: Mapping[str, Any] = {}
        self._followed = self._left = False

    @property
    def cluster(self) -> Cluster:
        """Whose calls they are."""
        return self._cluster

    def resume(self, table: Mapping[str, Any]) -> None:
        """Go on from the jobs of a checkpoint.

        Raises
        ------
        ConfigurationError
            When calls have been made already.
        """
        if self._cluster.begun:
            raise ConfigurationError(
                "load: a checkpoint of an unfinished fit goes on from the beginning of its script; load it "
                "before all other calls, or with resume=False to train something else"
            )
        self._table = table

    def leave(self) -> bool:
        """Before a call that only looks: whether it leaves the checkpoint's calls, which begin with another.

        Not after the first call: a script that has begun to go on is held to all of them.
        """
        jobs = self._table.get("jobs", ())[1:]  # 0 is kept free for the load
        if self._followed or not jobs or jobs[0]["what"] in LOOKS:
            return False
        self._table, self._left = {}, True
        return True

    def begin_anew(self) -> None:
        """All rows are to be replaced: what was looked at does not matter any more."""
        self._left = False

    def source_of(self, given: str) -> LoadSource:
        """The checkpoint that a load of this place is of; of one that was left, the one that it was of then.

        Others may have saved since, and removed it: that load may be over all the same.

        Raises
        ------
        CheckpointError
            When there is none.
        """
        left = self._cluster.open_load
        if left and given in (left.source.given, left.source.place):
            return left.source
        place = newest(given)
        return LoadSource(given, place, read_manifest(place))

    def open(
        self, client: Client, progress: Progress, spec: JobSpec, source: LoadSource | None = None
    ) -> Job:
        """The next call of the script; ``source`` is what a load is of.

        Raises
        ------
        ConfigurationError
            When it is another one than that of the script whose checkpoint was loaded, or than a load that
            was left, or goes on with a training that the script has only looked at.
        """
        if self._left and spec.what not in (*LOOKS, "load"):
            raise ConfigurationError(
                f"{spec.what}: the script began with a look at its checkpoint, of an unfinished fit, which "
                "goes on with the calls of its own script; make those first, or load with resume=False"
            )
        number = self._number(spec)
        self._followed = self._followed or number > 0
        jobs, under_way = self._table.get("jobs", ()), self._table.get("job", 0)
        if number and number == under_way == len(jobs):  # a cut in a call that read: this or another begins
            return Job(client, progress, number, replace(spec, resume=self._table))
        if number == 0 or number >= len(jobs):
            return self._joined(client, progress, number, spec, source)
        then = jobs[number]
        moved = spec.what in ("save", "load")  # their places may be others now
        if spec.what != then["what"] or not (moved or spec.fingerprint == then["fingerprint"]):
            raise ConfigurationError(
                f"call {number} is {spec.what!r}, the checkpoint's was {then['what']!r} or had other data or "
                "settings; go on with the same script, or load with resume=False (to look at it, too)"
            )
        if number == under_way:
            return Job(client, progress, number, replace(spec, resume=self._table))
        return PassedJob(number, then["outcome"] or {}, self._table["ranks"])

    def load_is_over(self) -> None:
        """The load that was opened last is done, or has failed here: other calls may follow."""
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
        except ConfigurationError:  # the coordinator refuses this call, and would do so again
            self.load_is_over()
            raise
