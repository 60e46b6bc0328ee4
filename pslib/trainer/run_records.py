"""Records of a run without a launcher: progress bar, metrics.jsonl, monitor.json, summary.json and the plot.

Under a launcher, `launch.supervisor.run_records` writes them for all trainers together.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from pslib.clock import SystemClock
from pslib.cluster import Cluster
from pslib.coordinator.results import EVALUATIONS, of_kind
from pslib.errors import ConfigurationError, PslibError
from pslib.monitor.sources import LiveRun
from pslib.recorder import RunRecorder
from pslib.recorder.callback import Callback, of_run
from pslib.recorder.display import notebook_shell
from pslib.recorder.environment import flat_settings
from pslib.recorder.event_files import TensorBoard, check_event_files
from pslib.storage import check_local, unwritable
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.trainer.settings import TrainerSettings

log = logging.getLogger(__name__)

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


def record(cluster: Cluster, settings: TrainerSettings, model: Any, trainer: Any) -> None:
    """Record a cluster until it closes, as far as something is requested.

    An embedded one has bar, files and callbacks. Of a cluster of several processes the launcher writes the
    files, and the trainer of rank 0 calls the callbacks of its script. Earlier records in the same folder
    end: a cell of a notebook that makes a trainer may run again.

    Parameters
    ----------
    cluster : Cluster
        Its end callback receives the last status.
    settings : TrainerSettings
    model : TrainableModel
        For the settings that are recorded.
    trainer : Trainer
        Trainer that callbacks get; it is not kept.
    """
    _tell_of_an_earlier_one(trainer)
    callbacks = of_run(settings.callbacks)
    if not cluster.embedded:
        if callbacks and cluster.rank == 0:
            _start(cluster, None, False, callbacks, settings, model, trainer)
        return
    if settings.tensorboard:
        callbacks.insert(0, TensorBoard())
    if settings.out is not None or settings.progress or callbacks:
        _start(cluster, settings.out, settings.progress, callbacks, settings, model, trainer)


def _tell_of_an_earlier_one(trainer: Any) -> None:
    """Log that a trainer begins anew where an earlier cell of the notebook has trained the same model."""
    if (shell := notebook_shell()) is None:
        return
    model, cell = type(trainer.model).__name__, shell.execution_count
    made_in, made = _of_cells.get(model, (cell, None))
    earlier = None if made is None else made()
    if earlier is not None and made_in != cell and (records := earlier.history.records):
        log.warning(
            "pslib: this Trainer begins anew: the one before, of %s, has trained %s; to go on with that, run "
            "fit again in a cell without connect() and Trainer(...)",
            model,
            counted(records[-1].examples, "example"),
        )
    _of_cells[model] = cell, ref(trainer)


def _start(
    cluster: Cluster,
    out: str | os.PathLike[str] | None,
    progress: bool,
    callbacks: Sequence[Callback],
    settings: TrainerSettings,
    model: Any,
    trainer: Any,
) -> None:
    place = None if out is None else os.path.realpath(out)
    if earlier := _recordings.pop(place, None):
        earlier.give_way()
    plain = _plain_settings(settings, model)
    run_id = secrets.token_hex(8) if cluster.embedded else cluster.client.cluster_id
    recorder = RunRecorder(
        Path(out) if out is not None else None,
        SystemClock(),
        progress=progress,
        callbacks=callbacks,
        about={
            "name": os.path.basename(place or "") or type(model).__name__,
            "run_id": run_id,
            "settings": plain,
        },
        trainer=ref(trainer),
    )
    facts = {"seed": settings.seed, "settings": plain}
    recording = _Recording(cluster, recorder, place, facts, bool(callbacks))
    if place is not None:
        _recordings[place] = recording
    cluster.at_close(recording.stop, recording.end)
    if not cluster.embedded:
        cluster.at_end(recording.end_elsewhere)


def _plain_settings(settings: TrainerSettings, model: Any) -> dict[str, str]:
    """Return the settings of a trainer and its model as texts, without those of the records themselves."""
    of_records = ("out", "progress", "tensorboard", "callbacks", "share")
    own = {one.name: getattr(settings, one.name) for one in fields(settings) if one.name not in of_records}
    return flat_settings({"model": model, **own})


class _Recording:
    """Thread that observes an embedded cluster, without keeping it, until it closes.

    Parameters
    ----------
    cluster : Cluster
    recorder : RunRecorder
    place : str or None
        Folder of its records.
    facts : mapping
        Further entries of the summary.
    told : bool
        True if there are callbacks, which are told the run's events.
    """

    def __init__(
        self,
        cluster: Cluster,
        recorder: RunRecorder,
        place: str | None,
        facts: Mapping[str, Any],
        told: bool,
    ) -> None:
        self._cluster, self._recorder, self._place, self._facts = ref(cluster), recorder, place, facts
        self._last: Mapping[str, Any] = {}
        self._over, self._gave_way = threading.Event(), False
        self._live: LiveRun | None = None
        if place is not None or (told and cluster.embedded):
            about = {"name": os.path.basename(place), "folder": place} if place else {}
            self._live = LiveRun(cluster.watcher(), about, "", Path(place) if place else None, keeps=True)
        self._thread = threading.Thread(target=self._look, name="pslib-recorder", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S) and (cluster := self._cluster()) is not None:
            try:
                self._last = cluster.status()
                self._observe(self._last)
            except PslibError:  # the cluster is closing; `end` gets its last status
                return
            del cluster

    def _observe(self, status: Mapping[str, Any]) -> None:
        """Observe a status, with the run's events in place of the lines for people, if known."""
        known = {} if self._live is None else {"events": self._live.state()["events"]}
        self._recorder.observe(of_kind(status, *EVALUATIONS) | known)

    def stop(self) -> None:
        """Stop observing; of a cluster of several processes with its figures as this one leaves it."""
        self._over.set()
        if self._live is not None:
            self._live.close()
        self._thread.join(5.0)
        if (cluster := self._cluster()) is not None and not cluster.embedded:
            with suppress(PslibError):
                self._last = cluster.status()

    def give_way(self) -> None:
        """End without a summary: the folder's records are those of another trainer from now on."""
        self._gave_way = True
        self.stop()
        self._recorder.close()

    def end_elsewhere(self) -> None:
        """End the records of a cluster of several processes that this one has left."""
        if self._last:
            self.end(self._last)

    def end(self, status: Mapping[str, Any]) -> None:
        """Write the last records, with the last status of the cluster."""
        if self._gave_way:
            return
        _recordings.pop(self._place, None)
        if self._live is not None:
            self._live.finish(status, None, status["phase"] == "done")
        self._observe(status)
        servers, trainers = status["servers_configured"], status["trainers_configured"]
        try:
            self._recorder.finish({**self._facts, "servers": servers, "trainers": trainers})
        except OSError as error:  # the script already has its results
            log.warning("pslib: %s: %s; its records are not all there", self._place, error.strerror or error)


_of_cells: dict[str, tuple[int, ref[Any]]] = {}
"""Last cell of a notebook that has made a trainer of a class of models, and that trainer."""
_recordings: dict[str | None, _Recording] = {}
"""Recording of each folder that this process writes records to."""
