"""Contents of any checkpoint, read with pyarrow alone; and those of the golden one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pslib.checkpoint import Manifest, ManifestFile, commit
from pslib.client.client import Client
from pslib.table.initializers import Constant, Normal, Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint_v1"
GOLDEN_TABLE = TableSpec(
    "item",
    (
        PartSpec("a", 2, SGD(0.5), Constant(0.25)),
        PartSpec("b", 3, Adagrad(0.1, initial_accumulator=0.5), Uniform(0.5)),
        PartSpec("c", 2, RowwiseAdagrad(0.1), Normal(0.1)),
        PartSpec("d", 1, Adam(0.01), Uniform(1.0)),
    ),
    seed=7,
)
GOLDEN_DENSE = DenseSpec(5, Adam(0.01))
GOLDEN_KEYS = np.array([0, 1, 2, 3, 1 << 24, (1 << 24) + 1, 1 << 63, (1 << 64) - 1], np.uint64)


@dataclass(frozen=True)
class Content:
    """Weights, then state, of every row by key; the dense vector; its state by kind, then step counts."""

    rows: dict[int, bytes]
    dense: bytes
    dense_state: bytes


def content_of(folder: Path) -> Content:
    """State from which training continues, of a checkpoint of one table."""
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = [part["name"] for part in manifest["tables"][0]["parts"]]
    rows: dict[int, bytes] = {}
    blocks: list[tuple[int, list[float], list[float]]] = []
    for entry in manifest["files"]:
        columns = table_in(folder / entry["name"]).to_pydict()
        if not entry["table"]:
            blocks += list(zip(columns["first"], columns["weights"], columns["state"], strict=True))
            continue
        names = [name for name in (*parts, *(f"{part}_state" for part in parts)) if name in columns]
        for key, *floats in zip(columns["key"], *(columns[name] for name in names), strict=True):
            assert key not in rows
            rows[key] = np.concatenate([np.asarray(some, np.float32) for some in floats]).tobytes()
    blocks.sort(key=lambda block: block[0])
    dense = [np.asarray(weights, np.float32) for _, weights, _ in blocks]
    state = state_of((len(weights), np.asarray(numbers, np.float32)) for _, weights, numbers in blocks)
    return Content(rows, np.concatenate(dense).tobytes() if dense else b"", state)


def state_of(pieces: Iterable[tuple[int, np.ndarray]]) -> bytes:
    """State of all dense parameters, whatever pieces of so many floats they are kept in."""
    filled = [(size, state) for size, state in pieces if size]
    kinds = min((state.size // size for size, state in filled), default=0)  # a step count is no kind
    arrays = [
        np.concatenate([state[kind * size : (kind + 1) * size] for size, state in filled])
        for kind in range(kinds)
    ]
    counts = {float(state[-1]) for size, state in filled if state.size > kinds * size}
    return b"".join(array.tobytes() for array in (*arrays, np.array(sorted(counts), np.float32)))


def table_in(file: Path) -> pa.Table:
    """The rows of one file of a checkpoint."""
    with pa.OSFile(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


def save_tables(
    client: Client, folder: Path, *specs: TableSpec, token: str = "00000001", servers: int = 1, **more: Any
) -> Path:
    """Save tables without a trainer; ``more``: entries of the manifest."""
    files = [ManifestFile(**entry) for entry in client.save_files(str(folder), token)]
    entries: dict[str, Any] = {"dense": {"length": 0}, "saved_utc": "now"} | more
    tables = [spec.to_dict() for spec in specs]
    commit(str(folder), Manifest(tables=tables, files=files, servers=servers, **entries))
    return folder


def golden_pushes() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    for number in range(3):
        keys = GOLDEN_KEYS[number:]
        ramp = np.arange(keys.size * 8 + 5, dtype=np.int64) * 7 + number
        floats = ((ramp % 11 - 5) / 8).astype(np.float32)
        yield keys, floats[5:].reshape(-1, 8), floats[:5]
