"""A script for ``pslib launch`` that counts: after training, every row holds how often its key was trained.

Plain gradient descent with rate 1, and a gradient of -1 for each occurrence of a key in a batch: a batch that
is lost or counts twice shows in the checkpoint, by key. The dense parameters count examples.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib import SGD, CheckpointSettings, Constant, PartSpec, Schema, TableSpec, Trainer, connect
from pslib.batch import Batch

TABLE, PART, DENSE = "counts", "seen", 5
SCHEMA = Schema(label="label", sparse=["id", "shared"])


@dataclass(frozen=True)
class Counted:
    """What one step gives back."""

    loss: float
    logits: NDArray[np.float32]
    rows_gradient: NDArray[np.float32]
    dense_gradients: dict[str, NDArray[np.float32]]


@dataclass
class CountingModel:
    """Counts, and takes ``pause_s`` a batch, so that a test can hit a trainer in the middle of a lease.

    ``fail_at``: raise an error in that batch. ``hurry``: a file; no pause once it is there.
    """

    pause_s: float
    fail_at: int = -1
    hurry: Path | None = None
    batches: int = 0
    schema: Schema = SCHEMA

    def table(self) -> TableSpec:
        return TableSpec(TABLE, (PartSpec(PART, 1, SGD(1.0), Constant(0.0)),))

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"examples": (DENSE,)}

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        return {"examples": np.zeros(DENSE, np.float32)}

    def loss_and_gradients(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Counted:
        if self.batches == self.fail_at:
            raise ZeroDivisionError("planted")
        if self.batches == 0:
            print("first batch", flush=True)
        self.batches += 1
        if self.hurry is None or not self.hurry.exists():
            time.sleep(self.pause_s)
        seen = np.bincount(batch.sparse.ravel(), minlength=batch.keys.size).astype(np.float32)
        examples = np.full(DENSE, -len(batch), np.float32)
        return Counted(0.7, np.zeros(len(batch), np.float32), -seen[:, None], {"examples": examples})

    def predict(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        return np.full(len(batch), 0.5, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("checkpoint")
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cuts", default=None, help="folder of checkpoints while training")
    parser.add_argument("--cut-every-s", type=float, default=0.5)
    parser.add_argument("--incremental", type=int, default=0)
    parser.add_argument("--load", default=None)
    options = parser.parse_args()
    with connect() as cluster:
        model = CountingModel(options.pause_s, options.fail_at, Path(options.checkpoint).with_name("hurry"))
        cuts = options.cuts and CheckpointSettings(
            options.cuts, options.cut_every_s, incremental=options.incremental
        )
        trainer = Trainer(
            model,
            cluster,
            batch_rows=64,
            lease_rows=512,
            dense_optimizer=SGD(1.0),
            checkpoint=cuts,
            progress=False,
        )
        if options.load:
            trainer.load(options.load)
        trainer.fit(options.data, epochs=options.epochs)
        trainer.save(options.checkpoint)
    print("finished", flush=True)


if __name__ == "__main__":
    sys.exit(main())
