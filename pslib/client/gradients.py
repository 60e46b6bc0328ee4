"""Checks of a push: keys, gradients, and the shows and clicks of each key."""

from __future__ import annotations

import operator
import os
from collections.abc import Container, Mapping
from numbers import Real
from threading import TIMEOUT_MAX
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.data.distinct import distinct
from cython_ext.model.row_places import scatter_add_rows
from cython_ext.wire.packing import first_beyond
from pslib.batch import Batch
from pslib.client.calls import SHOWS_MIN, Counts, Manner, Moment, PushName
from pslib.errors import ConfigurationError
from pslib.table.wire_format import DENSE_TYPES
from pslib.validation import came
from pslib.wire.staleness import Seen

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


def kind_of(value: Any) -> str:
    """Describe a value for errors: shape and dtype of an array, type of anything else."""
    return f"{value.shape} {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def checked_keys(table: str, keys: Any) -> Keys:
    """Return the keys of a call, contiguous; ConfigurationError unless they are (n,) uint64."""
    if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64 or keys.ndim != 1:
        raise ConfigurationError(f"keys of {table}: expected (n,) uint64, got {kind_of(keys)}")
    return np.ascontiguousarray(keys)


def checked_pair(table: str, keys: Any, rows: Any, dim: int | None) -> tuple[Keys, Rows]:
    """Return keys and gradients of a push, contiguous; without ``dim`` (unknown table) check only keys.

    Raises
    ------
    ConfigurationError
        When an array has another type or shape.
    """
    keys = checked_keys(table, keys)
    shape = (keys.size, dim)
    fits = isinstance(rows, np.ndarray) and rows.dtype == np.float32 and rows.shape == shape
    if dim is not None and not fits:
        raise ConfigurationError(f"gradients of {table}: expected {shape} float32, got {kind_of(rows)}")
    return keys, np.ascontiguousarray(rows)


def counts_of(
    table: str, keys: Keys, shows: Mapping[str, Rows] | None, clicks: Mapping[str, Rows] | None
) -> Counts | None:
    """Return the shows and clicks given for the keys of a table; None when both are absent.

    Raises
    ------
    ConfigurationError
        When an array has another shape or type, or a number in it is out of range.
    """
    given = [None if some is None else some.get(table) for some in (shows, clicks)]
    if given[0] is None and given[1] is None:
        return None
    checked = []
    for what, counts, default in (("shows", given[0], 1), ("clicks", given[1], 0)):
        one = np.full(keys.size, default, np.float32) if counts is None else counts
        if not isinstance(one, np.ndarray) or one.dtype != np.float32 or one.shape != keys.shape:
            raise ConfigurationError(
                f"{what} of {table}: expected ({keys.size},) float32, got {kind_of(one)}"
            )
        one = np.ascontiguousarray(one)
        least = SHOWS_MIN if what == "shows" else 0.0
        if first_beyond(one) < one.size or (one.size and one.min() < least):
            raise ConfigurationError(f"{what} of {table}: expected finite numbers >= {least:g}")
        checked.append(one)
    return Counts(checked[0], checked[1])


def summed(
    keys: Keys, gradients: Rows, counts: Counts | None, takes_counts: bool
) -> tuple[tuple[Keys, Rows], Counts | None]:
    """Sum gradients and counts of repeated keys, in order; without counts each occurrence counts one."""
    unique, places = distinct(keys)
    if unique.size == keys.size:
        return (keys, gradients), counts
    if counts is None and takes_counts:
        counts = Counts(np.ones(keys.size, np.float32), np.zeros(keys.size, np.float32))
    pair = unique, scatter_add_rows(gradients, places, unique.size)
    if counts is None:
        return pair, None
    both = scatter_add_rows(np.stack([counts.shows, counts.clicks], axis=1), places, unique.size)
    return pair, Counts(*np.ascontiguousarray(both.T))


def prepared(
    gradients: Mapping[str, tuple[Any, Any]],
    dims: Mapping[str, int],
    counted: Container[str],
    shows: Mapping[str, Rows] | None,
    clicks: Mapping[str, Rows] | None,
    repeats: bool,
    travels_as: str,
) -> tuple[dict[str, tuple[Keys, Rows]], dict[str, Counts]]:
    """Check the pairs and counts of a push; sum repeated keys where ``repeats`` allows them.

    Parameters
    ----------
    gradients : mapping of table name to ((n,) uint64, (n, dim) float32)
    dims : mapping of table name to int
    counted : container of str
        Tables that count shows and clicks.
    shows, clicks : mapping of table name to (n,) float32, or None
    repeats : bool
    travels_as : str
        Wire type of the gradients, of `ROW_TYPES`.

    Raises
    ------
    ConfigurationError
        When an array has another type or shape, a number in it is not finite, or there are shows or clicks of
        a table that is not pushed.
    """
    for what, given in (("shows", shows), ("clicks", clicks)):
        if given is not None and (strangers := [table for table in given if table not in gradients]):
            raise ConfigurationError(
                f"{what}: expected tables of this push, {sorted(gradients)}, got {strangers[0]!r}; push its "
                "gradients too"
            )
    pairs, counts = {}, {}
    for table, (given_keys, given_rows) in gradients.items():
        keys, rows = checked_pair(table, given_keys, given_rows, dims.get(table))
        some = counts_of(table, keys, shows, clicks) if table in counted else None
        if repeats:
            (keys, rows), some = summed(keys, rows, some, table in counted)
        if table in dims and (place := first_beyond(rows, narrow=travels_as != "float32")) < rows.size:
            where = f"of key {keys[place // rows.shape[1]]}"
            raise _not_finite(f"gradients of {table}", rows.flat[place], where, travels_as)
        pairs[table] = keys, rows
        if some is not None:
            counts[table] = some
    return pairs, counts


def checked_dense(vector: Any, length: int) -> None:
    """Check a gradient of all dense parameters, in its wire type; the session checks its shape.

    Raises
    ------
    ConfigurationError
        When it is no array, or a number in it is not finite.
    """
    if not isinstance(vector, np.ndarray):
        raise ConfigurationError(f"dense gradient: expected ({length},) float32, got {kind_of(vector)}")
    of_type = vector.dtype in DENSE_TYPES.values() and vector.flags.c_contiguous
    if of_type and (place := first_beyond(vector)) < vector.size:
        kind = next(name for name, dtype in DENSE_TYPES.items() if dtype == vector.dtype)
        number = vector.flat[place] if kind != "bfloat16" else np.nan if vector.flat[place] & 0x7F else np.inf
        raise _not_finite("dense gradient", number, f"at place {place}", kind)


def _not_finite(what: str, number: Any, where: str, travels_as: str) -> ConfigurationError:
    kind = "" if travels_as == "float32" else f" as {travels_as}"
    return ConfigurationError(
        f"{what}: expected finite numbers{kind}, got {number:g} {where}; nothing of the push was sent: look "
        "for the example that gives it, or lower the learning rate"
    )


def batch_counts(batch: Batch) -> Counts:
    """Count the occurrences of each distinct key of a batch, and the clicked examples with it.

    A key that stands twice in one example was shown twice.
    """
    labels = batch.labels.astype(np.float32, copy=False)
    places = [batch.sparse.reshape(-1)]
    clicked = [np.repeat(labels, batch.sparse.shape[1])]
    for ragged in batch.ragged.values():
        places.append(ragged.values)
        clicked.append(np.repeat(labels, ragged.lengths))
    flat = np.concatenate(places)
    both = np.ones((flat.size, 2), np.float32)
    both[:, 1] = np.concatenate(clicked)
    return Counts(*np.ascontiguousarray(scatter_add_rows(both, flat, batch.keys.size).T))


STEP_MAX = (1 << 64) - 1


def by_table(keys: Any) -> Mapping[str, Any]:
    """Return the keys of a call; ConfigurationError unless they are a mapping by table name."""
    if not isinstance(keys, Mapping):
        raise ConfigurationError(f"keys: expected a dict such as {{'item': keys}}, got {kind_of(keys)}")
    return keys


def moment_of(step: Any, time_s: Any) -> Moment:
    """Return the moment of a call; a step may be a NumPy integer."""
    try:
        whole = operator.index(step)
    except TypeError:
        whole = -1
    if isinstance(step, (bool, np.bool_)) or not 0 <= whole <= STEP_MAX:
        raise ConfigurationError(f"step: expected an integer in 0..2^64-1, got {came(step)}")
    try:
        seconds = float(time_s)
    except (TypeError, ValueError, OverflowError):
        seconds = np.nan
    if not np.isfinite(seconds):
        raise ConfigurationError(f"time_s: expected a finite number of seconds, got {came(time_s)}")
    return Moment(whole, seconds)


def check_process(process: int) -> None:
    """Raise ConfigurationError in a fork: the receive thread, and perhaps a lock's owner, is not in it."""
    if os.getpid() != process:
        raise ConfigurationError(
            "this process is a fork of one that belongs to a cluster, and can't use its connection: call "
            "pslib.connect(...) here, or start it with multiprocessing's 'spawn'"
        )


def check_push(gradients: Any, dense: Any, name: Any, manner: Any, since: Any, dense_length: int) -> None:
    """Raise ConfigurationError unless gradients are pairs by table name and the other arguments fit."""
    if not isinstance(gradients, Mapping):
        raise ConfigurationError(
            f"gradients: expected a dict such as {{'item': (keys, gradients)}}, got {kind_of(gradients)}"
        )
    for table, pair in gradients.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            got = f"{len(pair)} values" if isinstance(pair, (tuple, list)) else kind_of(pair)
            raise ConfigurationError(f"gradients of {table}: expected a pair (keys, gradients), got {got}")
    if dense is not None:
        checked_dense(dense, dense_length)
    if not isinstance(name, (PushName, NoneType)):
        raise ConfigurationError(f"name: expected a PushName(stream, number) or None, got {kind_of(name)}")
    if not isinstance(manner, Manner):
        raise ConfigurationError(f"manner: expected a Manner(...), got {kind_of(manner)}")
    if not isinstance(since, Seen):
        raise ConfigurationError(f"since: expected `pulled.seen` of a pull, got {kind_of(since)}")


def check_timeout(timeout_s: Any, or_none: str = ", or None") -> None:
    """Raise ConfigurationError unless a value is a valid timeout."""
    number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if not number or not 0 <= timeout_s <= TIMEOUT_MAX:
        raise ConfigurationError(f"timeout_s: expected seconds, 0 or more{or_none}, got {came(timeout_s)}")
