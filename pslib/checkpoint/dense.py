"""Dense blocks in checkpoint files: written per shard, read into blocks of any other size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.checkpoint.arrow_files import batches_of
from pslib.checkpoint.manifest import Manifest
from pslib.errors import CheckpointCorruptError, CheckpointIncompatibleError
from pslib.shard.shard import Shard
from pslib.storage import shown
from pslib.table.optimizers import Adam, Optimizer, optimizer_from_dict

FloatRows = NDArray[np.float32]
DENSE_SCHEMA = pa.schema(
    [
        pa.field("first", pa.int64(), nullable=False),
        pa.field("weights", pa.list_(pa.float32()), nullable=False),
        pa.field("state", pa.list_(pa.float32()), nullable=False),
    ]
)


def dense_batch(first: NDArray[np.int64], weights: list[FloatRows], state: list[FloatRows]) -> pa.RecordBatch:
    """Record batch of blocks: their positions in the vector, weights and state."""
    floats = pa.list_(pa.float32())
    return pa.record_batch(
        [pa.array(first), pa.array(weights, floats), pa.array(state, floats)], schema=DENSE_SCHEMA
    )


@dataclass(frozen=True, slots=True)
class DenseContent:
    """All dense parameters of a checkpoint, independent of its block size.

    ``weights`` (length,); ``states`` (elements, length); ``counts`` (length,) step counts, or None for
    optimizers without a step count.
    """

    weights: FloatRows
    states: FloatRows
    counts: FloatRows | None


def check_dense_optimizer(expected: Optimizer, manifest: Manifest, path: str, state: bool) -> None:
    """Check that the state of a checkpoint's dense parameters belongs to an optimizer.

    Raises
    ------
    CheckpointIncompatibleError
        If it belongs to another optimizer, and state is to be loaded.
    """
    optimizer = optimizer_from_dict(manifest.dense["optimizer"])
    if state and optimizer.kind != expected.kind:
        raise CheckpointIncompatibleError(
            f"{shown(path)}: dense optimizer: expected {type(expected).__name__}, "
            f"the checkpoint has {type(optimizer).__name__}; load(state=False) takes the weights alone "
            "(job file: load.state: false)"
        )


def dense_pieces(path: str, manifest: Manifest) -> Iterator[tuple[int, FloatRows, FloatRows]]:
    """Read the pieces of a checkpoint's dense parameters: place in the vector, weights (n,) and state (m,).

    Raises
    ------
    CheckpointCorruptError
        If a file is damaged, or pieces don't cover the vector exactly once with a state of their size.
    """
    length = manifest.dense_length
    optimizer = optimizer_from_dict(manifest.dense["optimizer"]) if length else None
    seen = np.zeros(length, np.uint8)
    for entry in manifest.files_of(""):
        for batch in batches_of(path, entry, DENSE_SCHEMA):
            for first, weights, state in zip(
                batch.column("first").to_pylist(), batch.column("weights"), batch.column("state"), strict=True
            ):
                size = len(weights)
                wanted = 0 if optimizer is None else optimizer.state_floats(size)
                if not 0 <= first <= length - size or len(state) != wanted:
                    raise CheckpointCorruptError(
                        f"{shown(path)}: {entry.name}: dense parameters {first}..{first + size - 1} of "
                        f"{length} with {len(state)} numbers of the optimizer; expected {wanted}"
                    )
                np.minimum(seen[first : first + size] + 1, 2, out=seen[first : first + size])
                yield first, _floats(weights), _floats(state)
    if (wrong := np.count_nonzero(seen != 1)) > 0:
        place = int(np.flatnonzero(seen != 1)[0])
        raise CheckpointCorruptError(
            f"{shown(path)}: {wrong} of {length} dense parameters are missing or there twice, the first at "
            f"{place}"
        )


def _floats(numbers: pa.ListScalar) -> FloatRows:
    values: FloatRows = numbers.values.to_numpy(zero_copy_only=False)
    return values


def read_dense(shard: Shard, manifest: Manifest, path: str, state: bool) -> DenseContent | None:
    """Read all dense parameters of a checkpoint, with or without state; None if the shard has none.

    Raises
    ------
    CheckpointIncompatibleError
        If they belong to another optimizer.
    CheckpointCorruptError
        If pieces are missing.
    """
    if shard.dense is None:
        return None
    expected = shard.dense.spec.optimizer
    check_dense_optimizer(expected, manifest, path, state)
    length, counted = shard.dense.spec.length, state and isinstance(expected, Adam)
    elements = expected.state_floats(1) - counted if state else 0
    found = DenseContent(
        np.empty(length, np.float32),
        np.empty((elements, length), np.float32),
        np.empty(length, np.float32) if counted else None,
    )
    for first, block, numbers in dense_pieces(path, manifest):
        part = slice(first, first + block.size)
        found.weights[part] = block
        found.states[:, part] = numbers[: elements * block.size].reshape(elements, block.size)
        if found.counts is not None and block.size:
            found.counts[part] = numbers[-1]
    return found


def put_dense(shard: Shard, found: DenseContent, with_state: bool) -> None:
    """Set a shard's blocks, with the state of the checkpoint or a fresh one."""
    assert shard.dense is not None
    for block in shard.owned_blocks():
        start, stop = shard.dense.bounds(block)
        if not with_state:
            shard.dense.put(block, found.weights[start:stop])
            continue
        state = found.states[:, start:stop].reshape(-1)
        if found.counts is not None:
            state = np.append(state, found.counts[start] if stop > start else np.float32(0))
        shard.dense.put(block, found.weights[start:stop], state)


def dense_vector(path: str, manifest: Manifest) -> NDArray[np.float32]:
    """All dense weights of a checkpoint as one vector.

    Raises
    ------
    CheckpointCorruptError
        If a piece is out of range, or a file can't be read.
    """
    vector = np.zeros(manifest.dense_length, np.float32)
    for first, weights, _ in dense_pieces(path, manifest):
        vector[first : first + weights.size] = weights
    return vector
