"""Compatibility of a job with the run that it resumes, checked before the run's folder is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from launch.job.job import Job, read_job
from launch.job.paths import from_here
from launch.job.yaml12 import flow_text, read_yaml
from pslib.errors import ConfigurationError, DataError

CALLS = (
    *("epochs", "batch_rows", "seed", "lease_rows", "maintain_every_batches", "stopping"),
    *("consistency", "ssp_bound", "geo_every_batches", "damping", "schedule"),
)
"""Settings of ``training`` by which a checkpoint or a journal identifies finished calls."""

WORDS_MAX = 60
"""Longest shown value; a schema may have hundreds of columns."""


def check_same_training(job: Job, from_logs: bool) -> None:
    """Compare a job with the effective job file of the run that it resumes.

    Settings that may differ are ignored: number of servers, types on the wire, and without logs learning
    rates. Nothing is compared if the file is missing or of another version: the cluster then reports
    mismatches.

    Parameters
    ----------
    job : Job
    from_logs : bool
        True if it resumes from the run's logs, which hold more of it than a checkpoint.

    Raises
    ------
    ConfigurationError
        With a line for each difference, and advice.
    """
    effective = Path(job.out) / "job.yaml"
    try:
        began = read_job(effective)
    except ConfigurationError:
        return
    found = dict.fromkeys(_differences(began, job, from_logs))
    if found:
        *lines, last = found
        recipe = f"pslib train --resume {quote(from_here(Path(job.out)))}"
        raise ConfigurationError(*lines, f"{last}, or {recipe}")


def _differences(began: Job, job: Job, from_logs: bool) -> Iterator[str]:
    """Return the differences, in the order of the job file."""
    plain, other = (read_yaml(one.to_yaml(), "job.yaml") for one in (began, job))
    yield from _of_data(began, job)
    if _shape(began) != _shape(job):
        columns = ("dense", "sparse", "ragged", "more_labels")
        schemas = ({name: one["data"]["schema"].get(name) for name in columns} for one in (plain, other))
        yield from _of_values("data.schema", *schemas)
        yield from _of_values("model", plain["model"], other["model"])
    yield from _of_optimizers(plain["optimizers"], other["optimizers"], from_logs)
    each_epoch = began.data.valid and job.data.valid  # is a separate call, and others may follow
    calls = [name for name in CALLS if not (each_epoch and name == "epochs")]
    training = ({name: one["training"].get(name) for name in calls} for one in (plain, other))
    yield from _of_values("training", *training)
    if job.data.valid:
        rankings = (asdict(one.ranked) for one in (began, job))
        yield from _of_values("ranking", *rankings)
    if from_logs and began.cluster.durability != "memory":
        yield from _of_values("table", plain["table"], other["table"])
        yield from _of_values("load", plain.get("load"), other.get("load"))
    if job.training.consistency == "sync":
        yield from _of_values("cluster.trainers", began.cluster.trainers, job.cluster.trainers)


def _of_data(began: Job, job: Job) -> Iterator[str]:
    """Compare data by names, sizes and rows, as far as the earlier files still exist: they may have moved."""
    yield from _of_values("data.stream", *(_plain_stream(one) for one in (began, job)))
    for name in ("test_share", "test_by"):
        yield from _of_values(f"data.{name}", getattr(began.data, name), getattr(job.data, name))
    for name in ("valid",) if job.data.stream or began.data.stream else ("train", "valid"):
        mine, other = getattr(began.data, name), getattr(job.data, name)
        if mine == other:
            continue
        if mine is None or other is None or not _are_same(began, mine, other):
            yield _line(f"data.{name}", mine, other)


def _plain_stream(job: Job) -> dict[str, Any] | None:
    return None if job.data.stream is None else asdict(job.data.stream)


def _are_same(job: Job, mine: list[str], other: list[str]) -> bool:
    """Return whether two lists of paths are the same data; unreadable files are taken as equal."""
    from pslib.data.data_files import data_files
    from pslib.data.dataset import ParquetData

    try:
        first, second = (ParquetData(data_files(paths), job.data.schema) for paths in (mine, other))
    except DataError:
        return True
    return first.fingerprint == second.fingerprint


def _shape(job: Job) -> Any:
    """Return the part of a model that a checkpoint and a cluster record, without its optimizers."""
    from pslib.trainer.checkpoints.save_load import description_of
    from pslib.trainer.pipeline.dense import DenseLayout

    model = job.build_model()
    table = job.table_of(model)
    parts = [(part.name, part.dim) for part in table.parts]
    return description_of(model, table, DenseLayout(model.dense_shapes())), parts


def _of_optimizers(began: Mapping[str, Any], came: Mapping[str, Any], from_logs: bool) -> Iterator[str]:
    """Return the kinds of optimizers, and their parameters if servers have them in their logs."""
    parts = [name for name in began["rows"] if name in came["rows"]]
    pairs = [(f"rows.{name}", began["rows"][name], came["rows"][name]) for name in parts]
    for name, mine, other in [*pairs, ("dense", began["dense"], came["dense"])]:
        if from_logs:
            yield from _of_values(f"optimizers.{name}", mine, other)
        else:
            yield from _of_values(f"optimizers.{name}.name", mine["name"], other["name"])


def _of_values(key: str, began: Any, came: Any) -> Iterator[str]:
    """Return a line for each different setting below ``key``."""
    if isinstance(began, Mapping) and isinstance(came, Mapping):
        for name in dict.fromkeys((*began, *came)):
            yield from _of_values(f"{key}.{name}", began.get(name), came.get(name))
    elif began != came:
        yield _line(key, began, came)


def _line(key: str, began: Any, came: Any) -> str:
    mine, other = _text(began), _text(came)
    if len(mine) > WORDS_MAX:
        return f"{key}: the run began with another one than this job's; say that of its job.yaml"
    said = other if len(other) <= WORDS_MAX else "something else"
    return f"{key}: the run began with {mine}, this job says {said}; say {mine}"


def _text(value: Any) -> str:
    return "none" if value is None else flow_text(value)
