"""What the keys of a training were made of, integers or strings: other data finds none of its rows."""

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
    """As a checkpoint says; empty for one that does not, or can't be read, as whoever loads it will say."""
    from pslib.checkpoint import newest, read_manifest
    from pslib.data.column_types import kinds_of

    with suppress(PslibError):
        place = newest(checkpoint)
        return kinds_of(read_manifest(place).about, place)
    return {}


def kinds_of_load(job: Job) -> KeyKinds:
    """Of the rows that a training begins with; empty where it may go on with another model's."""
    return {} if job.load is None or job.load.other_model else kinds_in(job.load.path)


def kinds_of_job(job: Job) -> KeyKinds:
    """Of a job's training data or, where that is not there, of the checkpoints that the job file names."""
    return _kinds_of_data(job) or kinds_in(saved_place(job)) or kinds_of_load(job)


def check_like_training(job: Job, checkpoint: str, paths: Sequence[str], schema: Schema) -> None:
    """Hold data to the job's training data, where a checkpoint, of an earlier pslib, knows nothing of that.

    Raises
    ------
    DataError
        When keys of these files would be made of strings, and those of the training of integers, or the other
        way round.
    """
    from pslib.data.dataset import ParquetData

    kinds = {} if kinds_in(checkpoint) else _kinds_of_data(job)
    if kinds:
        ParquetData(paths, _keys_of(schema), key_kinds=kinds)


def _kinds_of_data(job: Job) -> KeyKinds:
    from pslib.data.dataset import ParquetData

    kinds: KeyKinds = {}
    with suppress(DataError):  # it may be on another machine, or gone
        ParquetData(job.data.train, _keys_of(job.schema_of_data), key_kinds=kinds)
    return kinds


def _keys_of(schema: Schema) -> Schema:
    from pslib.schema import Schema

    return Schema(label=None, sparse=schema.sparse, ragged=schema.ragged)
