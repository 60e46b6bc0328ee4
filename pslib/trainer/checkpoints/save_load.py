"""Save and load of a training: manifest contents, and the position from which a training resumes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pslib.checkpoint import (
    Manifest,
    ManifestFile,
    check_keep_last,
    check_model,
    commit,
    discard,
    newest,
    next_place,
    other_tables,
    prune,
)
from pslib.checkpoint.folders import Base
from pslib.client.client import Client
from pslib.client.load import LoadSource
from pslib.clock import Clock, utc_now_text
from pslib.cluster import Cluster
from pslib.coordinator.jobs import moment_of_job
from pslib.data.column_types import KeyKinds, kinds_of, plain_kinds
from pslib.data.split import TrainedRows
from pslib.errors import CheckpointError, CheckpointFullError, ConfigurationError, ServerLeftError
from pslib.storage import is_uri, place_of, shown
from pslib.table.descriptions import model_description
from pslib.table.tables import DenseSpec, TableSpec, text_hash
from pslib.trainer.call_log import Calls
from pslib.trainer.checkpoints.online import TrainerCuts
from pslib.trainer.checkpoints.pause import CheckpointPause
from pslib.trainer.collective import HeldLease, Job, JobSpec
from pslib.trainer.model import ModelWithOptions, TrainableModel, first_dense_of
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.progress import Progress
from pslib.trainer.settings import LoadSettings, TrainerSettings
from pslib.wire.fields import json_array

log = logging.getLogger(__name__)
AGAIN_S, AGAIN_MAX_S = 1.0, 30.0
"""Delay after a save without enough space; it doubles each time."""


def clock_of(client: Client) -> Clock:
    """Return the clock for retry back-off."""
    return client.endpoint.clock


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a training: done epochs and steps, their seconds, and files of streams."""

    epochs: int = 0
    steps: int = 0
    seconds: float = 0.0
    files: Sequence[str] = ()


def set_up(
    cluster: Cluster,
    model: TrainableModel,
    table: TableSpec,
    layout: DenseLayout,
    dense: DenseSpec,
    seed: int,
    share: bool,
) -> None:
    """Create a model's table and dense parameters on all servers; mark their owner unless shared.

    Raises
    ------
    ConfigurationError
        If they are another model's or, unless it may ``share``, another trainer's of this connection; if
        there are more dense parameters than can be set up.
    """
    if problem := layout.size_problem():  # before memory is allocated for them
        raise ConfigurationError(f"model: {problem}")
    first_values = layout.flatten(first_dense_of(model, layout.shapes, seed))
    if share:
        cluster.client.setup([table], dense, first_values)
        return
    about = description_of(model, table, layout)
    with cluster.claim(about):
        cluster.client.setup([table], dense, first_values, about)


def _position_in(about: Mapping[str, Any]) -> Position:
    """Read the position of the training from a manifest."""
    epochs, steps = int(about.get("epochs", 0)), int(about.get("steps", 0))
    return Position(epochs, steps, float(about.get("seconds", 0.0)), tuple(about.get("files", ())))


def description_of(model: TrainableModel, table: TableSpec, layout: DenseLayout) -> dict[str, Any]:
    """Describe a model, to distinguish models of equal shapes, for servers and checkpoints."""
    return model_description(table.name, type(model).__name__, model.schema.to_dict(), layout.describe())


class CheckpointJobs:
    """Saves and loads of one trainer: jobs of one lease, done by one trainer while the others wait.

    Parameters
    ----------
    cluster : Cluster
    progress : Progress
    model, table, layout, settings
        Described in manifests.
    calls : Calls
        Call log of the script.
    """

    def __init__(
        self,
        cluster: Cluster,
        progress: Progress,
        model: TrainableModel,
        table: TableSpec,
        layout: DenseLayout,
        settings: TrainerSettings,
        calls: Calls,
    ) -> None:
        self._cluster, self._progress, self._calls = cluster, progress, calls
        self.began = Position()
        """Position before the first call of the script."""
        self.saved = Position()
        """Position stored in the last loaded checkpoint: where its last `fit` began."""
        self.kinds: KeyKinds = {}
        """Kinds of values that keys are made of in this training; empty: unknown."""
        self.trained: TrainedRows | None = None
        """Rows that the last fit has seen; None: unknown, or there was none."""
        self._model, self._table, self._layout, self._settings = model, table, layout, settings

    @property
    def _client(self) -> Client:
        return self._cluster.client

    def save(self, path: Any, keep_last: int, position: Position, space_s: float = 0.0) -> tuple[str, bool]:
        """See `pslib.Trainer.save`; return the checkpoint's path, and whether this trainer has written it."""
        check_keep_last(keep_last)
        place = place_of(path)
        if not is_uri(place) and Path(place).is_file():
            raise CheckpointError(f"save: expected a folder, new or a checkpoint's, got the file {place}")
        is_ours = self._single(
            "save",
            place,
            [keep_last],
            lambda job, lease: self._save_patiently(place, keep_last, position, space_s, job, lease),
        )
        if keep_last and is_ours:  # the job is over: until then the coordinator names the one before
            prune(place, keep_last)
        return newest(place) if keep_last else place, is_ours

    def _save_patiently(
        self, folder: str, keep_last: int, position: Position, space_s: float, job: Job, lease: HeldLease
    ) -> str:
        """Save, with retries while space may still be freed, or while servers leave.

        Returns the path.
        """
        place = next_place(folder) if keep_last else folder
        clock, again_s = clock_of(self._client), AGAIN_S
        until_s = clock.now_s() + space_s
        while True:
            token = secrets.token_hex(4)
            try:
                self._save(place, token, position, job, lease)
                return place
            except ServerLeftError:
                discard(place, token)
                with self._client.endpoint.lock:  # a new map is installed under this lock
                    continue
            except CheckpointFullError as error:
                discard(place, token)
                if clock.now_s() >= until_s:
                    raise
                log.warning("pslib: waiting for space: %s; tried again in %.0f s", error, again_s)
            clock.sleep_s(min(again_s, max(0.0, until_s - clock.now_s())))
            again_s = min(2 * again_s, AGAIN_MAX_S)

    def _save(self, place: str, token: str, position: Position, job: Job, lease: HeldLease) -> None:
        entries = self._client.save_files(place, token)
        files = [ManifestFile(**entry) for entry in entries]
        job.confirm()  # a successor may have removed them
        manifest = self.manifest(place, files, position, lease.time_s)
        job.confirm()  # a stalled trainer must not overwrite its successor's manifest
        commit(place, manifest)

    def cuts(self, gate: CheckpointPause, position: Callable[[], Position]) -> TrainerCuts:
        """Create the online checkpoints of a fit; ``position`` is where the fit under way began."""
        return TrainerCuts(
            self._client,
            gate,
            self._settings.checkpoint,
            lambda: partial(self.cut_manifest, position()),
        )

    def cut_manifest(
        self,
        position: Position,
        place: str,
        files: list[ManifestFile],
        table: Mapping[str, Any],
        token: str,
        base: Base | None,
    ) -> Manifest:
        """Build the manifest of a cut through a job that began at ``position``."""
        began = asdict(self.began)
        increment = {} if base is None else {"of": base.name, "token": base.token, "depth": base.depth + 1}
        cut = {"token": token, "table": {**table, "began": began}}
        return replace(
            self.manifest(place, files, position, float(table["since_s"])),
            format_version=0,
            cut=cut,
            increment=increment,
        )

    def manifest(self, place: str, files: list[ManifestFile], position: Position, lease_s: float) -> Manifest:
        """Build the manifest of a checkpoint; servers also save tables that are not the model's."""
        return Manifest(
            tables=[self._table.to_dict(), *other_tables(place, files, self._table.name)],
            dense={
                "length": self._layout.length,
                "optimizer": self._settings.dense_optimizer.to_dict(),
                "parameters": self._layout.describe(),
            },
            files=files,
            servers=len(self._client.servers),
            about={
                "model": type(self._model).__name__,
                "schema": self._model.schema.to_dict(),
                "seed": self._settings.seed,
                "batch_rows": self._settings.batch_rows,
                "epochs": position.epochs,
                "steps": position.steps,
                "seconds": position.seconds + lease_s,
                "files": list(position.files),
            }
            | ({"key_kinds": plain_kinds(self.kinds)} if self.kinds else {})
            | ({"trained_rows": asdict(self.trained)} if self.trained else {})
            | ({"options": self._model.options()} if isinstance(self._model, ModelWithOptions) else {}),
            saved_utc=utc_now_text(),
        )

    def load(self, how: LoadSettings, position: Position) -> Position | None:
        """See `pslib.Trainer.load`; return the new position of the training, or None if unchanged."""
        state, tables = how.state, how.tables
        names = None if tables is None else sorted(set(tables))
        source = self._calls.source_of(how.path)
        place, manifest = source.place, source.manifest
        about, jobs = manifest.about, manifest.cut.get("table", {})
        # Where another model may train the same parameters, the checkpoint may be of that model.
        if state and names is None and not (how.other_model or self._settings.share):
            check_model(manifest, place, description_of(self._model, self._table, self._layout))
        goes_on = bool(jobs) and state and tables is None and how.resume
        if goes_on:
            self._calls.resume(jobs)
        elif names is None:
            self._calls.begin_anew()
        first = not self._cluster.begun
        now = position if names is not None else Position()
        self._single(
            "load",
            place,
            [state, names],
            lambda job, lease: self._client.load(
                place,
                state=state,
                tables=names,
                step=now.steps,
                time_s=now.seconds,
                ready=job.confirm,  # a stalled trainer must not load over its successor's training
                lease=(lease.stream, lease.epoch),  # nor one that stalls after that
            ),
            {"state": state, "tables": ",".join(names or ()), "step": now.steps, "time_s": now.seconds},
            source,
        )
        if self.replaces_rows(tables):
            self.kinds = {} if how.other_model else kinds_of(about, place)
            self.trained = TrainedRows.in_manifest(about)
        if names is not None:
            return None
        self.saved = _position_in(about) if state else Position()
        loaded = Position(**jobs["began"]) if goes_on else self.saved
        if first:
            self.began = loaded
        return loaded

    def replaces_rows(self, tables: Sequence[str] | None) -> bool:
        """Tell whether a load of these tables (None: of all) replaces the model's rows."""
        return tables is None or self._table.name in tables

    def _single(
        self,
        what: str,
        place: str,
        settings: list[Any],
        work: Callable[[Job, HeldLease], Any],
        load: Mapping[str, Any] | None = None,
        source: LoadSource | None = None,
    ) -> bool:
        """Run a job of one lease, awaited by all trainers; return whether this trainer did it.

        ``work`` of a save returns the checkpoint's path. ``load`` is how the path is loaded, ``source`` the
        checkpoint there.
        """
        fingerprint = text_hash(what, place, *map(str, settings))
        details = {"path": shown(place)} | ({"load": dict(load)} if load else {})
        spec = JobSpec(what, fingerprint, details, np.zeros(1, np.uint32))
        job = self._calls.open(self._client, self._progress, spec, source)
        is_ours = False
        for lease in job.leases():
            try:
                done = work(job, lease)
            except BaseException:  # if it is caught, moving units must not wait
                self._calls.load_is_over()
                job.give_back(lease)
                raise
            is_ours = True
            job.end(lease, {"place": json_array(done if what == "save" else place)}).wait()
        self._calls.load_is_over()
        endpoint = self._client.endpoint
        with endpoint.lock:
            if endpoint.session and not job.passed:
                endpoint.session.acknowledged.pause(moment_of_job(job.number))
        return is_ours
