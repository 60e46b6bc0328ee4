import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rec_models.layers
from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import (
    add,
    attention,
    concat,
    dropout,
    embedding,
    first_order,
    fm,
    linear,
    linear_relu,
    log_loss,
    mlp_shapes,
    rank_hinge,
    relu,
    sigmoid,
    split,
)
from rec_models.layers.attention import SHORT
from tests.support.models.gradient_check import (
    BATCH,
    LAYERS,
    RELATIVE_ERROR_MAX,
    SCHEMA,
    layer_errors,
    make_batch,
    random,
)


def predicting():
    return Tape(training=False)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layers_gradient_agrees_with_finite_differences(name):
    layer, inputs = LAYERS[name]
    for place, error in enumerate(layer_errors(layer, inputs)):
        assert error <= RELATIVE_ERROR_MAX, f"{name}, input {place}: {error}"


def test_the_gradient_check_notices_a_gradient_that_is_a_thousandth_off():
    def wrong(tape, x):
        return tape.record(x.value**2, lambda gradient: x.accumulate(gradient * 2.002 * x.value))

    assert layer_errors(wrong, [random(3)])[0] > RELATIVE_ERROR_MAX


def test_every_layer_is_in_the_gradient_check():
    assert set(LAYERS) == {name for name in rec_models.layers.__all__ if not name.endswith("_shapes")}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_float32(name):
    layer, inputs = LAYERS[name]
    variables = [Var(x.astype(np.float32)) for x in inputs]
    tape = Tape(training=True)
    output = layer(tape, *variables)
    assert output.value.dtype == np.float32
    tape.backward(output)
    gradients = [
        variable.gradient for variable in variables if variable.gradient is not None
    ]  # not statistics
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_changes_neither_its_inputs_nor_its_output_going_backward(name):
    layer, inputs = LAYERS[name]
    variables = [Var(x.copy()) for x in inputs]
    tape = Tape(training=True)
    output = layer(tape, *variables)
    before = output.value.copy()
    tape.backward(output)
    np.testing.assert_array_equal(output.value, before)
    np.testing.assert_array_equal(output.gradient, np.ones_like(before))
    for variable, x in zip(variables, inputs, strict=True):
        np.testing.assert_array_equal(variable.value, x)


# --- embedding and first order ----------------------------------------------------------------------------


def test_embedding_gathers_sparse_rows_and_pools_ragged_ones():
    rows = random(9, 4)
    value = embedding(predicting(), Var(rows), BATCH, SCHEMA).value
    assert value.shape == (5, 6, 4)
    for b in range(5):
        for f in range(3):
            np.testing.assert_array_equal(value[b, f], rows[BATCH.sparse[b, f]])
        for f, field in enumerate(SCHEMA.ragged, 3):
            ragged = BATCH.ragged[field.name]
            members = rows[ragged.values[ragged.offsets[b] : ragged.offsets[b + 1]]]
            expected = members.sum(axis=0) / (max(1, len(members)) if field.pooling == "mean" else 1)
            np.testing.assert_allclose(value[b, f], expected, rtol=1e-12, atol=1e-15)


def test_first_order_is_the_sum_over_fields_of_an_embedding_of_width_one():
    w = random(9, 1)
    fields = embedding(predicting(), Var(w), BATCH, SCHEMA).value
    value = first_order(predicting(), Var(w), BATCH, SCHEMA).value
    np.testing.assert_allclose(value, fields[:, :, 0].sum(axis=1), rtol=1e-12)


def test_a_row_that_every_place_shares_sums_all_gradients():
    batch = make_batch(distinct=1)
    places = batch.sparse.size
    one_key = Batch(
        batch.labels,
        batch.dense,
        batch.keys,
        np.zeros_like(batch.sparse),
        {
            name: type(ragged)(np.zeros_like(ragged.values), ragged.offsets)
            for name, ragged in batch.ragged.items()
        },
    )
    tape, rows = Tape(training=True), Var(random(1, 2))
    tape.backward(embedding(tape, rows, one_key, SCHEMA))
    means = sum((one_key.ragged[name].lengths > 0).sum() for name in ("words", "viewed"))
    sums = one_key.ragged["tags"].values.size
    np.testing.assert_allclose(rows.gradient, places + means + sums, rtol=1e-12)


# --- the pairwise term ------------------------------------------------------------------------------------


@given(fields=st.integers(0, 5), dim=st.integers(1, 4), seed=st.integers(0, 99))
def test_fm_equals_the_double_sum_of_its_definition(fields, dim, seed):
    v = np.random.default_rng(seed).normal(size=(3, fields, dim))
    expected = np.zeros(3)
    for i in range(fields):
        for j in range(i + 1, fields):
            expected += (v[:, i] * v[:, j]).sum(axis=1)
    np.testing.assert_allclose(fm(predicting(), Var(v)).value, expected, rtol=1e-9, atol=1e-9)


# --- loss and sigmoid -------------------------------------------------------------------------------------


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=20), st.integers(0, 2**20 - 1))
def test_log_loss_equals_its_definition_where_that_does_not_overflow(logits, bits):
    z = np.array(logits)
    y = np.array([(bits >> i) & 1 for i in range(z.size)], np.float32)
    p = 1 / (1 + np.exp(-z))
    q = 1 / (1 + np.exp(z))
    expected = -(y * np.log(p) + (1 - y) * np.log(q)).mean()
    assert log_loss(predicting(), Var(z), y).value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_of_huge_logits_is_exact_without_a_warning(dtype):
    z = np.array([1e4, -1e4, 1e4, -1e4], dtype)
    y = np.array([1, 0, 0, 1], np.float32)
    tape, logits = Tape(training=True), Var(z)
    loss = log_loss(tape, logits, y)
    tape.backward(loss)
    assert loss.value == 5000
    np.testing.assert_array_equal(logits.gradient, [0, 0, 0.25, -0.25])


def test_log_loss_of_no_examples_is_zero():
    tape, logits = Tape(training=True), Var(np.zeros(0, np.float32))
    loss = log_loss(tape, logits, np.zeros(0, np.float32))
    tape.backward(loss)
    assert loss.value == 0
    assert logits.gradient.shape == (0,)


def test_sigmoid_keeps_its_relative_precision_for_very_negative_numbers():
    x = np.array([-80.0, -20.0, 0.0, 20.0, 200.0], np.float32)
    expected = [1 / (1 + math.exp(-float(value))) for value in x]
    np.testing.assert_allclose(sigmoid(predicting(), Var(x)).value, expected, rtol=1e-6)


# --- dropout ----------------------------------------------------------------------------------------------


def dropped(rate, step_seed=0, dtype=np.float64, size=40_000):
    return dropout(Tape(training=True, step_seed=step_seed), Var(np.ones(size, dtype)), rate).value


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    value = dropped(rate)
    assert abs((value == 0).mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / value.size)
    assert np.unique(value[value > 0]) == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_dropout_depends_on_the_step_seed_and_not_on_the_dtype():
    np.testing.assert_array_equal(dropped(0.5), dropped(0.5))
    np.testing.assert_array_equal(dropped(0.5) > 0, dropped(0.5, dtype=np.float32) > 0)
    assert 0.45 < (dropped(0.5) == dropped(0.5, step_seed=1)).mean() < 0.55


def test_dropout_masks_are_the_same_for_ever():
    np.testing.assert_array_equal(dropped(0.5, step_seed=7, size=10) > 0, [1, 0, 1, 0, 1, 1, 1, 1, 0, 1])


def test_two_dropouts_of_one_step_drop_different_units():
    tape, x = Tape(training=True), Var(np.ones(10_000))
    assert 0.45 < (dropout(tape, x, 0.5).value == dropout(tape, x, 0.5).value).mean() < 0.55


def test_dropout_is_absent_from_predictions_and_at_rate_zero():
    x = Var(np.ones(4))
    assert dropout(predicting(), x, 0.5) is x
    assert dropout(Tape(training=True), x, 0.0) is x


def test_a_rate_too_near_one_still_keeps_a_finite_scale():
    assert np.isfinite(dropped(1 - 1e-9)).all()


# --- shapes -----------------------------------------------------------------------------------------------


def test_concat_of_one_input_copies_nothing():
    x = np.ones((3, 2, 2))
    assert np.shares_memory(concat(predicting(), Var(x)).value, x)


def test_concat_keeps_the_order_of_examples_and_inputs():
    value = concat(predicting(), Var(np.arange(8.0).reshape(2, 2, 2)), Var(np.array([[10.0], [20.0]]))).value
    np.testing.assert_array_equal(value, [[0, 1, 2, 3, 10], [4, 5, 6, 7, 20]])


def test_a_bias_of_a_batch_of_one_gets_its_gradient():
    tape, bias = Tape(training=True), Var(np.ones(1))
    tape.backward(add(tape, Var(np.ones(1)), bias))
    np.testing.assert_array_equal(bias.gradient, [1.0])


def test_split_gives_parts_in_order_and_copies_nothing():
    rows = np.arange(12.0).reshape(3, 4)
    narrow, wide = split(predicting(), Var(rows), (1, 3))
    np.testing.assert_array_equal(np.concatenate([narrow.value, wide.value], axis=1), rows)
    assert np.shares_memory(wide.value, rows)


def test_split_refuses_widths_that_are_not_the_rows_width():
    with pytest.raises(ValueError, match="split expects 4 floats a row, got 5"):
        split(predicting(), Var(np.ones((2, 5))), (1, 3))


def test_linear_is_x_times_w_plus_b():
    value = linear(
        predicting(), Var(np.array([[1.0, 2.0]])), Var(np.eye(2) * 3), Var(np.array([1.0, -1.0]))
    ).value
    np.testing.assert_array_equal(value, [[4.0, 5.0]])


@given(st.integers(0, 9), st.integers(2, 40), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
def test_linear_relu_gives_the_bits_of_linear_and_relu(n, m, dtype, seed):
    draw = np.random.default_rng(seed).standard_normal
    x, w, b = (draw(shape).astype(dtype) for shape in ((n, 3), (3, m), (m,)))
    outcomes = []
    for layer in (linear_relu, lambda tape, *xs: relu(tape, linear(tape, *xs))):
        tape, variables = Tape(training=True), [Var(x), Var(w), Var(b)]
        y = layer(tape, *variables)
        tape.backward(y)
        outcomes.append([y.value, *(v.gradient for v in variables)])
    for mine, separate in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(mine, separate)


def test_linear_relu_does_not_hide_that_a_run_has_diverged():
    value = linear_relu(
        predicting(), Var(np.full((1, 2), np.nan)), Var(np.ones((2, 2))), Var(np.ones(2))
    ).value
    assert np.isnan(value).all()


def test_linear_relu_refuses_a_bias_of_another_width():
    with pytest.raises(ValueError, match="bias: expected 2 values, one a column, got 3"):
        linear_relu(predicting(), Var(np.ones((1, 2))), Var(np.ones((2, 2))), Var(np.ones(3)))


def test_mlp_shapes_name_every_matrix_in_order():
    assert mlp_shapes(5, (4, 3)) == {
        "mlp.0.w": (5, 4),
        "mlp.0.b": (4,),
        "mlp.1.w": (4, 3),
        "mlp.1.b": (3,),
        "mlp.out.w": (3, 1),
        "mlp.out.b": (1,),
    }


def test_a_hinge_loss_over_a_batch_holds_a_part_of_its_scores_at_once(monkeypatch):
    rng = np.random.default_rng(4)
    u, targets, candidates = (rng.normal(size=(40, 3)) for _ in range(3))
    ids = rng.integers(0, 6, 40), rng.integers(0, 6, 40)

    def step() -> list[np.ndarray]:
        tape, given = Tape(training=True), [Var(one) for one in (u, targets, candidates)]
        first = np.arange(40)
        loss = rank_hinge(tape, *given, ids, first, margin=0.5, trials=3, labels=6, weight=40)
        tape.backward(loss)
        return [loss.value, *(one.gradient for one in given)]

    whole, largest, real = step(), 0, np.cumsum

    def counted(array, *args, **kwargs):
        nonlocal largest
        largest = max(largest, np.size(array))
        return real(array, *args, **kwargs)

    monkeypatch.setattr("rec_models.layers.ranking_losses.AT_ONCE", 90)
    monkeypatch.setattr(np, "cumsum", counted)
    for one, other in zip(step(), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert largest == 2 * 40


@given(st.integers(1, 2 * SHORT), st.integers(0, 99))
def test_attention_of_any_number_of_fields_is_its_definition(fields, seed):
    q, k, v = (np.random.default_rng(seed + i).normal(size=(2, fields, 6)) for i in range(3))
    found = attention(predicting(), Var(q), Var(k), Var(v), 2).value
    for head in (slice(0, 3), slice(3, 6)):
        weights = np.exp(q[..., head] @ k[..., head].swapaxes(1, 2))
        weights /= weights.sum(axis=2, keepdims=True)
        np.testing.assert_allclose(found[..., head], weights @ v[..., head], rtol=1e-12, atol=1e-14)


def test_the_gradient_of_attention_of_many_fields_agrees_with_finite_differences():
    def two_heads(tape, q, k, v):
        return attention(tape, q, k, v, 2)

    errors = layer_errors(two_heads, [random(1, SHORT + 1, 4) for _ in range(3)])
    assert max(errors) <= RELATIVE_ERROR_MAX


def test_attention_to_a_field_that_outweighs_all_others_is_exact_without_a_warning():
    q, k = np.array([[[1e3], [-1e3]]]), np.array([[[1e3], [-1e3]]])
    v = np.array([[[1.0], [2.0]]])
    np.testing.assert_array_equal(attention(predicting(), Var(q), Var(k), Var(v), 1).value, v)
