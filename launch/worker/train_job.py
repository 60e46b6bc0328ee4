"""Training of a job file, in each trainer of ``pslib train``; its evaluation, in ``pslib eval``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.job.job import Job, of_trainer, saved_place, unfinished_place
from launch.job.model import ranks_items
from launch.job.preflight import check_like_training, schema_asked
from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import ConfigurationError, DataError
from pslib.storage import is_uri

if TYPE_CHECKING:
    from pslib.cluster import Cluster
    from pslib.data.arrow_data import Data
    from pslib.metrics.ranking import RankResult
    from pslib.trainer import EvalResult, Trainer
    from pslib.trainer.settings import CheckpointSettings


TEST = "test"
SPACE_S = 600.0
"""Wait of a trained run for disk space: waiting costs nothing, giving up loses the training."""
BEST = "best"
"""Folder below ``out`` with the best epoch of a run with early stopping."""


def train_job(job: Job) -> str:
    """Train, evaluate on the test data if there is any, and save, as one trainer of the run.

    Parameters
    ----------
    job : Job

    Returns
    -------
    str
        Results as JSON.
    """
    from pslib.cluster import connect
    from pslib.trainer.trainer import save_as_it_is

    with connect() as cluster:
        trainer = make_trainer(job, cluster, saves=True)
        begin_with(job, trainer)
        try:
            _fit(job, trainer)
            result = {"trainer": cluster.rank, **_test(job, trainer)}
        except DataError:  # an unforeseeable bad row must not cost hours of training
            save_as_it_is(trainer)
            raise
        trainer.save(saved_place(job), keep_last=job.checkpoint.keep_last, space_s=SPACE_S)
    return json.dumps(result)


def begin_with(job: Job, trainer: Trainer) -> None:
    """Load the checkpoint that the training begins with, if the job file names one."""
    if load := job.load:
        trainer.load(
            load.path,
            state=load.state,
            tables=load.tables,
            resume=load.resume,
            other_model=load.other_model,
        )


def own_cluster(servers: int, shard_threads: int = 1) -> Cluster:
    """Start a cluster inside this process, even if the environment names a running one.

    `pslib.connect` would join the running cluster, and a checkpoint loaded for inspection would overwrite its
    parameters.
    """
    from pslib.cluster import connect

    named = {name: os.environ.pop(name, None) for name in (COORDINATOR_VARIABLE, CLUSTER_ID_VARIABLE)}
    try:
        return connect(servers=servers, shard_threads=shard_threads)
    finally:
        os.environ.update({name: value for name, value in named.items() if value is not None})


def _test(job: Job, trainer: Trainer) -> dict[str, Any]:
    """Evaluate each label on the test data, if there is any."""
    test = job.test_data
    if test is None:
        return {"test": None}
    tested = _tested(job, trainer, test)
    others = job.data.schema.more_labels
    tasks = {label: asdict(trainer.evaluate(test, label=label, name=TEST)) for label in others}
    return {"test": asdict(tested), **({"test_tasks": tasks} if tasks else {})}


def _fit(job: Job, trainer: Trainer) -> None:
    if job.data.stream:
        for _ in trainer.fit_stream(job.data.train[0], job.data.stream):
            pass  # the launcher reports its figures
        return
    stopping = job.training.stopping
    best = str(Path(job.out) / BEST) if stopping and stopping.restore else None
    data, epochs = job.data, job.training.epochs
    if data.valid and ranks_items(job.model.name):
        trainer.fit_and_rank(
            job.train_data,
            data.valid,
            epochs,
            stopping=stopping,
            best=best,
            items=data.items,
            **_ranking(job),
        )
    else:
        trainer.fit(job.train_data, epochs=epochs, valid=data.valid, stopping=stopping, best=best)


def _ranking(job: Job) -> dict[str, Any]:
    return asdict(job.ranked)


def _tested(
    job: Job, trainer: Trainer, data: Data, predictions: str | None = None, label: str | None = None
) -> EvalResult | RankResult:
    """Evaluate the model on data, by clicks or by ranking."""
    if not ranks_items(job.model.name):
        return trainer.evaluate(data, predictions=predictions, label=label, name=TEST)
    return trainer.rank(data, job.data.items or job.train_data, name=TEST, **_ranking(job))


def evaluate_checkpoint(
    job: Job,
    checkpoint: str,
    data: list[str] | None,
    predictions: str | None = None,
    label: str | None = None,
) -> EvalResult | RankResult:
    """Load a checkpoint into a cluster inside this process and evaluate it.

    Parameters
    ----------
    job : Job
        Model, schema and number of servers; it may differ from the job of the run that saved.
    checkpoint : str
        The checkpoint's folder.
    data : list of str or None
        Files to evaluate on; default: the job's test data, or the rows that it holds out.
    predictions : str or None
        Folder for the prediction of each example, with its label if the data has one.
    label : str or None
        Label of the task if the schema has several; None: the first.

    Raises
    ------
    ConfigurationError
        When there is no data to evaluate on, the schema has no such label, or predictions or a label are
        requested of a model that ranks items.
    CheckpointError
        When the checkpoint can't be read or belongs to another model.
    DataError
        When a file does not fit the schema, or its keys are made of values of another type than the trained
        ones.
    """
    asked = data or job.test_data
    if asked is None:
        raise ConfigurationError(
            "nothing to evaluate on: give DATA, or data.test or data.test_share in the job file"
        )
    if (predictions or label) and ranks_items(job.model.name):
        what = "--predictions" if predictions else "--label"
        raise ConfigurationError(f"{what}: {job.model.name} predicts no clicks; leave it out")
    if not _is_of_another_model(job):
        check_like_training(job, checkpoint, data or job.data.test or job.data.train, schema_asked(job))
    with _loaded(job, checkpoint) as trainer:
        return _tested(job, trainer, asked, predictions, label)


def _is_of_another_model(job: Job) -> bool:
    """Return whether a checkpoint may be of another model than the job file describes."""
    return job.load is not None and job.load.other_model


@contextmanager
def _loaded(job: Job, checkpoint: str) -> Iterator[Trainer]:
    """Return a trainer of a cluster inside this process, with the parameters of a checkpoint."""
    with own_cluster(job.cluster.servers, job.cluster.shard_threads) as cluster:
        trainer = make_trainer(job, cluster)
        # A checkpoint of an unfinished fit is only read here; the fit does not continue.
        trainer.load(checkpoint, resume=False, other_model=_is_of_another_model(job))
        yield trainer


def recommend_items(
    job: Job, checkpoint: str, data: list[str] | None, out: str, k: int, approximate: bool
) -> None:
    """Write the best items of each example; see `pslib.Trainer.recommend`.

    Parameters
    ----------
    job : Job
        Its ``data.items`` (else ``data.train``) names the items, its ``ranking`` the history.
    checkpoint : str
    data : list of str or None
        Default: the job's test data.
    out : str
    k : int
    approximate : bool

    Raises
    ------
    ConfigurationError
        When there are no examples, or the model ranks no items.
    """
    _check_ranks(job)
    asked = data or job.test_data
    if asked is None:
        raise ConfigurationError("no examples: give DATA, or data.test in the job file")
    how, items = job.ranked, job.data.items or job.train_data
    with _without_empty_folders(out), _loaded(job, checkpoint) as trainer:
        trainer.recommend(
            asked,
            items,
            out,
            k=k,
            history=how.history,
            exclude_seen=how.exclude_seen,
            approximate=approximate,
        )


@contextmanager
def _without_empty_folders(out: str) -> Iterator[None]:
    """Remove the created output folders when nothing was written."""
    missing = [] if is_uri(out) else [one for one in (Path(out), *Path(out).parents) if not one.exists()]
    try:
        yield
    except BaseException:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
        raise


def _check_ranks(job: Job) -> None:
    """Refuse a click model before anything is loaded or searched for."""
    if not ranks_items(job.model.name):
        model = type(job.build_model()).__name__
        raise ConfigurationError(f"{model} predicts clicks and ranks no items: pslib eval evaluates it")


def _when_saved(job: Job) -> CheckpointSettings:
    """Return the save schedule of the job file; without one, only on request."""
    from pslib.trainer.settings import EVERY_S_MAX, CheckpointSettings

    when = job.checkpoint
    every_s = when.every_s or (0.0 if when.every_batches else EVERY_S_MAX)
    return CheckpointSettings(
        unfinished_place(job), every_s, when.every_batches, when.keep_last or 1, when.incremental
    )


def make_trainer(job: Job, cluster: Cluster, saves: bool = False) -> Trainer:
    """Make the trainer of a job file; with ``saves`` it saves during training if the file says so."""
    from pslib.trainer import Trainer

    model = job.build_model()
    return Trainer(
        model,
        cluster,
        **of_trainer(job.training),
        optimizers=job.optimizers,
        table=job.table_of(model),
        checkpoint=_when_saved(job) if saves else None,
        out=None,  # the launcher writes the records of the run
        progress=False,
    )
