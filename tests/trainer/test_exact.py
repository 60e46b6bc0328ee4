"""One trainer, staleness 0: the cluster gives the bits of the plain sequential reference.

However many servers and shard threads there are, every row, every number of optimizer state and every
dense parameter must be the same: nothing is lost, nothing is applied twice, nothing in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import pslib
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.metrics.metrics import EvalResult
from pslib.table.optimizers import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowwiseAdagrad
from pslib.table.policies import ByAge, ByChance, ByCount, ByNorm, ByScore, Compact, Score
from pslib.table.tables import TableSpec
from pslib.transport import Transport, ZmqTransport
from rec_models.deepfm import DeepFM
from tests.reference import SequentialTrainer
from tests.support.checkpoints import Content, content_of, state_of
from tests.support.clusters import cluster_of

BATCH_ROWS = 64
SEED = 5
ROW_OPTIMIZERS = [
    SGD(0.1, clip_norm=0.01),
    Momentum(0.1, nesterov=True),
    Adagrad(0.05),
    RowwiseAdagrad(0.05),
    Adam(0.01),
    FTRL(0.05, beta=0.1, l1=1e-4),
]
DENSE_OPTIMIZERS = [
    SGD(0.1),
    Momentum(0.05),
    Adagrad(0.02),
    Adam(0.005),
    AdamW(0.005, weight_decay=0.1),
    FTRL(0.05, beta=0.1, l2=0.01),
]
SHAPES = [(1, 1), (2, 1), (4, 1), (1, 3), (2, 3)]
"""(servers, shard threads)"""
CONFIG = GeneratorConfig(
    train_rows=900, test_rows=400, seed=3, vocabularies=(7, 60, 400), dense_fields=2, row_group_rows=250
)


@dataclass(frozen=True)
class Outcome:
    """All that training leaves: rows and dense parameters with their state, and the figures."""

    content: Content
    result: EvalResult


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("exact"), CONFIG)


def model_with(rows: Optimizer) -> DeepFM:
    return DeepFM(
        generated_schema(CONFIG),
        dim=5,
        hidden=(6,),
        dropout=0.2,
        seed=11,
        w_optimizer=rows,
        v_optimizer=rows,
    )


def name_of(optimizer: Optimizer) -> str:
    return type(optimizer).__name__


def train_on_cluster(
    data: Generated,
    folder: Path,
    rows: Optimizer,
    dense: Optimizer,
    shape: tuple[int, int],
    transport: Transport | None = None,
    listen: str = "memory:test:0",
) -> Outcome:
    servers, shard_threads = shape
    with cluster_of(servers, shard_threads=shard_threads, transport=transport, listen=listen) as running:
        trainer = pslib.Trainer(
            model_with(rows),
            running.join(),
            batch_rows=BATCH_ROWS,
            staleness=0,
            dense_optimizer=dense,
            seed=SEED,
            progress=False,
        )
        trainer.fit(data.train_path, epochs=2)
        trainer.save(folder)
        return Outcome(content_of(folder), trainer.evaluate(data.test_path))


def train_plainly(data: Generated, rows: Optimizer, dense: Optimizer) -> Outcome:
    trainer = SequentialTrainer(model_with(rows), batch_rows=BATCH_ROWS, dense_optimizer=dense, seed=SEED)
    trainer.fit(data.train_path, epochs=2)
    pieces = [(value.size, trainer.dense_state[name]) for name, value in trainer.dense.items()]
    content = Content(trainer.saved_rows(), trainer.dense_vector().tobytes(), state_of(pieces))
    return Outcome(content, trainer.evaluate(data.test_path))


@pytest.fixture(scope="module")
def plainly(data: Generated):  # type: ignore[no-untyped-def]
    """Outcomes of the reference, each made once."""
    known: dict[tuple[Optimizer, Optimizer], Outcome] = {}

    def outcome(rows: Optimizer, dense: Optimizer) -> Outcome:
        if (rows, dense) not in known:
            known[rows, dense] = train_plainly(data, rows, dense)
        return known[rows, dense]

    return outcome


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}-servers-{shape[1]}-threads")
@pytest.mark.parametrize("rows", ROW_OPTIMIZERS, ids=name_of)
def test_rows_of_every_optimizer_are_the_references_bits(
    data: Generated, plainly, tmp_path: Path, rows: Optimizer, shape: tuple[int, int]
) -> None:
    dense = DENSE_OPTIMIZERS[ROW_OPTIMIZERS.index(rows) % len(DENSE_OPTIMIZERS)]
    assert train_on_cluster(data, tmp_path, rows, dense, shape) == plainly(rows, dense)


@pytest.mark.parametrize("dense", DENSE_OPTIMIZERS, ids=name_of)
@pytest.mark.parametrize("rows", ROW_OPTIMIZERS[:2], ids=name_of)
def test_dense_parameters_of_every_optimizer_are_the_references_bits(
    data: Generated, plainly, tmp_path: Path, rows: Optimizer, dense: Optimizer
) -> None:
    assert train_on_cluster(data, tmp_path, rows, dense, (2, 1)) == plainly(rows, dense)


def test_sockets_give_the_same_bits_as_memory(data: Generated, plainly, tmp_path: Path) -> None:
    rows, dense = Adagrad(0.05), Adam(0.005)
    sockets = train_on_cluster(data, tmp_path, rows, dense, (2, 2), ZmqTransport(), "tcp://127.0.0.1:0")
    assert sockets == plainly(rows, dense)


def test_the_reference_changes_with_every_optimizer(plainly) -> None:
    outcomes = [plainly(rows, DENSE_OPTIMIZERS[0]) for rows in ROW_OPTIMIZERS]
    outcomes += [plainly(ROW_OPTIMIZERS[0], dense) for dense in DENSE_OPTIMIZERS[1:]]
    assert len({outcome.content.dense for outcome in outcomes}) == len(outcomes)


def test_training_learns_what_was_planted(tmp_path: Path) -> None:
    """Golden: a change of any number on the way from Parquet to AUC must be a decision."""
    config = GeneratorConfig(
        train_rows=12_000, test_rows=6_000, seed=8, vocabularies=(20, 100, 500), dense_fields=3, signal=2.0
    )
    generated = generate(tmp_path / "data", config)
    with cluster_of(2) as running:
        trainer = pslib.Trainer(
            DeepFM(generated_schema(config), dim=8, hidden=(16,)),
            running.join(),
            batch_rows=256,
            staleness=0,
            dense_optimizer=Adam(0.002),
            seed=1,
            progress=False,
        )
        trainer.fit(generated.train_path, epochs=2)
        result = trainer.evaluate(generated.test_path)
    assert generated.test.best_auc > result.auc
    assert result.auc == pytest.approx(0.81687, abs=1e-4)


# --- tables with policies: they depend on names and times of records alone


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


def model_and_table(policies: str) -> tuple[DeepFM, TableSpec]:
    rows = ROWS.get(policies, Adagrad(0.05))
    model = model_with(rows)
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
def test_rows_under_policies_are_the_references_bits(
    data: Generated, policies: str, shape: tuple[int, int]
) -> None:
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
