"""Records of a run without a launcher: progress bar, metrics.jsonl, monitor.json, summary.json and the plot.

Under a launcher, `launch.supervisor.run_records` writes them for all trainers together.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

from pslib.clock import SystemClock
from pslib.cluster import Cluster
from pslib.coordinator.results import EVALUATIONS, of_kind
from pslib.errors import ConfigurationError, PslibError
from pslib.monitor.sources import LiveRun
from pslib.recorder import RunRecorder
from pslib.recorder.event_files import check_event_files
from pslib.storage import check_local, unwritable

log = logging.getLogger("pslib")

LOOK_S = 0.5
"""Status interval: fine enough for a bar; a status costs the coordinator well below a millisecond."""


def check_out(cluster: Cluster, out: str | os.PathLike[str] | None, tensorboard: bool) -> None:
    """Check that `record` can write there, before the cluster counts a trainer.

    Raises
    ------
    ConfigurationError
        If it is a URI, or the folder or a file in it can't be made; or if event files are requested that
        can't be written, or without a folder.
    """
    if tensorboard and cluster.embedded:  # else the launcher writes the records
        check_event_files()
        if out is None:
            raise ConfigurationError("tensorboard: expected out beside it, the folder of its files")
    check_local("out", out)
    if cluster.embedded and out is not None and (why := unwritable(Path(out))):
        raise ConfigurationError(
            f"out: {out} can't be written to: {why}; give another folder, or leave it out"
        )


def record(
    cluster: Cluster,
    out: str | os.PathLike[str] | None,
    progress: bool,
    seed: int,
    tensorboard: bool = False,
) -> None:
    """Record an embedded cluster until it closes; do nothing elsewhere, or when nothing is requested.

    Earlier records in the same folder end: a cell of a notebook that makes a trainer may run again.

    Parameters
    ----------
    cluster : Cluster
        Its end callback receives the last status.
    out : path or None
        Folder of the records; None writes no file.
    progress : bool
        True to show a bar.
    seed : int
        For the summary.
    tensorboard : bool
        True to write event files too.
    """
    if not cluster.embedded or (out is None and not progress):
        return
    place = None if out is None else os.path.realpath(out)
    if earlier := _recordings.pop(place, None):
        earlier.give_way()
    recorder = RunRecorder(
        Path(out) if out is not None else None, SystemClock(), progress=progress, tensorboard=tensorboard
    )
    recording = _Recording(cluster, recorder, place, seed)
    if place is not None:
        _recordings[place] = recording
    cluster.at_close(recording.stop, recording.end)


class _Recording:
    """Thread that observes an embedded cluster, without keeping it, until it closes.

    Parameters
    ----------
    cluster : Cluster
    recorder : RunRecorder
    place : str or None
        Folder of its records.
    seed : int
        For the summary.
    """

    def __init__(self, cluster: Cluster, recorder: RunRecorder, place: str | None, seed: int) -> None:
        self._cluster, self._recorder, self._place, self._seed = ref(cluster), recorder, place, seed
        self._over, self._gave_way = threading.Event(), False
        self._live: LiveRun | None = None
        if place is not None:
            facts, folder = {"name": os.path.basename(place), "folder": place}, Path(place)
            self._live = LiveRun(cluster.watcher(), facts, "", folder, keeps=True)
        self._thread = threading.Thread(target=self._look, name="pslib-recorder", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S) and (cluster := self._cluster()) is not None:
            try:
                self._recorder.observe(of_kind(cluster.status(), *EVALUATIONS))
            except PslibError:  # the cluster is closing; `end` gets its last status
                return
            del cluster

    def stop(self) -> None:
        """Stop observing."""
        self._over.set()
        if self._live is not None:
            self._live.close()
        self._thread.join(5.0)

    def give_way(self) -> None:
        """End without a summary: the folder's records are those of another trainer from now on."""
        self._gave_way = True
        self.stop()
        self._recorder.close()

    def end(self, status: Mapping[str, Any]) -> None:
        """Write the last records, with the last status of the cluster."""
        if self._gave_way:
            return
        _recordings.pop(self._place, None)
        if self._live is not None:
            self._live.finish(status, None, status["phase"] == "done")
        self._recorder.observe(of_kind(status, *EVALUATIONS))
        servers, trainers = status["servers_configured"], status["trainers_configured"]
        try:
            self._recorder.finish({"seed": self._seed, "servers": servers, "trainers": trainers})
        except OSError as error:  # the script already has its results
            log.warning("pslib: %s: %s; its records are not all there", self._place, error.strerror or error)


_recordings: dict[str | None, _Recording] = {}
"""Of each folder that this process writes records to: whose they are."""
