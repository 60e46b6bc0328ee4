"""A script for ``pslib launch`` that pushes, each push with keys of its own, until it is told to stop.

A push adds 1 to two rows that no other push touches. Acknowledged pushes are noted in a file, so that a
trainer that is started again goes on with the first number that is not, under the same name: was that push
applied before the trainer died, it must not count again. In the end every trainer reads all its rows: each
must hold 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pslib import SGD, Constant, PartSpec, TableSpec, connect
from pslib.client.calls import PushName
from pslib.client.client import Client
from pslib.wire.messages import CLIENT_STREAMS

TABLE = "own"
KEYS_A_PUSH = 2
WINDOW = 8
"""Pushes on their way at once."""
PULL_ROWS = 20_000


def keys_of(rank: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys of pushes, (n * KEYS_A_PUSH,): spread over all partitions, and no push has those of another."""
    first = (numbers * np.uint64(KEYS_A_PUSH))[:, None] + np.arange(KEYS_A_PUSH, dtype=np.uint64)
    return (np.uint64(rank + 1) << np.uint64(40)) + first.reshape(-1)


def push_until(client: Client, rank: int, notes: Path, stop: Path) -> int:
    """Push number after number; return how many are acknowledged, all those that were begun."""
    number = int(notes.read_text().split()[-1]) + 1 if notes.exists() and notes.read_text().strip() else 0
    waiting = []
    gradient = -np.ones((KEYS_A_PUSH, 1), np.float32)
    with notes.open("a") as file:
        while True:
            if not stop.exists():
                keys = keys_of(rank, np.array([number], np.uint64))
                name = PushName(CLIENT_STREAMS + rank, number)
                waiting.append((number, client.push({TABLE: (keys, gradient)}, name=name)))
                number += 1
            elif not waiting:
                return number
            if len(waiting) >= WINDOW or stop.exists():
                acknowledged, pending = waiting.pop(0)
                pending.wait()
                file.write(f"{acknowledged}\n")
                file.flush()


def wrong_rows(client: Client, rank: int, pushes: int) -> list[str]:
    """Rows that do not hold 1, in words."""
    wrong = []
    for first in range(0, pushes, PULL_ROWS // KEYS_A_PUSH):
        numbers = np.arange(first, min(pushes, first + PULL_ROWS // KEYS_A_PUSH), dtype=np.uint64)
        rows = client.pull({TABLE: keys_of(rank, numbers)}).wait().rows[TABLE].reshape(-1, KEYS_A_PUSH)
        for place in np.flatnonzero((rows != 1.0).any(axis=1)).tolist():
            wrong.append(f"push {first + place}: {rows[place].tolist()}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with connect() as cluster:
        client, rank = cluster.client, cluster.rank
        client.setup([TableSpec(TABLE, (PartSpec("n", 1, SGD(1.0), Constant(0.0)),))])
        print("pushing", flush=True)
        pushes = push_until(client, rank, options.folder / f"acknowledged-{rank}", options.folder / "stop")
        wrong = wrong_rows(client, rank, pushes)
        print(f"rank {rank}: {pushes} pushes, {len(wrong)} wrong: {wrong[:5]}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
