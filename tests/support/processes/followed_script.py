"""A script for ``pslib launch`` that changes rows at random until it is told to stop, and then holds still.

When ``FOLDER/stop`` is there, it writes all rows and dense parameters into ``FOLDER/rows.npy`` and
``dense.npy`` and waits, with the cluster, for ``FOLDER/end``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pslib import SGD, PartSpec, TableSpec, connect
from pslib.table.initializers import Uniform
from pslib.table.tables import DenseSpec

SPEC = TableSpec("own", (PartSpec("w", 4, SGD(), Uniform(0.1)),))
KEYS = np.arange(20_000, dtype=np.uint64)
FLOATS = 64


def write(place: Path, array: NDArray[np.float32]) -> None:
    """Write an array under its name, whole."""
    with place.with_suffix(".part").open("wb") as file:
        np.save(file, array)
    os.replace(place.with_suffix(".part"), place)


def main(folder: Path) -> None:
    choice = np.random.default_rng()
    with connect() as cluster:
        client = cluster.client
        client.setup([SPEC], DenseSpec(FLOATS, SGD()), np.zeros(FLOATS, np.float32))
        print("first batch", flush=True)
        while not (folder / "stop").exists():
            keys = np.unique(choice.integers(0, KEYS.size, 500).astype(np.uint64))
            gradients = choice.standard_normal((keys.size, 4)).astype(np.float32)
            dense = choice.standard_normal(FLOATS).astype(np.float32)
            client.push({"own": (keys, gradients)}, dense).wait()
        found = client.pull({"own": KEYS}, dense=True).wait()
        write(folder / "dense.npy", found.dense)
        write(folder / "rows.npy", found.rows["own"])
        while not (folder / "end").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
