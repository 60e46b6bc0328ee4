"""A script for ``pslib launch``: ssp with one slow trainer; every trainer writes down when it begins a batch.

``slow_script.py DATA FOLDER BOUND``: rank 0 takes 30 ms a batch, the others 1 ms. The times are those of the
machine's monotonic clock, which all processes share. The others begin after it: no trainer waits for one
that has no work yet, and on a busy machine the slow one may well be the last to have some. In its first batch
it waits until they have begun: else it may be through with its work by then.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pslib import SGD, Trainer, connect
from tests.support.counting import CountStep
from tests.support.processes.counting_script import CountingModel

START_S = 60.0
"""Within this time the slow trainer has begun, and then the others, or the script ends."""


class TimedModel(CountingModel):
    """Notes the time of each step, and says in a file that there was one."""

    def loss_and_gradients(self, *arguments: Any) -> CountStep:
        """One step."""
        self.began_s.append(time.monotonic())
        self.sign.touch()
        while self.awaited:
            wait_for(self.awaited.pop())
        return super().loss_and_gradients(*arguments)


def wait_for(sign: Path) -> None:
    """Return when the file is there.

    Raises
    ------
    TimeoutError
        When it is not within START_S.
    """
    end_s = time.monotonic() + START_S
    while not sign.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{sign} is not there after {START_S:.0f} s")
        time.sleep(0.002)


def main() -> None:
    data, folder, bound = sys.argv[1:]
    with connect() as cluster:
        model = TimedModel(0.001 if cluster.rank else 0.03)
        model.began_s = []
        signs = [Path(folder, f"{rank}.began") for rank in range(cluster.trainers)]
        model.sign, model.awaited = signs[cluster.rank], [] if cluster.rank else signs[1:]
        trainer = Trainer(
            model,
            cluster,
            batch_rows=64,
            lease_rows=3000,
            dense_optimizer=SGD(1.0),
            warmup_batches=0,
            consistency="ssp",
            ssp_bound=int(bound),
            progress=False,
        )
        if cluster.rank:
            wait_for(signs[0])
        trainer.fit(data)
        lead = trainer._progress.lead_max
        story = {"rank": cluster.rank, "began_s": model.began_s, "lead": lead}
        Path(folder, f"{cluster.rank}.json").write_text(json.dumps(story))
    print("finished", flush=True)


if __name__ == "__main__":
    sys.exit(main())
