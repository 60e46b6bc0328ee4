"""One trainer, staleness 0, tables with policies: the cluster gives the bits of the sequential reference.

Storage in fewer bits, weight decay that catches up, admission, promotion, fading counts and eviction all
depend on the names and times of records alone, so servers and threads change nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import pslib
from pslib.data.synthetic.generator import Generated, generate, generated_schema
from pslib.table.optimizers import Adagrad, Adam
from pslib.table.policies import ByAge, ByChance, ByCount, ByNorm, ByScore, Compact, Score
from pslib.table.tables import TableSpec
from rec_models.deepfm import DeepFM
from tests.reference import SequentialTrainer
from tests.support.clusters import cluster_of
from tests.trainer.test_exact import BATCH_ROWS, CONFIG, SEED

POLICIES: dict[str, dict[str, object]] = {
    "bfloat16": {"storage": "bfloat16"},
    "float16": {"storage": "float16"},
    "int8": {"storage": "int8"},
    "decay": {},
    "by count, fading": {"admission": ByCount(4, keep=0.5), "eviction": (ByNorm(0.012),)},
    "by chance": {"admission": ByChance(0.4), "storage": "bfloat16"},
    "everything": {
        "storage": "bfloat16",
        "admission": ByCount(2),
        "eviction": (ByAge(9), ByScore(0.5)),
        "score": Score(0.2, 1.0, 0.7),
        "compact": Compact("v", score=1.5),
    },
}
ROWS = {"decay": Adagrad(0.05, weight_decay=0.1), "everything": Adagrad(0.05, weight_decay=0.1)}
EVERY = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("exact"), CONFIG)


def model_and_table(policies: str) -> tuple[DeepFM, TableSpec]:
    rows = ROWS.get(policies, Adagrad(0.05))
    schema = generated_schema(CONFIG)
    model = DeepFM(schema, dim=5, hidden=(6,), dropout=0.2, seed=11, w_optimizer=rows, v_optimizer=rows)
    return model, replace(model.table(), **POLICIES[policies])


def settings(table: TableSpec) -> dict[str, object]:
    return {
        "batch_rows": BATCH_ROWS,
        "dense_optimizer": Adam(0.005),
        "seed": SEED,
        "lease_rows": 4 * BATCH_ROWS,
        "table": table,
        "maintain_every_batches": EVERY,
    }


@pytest.mark.parametrize("shape", [(1, 1), (2, 3)], ids=["alone", "2-servers-3-threads"])
@pytest.mark.parametrize("policies", POLICIES)
def test_rows_are_the_references_bits(data: Generated, policies: str, shape: tuple[int, int]) -> None:
    model, table = model_and_table(policies)
    plain = SequentialTrainer(model, **settings(table))
    plain.fit(data.train_path, epochs=2)
    keys = np.array(sorted({*plain.table.table, *plain.table.counted, 1, 2, 3}), np.uint64)
    with cluster_of(shape[0], shard_threads=shape[1]) as running:
        cluster = running.join()
        trainer = pslib.Trainer(model, cluster, staleness=0, progress=False, **settings(table))
        trainer.fit(data.train_path, epochs=2)
        result = trainer.evaluate(data.test_path)
        rows = cluster.client.pull({table.name: keys}, step=plain.steps).wait().rows[table.name]
        stats = cluster.client.stats()
    assert rows.tobytes() == plain.rows(keys).tobytes()
    assert stats["rows"] == plain.table.rows
    assert result == plain.evaluate(data.test_path)
    for counter in ("turned_away", "admitted", "promoted", "evicted_age", "evicted_norm", "evicted_score"):
        assert stats[counter] == plain.table.happened[counter], counter


def test_policies_of_the_reference_do_something(data: Generated) -> None:
    model, table = model_and_table("everything")
    plain = SequentialTrainer(model, **settings(table))
    plain.fit(data.train_path, epochs=2)
    happened = plain.table.happened
    assert min(happened[name] for name in ("turned_away", "promoted", "evicted_age", "evicted_score")) > 0
