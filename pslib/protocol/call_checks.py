"""What a call must be before a session begins it: a mistake is told in one line, and nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.protocol.calls import Counts
from pslib.protocol.dense_answer import KnownDense
from pslib.protocol.packed import PackedRows
from pslib.table.wire_format import DENSE_TYPES

__all__ = ["check_dense", "check_gradients", "check_keys", "check_known"]

Keys = NDArray[np.uint64]


def check_keys(keys: Mapping[str, Keys], dims: Mapping[str, int]) -> None:
    """Raise ConfigurationError when a table is none of these, or keys are no (n,) uint64."""
    if unknown := sorted(set(keys) - set(dims)):
        raise ConfigurationError(f"table {unknown[0]!r} is unknown; tables: {sorted(dims)}")
    for name, array in keys.items():
        if array.ndim != 1 or array.dtype != np.uint64:
            raise ConfigurationError(f"keys of {name}: expected (n,) uint64, got {array.shape} {array.dtype}")


def check_gradients(
    keys: Mapping[str, Keys],
    packed: Mapping[str, PackedRows],
    dims: Mapping[str, int],
    counts: Mapping[str, Counts],
) -> None:
    """Raise ConfigurationError when gradients, shows or clicks are not one for each of a table's keys."""
    for table, rows in packed.items():
        if problem := rows.problem(keys[table].size, dims[table]):
            raise ConfigurationError(f"gradients of {table}: {problem}")
    for table, pair in counts.items():
        if not pair.shows.shape == pair.clicks.shape == keys[table].shape:
            raise ConfigurationError(f"counts of {table}: expected {keys[table].size} shows and clicks")


def check_dense(vector: NDArray[Any], dense_length: int) -> None:
    """Raise ConfigurationError when this is no gradient of all dense parameters, and not empty."""
    if vector.shape not in ((0,), (dense_length,)) or vector.dtype not in DENSE_TYPES.values():
        raise ConfigurationError(
            f"dense gradient: expected ({dense_length},) float32, got {vector.shape} {vector.dtype}"
        )


def check_known(known: KnownDense, dense_blocks: int, dense_length: int) -> None:
    """Raise ConfigurationError when known dense parameters are not those of this cluster."""
    shapes = known.versions.shape, known.vector.shape
    if shapes[0] != (dense_blocks,) or (shapes[1] != (dense_length,) and known.versions.any()):
        expected = f"({dense_blocks},) versions of ({dense_length},) floats"
        raise ConfigurationError(f"known dense parameters: expected {expected}, got {shapes}")
