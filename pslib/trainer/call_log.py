"""Call log: numbers the collective calls of a script, and skips those that a checkpoint marks as done.

A script that resumes from a checkpoint of an unfinished `fit` makes the same calls again: done calls are
skipped, the one under way continues with its leases, and all others are new. A script that begins with a
read-only call, where the original script trained, does not resume: it may only read.

A load that a script left while it waited (Ctrl-C, caught) may continue at another trainer: rows are then half
of each, and this trainer does not know the position of its training. So the load must be the next call.
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
    """Decorate a collective `Trainer` method: refuse it while another thread is in such a call.

    The coordinator takes a later call as a sign that this trainer has left the earlier one.
    """

    @wraps(method)
    def call(trainer: On, /, *args: Given.args, **kwargs: Given.kwargs) -> Back:
        with trainer.cluster.calling(method.__name__.lstrip("_")):
            return method(trainer, *args, **kwargs)

    return call


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
        if self._left and spec.what not in (*LOOKS, "load"):
            raise ConfigurationError(
                f"{spec.what}: the script began with a look at its checkpoint, of an unfinished fit, which "
                "goes on with the calls of its own script; make those first, or load with resume=False"
            )
        number = self._number(spec)
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
