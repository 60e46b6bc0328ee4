"""Steps that multiply in bfloat16: from the setting down to each of a layer's products."""

import logging
import threading

import numpy as np
import pytest

import pslib
import rec_models.engine.products
from cython_ext.model.products import has_products
from launch.job.job import read_job
from launch.worker.train_job import make_trainer
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.errors import ConfigurationError
from pslib.trainer.pipeline import compute
from pslib.trainer.pipeline.compute import ModelThreads
from rec_models import DNN
from rec_models.engine.buffers import Scratch
from rec_models.engine.products import (
    DenseVar,
    packed_of,
    times,
    times_transposed,
    transposed_times,
    vectors_of,
)
from rec_models.engine.tape import Var
from tests.support.counting import CountingModel
from tests.support.definitions.products import drawn, needs_bfloat16, product
from tests.support.models.gradient_check import SCHEMA, make_batch, parameters


def step_of(products, run=None):
    model, batch = DNN(SCHEMA, dim=6, hidden=(64, 40)), make_batch(seed=3, rows=1101, distinct=60)
    run = run or (lambda tasks: [task() for task in tasks])
    return model.stepper(run, products).loss_and_gradients(batch, *parameters(model, batch, np.float32), 4)


def bits(step):
    arrays = [step.logits, step.rows_gradient, *step.dense_gradients.values()]
    return [step.loss, *(array.tobytes() for array in arrays)]


@needs_bfloat16
def test_a_step_is_that_of_float32_but_for_rounding_with_the_same_bits_in_any_order_of_its_tasks():
    exact, rounded = step_of("float32"), step_of("bfloat16")
    assert bits(exact) != bits(rounded)
    assert bits(rounded) == bits(step_of("bfloat16", lambda tasks: [task() for task in reversed(tasks)]))
    assert rounded.loss == pytest.approx(exact.loss, rel=0.01)
    pairs = [(exact.rows_gradient, rounded.rows_gradient)]
    pairs += [(value, rounded.dense_gradients[name]) for name, value in exact.dense_gradients.items()]
    for one, other in pairs:
        assert np.linalg.norm(one - other) < 0.05 * np.linalg.norm(one)  # some relus open or close


@needs_bfloat16
@pytest.mark.parametrize(("products", "vectors"), [("float32", None), ("bfloat16", "avx512_bf16")])
def test_all_products_of_a_step_are_multiplied_in_what_was_asked_for(products, vectors, monkeypatch):
    seen = []
    for name in ("pack", "multiply", "outer"):
        plain = getattr(rec_models.engine.products, name)

        def noted(*arguments, plain=plain, name=name, **more):
            seen.append((name, more.get("vectors", arguments[-1])))
            return plain(*arguments, **more)

        monkeypatch.setattr(rec_models.engine.products, name, noted)
    step_of(products)
    assert set(seen) == {("pack", vectors), ("multiply", vectors), ("outer", vectors)}


def test_where_the_processor_is_no_faster_nothing_is_rounded(monkeypatch):
    monkeypatch.setattr("rec_models.engine.products.has_bfloat16", bool)
    assert vectors_of("bfloat16") is None
    assert bits(step_of("bfloat16")) == bits(step_of("float32"))


@needs_bfloat16
def test_each_of_a_layers_three_products_is_rounded():
    weights, x, gradient = drawn(1, 48, 64), drawn(2, 70, 48), drawn(3, 70, 64)
    dense = DenseVar(weights, packed_of("w", weights, Scratch(), vectors_of("bfloat16")))
    np.testing.assert_array_equal(times(x, dense, np.empty((70, 64), np.float32)), product(x, weights))
    found = times_transposed(gradient, dense, np.empty((70, 48), np.float32))
    np.testing.assert_array_equal(found, product(gradient, weights.T))
    found = np.empty((48, 64), np.float32)
    transposed_times(x, gradient, found, vectors_of("bfloat16"))
    np.testing.assert_array_equal(found, product(x.T, gradient))


@pytest.mark.parametrize(
    ("products", "had", "said"),
    [
        ("float32", True, "1 compute thread(s); matrix products by "),
        pytest.param(
            *("bfloat16", True, "matrix products by pslib's kernels (avx512_bf16) and "), marks=needs_bfloat16
        ),
        ("bfloat16", False, "; in float32, as there is no fast bfloat16 here"),
        (None, True, "1 compute thread(s); matrix products by "),
    ],
)
def test_the_log_says_in_what_a_trainer_multiplies(products, had, said, monkeypatch, caplog):
    monkeypatch.setattr(compute, "has_bfloat16", lambda: had)
    monkeypatch.setattr(compute, "_said", set())
    caplog.set_level(logging.INFO, "pslib")
    with ModelThreads(DNN(SCHEMA, dim=6, hidden=(8,)), 1, products=products):
        pass
    assert [said in line for line in caplog.messages] == [True]
    assert ("pslib's kernels" in caplog.text) == (products is not None and has_products())
    assert ("avx512_bf16" in caplog.text) == (products == "bfloat16" and had)


# --- settings of a trainer

CONFIG = GeneratorConfig(train_rows=600, test_rows=100, seed=2, vocabularies=(50,) * 4, dense_fields=2)


class Older(DNN):
    """A model written before steps could multiply in another type."""

    def stepper(self, run):
        return super().stepper(run)


class Asked(DNN):
    """Notes what its steppers are asked for."""

    def stepper(self, run, products="float32"):
        asked.append(products)
        return super().stepper(run, products)


asked = []


@pytest.fixture
def data(tmp_path):
    generate(tmp_path / "data", CONFIG)
    return tmp_path / "data"


def trained(data, model=DNN, **settings):
    """The dense parameters after an epoch."""
    with pslib.connect() as cluster:
        made = model(generated_schema(CONFIG), dim=8, hidden=(40, 32))
        trainer = pslib.Trainer(made, cluster, batch_rows=64, progress=False, **settings)
        trainer.fit(str(data / "train.parquet"))
        asked_for_steps = list(asked)
        assert 0 < trainer.evaluate(str(data / "test.parquet")).auc < 1
        assert set(asked[len(asked_for_steps) :]) <= {"float32"}  # evaluation is float32's
        return cluster.client.pull({}, dense=True).wait().dense.tobytes()


ALONE, OVERLAPPED = {"staleness": 0, "compute_threads": 1}, {"staleness": 2, "compute_threads": 2}


@pytest.mark.parametrize("how", [ALONE, OVERLAPPED])
def test_a_fit_asks_for_steps_of_its_products_whether_or_not_steps_overlap(data, how):
    for products in ("float32", "bfloat16"):
        asked.clear()
        trained(data, Asked, products=products, **how)
        assert asked[0] == products


@needs_bfloat16
def test_a_fit_in_bfloat16_has_bits_of_its_own_which_repeat(data):
    once, again, plain = (trained(data, products=p, **ALONE) for p in ("bfloat16", "bfloat16", "float32"))
    assert once == again
    assert once != plain


def test_a_model_whose_stepper_knows_no_products_trains_in_float32_with_the_same_bits(data):
    assert trained(data, Older, **ALONE) == trained(data, DNN, **ALONE)


def test_a_job_file_hands_its_products_to_the_trainer(data):
    file = data / "job.yaml"
    fields = {"dense": "[I1, I2]", "sparse": "[C1, C2, C3, C4]"}
    schema = ", ".join(f"{name}: {value}" for name, value in fields.items())
    file.write_text(
        f"data: {{train: train.parquet, schema: {{label: label, {schema}}}}}\n"
        "model: {name: dnn, dim: 8, hidden: [32]}\ntraining: {products: bfloat16}\nout: run\n"
    )
    with pslib.connect() as cluster:
        assert make_trainer(read_job(file), cluster).settings.products == "bfloat16"


def test_products_of_another_name_or_of_a_model_that_multiplies_by_itself_are_refused_in_one_line():
    with pslib.connect() as cluster:
        for other in ("float16", None, 1):
            with pytest.raises(ConfigurationError, match="products: expected one of float32, bfloat16, got"):
                pslib.Trainer(DNN(SCHEMA, dim=6), cluster, products=other, progress=False)
        with pytest.raises(ConfigurationError, match="expected float32 with CountingModel, which multiplies"):
            pslib.Trainer(CountingModel(), cluster, products="bfloat16", progress=False)
        with pytest.raises(ConfigurationError, match="float32 with Older, whose stepper takes no products"):
            pslib.Trainer(Older(SCHEMA, dim=6), cluster, products="bfloat16", progress=False)
        pslib.Trainer(DNN(SCHEMA, dim=6), cluster, products="bfloat16", progress=False)
    with pytest.raises(ConfigurationError, match="products: expected float32 or bfloat16, got 'bf16'"):
        vectors_of("bf16")


# --- weights that are packed once a step: by kernel or by NumPy what plain weights give ---------------------


def layers_of(dtype, rows=70):
    """Weights with and without a packed twin, and what they are multiplied with."""
    weights = drawn(1, 48, 64).astype(dtype)
    dense = DenseVar(weights, packed_of("w", weights, Scratch()))
    return Var(weights), dense, drawn(2, rows, 48).astype(dtype), drawn(3, rows, 64).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "NumPy"])
def test_packed_weights_give_what_plain_ones_give(kernel, dtype, monkeypatch):
    if not kernel:  # as on a processor that has none
        monkeypatch.setattr("rec_models.engine.products.OWN_FLOAT32", False)
    plain, dense, x, gradient = layers_of(dtype)
    assert (dense.packed is not None) == (kernel and dtype == np.float32 and has_products())
    bias = drawn(4, 64).astype(dtype)
    for how in ({}, {"bias": bias}, {"bias": bias, "relu": True}):
        found, wanted = (times(x, one, np.empty((70, 64), dtype), **how) for one in (dense, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    found, wanted = (times_transposed(gradient, one, np.empty((70, 48), dtype)) for one in (dense, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    found = np.empty((48, 64), dtype)
    transposed_times(x, gradient, found)
    np.testing.assert_allclose(found, x.T @ gradient, rtol=1e-4, atol=1e-5)


def test_what_the_kernel_can_not_read_is_multiplied_all_the_same():
    plain, dense, x, _gradient = layers_of(np.float32)
    for strange in (np.asfortranarray(x), x[::-1]):
        found, wanted = (times(strange, one, np.empty((70, 64), np.float32)) for one in (dense, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_threads_that_ask_at_once_get_the_same_packed_weights():
    _plain, dense, x, _gradient = layers_of(np.float32)
    outs = [np.empty((70, 64), np.float32) for _ in range(4)]
    threads = [threading.Thread(target=times, args=(x, dense, out)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len({out.tobytes() for out in outs}) == 1
