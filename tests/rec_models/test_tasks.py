"""Several labels: their models, what is learnt from which, and figures of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.job.job import read_job
from launch.job.sections import schema_yaml
from pslib.batch import Batch
from pslib.errors import ConfigurationError, DataError
from pslib.recorder.display import result_text
from pslib.schema import Schema
from rec_models import TASK_MODELS, build
from rec_models.layers.activations import sigmoid_of
from tests.rec_models.test_models import WITHOUT_TORCH
from tests.support.models.gradient_check import (
    BATCH,
    RELATIVE_ERROR_MAX,
    SCHEMA,
    assert_same_in_parts,
    assert_step_is_pytorchs,
    random,
    step_errors,
    without_dropout,
)
from tests.support.models.papers import TASK_PAPERS, fields_of

BOTH = replace(SCHEMA, more_labels=("buy",))
THREE = replace(SCHEMA, more_labels=("buy", "like"))
TASKS = {
    "esmm": (BOTH, {"dim": 3, "hidden": [6, 4], "dropout": 0.3}),
    "mmoe": (THREE, {"dim": 3, "hidden": [4], "experts": 3, "expert_hidden": [5], "dropout": 0.3}),
}
"""A line a model of several labels."""
OTHER = {
    "dim": 7,
    "hidden": (3,),
    "dropout": 0.5,
    "batch_norm": True,
    "seed": 11,
    "experts": 2,
    "expert_hidden": (3,),
}


def task_batch(tasks: int) -> Batch:
    more = np.random.default_rng(4).integers(0, 2, (len(BATCH), tasks - 1)).astype(np.float32)
    return replace(BATCH, more_labels=more * BATCH.labels[:, None])


def made(name: str, plain: bool = False, dtype: type = np.float64):
    """A model, a batch, rows and dense parameters; ``plain``: without dropout."""
    schema, options = TASKS[name]
    model = build(name, schema, without_dropout(options) if plain else options)
    rows = (random(BATCH.keys.size, model.table().dim) / 2).astype(dtype)
    rng = np.random.default_rng(5)
    dense = {key: (rng.normal(size=s) / 2).astype(dtype) for key, s in model.dense_shapes().items()}
    return model, task_batch(len(schema.labels)), rows, dense


def test_every_model_of_several_labels_has_its_line_here():
    assert set(TASKS) == set(TASK_MODELS)


# --- the models


@pytest.mark.parametrize("name", TASKS)
def test_gradients_agree_with_finite_differences(name):
    errors = step_errors(*made(name))
    assert max(errors.values()) <= RELATIVE_ERROR_MAX, errors


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_in_parts_is_the_batch_as_a_whole(name, monkeypatch):
    model, batch, rows, dense = made(name, plain=True)
    predicted = model.predict(batch, rows, dense)
    assert_same_in_parts(monkeypatch, model, batch, rows, dense)
    np.testing.assert_allclose(model.predict(batch, rows, dense), predicted, rtol=1e-12)


@pytest.mark.parametrize("name", TASKS)
def test_a_step_in_float32_stays_in_float32_and_reports_the_first_tasks_logits(name):
    model, batch, rows, dense = made(name, plain=True, dtype=np.float32)
    result = model.loss_and_gradients(batch, rows, dense, 0)
    assert {result.logits.dtype, result.rows_gradient.dtype} == {np.dtype(np.float32)}
    assert result.logits.shape == (len(batch),)
    predicted = model.predict(batch, rows, dense)
    assert predicted.shape == (len(batch), len(model.schema.labels))
    np.testing.assert_allclose(predicted[:, 0], sigmoid_of(result.logits), rtol=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_every_option_changes_something(name):
    schema, _ = TASKS[name]
    before = build(name, schema, {})
    batch = task_batch(len(schema.labels))

    def loss(model) -> float:
        dense = {key: random(*shape) for key, shape in model.dense_shapes().items()}
        return model.loss_and_gradients(batch, random(batch.keys.size, model.table().dim), dense, 0).loss

    for option, value in OTHER.items():
        if option not in before.__dataclass_fields__:
            continue
        after = build(name, schema, {option: value})
        same = (before.table(), before.dense_shapes()) == (after.table(), after.dense_shapes())
        assert not same or loss(before) != loss(after), option


def probabilities(xp, name, model, batch: Batch, rows, dense):
    """Return the probabilities of all tasks, (B, T), by the papers."""
    found = []
    for b in range(len(batch)):
        fields, _ = fields_of(xp, model, batch, b, rows)
        x = xp.concatenate([fields.ravel(), xp.asarray(batch.dense[b], dtype=rows.dtype)])
        found.append(TASK_PAPERS[name](xp, model, x, dense))
    return xp.stack(found)


@pytest.mark.parametrize("name", TASKS)
def test_predictions_equal_a_plain_reading_of_the_paper(name):
    model, batch, rows, dense = made(name)
    expected = probabilities(np, name, model, batch, rows, dense)
    np.testing.assert_allclose(model.predict(batch, rows, dense), expected, rtol=1e-9)


@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradients_are_pytorchs_of_the_plain_reading(name):
    torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
    model, batch, rows, dense = made(name, plain=True)
    labels = torch.from_numpy(batch.every_label.astype(np.float64))

    def loss_of(theirs, weights):
        chances = probabilities(torch, name, model, batch, theirs, weights)
        return torch.nn.functional.binary_cross_entropy(chances, labels, reduction="sum") / len(batch)

    assert_step_is_pytorchs(loss_of, model, batch, rows, dense, rtol=1e-7, atol=1e-10)


# --- what goes together


def test_a_model_refuses_labels_that_it_would_not_learn():
    with pytest.raises(ConfigurationError, match="LR: schema: expected 1 label, got none; name the column"):
        build("lr", Schema(label=None, sparse=["user"]), {})
    with pytest.raises(ConfigurationError, match="ESMM: schema: expected 2 labels, got none"):
        build("esmm", Schema(label=None, sparse=["user"]), {})
    with pytest.raises(ConfigurationError, match="GRU4Rec: schema: expected 1 label, got click, buy; see"):
        build("gru4rec", Schema(label="click", more_labels=["buy"], ragged=["items"]), {})
    with pytest.raises(ConfigurationError, match="DeepFM: schema: expected 1 label, got click, buy"):
        build("deepfm", BOTH, {})
    with pytest.raises(ConfigurationError, match="ESMM: schema: expected 2 labels, got click; see more_labe"):
        build("esmm", SCHEMA, {})
    with pytest.raises(ConfigurationError, match="ESMM: schema: expected 2 labels, got click, buy, like"):
        build("esmm", THREE, {})
    with pytest.raises(ConfigurationError, match="MMoE: schema: expected 2 labels or more, got click"):
        build("mmoe", SCHEMA, {})
    with pytest.raises(ConfigurationError, match="expert_hidden: expected at least one layer"):
        build("mmoe", BOTH, {"expert_hidden": []})


def test_a_schema_says_its_labels_and_comes_back_from_its_plain_form():
    assert THREE.labels == ("click", "buy", "like")
    assert THREE.columns[:3] == THREE.labels
    assert Schema.from_dict(THREE.to_dict()) == THREE
    assert "more_labels" not in SCHEMA.to_dict()
    with pytest.raises(ConfigurationError, match="column 'click' is named twice"):
        replace(SCHEMA, more_labels=("click",))
    with pytest.raises(ConfigurationError, match="more_labels: expected a list of column names, got 'buy'"):
        replace(SCHEMA, more_labels="buy")
    with pytest.raises(ConfigurationError, match="more_labels: expected a label with it"):
        Schema(label=None, more_labels=["buy"], ragged=["items"])


# --- all the way

SHOP = Schema(label="click", more_labels=["buy"], sparse=["user", "item"])


def shop(path, rows: int = 400, **changes):
    """Users of even number click all, and buy items of even number."""
    rng = np.random.default_rng(2)
    user, item = rng.integers(0, 10, (2, rows))
    columns = {"click": (user % 2 == 0) * 1, "user": user, "item": item}
    columns["buy"] = columns["click"] * (item % 2 == 0)
    pq.write_table(pa.table(columns | changes), path, row_group_size=150)
    return path


def test_each_task_is_evaluated_by_its_label(tmp_path):
    train = shop(tmp_path / "train.parquet")
    with pslib.connect() as cluster:
        model = build("esmm", SHOP, {"dim": 4, "hidden": [16]})
        trainer = pslib.Trainer(model, cluster, batch_rows=50, staleness=0, progress=False)
        trainer.fit(train, epochs=8)
        table = pq.read_table(train)
        results = {label: trainer.evaluate(train, label=label) for label in SHOP.labels}
        assert results["click"].positives == sum(table["click"].to_pylist())
        assert results["buy"].positives == sum(table["buy"].to_pylist())
        assert min(result.auc for result in results.values()) > 0.99
        assert trainer.evaluate(train) == results["click"]
        told = [one["label"] for one in cluster.status()["results"] if one["kind"] == "evaluate"]
        assert told == ["click", "buy", "click"]
        out, clicks = tmp_path / "predictions", tmp_path / "clicks"
        trainer.evaluate(train, label="buy", predictions=out)
        trainer.evaluate(train, predictions=clicks)
        assert pq.read_table(out)["label"].to_pylist() == table["buy"].to_pylist()
        buys, clicked = (pq.read_table(one)["prediction"].to_numpy() for one in (out, clicks))
        assert (buys < clicked).mean() > 0.9  # who buys has clicked
        pq.write_table(table.drop_columns(list(SHOP.labels)), tmp_path / "new.parquet")
        unknown = trainer.evaluate(tmp_path / "new.parquet", label="buy", predictions=tmp_path / "new")
        assert (unknown.examples, unknown.positives, np.isnan(unknown.auc)) == (table.num_rows, 0, True)
        assert (pq.read_table(tmp_path / "new")["prediction"].to_numpy() == buys).all()
        with pytest.raises(ConfigurationError, match="label: expected one of click, buy, got 'sell'"):
            trainer.evaluate(train, label="sell")


def test_the_line_of_an_evaluation_says_its_label():
    line = result_text({"kind": "evaluate", "label": "buy", "epoch": 2, "auc": 0.75, "examples": 10})
    assert line.startswith("evaluate of buy after epoch 2: AUC 0.7500, ")


def test_a_further_label_is_held_to_the_same_rule(tmp_path):
    bad = shop(tmp_path / "bad.parquet", buy=[0] * 399 + [2])
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(build("mmoe", SHOP, {"dim": 2}), cluster, progress=False)
        with pytest.raises(DataError, match=r"row 399 \(from 0\).*column 'buy': a label is 0 or 1, got 2"):
            trainer.fit(bad)


def test_a_job_file_names_further_labels_and_a_weight(tmp_path):
    text = """\
data:
  train: a.parquet
  schema: {label: click, more_labels: [buy], weight: counts, sparse: [user, item]}
model: {name: esmm, dim: 4}
out: run
"""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    job = read_job(path)
    assert job.data.schema == replace(SHOP, weight="counts")
    assert schema_yaml(job.data.schema) == (
        "  schema:\n    label: click\n    more_labels: [buy]\n    weight: counts\n    sparse: [user, item]\n"
    )
    path.write_text(text.replace("more_labels: [buy], ", ""))
    with pytest.raises(ConfigurationError, match=r"model\.schema: expected 2 labels, got click"):
        read_job(path)
