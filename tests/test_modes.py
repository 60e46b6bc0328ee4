"""Training in step, with a bounded lead, and by deltas: with trainers in threads of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.cluster import Cluster
from pslib.data.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.table.optimizers import Adam
from rec_models.deepfm import DeepFM
from tests.checkpoints import content_of
from tests.clusters import cluster_of
from tests.counting import write_examples
from tests.training import UNHURRIED, counts_of, examples_counted, trainer_on

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
    """What a checkpoint holds after training, and what the trainers evaluate to."""

    def script(cluster: Cluster) -> Any:
        chosen = {"batch_rows": 64, "lease_rows": 130, "seed": 5, "progress": False} | settings
        trainer = pslib.Trainer(deepfm(), cluster, dense_optimizer=Adam(0.005), **chosen)
        trainer.fit(data.train_path, epochs=2)
        trainer.save(folder)
        return trainer.evaluate(data.test_path)

    with cluster_of(servers, trainers, timing=UNHURRIED) as running:
        results = running.run(*[script] * trainers)
    for result in results:
        if isinstance(result, BaseException):
            raise result
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

    with cluster_of(2, trainers, timing=UNHURRIED) as running:
        results = running.run(*[script] * trainers)
    dense = {"sync": None, "geo": 260 / trainers}.get(mode, 260)
    for result in results:
        assert not isinstance(result, BaseException), result
        counts, examples = result
        if dense:  # in step, a batch counts by its share of the step's examples
            assert counts == [2.0] * 130
            assert examples == pytest.approx(dense, abs=1)
