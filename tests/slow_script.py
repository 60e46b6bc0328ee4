"""A script for ``pslib launch``: ssp with one slow trainer; every trainer writes down when it begins a batch.

``slow_script.py DATA FOLDER BOUND``: rank 0 takes 30 ms a batch, the others 1 ms. The times are those of the
machine's monotonic clock, which all processes share.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pslib import SGD, Trainer, connect
from tests.counting_script import Counted, CountingModel


class TimedModel(CountingModel):
    """Notes the time of each step."""

    def loss_and_gradients(self, *arguments: Any) -> Counted:
        """One step."""
        self.began_s.append(time.monotonic())
        return super().loss_and_gradients(*arguments)


def main() -> None:
    data, folder, bound = sys.argv[1:]
    with connect() as cluster:
        model = TimedModel(0.001 if cluster.rank else 0.03)
        model.began_s = []
        trainer = Trainer(
            model,
            cluster,
            batch_rows=64,
            lease_rows=1024,
            dense_optimizer=SGD(1.0),
            warmup_batches=0,
            consistency="ssp",
            ssp_bound=int(bound),
            progress=False,
        )
        trainer.fit(data)
        lead = trainer._progress.lead_max
        story = {"rank": cluster.rank, "began_s": model.began_s, "lead": lead}
        Path(folder, f"{cluster.rank}.json").write_text(json.dumps(story))
    print("finished", flush=True)


if __name__ == "__main__":
    sys.exit(main())
