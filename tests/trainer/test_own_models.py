"""A model class of one's own: the page's example learns, and each slip is told with class and member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.trainer.model import KeptStep, dense_shapes_of
from rec_models import StepResult
from tests.house.test_docs import ROOT, blocks

(SCRIPT,) = (block for block in blocks((ROOT / "docs/guide/models.md").read_text("utf-8"), "python")
             if "class Logistic" in block)  # fmt: skip
SCHEMA = pslib.Schema(label="click", sparse=["user", "item"])
ROWS = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 30, (2, ROWS))
    path = tmp_path_factory.mktemp("own") / "clicks.parquet"
    pq.write_table(pa.table({"click": ((user % 3 + item % 3) > 2) * 1, "user": user, "item": item}), path)
    return path


@pytest.fixture(scope="module")
def logistic() -> Any:
    """The class of the page."""
    names: dict[str, Any] = {}
    exec(compile(SCRIPT.split("\nwith ")[0], "models.md", "exec"), names)
    return names["Logistic"]


def spoilt(logistic: Any, member: str, change: Callable[[Any], Any]) -> Any:
    """The page's class, but for what this member gives."""

    class Mine(logistic):
        pass

    def changed(self: Any, *arguments: Any) -> Any:
        return change(getattr(super(Mine, self), member)(*arguments))

    setattr(Mine, member, changed)
    return Mine(SCHEMA)


def test_the_example_of_the_page_learns(data, monkeypatch, capsys):
    monkeypatch.chdir(data.parent)
    exec(
        compile(SCRIPT.replace("cluster)", "cluster, batch_rows=50, progress=False)"), "models.md", "exec"),
        {},
    )
    assert 0.8 < float(capsys.readouterr().out) <= 1
    assert 25 <= len([line for line in SCRIPT.splitlines() if line.strip()]) <= 35


def test_its_gradients_are_those_of_logistic_regression(data, logistic):
    """The code of the page is right: `rec_models.LR` gives the same."""
    from rec_models import LR
    from tests.support.models.gradient_check import make_batch

    batch = make_batch(rows=20, schema=SCHEMA)
    rng = np.random.default_rng(1)
    rows, dense = rng.normal(size=(batch.keys.size, 1)), {"bias": rng.normal(size=1)}
    mine = logistic(SCHEMA).loss_and_gradients(batch, rows, dense, 0)
    theirs = LR(SCHEMA).loss_and_gradients(batch, rows, dense, 0)
    np.testing.assert_allclose(mine.dense_gradients["bias"], theirs.dense_gradients["bias"], rtol=1e-6)
    np.testing.assert_allclose(mine.rows_gradient, theirs.rows_gradient, rtol=1e-6)
    np.testing.assert_allclose(mine.logits, theirs.logits, rtol=1e-6)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)


AT_SET_UP = [
    ("table", lambda _: None, "Mine.table: expected a pslib.TableSpec, got None"),
    ("dense_shapes", lambda _: {"bias": 1}, "Mine.dense_shapes: expected shapes by name, as {'b': (1,)}"),
    ("dense_shapes", lambda _: [("bias", (1,))], "Mine.dense_shapes: expected shapes by name"),
    ("dense_shapes", lambda _: {"bias": (-1,)}, "Mine.dense_shapes: expected shapes by name"),
    ("dense_shapes", lambda _: {"bias": ""}, "Mine.dense_shapes: expected shapes by name"),
    ("dense_shapes", lambda _: {"bias": [1.0]}, "Mine.dense_shapes: expected shapes by name"),
    ("dense_shapes", lambda _: {"bias": np.ones(1)}, "Mine.dense_shapes: expected shapes by name"),
    ("initial_dense", lambda _: {}, "Mine.initial_dense: expected bias, which dense_shapes names, got none"),
    ("initial_dense", lambda _: None, "Mine.initial_dense: expected arrays by name, as {'b': array}"),
    ("initial_dense", lambda _: {"bias": [0.0, 1.0]}, "Mine.initial_dense: bias: expected an array of shape"),
    (
        "initial_dense",
        lambda _: {"bias": np.zeros(2, np.float32)},
        "Mine.initial_dense: bias: expected an array of shape (1,), as in dense_shapes, got (2,) float32",
    ),
    ("initial_dense", lambda one: {**one, "b": one["bias"]}, "Mine.initial_dense: b: dense_shapes does not"),
]  # fmt: skip


@pytest.mark.parametrize(("member", "change", "said"), AT_SET_UP)
def test_a_slip_that_shows_at_set_up_is_told_there(logistic, member, change, said):
    with pslib.connect() as cluster, pytest.raises(ConfigurationError) as caught:
        pslib.Trainer(spoilt(logistic, member, change), cluster, progress=False)
    (line,) = caught.value.problems
    assert line.startswith(said)


IN_A_STEP = [
    (lambda step: (step.loss, step.logits),
     "expected a step, as rec_models.StepResult(...), got a tuple without loss, logits, rows_gradient, de"),
    (lambda step: replace(step, loss=None), "loss: expected a number, the mean of the batch, got None"),
    (lambda step: replace(step, loss=np.ones(50)), "loss: expected a number, the mean of the batch, got (5"),
    (lambda step: replace(step, logits=step.logits[:5]), "logits: expected one an example, of shape (50,)"),
    (lambda step: replace(step, logits=step.logits[:, None]), "logits: expected one an example"),
    (lambda step: replace(step, dense_gradients={}),
     "dense_gradients: expected bias, which dense_shapes names, got none"),
    (lambda step: replace(step, dense_gradients={"bias": np.float32(1)}),
     "dense_gradients: bias: expected an array of shape (1,), as in dense_shapes, got "),
    (lambda step: replace(step, dense_gradients={**step.dense_gradients, "c": np.zeros(1)}),
     "dense_gradients: c: dense_shapes does not name it"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), IN_A_STEP)
def test_a_slip_in_a_step_ends_the_fit_with_its_class_and_member(data, logistic, change, said):
    with pslib.connect() as cluster:
        model = spoilt(logistic, "loss_and_gradients", change)
        trainer = pslib.Trainer(model, cluster, batch_rows=50, progress=False)
        with pytest.raises(ConfigurationError) as caught:
            trainer.fit(data)
    (line,) = caught.value.problems
    assert line.startswith(f"Mine.loss_and_gradients: {said}")


def test_all_slips_of_a_step_come_at_once(data, logistic):
    def change(step: StepResult) -> StepResult:
        return replace(step, loss=None, logits=None, dense_gradients={"b": np.zeros(1)})  # type: ignore[arg-type]

    with pslib.connect() as cluster:
        trainer = pslib.Trainer(spoilt(logistic, "loss_and_gradients", change), cluster, progress=False)
        with pytest.raises(ConfigurationError) as caught:
            trainer.fit(data)
    assert [line.split(": ")[1] for line in caught.value.problems] == [
        "loss",
        "logits",
        *["dense_gradients"] * 2,
    ]


PREDICTIONS = [
    (lambda p: p[:3], "expected one probability an example, an array of shape (50,), got (3,) float32"),
    (lambda p: p.tolist(), "expected one probability an example, an array of shape (50,), got ["),
    (lambda _: None, "expected one probability an example, an array of shape (50,), got None"),
    (lambda p: p * 0 + 5, "expected probabilities, 0 to 1, got 5, 50 such in a batch; are these logits?"),
    (lambda p: p - 2, "expected probabilities, 0 to 1, got -1"),
    (lambda p: p * 0 + np.float32(1.0000001), "expected probabilities, 0 to 1, got 1.00000012, 50 such"),
]


@pytest.mark.parametrize(("change", "said"), PREDICTIONS)
def test_predictions_that_are_none_are_told_with_the_class(data, logistic, change, said):
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(spoilt(logistic, "predict", change), cluster, batch_rows=50, progress=False)
        with pytest.raises(ConfigurationError) as caught:
            trainer.evaluate(data)
    assert str(caught.value).startswith(f"Mine.predict: {said}")


@pytest.mark.parametrize("change", [lambda p: p[:, None], lambda p: p * 0 + (1 + 1e-12), lambda p: p > 0.5])
def test_what_can_be_read_as_probabilities_is_taken(data, logistic, change):
    with pslib.connect() as cluster:
        model = spoilt(logistic, "predict", lambda p: change(p.astype(np.float64)))
        trainer = pslib.Trainer(model, cluster, batch_rows=50, progress=False)
        assert trainer.evaluate(data).examples == ROWS


def test_lists_of_the_right_length_are_arrays(data, logistic):
    class Mine(logistic):
        def initial_dense(self, seed):
            return {"bias": [0.5]}

        def loss_and_gradients(self, *arguments):
            step = super().loss_and_gradients(*arguments)
            return replace(
                step, loss=float(step.loss), logits=step.logits.tolist(), dense_gradients={"bias": [0.0]}
            )

    with pslib.connect() as cluster:
        trainer = pslib.Trainer(Mine(SCHEMA), cluster, batch_rows=50, progress=False)
        trainer.fit(data)
        assert cluster.client.pull({}, dense=True).wait().dense.tolist() == [0.5]


@pytest.mark.parametrize("shape", [[1], (np.int64(1),), [np.int32(1)], np.zeros(1).shape, np.array([1])])
def test_a_shape_may_be_any_sequence_of_whole_numbers(data, logistic, shape, tmp_path):
    """Shapes go to the servers and into checkpoints: as plain numbers."""
    with pslib.connect() as cluster:
        model = spoilt(logistic, "dense_shapes", lambda _: {"bias": shape})
        trainer = pslib.Trainer(model, cluster, batch_rows=50, progress=False)
        trainer.fit(data)
        trainer.save(tmp_path / "model")
        assert trainer.evaluate(data).examples == ROWS
    (plain,) = dense_shapes_of(model).values()
    assert (plain, [type(size) for size in plain]) == ((1,), [int])


@pytest.mark.parametrize("loss", [np.float32(0.5), np.array(0.5, np.float32), 0.5])
def test_a_loss_of_numpy_travels_as_a_plain_number(loss):
    """A heartbeat that reported it as it was ended the training, now and then."""
    kept = KeptStep.of(StepResult(loss, np.zeros(1), np.zeros((1, 1)), {}))
    assert (type(kept.loss), kept.loss) == (float, 0.5)


def test_members_that_a_model_lacks_are_named(logistic):
    class Half:
        schema, table = SCHEMA, logistic.table

    with pslib.connect() as cluster, pytest.raises(ConfigurationError) as caught:
        pslib.Trainer(Half(), cluster)  # type: ignore[arg-type]
    lacks = "dense_shapes, initial_dense, loss_and_gradients, predict: add what is missing"
    assert str(caught.value).endswith(f"got a Half without {lacks}")


def test_what_is_no_model_at_all_is_told_no_members():
    with pslib.connect() as cluster, pytest.raises(ConfigurationError, match=r"got None$"):
        pslib.Trainer(None, cluster)  # type: ignore[arg-type]


def test_a_schema_that_is_none_is_told(logistic):
    with (
        pslib.connect() as cluster,
        pytest.raises(ConfigurationError, match=r"^Logistic.schema: expected a pslib.S"),
    ):
        pslib.Trainer(logistic(["user"]), cluster)
