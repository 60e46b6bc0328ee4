"""Training in step, with a bounded lead, and by deltas: with trainers in threads of this process."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.client.pending import Pending, PendingPush
from pslib.cluster import Cluster
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import WaitTimeoutError
from pslib.table.optimizers import Adam
from rec_models.deepfm import DeepFM
from tests.support.checkpoints import content_of
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.processes.command import Command
from tests.support.training import counts_of, examples_counted, trainer_on

CONFIG = GeneratorConfig(
    train_rows=1000, test_rows=300, seed=3, vocabularies=(7, 60, 400), dense_fields=2, row_group_rows=250
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("modes"), CONFIG)


def deepfm() -> DeepFM:
    schema = generated_schema(CONFIG)
    return DeepFM(schema, dim=5, hidden=(6,), dropout=0.2, seed=11)


def train(
    data: Generated, folder: Path, trainers: int, servers: int = 1, **settings: Any
) -> tuple[Any, list[Any]]:
    """Return the contents of a checkpoint after training, and the trainers' evaluations."""

    def script(cluster: Cluster) -> Any:
        chosen = {"batch_rows": 64, "lease_rows": 130, "seed": 5, "progress": False} | settings
        trainer = pslib.Trainer(deepfm(), cluster, dense_optimizer=Adam(0.005), **chosen)
        trainer.fit(data.train_path, epochs=2)
        trainer.save(folder)
        return trainer.evaluate(data.test_path)

    with cluster_of(servers, trainers) as running:
        results = running.results(*[script] * trainers)
    return content_of(folder), results


@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_training_in_step_gives_the_same_bits_again(data: Generated, tmp_path: Path, trainers: int) -> None:
    once = train(data, tmp_path / "one", trainers, consistency="sync")
    again = train(data, tmp_path / "two", trainers, servers=2, consistency="sync", staleness=5)
    assert once == again


def test_one_trainer_in_step_is_one_trainer_that_is_exact(data: Generated, tmp_path: Path) -> None:
    exact = train(data, tmp_path / "exact", 1, staleness=0)
    assert train(data, tmp_path / "sync", 1, consistency="sync") == exact


def test_training_in_step_with_other_trainers_is_another_training(data: Generated, tmp_path: Path) -> None:
    """Steps of two batches are not steps of one: else nothing would be summed."""
    one = train(data, tmp_path / "one", 1, consistency="sync")
    assert train(data, tmp_path / "two", 2, consistency="sync") != one


@pytest.mark.parametrize("mode", ["async", "sync", "ssp", "geo"])
@pytest.mark.parametrize("trainers", [1, 3])
def test_every_example_counts_once_in_every_mode(tmp_path: Path, mode: str, trainers: int) -> None:
    path = write_examples(tmp_path / "a.parquet", 130)

    def script(cluster: Cluster) -> tuple[list[float], int]:
        own = {"geo": {"geo_every_batches": 3}, "ssp": {"ssp_bound": 2}}.get(mode, {})
        trainer_on(cluster, consistency=mode, **own).fit(path, epochs=2)
        return counts_of(cluster, np.arange(130)).tolist(), examples_counted(cluster)

    with cluster_of(2, trainers) as running:
        results = running.results(*[script] * trainers)
    dense = {"sync": None, "geo": 260 / trainers}.get(mode, 260)
    for counts, examples in results:
        if dense:  # in step, a batch counts by its share of the step's examples
            assert counts == [2.0] * 130
            assert examples == pytest.approx(dense, abs=1)


def test_a_window_of_deltas_that_failed_is_done_again_by_its_leases_next_holder(tmp_path: Path) -> None:
    """Else the successor begins with the window's last batch, and the name of it counts for the whole
    window."""
    path = write_examples(tmp_path / "a.parquet", 320, row_group_rows=320)
    own: dict[str, Any] = {"lease_rows": 160, "consistency": "geo", "geo_every_batches": 8, "staleness": 0}
    holds_one, reported = threading.Event(), list[int]()

    def failing(cluster: Cluster) -> None:
        push, pushes = cluster.client.push, 0

        def push_once(*arguments: Any, **named: Any) -> PendingPush:
            nonlocal pushes
            pushes += 1
            holds_one.set()
            if pushes == 1:
                return push(*arguments, **named)
            lost: Pending[Any] = Pending("a push")
            lost.fail(WaitTimeoutError("planted"))
            return lost

        cluster.client.push = push_once
        try:
            trainer_on(cluster, **own).fit(path)
        finally:
            reported.extend(below for _stream, below in cluster.client.member.progress()["streams"])

    def successor(cluster: Cluster) -> list[float]:
        trainer = trainer_on(cluster, CountingModel(lambda _batch, _rows: time.sleep(0.005)), **own)
        assert holds_one.wait(20)
        trainer.fit(path)
        return counts_of(cluster, np.arange(320)).tolist()

    with cluster_of(2, 2) as running:
        failed, counts = running.run(failing, successor)
    assert isinstance(failed, WaitTimeoutError), failed
    assert counts == [1.0] * 320
    assert reported == [8], "the second window is not reported as applied"


# --- real processes, one of them slow


SCRIPT = Path(__file__).parents[2] / "support" / "processes" / "slow_script.py"
BOUND, TRAINERS, ROWS = 3, 3, 12_000
LEASE_BATCHES = 47
"""ceil(3000 / 64): what the slow trainer certainly has work for; after it, it may be without."""


def test_no_trainer_runs_further_ahead_of_a_slow_one_than_the_bound(tmp_path: Path) -> None:
    """The bound holds in the processes' own counts and by their clocks."""
    ids = np.arange(ROWS)
    table = pa.table({"label": pa.array(ids % 2, pa.int8()), "id": ids, "shared": ids % 7})
    pq.write_table(table, tmp_path / "examples.parquet", row_group_size=3000)
    command = Command(
        tmp_path, "launch", "--servers", "2", "--trainers", str(TRAINERS), SCRIPT,
        tmp_path / "examples.parquet", tmp_path, str(BOUND),
    )  # fmt: skip
    try:
        assert command.process.wait(100) == 0, command.output
    finally:
        command.clean_up()
    stories = sorted(
        (json.loads(path.read_text()) for path in tmp_path.glob("?.json")), key=lambda story: story["rank"]
    )
    leads = [story["lead"] for story in stories]
    assert max(leads) == BOUND, "the fast ones were held back, and no further than they had to be"
    slow, *fast = (np.array(story["began_s"]) for story in stories)
    assert slow.size >= LEASE_BATCHES
    assert all(later > earlier for earlier, later in pairwise(slow))
    slow = slow[:LEASE_BATCHES]
    for began in fast:  # their clocks start where that of the slow one is: at their index, or above
        begun = began[began < slow[-1]]
        of_slow = np.searchsorted(slow, begun)
        assert (np.arange(begun.size) - of_slow <= BOUND).all(), (slow - slow[0], begun - slow[0])
        assert begun.size > 10
