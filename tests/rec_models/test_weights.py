"""Example weights: an example of weight 2 counts like two, one of weight 0 not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pslib
from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.inspect.check import check
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.table.optimizers import SGD
from rec_models import DNN, LR, build
from tests.rec_models.test_models import rows_of
from tests.support.models.gradient_check import (
    BATCH,
    RELATIVE_ERROR_MAX,
    SCHEMA,
    assert_same_in_parts,
    assert_same_step,
    parameters,
    random,
    step_errors,
)

WEIGHTED = replace(SCHEMA, weight="counts")
OPTIONS = {"dim": 3, "hidden": [6]}


def weighed(batch: Batch, *weights: float) -> Batch:
    return replace(batch, weights=np.array(weights, np.float32))


# --- the step


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_a_weighted_step_is_the_step_of_examples_that_occur_so_often(counts):
    model = build("deepfm", WEIGHTED, OPTIONS)
    rows, dense = parameters(model, BATCH, np.float64)
    repeated = rows_of(BATCH, [b for b, count in enumerate(counts) for _ in range(count)])
    mine = model.loss_and_gradients(weighed(BATCH, *counts), rows, dense, 0)
    theirs = model.loss_and_gradients(repeated, rows, dense, 0)
    assert_same_step(mine, theirs)


def test_weights_that_are_all_alike_change_nothing():
    model = build("deepfm", WEIGHTED, OPTIONS)
    given_ = parameters(model, BATCH, np.float64)
    plain = model.loss_and_gradients(BATCH, *given_, 0)
    ones = model.loss_and_gradients(weighed(BATCH, *[1] * 5), *given_, 0)
    assert ones.rows_gradient.tobytes() == plain.rows_gradient.tobytes()
    tenths = model.loss_and_gradients(weighed(BATCH, *[0.125] * 5), *given_, 0)  # their sum is below 1
    np.testing.assert_allclose(tenths.rows_gradient, plain.rows_gradient, rtol=1e-12)


@pytest.mark.parametrize("weight", [3e38, 1e-44])
def test_weights_at_the_ends_of_float32_are_weights(weight):
    model = build("deepfm", WEIGHTED, OPTIONS)
    given_ = parameters(model, BATCH)
    plain = model.loss_and_gradients(BATCH, *given_, 0)
    extreme = model.loss_and_gradients(weighed(BATCH, *[weight] * 5), *given_, 0)
    assert extreme.loss == pytest.approx(plain.loss, rel=1e-5)
    np.testing.assert_allclose(extreme.rows_gradient, plain.rows_gradient, rtol=1e-4, atol=1e-9)


def test_weights_of_nothing_teach_nothing():
    model = build("deepfm", WEIGHTED, OPTIONS)
    result = model.loss_and_gradients(weighed(BATCH, *[0] * 5), *parameters(model, BATCH), 0)
    assert result.loss == 0
    assert not result.rows_gradient.any()


def test_weighted_gradients_agree_with_finite_differences():
    model = build("dnn", WEIGHTED, {"dim": 3, "hidden": [6], "batch_norm": True})
    batch = weighed(BATCH, 0.5, 2, 0, 3, 1)
    errors = step_errors(model, batch, *parameters(model, batch, np.float64))
    assert max(errors.values()) <= RELATIVE_ERROR_MAX, errors


def test_a_weighted_batch_in_parts_is_the_batch_as_a_whole(monkeypatch):
    model = build("dnn", WEIGHTED, {"dim": 3, "hidden": [6]})
    batch = weighed(BATCH, 0.5, 2, 0, 3, 1)
    assert_same_in_parts(monkeypatch, model, batch, *parameters(model, batch, np.float64))


def test_several_labels_share_an_examples_weight():
    schema = replace(WEIGHTED, more_labels=("buy",))
    model = build("mmoe", schema, {"dim": 3, "hidden": [4], "experts": 2, "expert_hidden": [4]})
    batch = replace(BATCH, more_labels=BATCH.labels[::-1, None].copy())
    rows, dense = random(9, 3), {key: random(*shape) for key, shape in model.dense_shapes().items()}
    mine = model.loss_and_gradients(weighed(batch, 1, 0, 0, 2, 0), rows, dense, 0)
    some = rows_of(BATCH, [0, 3, 3])
    some = replace(some, more_labels=batch.more_labels[[0, 3, 3]])
    theirs = model.loss_and_gradients(some, rows, dense, 0)
    assert_same_step(mine, theirs)


# --- the schema


def test_a_schema_says_its_weight_and_comes_back_from_its_plain_form():
    assert Schema.from_dict(WEIGHTED.to_dict()) == WEIGHTED
    assert "counts" in WEIGHTED.columns
    assert "weight" not in SCHEMA.to_dict()
    with pytest.raises(ConfigurationError, match="column 'price' is named twice"):
        replace(SCHEMA, weight="price")
    with pytest.raises(ConfigurationError, match="weight: expected a label with it"):
        Schema(label=None, weight="counts", ragged=["items"])


def test_a_model_whose_loss_has_no_weights_refuses_them():
    schema = Schema(label="y", weight="counts", sparse=["user", "item"])
    with pytest.raises(ConfigurationError, match="schema: expected no weight, got 'counts'"):
        build("two_tower", schema, {"item": ["item"]})


# --- the data

SHOP = Schema(label="click", weight="counts", sparse=["user", "item"])


def shop(path, counts, rows: int = 60):
    rng = np.random.default_rng(2)
    user, item = rng.integers(0, 6, (2, rows))
    table = pa.table({"click": (user + item) % 2, "user": user, "item": item, "counts": counts})
    pq.write_table(table, path, row_group_size=25)
    return str(path)


def test_weights_travel_with_their_examples(tmp_path):
    path = shop(
        tmp_path / "a.parquet", np.arange(60) * 2 + np.random.default_rng(2).integers(0, 6, (2, 60))[0] % 2
    )
    schema = Schema(label="click", weight="counts", dense=["user"], sparse=["item"])
    data = ParquetData([path], schema)
    order = Order(7, [group.rows for group in data.row_groups], 60)
    batches = list(LeaseReader(data, schema, order, 16).batches(0, 0))
    weights = np.concatenate([batch.weights for batch in batches])
    assert {batch.weights.dtype for batch in batches} == {np.dtype(np.float32)}
    assert sorted(weights // 2) == list(range(60))
    users = np.concatenate([batch.dense[:, 0] for batch in batches])
    np.testing.assert_array_equal(weights % 2, users % 2)


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf"), None, 1e39], ids=str)
def test_a_weight_that_is_none_is_refused_in_one_line(tmp_path, bad):
    path = shop(tmp_path / "a.parquet", pa.array([1.0] * 59 + [bad], pa.float64()))
    line = r"row 59 \(from 0\).*column 'counts': a weight is finite in float32 and not negative, got"
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(SHOP), cluster, progress=False)
        with pytest.raises(DataError, match=line):
            trainer.fit(path)
    report = check(path, SHOP)
    assert [problem for problem in report.problems if "a weight is finite" in problem]


def test_a_column_of_words_is_no_weight(tmp_path):
    path = shop(tmp_path / "a.parquet", ["much"] * 60)
    with pytest.raises(DataError, match="column 'counts': a weight is a number, got string"):
        ParquetData([path], SHOP)


def test_a_training_with_weights_is_the_training_of_examples_written_so_often(tmp_path):
    """All in one batch, plain gradient descent: the step is a sum, so the order does not matter."""
    counts = np.random.default_rng(3).integers(0, 4, 60)
    once = shop(tmp_path / "once.parquet", counts)
    table = pq.read_table(once)
    often = str(tmp_path / "often.parquet")
    pq.write_table(table.take(np.repeat(np.arange(60), counts)), often)
    plain = Schema(label="click", sparse=["user", "item"])
    predicted = []
    for schema, train in ((SHOP, once), (plain, often)):
        with pslib.connect() as cluster:
            model = DNN(schema, dim=4, hidden=(8,), v_optimizer=SGD(1.0))
            trainer = pslib.Trainer(
                model, cluster, batch_rows=4096, staleness=0, dense_optimizer=SGD(0.5), progress=False
            )
            trainer.fit(train, epochs=10)
            out = tmp_path / f"of_{len(predicted)}"
            result = trainer.evaluate(once, predictions=out)
            assert result.examples == 60  # figures count each example once
            predicted.append(pq.read_table(out)["prediction"].to_numpy())
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-4)
    assert np.ptp(predicted[0]) > 0.05  # and it has learnt something
