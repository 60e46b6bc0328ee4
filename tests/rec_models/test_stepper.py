"""Steps in parts: bits for any number of threads, arrays used again, models that want whole batches."""

import threading
import tracemalloc

import numpy as np
import pytest

from cython_ext.model.row_places import place_of_joined
from pslib.trainer.pipeline.overlap import ComputeThreads
from rec_models import DNN, MODELS, DeepFM, build
from rec_models.engine.buffers import ResultArrays, joined
from rec_models.layers import dot
from rec_models.stepper import parts_of
from tests.support.models.gradient_check import MODELS as CASES
from tests.support.models.gradient_check import (
    SCHEMA,
    assert_same_step,
    make_batch,
    parameters,
    random,
    without_dropout,
)

BATCH = make_batch(seed=3, rows=1100, distinct=60)  # three parts


def bits(result):
    arrays = [result.logits, result.rows_gradient, *result.dense_gradients.values()]
    return [result.loss, *(array.tobytes() for array in arrays)]


@pytest.fixture
def threads():
    started = ComputeThreads(3)
    yield started
    started.close()


@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_same_bits_with_any_number_of_threads(name, threads):
    model = build(name, SCHEMA, CASES[name])
    alone = bits(model.loss_and_gradients(BATCH, *parameters(model, BATCH, np.float32), 4))
    stepper = model.stepper(threads.run)
    for _ in range(3):
        assert bits(stepper.loss_and_gradients(BATCH, *parameters(model, BATCH, np.float32), 4)) == alone


@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_parts_is_the_step_of_the_whole_batch_up_to_rounding(name):
    class Whole(MODELS[name]):
        examples_independent = False

    options = without_dropout(CASES[name])
    plain = build(name, SCHEMA, options)
    whole = Whole(SCHEMA, **{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()})
    one, other = (model.loss_and_gradients(BATCH, *parameters(model, BATCH), 0) for model in (plain, whole))
    assert_same_step(one, other)


def test_predictions_are_the_same_with_any_number_of_threads(threads):
    model = build("deepfm", SCHEMA, CASES["deepfm"])
    asked = model.stepper(threads.run).predict(BATCH, *parameters(model, BATCH, np.float32))
    assert asked.tobytes() == model.predict(BATCH, *parameters(model, BATCH, np.float32)).tobytes()


def test_a_model_whose_examples_depend_on_each_other_gets_its_batches_whole():
    seen = []

    class Whole(DNN):
        examples_independent = False

        def forward(self, tape, batch, rows, dense):
            seen.append(len(batch))
            return super().forward(tape, batch, rows, dense)

    model = Whole(SCHEMA, dim=2, hidden=(3,))
    model.loss_and_gradients(BATCH, *parameters(model, BATCH, np.float32), 0)
    model.predict(BATCH, *parameters(model, BATCH, np.float32))
    assert seen == [1100, 1100]


def test_a_model_of_layers_that_know_nothing_of_parts_gets_its_gradients_too():
    class Plain(DNN):
        def forward(self, tape, batch, rows, dense):
            logits = dot(tape, batch.dense, dense["a"])
            squares = tape.record(
                np.full(len(batch), (rows.value**2).sum()),
                lambda gradient: rows.accumulate(2 * rows.value * gradient.sum()),
            )
            both = logits.value + squares.value

            def backward(gradient):
                logits.accumulate(gradient)
                squares.accumulate(gradient)

            return tape.record(both, backward)

        def dense_shapes(self):
            return {"a": (2,)}

    model = Plain(SCHEMA, dim=2)
    rows, dense = 0.01 * random(60, 2), {"a": random(2)}
    result = model.loss_and_gradients(BATCH, rows, dense, 0)
    step = 1e-6
    for array, gradient in ((rows, result.rows_gradient), (dense["a"], result.dense_gradients["a"])):
        at = (0,) * array.ndim
        array[at] += step
        above = model.loss_and_gradients(BATCH, rows, dense, 0).loss
        array[at] -= 2 * step
        below = model.loss_and_gradients(BATCH, rows, dense, 0).loss
        array[at] += step
        assert gradient[at] == pytest.approx((above - below) / (2 * step), rel=1e-5)


def test_a_steady_state_makes_no_large_array():
    model = DeepFM(SCHEMA, dim=16, hidden=(128, 128))
    stepper = model.stepper(lambda tasks: [task() for task in tasks])
    given = parameters(model, BATCH, np.float32)
    for _ in range(2):
        stepper.loss_and_gradients(BATCH, *given, 0)
    tracemalloc.start()
    stepper.loss_and_gradients(BATCH, *given, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    activations = len(BATCH) * 128 * 4
    assert peak < activations, "one layer's activations take more than all that a step allocates"


def test_gradients_are_left_alone_while_they_are_held():
    model = DeepFM(SCHEMA, dim=4, hidden=(8,))
    stepper = model.stepper(lambda tasks: [task() for task in tasks])
    rows, dense = parameters(model, BATCH, np.float32)
    first = stepper.loss_and_gradients(BATCH, rows, dense, 0)
    message, kept = memoryview(first.rows_gradient), first.rows_gradient.copy()
    del first
    second = stepper.loss_and_gradients(BATCH, rows + 1, dense, 0)
    np.testing.assert_array_equal(np.asarray(message), kept)
    assert not np.shares_memory(np.asarray(message), second.rows_gradient)


def test_an_array_that_is_not_held_is_taken_again_and_grows():
    kept = ResultArrays()
    array = kept.take((4, 2), np.float32)
    address = array.__array_interface__["data"][0]
    del array
    array = kept.take((2, 2), np.float32)
    assert array.__array_interface__["data"][0] == address
    assert kept.take((2, 2), np.float32).__array_interface__["data"][0] != address
    del array
    assert kept.take((400, 2), np.float64).shape == (400, 2)


def test_parts_cover_a_batch_and_depend_on_its_size_alone():
    for rows in (0, 1, 256, 257, 512, 4096, 4097, 70_000):
        cuts = parts_of(rows)
        assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
        assert cuts[-1].stop == rows
        assert max(cut.stop - cut.start for cut in cuts) <= 512
    assert len(parts_of(4096)) == 8
    assert len(parts_of(512)) == 2


def test_arrays_that_stand_in_a_row_in_memory_are_joined_without_a_copy():
    whole = np.arange(24.0).reshape(6, 4)
    parts = [whole[:2, 1:], whole[2:3, 1:], whole[3:, 1:]]
    assert np.shares_memory(joined(parts), whole)
    np.testing.assert_array_equal(joined(parts), whole[:, 1:])
    apart = [whole[:2], whole[4:]]
    np.testing.assert_array_equal(joined(apart), whole[[0, 1, 4, 5]])
    assert not np.shares_memory(joined(apart), whole)
    by_columns = np.asfortranarray(whole[2:])
    for strange in ([whole[::2], whole[1::2]], [whole[:2, :2], whole[2:, 2:]], [whole[:2], by_columns]):
        np.testing.assert_array_equal(joined(strange), np.concatenate(strange))
    assert place_of_joined([whole[0, :1].reshape(()), whole[0, 1:2].reshape(())]) == -1  # no axis to join
    alone = np.arange(6.0)  # its own base
    np.testing.assert_array_equal(joined([alone, alone]), np.tile(alone, 2))


# --- threads ----------------------------------------------------------------------------------------------


def test_every_task_runs_once_and_several_threads_take_part(threads):
    together, ran = threading.Barrier(3, timeout=10), []

    def task(number):
        if number < 3:
            together.wait()  # passes only when three threads are here at once
        ran.append(number)

    for _ in range(20):
        ran.clear()
        threads.run([lambda number=number: task(number) for number in range(10)])
        assert sorted(ran) == list(range(10))


def test_the_error_of_a_task_reaches_the_caller_and_the_threads_live_on(threads):
    def fail():
        raise KeyError("lost")

    for _ in range(3):
        with pytest.raises(KeyError, match="lost"):
            threads.run([fail] * 5)
    done = []
    threads.run([lambda: done.append(1)] * 4)
    assert len(done) == 4


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="at least 1 thread, got 0"):
        ComputeThreads(0)
