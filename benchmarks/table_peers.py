"""Alternatives to the table: absl's map, torch and FBGEMM, each where it is installed.

Each peer is a dict of name to (prepare, call): prepare takes keys or row numbers that nobody has read before
it and is not timed, call is.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DIM",
    "Contenders",
    "Turn",
    "absl_peer",
    "at",
    "compiled",
    "fbgemm_peer",
    "n_of",
    "seconds",
    "torch_peer",
]

HERE = Path(__file__).parent
DIM = 16
ROWS_MAX = (
    20_000_000  # of absl's map, whose peak while it doubles would not fit beside the table, and of Adagrad
)

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]
Contenders = dict[str, tuple[Callable[[], object], Callable[[], object]]]


def compiled(source: str, *flags: str) -> ctypes.CDLL | None:
    """A shared library of one source file of this folder; None where it can't be compiled."""
    compiler = "g++" if source.endswith("cpp") else "gcc"
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/library.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(HERE / source), "-o", library]
        try:
            subprocess.run([*command, *flags], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return ctypes.CDLL(library)


def at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def n_of(count: int) -> ctypes.c_int64:
    return ctypes.c_int64(count)


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


class Turn:
    """Keys and random places, new for every turn."""

    def __init__(self, keys: Keys, index_lines: int, batch: int) -> None:
        self.rng = np.random.default_rng(2)
        self.all, self.index_lines, self.batch = keys, index_lines, batch
        self.next()

    def next(self) -> None:
        self.numbers = self.rng.integers(0, len(self.all), self.batch)
        self.keys = self.all[self.numbers]
        self.index_places = self.rng.integers(0, self.index_lines, self.batch)


def absl_library() -> ctypes.CDLL | None:
    try:
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "absl_flat_hash_map"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    library = compiled("table_absl.cpp", "-std=c++17", *found.stdout.split())
    if library is not None:
        library.absl_make.restype = ctypes.c_void_p
        library.absl_bytes.restype = ctypes.c_int64
    return library


def absl_peer(turn: Turn, gradients: Floats, out: Floats) -> Contenders:
    """absl::flat_hash_map with the rows inside, and its figures of growth, printed."""
    library = absl_library()
    if library is None or len(turn.all) > ROWS_MAX:
        return {}
    table = ctypes.c_void_p(library.absl_make())
    spent = []
    for start in range(0, len(turn.all) - turn.batch + 1, turn.batch):
        some = turn.all[start : start + turn.batch]
        began = time.thread_time()
        library.absl_push(table, at(some), n_of(len(some)), at(gradients))
        spent.append((time.thread_time() - began) / turn.batch)
    many = n_of(turn.batch)
    print(f"absl: insert {1e-6 / float(np.median(spent)):.1f} million/s,", end=" ")
    print(f"{library.absl_bytes(table) / len(turn.all):.0f} bytes a row")
    return {
        "absl_look_up": (turn.next, lambda: library.absl_pull(table, at(turn.keys), many, at(out))),
        "absl_update": (turn.next, lambda: library.absl_push(table, at(turn.keys), many, at(gradients))),
    }


def torch_peer(turn: Turn, gradients: Floats) -> Contenders:
    """EmbeddingBag over a dense tensor that is indexed by row number: no hashing, no growth.

    Its update is Adagrad's step for a sparse gradient that is there already.
    """
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    rows = len(turn.all)
    bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
    offsets = torch.arange(turn.batch)

    def look_up() -> None:
        with torch.no_grad():
            bag(torch.from_numpy(turn.numbers), offsets)

    contenders: Contenders = {"torch_embedding_bag_look_up": (turn.next, look_up)}
    if rows > ROWS_MAX:
        return contenders
    adagrad = torch.optim.Adagrad(bag.parameters(), lr=0.05)

    def gradient() -> None:
        turn.next()
        numbers = torch.from_numpy(turn.numbers)[None]
        bag.weight.grad = torch.sparse_coo_tensor(numbers, torch.from_numpy(gradients), (rows, DIM))

    return contenders | {"torch_sparse_adagrad_update": (gradient, adagrad.step)}


def fbgemm_peer(turn: Turn, gradients: Floats) -> Contenders:
    """FBGEMM's table, indexed by row number.

    Its update, row-wise Adagrad, is part of the backward pass, which alone is timed.
    """
    try:
        import torch
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except (ImportError, OSError):
        return {}
    if len(turn.all) > ROWS_MAX:
        return {}
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(len(turn.all), DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.05,
    )
    offsets = torch.arange(turn.batch + 1)
    gradient = torch.from_numpy(gradients)
    pulled: list[Any] = []

    def forward() -> None:
        turn.next()
        pulled[:] = [table(torch.from_numpy(turn.numbers), offsets)]

    def look_up() -> None:
        with torch.no_grad():
            table(torch.from_numpy(turn.numbers), offsets)

    return {
        "fbgemm_look_up": (turn.next, look_up),
        "fbgemm_update": (forward, lambda: pulled[0].backward(gradient)),
    }
