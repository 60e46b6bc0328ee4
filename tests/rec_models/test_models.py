from dataclasses import fields

import numpy as np
import pytest

from pslib.batch import Batch, Ragged
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.table.initializers import Constant, Normal
from pslib.table.optimizers import SGD, Adam
from rec_models import DNN, MODELS, FinalMLP, TwoTower, build
from rec_models.engine.tape import Tape, Var
from rec_models.layers import batch_norm, dice, multiply
from rec_models.layers.activations import sigmoid_of
from rec_models.model import initial_values
from rec_models.options import V_INITIALIZER
from rec_models.stepper import parts_of
from tests.support.models.gradient_check import (
    BATCH,
    RELATIVE_ERROR_MAX,
    SCHEMA,
    VARIANTS,
    assert_step_is_pytorchs,
    make_batch,
    model_errors,
    parameters,
    random,
    variant_name,
    without_dropout,
)
from tests.support.models.gradient_check import MODELS as CASES
from tests.support.models.papers import WITHOUT_TORCH, by_the_paper

DROPOUTS = {"dropout", "dropout_1", "dropout_2"}
PAIR = Schema(label="click", sparse=["left", "right"])


def small(name, schema=SCHEMA):
    return build(name, schema, CASES[name])


def plain(name, options=None):
    """A model without dropout."""
    return build(name, SCHEMA, without_dropout(CASES[name] if options is None else options))


def step(model, batch=BATCH, step_seed=0, dtype=np.float32):
    return model.loss_and_gradients(batch, *parameters(model, batch, dtype), step_seed)


def rows_of(batch, chosen):
    """The batch's chosen examples, with the same keys and places."""
    ragged = {}
    for name, lists in batch.ragged.items():
        pieces = [lists.values[lists.offsets[b] : lists.offsets[b + 1]] for b in chosen]
        offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        ragged[name] = Ragged(np.concatenate([np.zeros(0, np.int32), *pieces]), offsets)
    chosen = np.array(chosen, np.int64)
    return Batch(batch.labels[chosen], batch.dense[chosen], batch.keys, batch.sparse[chosen], ragged)


# --- gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=map(variant_name, VARIANTS))
def test_a_models_gradients_agree_with_finite_differences(name, options):
    for parameter, error in model_errors(name, options).items():
        assert error <= RELATIVE_ERROR_MAX, f"{name}, {parameter}: {error}"


def test_every_model_is_in_the_gradient_check():
    assert set(CASES) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_float32_stays_in_float32_and_gives_contiguous_gradients(name):
    model = small(name)
    result = step(model)
    assert result.rows_gradient.shape == (BATCH.keys.size, model.table().dim)
    assert result.rows_gradient.flags.c_contiguous
    assert {name: gradient.shape for name, gradient in result.dense_gradients.items()} == model.dense_shapes()
    arrays = [result.logits, result.rows_gradient, *result.dense_gradients.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert isinstance(result.loss, float)


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_float64_up_to_rounding(name):
    narrow, wide = step(small(name), dtype=np.float32), step(small(name), dtype=np.float64)
    np.testing.assert_allclose(narrow.logits, wide.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(narrow.rows_gradient, wide.rows_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_step_gives_the_same_bits(name):
    first, second = step(small(name), step_seed=5), step(small(name), step_seed=5)
    assert first.loss == second.loss
    assert first.rows_gradient.tobytes() == second.rows_gradient.tobytes()
    for key, gradient in first.dense_gradients.items():
        assert gradient.tobytes() == second.dense_gradients[key].tobytes()


@pytest.mark.parametrize("name", [name for name, options in CASES.items() if options.keys() & DROPOUTS])
def test_another_step_seed_drops_other_units(name):
    assert step(small(name), step_seed=1).loss != step(small(name), step_seed=2).loss


# --- predictions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_prediction_is_the_sigmoid_of_the_logits_without_dropout(name):
    model = plain(name)
    rows, dense = parameters(model, BATCH, np.float32)
    logits = model.loss_and_gradients(BATCH, rows, dense, 0).logits
    for asked in (model, small(name)):
        probabilities = asked.predict(BATCH, rows, dense)
        assert probabilities.dtype == np.float32
        assert probabilities.shape == (len(BATCH),)
        np.testing.assert_allclose(probabilities, sigmoid_of(logits), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("name", MODELS)
def test_an_examples_prediction_does_not_depend_on_its_batch(name):
    model = small(name)
    rows, dense = parameters(model, BATCH)
    whole = model.predict(BATCH, rows, dense)
    for b in range(len(BATCH)):
        alone = model.predict(rows_of(BATCH, [b]), rows, dense)
        assert alone.shape == (1,)
        np.testing.assert_allclose(alone, whole[b], rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_batchs_gradient_is_the_mean_of_its_examples_gradients(name):
    model = plain(name)
    rows, dense = parameters(model, BATCH)
    alone = [model.loss_and_gradients(rows_of(BATCH, [b]), rows, dense, 0) for b in range(len(BATCH))]
    whole = model.loss_and_gradients(BATCH, rows, dense, 0)
    np.testing.assert_allclose(np.mean([one.loss for one in alone]), whole.loss, rtol=1e-12)
    mean = np.mean([one.rows_gradient for one in alone], axis=0)
    np.testing.assert_allclose(mean, whole.rows_gradient, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schema", [SCHEMA, PAIR], ids=["all fields", "sparse fields"])
def test_an_empty_batch_is_an_ordinary_case(name, schema):
    model = small(name, schema)
    empty = make_batch(rows=0, distinct=1, schema=schema)
    empty = Batch(
        empty.labels,
        empty.dense,
        np.zeros(0, np.uint64),
        empty.sparse,
        {field.name: Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)) for field in schema.ragged},
    )
    result = step(model, empty)
    assert result.loss == 0
    assert result.rows_gradient.shape == (0, model.table().dim)
    assert all(not gradient.any() for gradient in result.dense_gradients.values())
    assert model.predict(empty, *parameters(model, empty, np.float32)).shape == (0,)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
def test_a_model_trains_on_fields_of_one_kind_alone(name, kind):
    schema = Schema(label="click", **{kind: [f"{kind}_{i}" for i in range(3)]})
    model, batch = small(name, schema), make_batch(schema=schema)
    result = step(model, batch)
    touched = [result.rows_gradient] if kind != "dense" else [*result.dense_gradients.values()]
    if name != "nfm" or kind != "dense":  # its MLP reads pairs of sparse and ragged fields, nothing else
        assert all(gradient.any() for gradient in touched if gradient.size)
    has_first = model.parts()[0].name == "w"
    assert ("dense.w" in result.dense_gradients) == (kind == "dense" and has_first)


ALONE = [Schema(label="click", **{kind: ["one"]}) for kind in ("sparse", "ragged", "dense")]
LISTS = [
    (name, field.name)
    for name, model in MODELS.items()
    for field in fields(model)
    if str(field.type).startswith("tuple[")
]

MAY_BE_REFUSED = {
    "din": {"schema"},  # it attends to one field with another
    "dlrm": {"interaction"},
    "finalmlp": {"hidden_1", "hidden_2"},  # an odd width has no two heads
    "xdeepfm": {"cin"},
}


@pytest.mark.parametrize("schema", ALONE, ids=["sparse", "ragged", "dense"])
@pytest.mark.parametrize(("name", "empty"), [*((name, None) for name in MODELS), *LISTS])
def test_a_model_on_one_field_is_refused_or_starts_with_a_finite_loss(name, empty, schema):
    options = {key: value for key, value in CASES[name].items() if not key.startswith("context")}
    model, problems = None, ()
    try:
        model = build(name, schema, options | ({empty: []} if empty else {}))
    except ConfigurationError as error:
        problems = error.problems
    assert {problem.split(": ")[1] for problem in problems} <= MAY_BE_REFUSED.get(name, set())
    if model is None:
        return
    batch = make_batch(schema=schema)
    rows = random(batch.keys.size, model.table().dim).astype(np.float32)
    assert np.isfinite(model.loss_and_gradients(batch, rows, model.initial_dense(3), 0).loss)


def test_settings_that_leave_a_model_nothing_to_learn_from_are_refused():
    one = Schema(label="click", sparse=["one"])
    with pytest.raises(ConfigurationError, match="interaction: expected cat, or a second field: one field"):
        build("dlrm", one, {})
    build("dlrm", one, {"interaction": "cat"})
    build("dlrm", PAIR, {})
    build("dlrm", Schema(label="click", sparse=["one"], dense=["two"]), {})
    with pytest.raises(ConfigurationError, match="cin: expected at least one layer, got none"):
        build("xdeepfm", PAIR, {"cin": []})


# --- what the papers say ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=map(variant_name, VARIANTS))
def test_predictions_equal_a_plain_reading_of_the_paper(name, options):
    model = build(name, SCHEMA, options)
    rows, dense = parameters(model, BATCH)
    rows, dense = rows / 2, {key: value / 2 for key, value in dense.items()}  # probabilities that are not 1
    probabilities = model.predict(BATCH, rows, dense)
    for b in range(len(BATCH)):
        logit = by_the_paper(np, name, model, BATCH, b, rows, BATCH.dense[b], dense)
        assert np.log(probabilities[b] / (1 - probabilities[b])) == pytest.approx(logit, rel=1e-8)


BY_EXAMPLE = [one for one in VARIANTS if not build(one[0], SCHEMA, one[1]).statistics()]
"""Without those whose training depends on statistics of the batch, of which the next test is."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "options"), BY_EXAMPLE, ids=map(variant_name, BY_EXAMPLE))
def test_loss_and_gradients_are_pytorchs_of_the_plain_reading(name, options, dtype):
    torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
    model = plain(name, options)
    rows, dense = parameters(model, BATCH, dtype)
    x, labels = (torch.from_numpy(one.astype(dtype)) for one in (BATCH.dense, BATCH.labels))
    logits = []

    def loss_of(theirs, weights):
        logits.extend(
            by_the_paper(torch, name, model, BATCH, b, theirs, x[b], weights) for b in range(len(x))
        )
        return torch.nn.functional.binary_cross_entropy_with_logits(torch.stack(logits), labels)

    close = {"rtol": 2e-4, "atol": 5e-5} if dtype == np.float32 else {"rtol": 1e-10, "atol": 1e-12}
    result = assert_step_is_pytorchs(loss_of, model, BATCH, rows, dense, **close)
    np.testing.assert_allclose(result.logits, [one.item() for one in logits], **close)


def test_batch_norm_and_dice_in_training_are_pytorchs():
    torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
    functional = torch.nn.functional

    def torch_dice(x, alpha):
        p = torch.sigmoid(functional.batch_norm(x, None, None, training=True))
        return p * x + (1 - p) * alpha * x

    unused = Var(random(3))
    for layer, twin, shapes in (
        (
            lambda tape, x, scale, shift: batch_norm(tape, x, scale, shift, unused, unused),
            lambda x, scale, shift: functional.batch_norm(x, None, None, scale, shift, training=True),
            [(6, 3), (3,), (3,)],
        ),
        (lambda tape, x, alpha: dice(tape, x, alpha, unused, unused), torch_dice, [(6, 3), (3,)]),
    ):
        tape, inputs = Tape(training=True), [Var(random(*shape)) for shape in shapes]
        found = layer(tape, *inputs)
        tape.backward(multiply(tape, found, Var(random(1, 3))))
        theirs = [torch.tensor(one.value, requires_grad=True) for one in inputs]
        expected = twin(*theirs)
        (expected * torch.from_numpy(random(1, 3))).sum().backward()
        np.testing.assert_allclose(found.value, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
        for mine, other in zip(inputs, theirs, strict=True):
            np.testing.assert_allclose(mine.gradient, other.grad.numpy(), rtol=1e-9, atol=1e-12)


def xor_loss(model, steps=400):
    """Loss after plain gradient descent on the four examples of exclusive or over two fields."""
    batch = Batch(
        labels=np.array([0, 1, 1, 0], np.float32),
        dense=np.zeros((4, 0), np.float32),
        keys=np.arange(4, dtype=np.uint64),
        sparse=np.array([[0, 2], [0, 3], [1, 2], [1, 3]], np.int32),
        ragged={},
    )
    rows = np.random.default_rng(0).normal(0, 0.1, (4, model.table().dim)).astype(np.float32)
    dense = model.initial_dense(1)
    for number in range(steps):
        result = model.loss_and_gradients(batch, rows, dense, number)
        rows -= result.rows_gradient
        for name, gradient in result.dense_gradients.items():
            dense[name] -= np.float32(0.1) * gradient
    return result.loss


def test_every_model_but_logistic_regression_learns_exclusive_or():
    assert xor_loss(small("lr", PAIR)) == pytest.approx(np.log(2), abs=1e-3)
    for name, kind in MODELS.items():
        names = {field.name for field in fields(kind)}
        hidden = {option: (20,) for option in ("hidden", "hidden_1", "hidden_2") if option in names}
        assert name == "lr" or xor_loss(build(name, PAIR, hidden)) < 0.1, name


# --- options ----------------------------------------------------------------------------------------------

OTHER = {
    "dim": 7,
    "hidden": (3,),
    "dropout": 0.5,
    "batch_norm": True,
    "seed": 11,
    "w_optimizer": SGD(0.5),
    "v_optimizer": Adam(0.5),
    "w_initializer": Normal(0.5),
    "v_initializer": Constant(0.5),
    "cross_layers": 1,
    "stacked": True,
    "cin": (3,),
    "attention_layers": 1,
    "attention_dim": 12,
    "heads": 4,
    "reduction": 2,
    "bilinear": "all",
    "bottom": (3,),
    "interaction": "cat",
    "hidden_1": (20,),
    "hidden_2": (20,),
    "dropout_1": 0.5,
    "dropout_2": 0.5,
    "gated": False,
    "gate_hidden": (3,),
    "context_1": ("item",),
    "context_2": ("tags",),
    "attention_hidden": (3,),
    "activation": "dice",
    "softmax": True,
}
BESIDE = {"autoint": {"hidden": (4,)}}
"""Options without which others do nothing."""


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, field.name) for name, kind in MODELS.items() for field in fields(kind) if field.name != "schema"],
)
def test_every_option_changes_something(name, option):
    beside = BESIDE.get(name, {})
    before, after = build(name, SCHEMA, beside), build(name, SCHEMA, {**beside, option: OTHER[option]})
    if (before.table(), before.dense_shapes()) == (after.table(), after.dense_shapes()):
        assert step(before).loss != step(after).loss


@pytest.mark.parametrize("name", MODELS)
def test_parts_stand_in_the_row_as_forward_splits_them(name):
    table = small(name).table()
    assert table.name == "embedding"
    assert [(part.name, part.dim) for part in table.parts] in ([("w", 1)], [("v", 3)], [("w", 1), ("v", 3)])


# --- first values -----------------------------------------------------------------------------------------


def test_first_dense_values_depend_on_seed_and_name_only():
    shallow, deep = DNN(PAIR, hidden=(8, 6)).initial_dense(3), DNN(PAIR, hidden=(8, 6, 5)).initial_dense(3)
    np.testing.assert_array_equal(shallow["mlp.1.w"], deep["mlp.1.w"])
    assert not np.array_equal(shallow["mlp.0.w"], DNN(PAIR, hidden=(8, 6)).initial_dense(4)["mlp.0.w"])
    assert not np.array_equal(initial_values(0, "a", (4, 4)), initial_values(0, "b", (4, 4)))


@pytest.mark.parametrize("name", MODELS)
def test_first_dense_values_have_the_stated_shapes(name):
    model = small(name)
    values = model.initial_dense(0)
    assert {key: value.shape for key, value in values.items()} == model.dense_shapes()
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    assert all(value.flags.c_contiguous for value in values.values())


def test_matrices_start_uniform_within_the_bound_of_he_and_vectors_at_zero():
    values = initial_values(0, "mlp.0.w", (600, 200))
    bound = np.sqrt(6 / 600)
    assert -bound <= values.min() < -0.99 * bound
    assert 0.99 * bound < values.max() <= bound
    assert abs(values.mean()) < 5 * bound / np.sqrt(3 * values.size)
    assert values.std() == pytest.approx(np.sqrt(2 / 600), rel=0.01)
    assert not initial_values(0, "mlp.0.b", (200,)).any()


def test_a_bilinear_form_starts_in_the_bound_of_all_the_products_that_it_adds_up():
    """Within that of one matrix first logits deviated by 7, and the log loss on a click log stayed worse."""
    model = FinalMLP(PAIR, batch_norm=True)
    assert model.initial_dense(0)["fusion.w"].std() == pytest.approx(np.sqrt(2 / (5 * 80 * 20)), rel=0.05)
    batch = make_batch(rows=256, distinct=200, schema=PAIR)
    rows = random(batch.keys.size, model.table().dim).astype(np.float32)
    logits = model.loss_and_gradients(batch, rows, model.initial_dense(0), 0).logits
    assert logits.std() < 3


def test_options_may_be_lists_arrays_and_numbers_of_numpys():
    """A search over settings passes such values; `expected a list of integers, got [8, 6]` is no answer."""
    model = DNN(PAIR, dim=np.int64(4), hidden=[8, np.int32(6)], dropout=np.float64(0.5), seed=np.uint8(3))
    assert (model.dim, model.hidden, model.dropout, model.seed) == (4, (8, 6), 0.5, 3)
    assert all(type(one) is int for one in (model.dim, *model.hidden, model.seed))
    assert DNN(PAIR, hidden=np.array([8, 6])).hidden == (8, 6)
    assert TwoTower(PAIR, item=["right"]).item == ("right",)


@pytest.mark.parametrize("wrong", [[8, 0], np.array([8.5]), np.array(8), [[8]], "8"])
def test_lists_of_something_else_are_refused_as_they_came(wrong):
    with pytest.raises(ConfigurationError, match=r"^DNN: hidden: expected a list of whole numbers in "):
        DNN(PAIR, hidden=wrong)


@pytest.mark.parametrize("fields", [1, 13])
def test_vectors_of_dense_fields_start_as_small_as_those_of_keys(fields):
    schema = Schema(label="click", sparse=["item"], dense=[f"n{i}" for i in range(fields)])
    values = build("autoint", schema, {"dim": 1000}).initial_dense(0)["dense.v"]
    assert values.std() == pytest.approx(V_INITIALIZER.std, rel=0.05)
    assert abs(values.mean()) < 0.05 * V_INITIALIZER.std
    assert abs(values).max() <= np.sqrt(3) * V_INITIALIZER.std


def test_one_dense_field_does_not_drown_the_others_in_attention():
    """Prices after log1p: with vectors of a layer's size the first loss was 4, and no key was ever learnt."""
    rng = np.random.default_rng(0)
    keys, price = rng.integers(0, 20, 400), rng.uniform(0, 7.6, 400)
    batch = Batch(
        labels=(keys % 2).astype(np.float32),
        dense=price.astype(np.float32)[:, None],
        keys=np.arange(20, dtype=np.uint64),
        sparse=keys.astype(np.int32)[:, None],
        ragged={},
    )
    model = build("autoint", Schema(label="click", sparse=["item"], dense=["price"]), {"dim": 8})
    rows, dense = rng.normal(0, 0.01, (20, 8)).astype(np.float32), model.initial_dense(0)
    losses = []
    for number in range(60):
        result = model.loss_and_gradients(batch, rows, dense, number)
        losses.append(result.loss)
        rows -= 2 * result.rows_gradient
        for name, gradient in result.dense_gradients.items():
            dense[name] -= np.float32(0.02) * gradient
    assert losses[0] < 0.8
    assert losses[-1] < 0.1


def test_first_dense_values_are_the_same_for_ever():
    golden = np.array([[1.8212975, 0.2893015, 1.3026879]], np.float32)
    np.testing.assert_array_equal(initial_values(7, "mlp.0.w", (1, 3)), golden)


# --- batch norm -------------------------------------------------------------------------------------------

NORMALISED = [name for name, kind in MODELS.items() if "batch_norm" in {field.name for field in fields(kind)}]


def normalised(name, schema=SCHEMA):
    return build(name, schema, without_dropout(CASES[name]) | {"batch_norm": True})


@pytest.mark.parametrize("name", NORMALISED)
def test_measured_statistics_make_predictions_what_the_training_of_the_whole_batch_sees(name):
    model = normalised(name)
    rows, dense = parameters(model, BATCH)
    dense |= model.measured(BATCH, rows, dense)
    logits = model.loss_and_gradients(BATCH, rows, dense, 0).logits
    np.testing.assert_allclose(model.predict(BATCH, rows, dense), sigmoid_of(logits), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("name", NORMALISED)
def test_statistics_get_no_gradient_and_training_does_not_read_them(name):
    model = normalised(name)
    rows, dense = parameters(model, BATCH, np.float32)
    before = model.loss_and_gradients(BATCH, rows, dense, 0)
    assert model.statistics()
    for statistic in model.statistics():
        assert not before.dense_gradients[statistic].any()
        dense[statistic] = dense[statistic] + 1
    assert model.loss_and_gradients(BATCH, rows, dense, 0).loss == before.loss


def test_a_normalised_batch_is_cut_into_parts_of_one_size_by_its_size_alone():
    sizes = [
        [part.stop - part.start for part in parts_of(rows, even=True)] for rows in (0, 1, 512, 513, 4096)
    ]
    assert sizes == [[0], [1], [512], [256, 257], [512] * 8]


def test_a_batch_of_one_example_is_normalised_to_its_shift():
    model = normalised("dnn", PAIR)
    alone = make_batch(rows=1, schema=PAIR)
    result = step(model, alone)
    assert np.isfinite(result.loss)
    assert not result.rows_gradient.any()
