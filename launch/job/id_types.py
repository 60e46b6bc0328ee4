"""Type of the ids of a training, integers or strings: data with the other type finds none of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from launch.job.job import Job, saved_place
from pslib.errors import DataError, PslibError

if TYPE_CHECKING:
    from pslib.data.column_types import KeyKinds
    from pslib.schema import Schema

__all__ = ["check_like_training", "kinds_in", "kinds_of_job", "kinds_of_load"]


def kinds_in(checkpoint: str) -> KeyKinds:
    """Return the types recorded in a checkpoint; empty if absent or unreadable, which its load reports."""
    from pslib.checkpoint import newest, read_manifest
    from pslib.data.column_types import kinds_of

    with suppress(PslibError):
        place = newest(checkpoint)
        return kinds_of(read_manifest(place).about, place)
    return {}


def kinds_of_load(job: Job) -> KeyKinds:
    """Return the types of the initial rows of a training; empty if these may be of another model."""
    return {} if job.load is None or job.load.other_model else kinds_in(job.load.path)


def kinds_of_job(job: Job) -> KeyKinds:
    """Return the types of a job's training data or, if it is missing, of the job file's checkpoints."""
    return _kinds_of_data(job) or kinds_in(saved_place(job)) or kinds_of_load(job)


def check_like_training(job: Job, checkpoint: str, paths: Sequence[str], schema: Schema) -> None:
    """Compare data with the job's training data, if a checkpoint of an earlier pslib records no types.

    Raises
    ------
    DataError
        When keys of these files are made of strings and those of the training of integers, or vice versa.
    """
    from pslib.data.dataset import ParquetData

    kinds = {} if kinds_in(checkpoint) else _kinds_of_data(job)
    if kinds:
        ParquetData(paths, _keys_of(schema), key_kinds=kinds)


def _kinds_of_data(job: Job) -> KeyKinds:
    from pslib.data.dataset import ParquetData

    kinds: KeyKinds = {}
    with suppress(DataError):  # it may be on another machine, or deleted
        ParquetData(job.data.train, _keys_of(job.schema_of_data), key_kinds=kinds)
    return kinds


def _keys_of(schema: Schema) -> Schema:
    from pslib.schema import Schema

    return Schema(label=None, sparse=schema.sparse, ragged=schema.ragged)
