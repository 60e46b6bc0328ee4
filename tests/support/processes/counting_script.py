"""A script for ``pslib launch`` that counts: after training, every row holds how often its key was trained.

Its batches are those of `tests.support.counting`, with pauses and with an error where a test asks for them: a
batch that is lost or counts twice shows in the checkpoint, by key. The dense parameters count examples.
"""

import argparse
import sys
import time
from pathlib import Path

from pslib import SGD, CheckpointSettings, Schema, Trainer, connect
from tests.support import counting

TABLE, PART, DENSE = "counts", "n", 5
SCHEMA = Schema(label="label", sparse=["id", "shared"])


class CountingModel(counting.CountingModel):
    """Counts, and takes ``pause_s`` a batch, so that a test can hit a trainer in the middle of a lease.

    ``fail_at``: raise an error in that batch. ``hurry``: a file; no pause once it is there.
    """

    def __init__(self, pause_s: float, fail_at: int = -1, hurry: Path | None = None) -> None:
        super().__init__(self._begin, SCHEMA, DENSE)
        self.pause_s, self.fail_at, self.hurry = pause_s, fail_at, hurry
        self.batches = 0

    def _begin(self, _batch: object, _rows: object) -> None:
        if self.batches == self.fail_at:
            raise ZeroDivisionError("planted")
        if self.batches == 0:
            print("first batch", flush=True)
        self.batches += 1
        if self.hurry is None or not self.hurry.exists():
            time.sleep(self.pause_s)


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
