"""Gradients against finite differences, in float64.

`LAYERS` and `MODELS` hold one line for each layer and model; a test fails when one is missing, and none is
ever skipped. The check: for each input x of a function with output y and a random direction r of y's shape,
the gradient of ``sum(r y)`` against the central difference ``(f(x + h) - f(x - h)) / 2h``, entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from pslib.batch import Batch, Ragged
from pslib.schema import RaggedField, Schema
from rec_models import Model, StepResult, build, layers
from rec_models.engine.packed_sequences import packed
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers.ranking_losses import Candidates

RELATIVE_ERROR_MAX = 1e-6
STEP = 1e-5
"""The difference's own error: about STEP^2 = 1e-10 from the third derivative, 1e-16 / STEP from rounding."""

SCHEMA = Schema(
    label="click",
    dense=["price", "age"],
    sparse=["user", "item", "ad"],
    ragged=[
        RaggedField("words"),
        RaggedField("tags", pooling="sum"),
        RaggedField("viewed", vocabulary="item"),  # a behaviour sequence whose target is item
    ],
)


def make_batch(seed: int = 0, rows: int = 5, distinct: int = 9, schema: Schema = SCHEMA) -> Batch:
    """A batch with repeated keys; the first example has empty lists, the second the same key twice in one."""
    rng = np.random.default_rng(seed)
    ragged = {}
    for field in schema.ragged:
        lengths = rng.integers(0, 4, rows)
        lengths[:2] = (0, 2)[: len(lengths[:2])]
        values = rng.integers(0, distinct, lengths.sum()).astype(np.int32)
        values[:2] = 3
        ragged[field.name] = Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return Batch(
        labels=rng.integers(0, 2, rows).astype(np.float32),
        dense=rng.normal(size=(rows, len(schema.dense))).astype(np.float32),
        keys=rng.integers(0, 1 << 63, distinct, dtype=np.uint64),
        sparse=rng.integers(0, distinct, (rows, len(schema.sparse))).astype(np.int32),
        ragged=ragged,
    )


BATCH = make_batch()


def random(*shape: int) -> NDArray[np.float64]:
    """Normal numbers that depend on the shape only; none so near 0 that a step crosses relu's kink."""
    values = np.random.default_rng(shape).normal(size=shape)
    return np.sign(values) * np.maximum(np.abs(values), 0.01)


def parameters(
    model: Model, batch: Batch, dtype: DTypeLike = np.float64
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Rows for a batch and dense parameters, at random."""
    rows = random(batch.keys.size, model.table().dim).astype(dtype)
    return rows, {name: random(*shape).astype(dtype) for name, shape in model.dense_shapes().items()}


def without_dropout(options: Mapping[str, object]) -> dict[str, object]:
    """The same options, but nothing drops."""
    return {name: 0.0 if name.startswith("dropout") else value for name, value in options.items()}


def assert_same_step(one: StepResult, other: StepResult, atol: float = 1e-14) -> None:
    """Two steps agree up to rounding in float64: loss, and gradients of rows and dense parameters."""
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-12)
    np.testing.assert_allclose(one.rows_gradient, other.rows_gradient, rtol=1e-9, atol=atol)
    for key, gradient in other.dense_gradients.items():
        np.testing.assert_allclose(one.dense_gradients[key], gradient, rtol=1e-9, atol=atol, err_msg=key)


def assert_same_in_parts(
    patch: pytest.MonkeyPatch, model: Model, batch: Batch, *parameters: Any, atol: float = 1e-13
) -> None:
    """A step of a batch in three parts is that of the batch as a whole; from then on batches are in parts."""
    whole = model.loss_and_gradients(batch, *parameters, 0)
    patch.setattr("rec_models.stepper.PART_ROWS_MIN", 1)
    patch.setattr("rec_models.stepper.PARTS", 3)
    assert_same_step(model.loss_and_gradients(batch, *parameters, 0), whole, atol)


def assert_step_is_pytorchs(
    loss_of: Callable[[Any, dict[str, Any]], Any],
    model: Model,
    batch: Batch,
    rows: Array,
    dense: Mapping[str, Array],
    **close: float,
) -> StepResult:
    """A step agrees with autograd of ``loss_of(rows, dense)``, of tensors that require gradients."""
    import torch

    theirs = torch.tensor(rows, requires_grad=True)
    weights = {key: torch.tensor(value, requires_grad=True) for key, value in dense.items()}
    loss = loss_of(theirs, weights)
    loss.backward()
    result = model.loss_and_gradients(batch, rows, dense, 0)
    np.testing.assert_allclose(result.loss, loss.item(), **close)
    np.testing.assert_allclose(result.rows_gradient, theirs.grad.numpy(), **close)
    for key, gradient in result.dense_gradients.items():
        of_theirs = weights[key].grad
        expected = 0 if of_theirs is None else of_theirs.numpy()
        np.testing.assert_allclose(gradient, expected, **close, err_msg=key)
    return result


def _both_parts(tape: Tape, rows: Var) -> Var:
    narrow, wide = layers.split(tape, rows, (1, 3))
    return layers.concat(tape, layers.tanh(tape, wide), narrow)


def _with_dense(
    shapes: Mapping[str, tuple[int, ...]], layer: Callable[[Tape, Var, dict[str, Var]], Var], x: Array
) -> tuple[Callable[..., Var], list[Array]]:
    """A layer of an input and of named parameters, as one of positional inputs."""

    def positional(tape: Tape, x: Var, *weights: Var) -> Var:
        return layer(tape, x, dict(zip(shapes, weights, strict=True)))

    return positional, [x, *(random(*shape) for shape in shapes.values())]


STEPS = packed(Ragged(np.zeros(7, np.int32), np.array([0, 2, 2, 6, 7])))
"""Steps of lists of 2, 0, 4 and 1 elements."""


EDGES = np.array([0, 2, 2, 3], np.int32), np.array([2, 0, 0, 2], np.int32)
"""Sources and targets: one edge stands twice, nothing comes to nodes 1 and 3."""


def _gru(tape: Tape, x: Var, weights: Var, bias: Var, first: Var) -> Var:
    return layers.gru(tape, x, STEPS, weights, bias, first)


def _scored(v_t: Var, b_t: Var, v_k: Var, b_k: Var) -> tuple[Candidates, Candidates]:
    targets = Candidates(v_t, b_t, np.array([3, 1, 3, 9]), random(4))
    return targets, Candidates(v_k, b_k, np.array([1, 2, 3, 3, 7]), random(5))


def _sampled(tape: Tape, h: Var, *scored: Var) -> Var:
    return layers.sampled_softmax(tape, h, *_scored(*scored), 4)


def _bpr_max(tape: Tape, h: Var, *scored: Var) -> Var:
    return layers.bpr_max(tape, h, *_scored(*scored), 4, 0.7)


SCORED = [random(4, 3), random(4, 3), random(4, 1), random(5, 3), random(5, 1)]


OFFSETS = np.array([0, 2, 2, 6, 7])
"""Offsets of lists of 2, 0, 4 and 1 elements."""


def _hinge(trials: int, labels: int) -> Callable[..., Var]:
    ids, first = (np.array([3, 1, 3, 9]), np.array([1, 2, 3, 3, 7])), np.array([0, 4, 2, 1])

    def layer(tape: Tape, u: Var, t: Var, c: Var) -> Var:
        return layers.rank_hinge(
            tape, u, t, c, ids, first, margin=0.5, trials=trials, labels=labels, weight=4
        )

    return layer


LAYERS: dict[str, tuple[Callable[..., Var], list[Array]]] = {
    "add": (layers.add, [random(4), random(1), random(4)]),
    "attention": (
        lambda tape, q, k, v: layers.attention(tape, q, k, v, 2),
        [random(3, 4, 6) for _ in range(3)],
    ),
    "batch_norm": (layers.batch_norm, [random(6, 3), *(random(3) for _ in range(4))]),
    "bi_interaction": (layers.bi_interaction, [random(4, 5, 3)]),
    "bilinear_fusion": (layers.bilinear_fusion, [random(4, 6), random(4, 4), random(2, 3, 2)]),
    "bilinear_pairs": (
        lambda tape, v, w: layers.bilinear_pairs(tape, v, w, "each"),
        [random(3, 4, 2), random(3, 2, 2)],
    ),
    "bpr_max": (_bpr_max, SCORED),
    "causal_attention": (
        lambda tape, q, k, v: layers.causal_attention(tape, q, k, v, STEPS, 2),
        [random(7, 4), random(7, 4) + 1, random(7, 4) - 1],
    ),
    "cnn": _with_dense(
        layers.cnn_shapes("cnn", 4, 3, 2),
        lambda tape, rows, dense: layers.cnn(tape, rows, BATCH, "viewed", dense, "cnn", 2),
        random(9, 4),
    ),
    "compress": (layers.compress, [random(3, 2, 4), random(3, 5, 4), random(10, 3)]),
    "concat": (layers.concat, [random(4, 2, 3), random(4, 5), random(4, 1)]),
    "cross": (layers.cross, [random(4, 3), random(4, 3) + 1, random(3), random(3)]),
    "cross_matrix": (layers.cross_matrix, [random(4, 3), random(4, 3) + 1, random(3, 3), random(3)]),
    "dense_vectors": (
        lambda tape, w: layers.dense_vectors(tape, random(4, 3).astype(w.value.dtype), w),
        [random(3, 2)],
    ),
    "dice": (layers.dice, [random(6, 3), *(random(3) for _ in range(3))]),
    "dot": (lambda tape, w: layers.dot(tape, random(4, 3).astype(w.value.dtype), w), [random(3)]),
    "dropout": (lambda tape, x: layers.dropout(tape, x, 0.4), [random(6, 5)]),
    "edge_mean": (lambda tape, x: layers.edge_mean(tape, x, *EDGES), [random(4, 3)]),
    "embedding": (lambda tape, rows: layers.embedding(tape, rows, BATCH, SCHEMA), [random(9, 4)]),
    "facing": (lambda tape, h, t: layers.facing(tape, h, t, OFFSETS), [random(7, 3), random(4, 3)]),
    "first_order": (lambda tape, w: layers.first_order(tape, w, BATCH, SCHEMA), [random(9, 1)]),
    "fm": (layers.fm, [random(4, 5, 3)]),
    "gather": (lambda tape, rows: layers.gather(tape, rows, np.array([2, 0, 2, 3])), [random(4, 3)]),
    "grnn": _with_dense(
        layers.gru_shapes("gru", 4, 3),
        lambda tape, rows, dense: layers.grnn(tape, rows, BATCH, "viewed", dense, "gru"),
        random(9, 4),
    ),
    "gru": (_gru, [random(7, 6), random(2, 6), random(2), random(3, 2)]),
    "inner_products": (layers.inner_products, [random(4, 5, 3)]),
    "layer_norm": (layers.layer_norm, [random(4, 3), random(3), random(3)]),
    "linear": (layers.linear, [random(4, 3), random(3, 2), random(2)]),
    "linear_relu": (layers.linear_relu, [random(4, 3), random(3, 2), random(2)]),
    "list_softmax": (lambda tape, s: layers.list_softmax(tape, s, OFFSETS), [random(7)]),
    "list_vectors": (lambda tape, rows: layers.list_vectors(tape, rows, BATCH, "viewed"), [random(9, 4)]),
    "list_max": (lambda tape, x: layers.list_max(tape, x, OFFSETS), [random(7, 3)]),
    "log_loss": (lambda tape, z: layers.log_loss(tape, z, BATCH.labels), [random(5) * 3]),
    "logit_of_product": (layers.logit_of_product, [random(4, 2) * 3, random(4, 2) + 1]),
    "mixture": (layers.mixture, [random(4, 2), random(4, 3), random(4, 3) + 1]),
    "mlp": _with_dense(
        layers.mlp_shapes(3, (4, 2)), lambda tape, x, dense: layers.mlp(tape, x, dense, 2, 0.5), random(5, 3)
    ),
    "multiply": (lambda tape, x, g: layers.multiply(tape, x, g, 2.0), [random(4, 3), random(1, 3)]),
    "normalize": (lambda tape, x: layers.normalize(tape, x, 2.0), [random(4, 3)]),
    "prefix_attention": (
        lambda tape, k, u, v, q: layers.prefix_attention(tape, k, u, v, q, STEPS.prefixes()),
        [random(7, 2), random(7, 2) + 1, random(7, 3), random(2)],
    ),
    "prefix_mean": (lambda tape, x: layers.prefix_mean(tape, x, STEPS), [random(7, 3)]),
    "prelu": (layers.prelu, [random(4, 3), random(3)]),
    "product": (layers.product, [random(4, 2, 3), random(3, 2)]),
    "rank_hinge": (_hinge(3, 8), [random(4, 3), random(4, 3) - 1, random(5, 3) + 0.5]),
    "relu": (layers.relu, [random(4, 3)]),
    "relu_head": (layers.relu_head, [random(4, 3), random(3, 2), random(2), random(2, 1), random(1)]),
    "row_dot": (layers.row_dot, [random(4, 3), random(4, 3) + 1]),
    "sampled_softmax": (_sampled, SCORED),
    "reshape": (lambda tape, x: layers.reshape(tape, x, (3, 2)), [random(4, 6)]),
    "sigmoid": (layers.sigmoid, [random(4, 3)]),
    "split": (_both_parts, [random(5, 4)]),
    "squeeze_excite": (layers.squeeze_excite, [random(4, 5, 3), random(5, 2), random(2, 5)]),
    "sum_vectors": (layers.sum_vectors, [random(4, 5, 3)]),
    "take_fields": (lambda tape, v: layers.take_fields(tape, v, (3, 0)), [random(4, 5, 3)]),
    "tanh": (layers.tanh, [random(4, 3)]),
    "tower": _with_dense(
        layers.tower_shapes("deep", 3, (4, 2), batch_norm=True),
        lambda tape, x, dense: layers.tower(tape, x, dense, "deep", 2, 0.5),
        random(5, 3),
    ),
    "tower_output": _with_dense(
        layers.tower_shapes("deep", 3, (4,), out=2),
        lambda tape, x, dense: layers.tower_output(tape, x, dense, "deep", 1, 0.5),
        random(5, 3),
    ),
    "weighted_sum": (lambda tape, a, h: layers.weighted_sum(tape, a, h, OFFSETS), [random(7), random(7, 3)]),
    "windows": (lambda tape, x: layers.windows(tape, x, OFFSETS, 4), [random(7, 2)]),
}

MODELS: dict[str, dict[str, object]] = {
    "lr": {},
    "fm": {"dim": 3},
    "nfm": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "wide_deep": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "dnn": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "pnn": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "deepfm": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "dcn": {"dim": 3, "hidden": [6, 4], "dropout": 0.3, "cross_layers": 2},
    "dcnv2": {"dim": 3, "hidden": [6, 4], "dropout": 0.3, "cross_layers": 2},
    "xdeepfm": {"dim": 3, "hidden": [6, 4], "dropout": 0.3, "cin": [4, 2]},
    "autoint": {"dim": 3, "attention_layers": 2, "attention_dim": 4, "hidden": [6, 4], "dropout": 0.3},
    "fibinet": {"dim": 3, "hidden": [6, 4], "dropout": 0.3},
    "dlrm": {"dim": 3, "hidden": [6, 4], "dropout": 0.3, "bottom": [5]},
    "finalmlp": {
        "dim": 3,
        "hidden_1": [6],
        "hidden_2": [4],
        "heads": 2,
        "gate_hidden": [3],
        "dropout_1": 0.3,
    },
    "din": {"dim": 3, "hidden": [6, 4], "attention_hidden": [5], "dropout": 0.3},
}
"""Small models; one line adds one."""

VARIANTS: list[tuple[str, dict[str, object]]] = [
    *MODELS.items(),
    ("dnn", {"dim": 3, "hidden": [6, 4], "batch_norm": True}),
    ("dcnv2", {"dim": 3, "hidden": [6], "stacked": True, "batch_norm": True}),
    ("autoint", {"dim": 3, "attention_layers": 2, "attention_dim": 4}),
    ("fibinet", {"dim": 3, "hidden": [6], "bilinear": "each"}),
    ("fibinet", {"dim": 3, "hidden": [6], "bilinear": "all"}),
    ("dlrm", {"dim": 3, "hidden": [6], "bottom": [4], "interaction": "cat", "batch_norm": True}),
    ("din", {"dim": 3, "hidden": [6], "attention_hidden": [5, 2], "activation": "dice"}),
    ("din", {"dim": 3, "hidden": [6], "attention_hidden": [], "softmax": True}),
    (
        "finalmlp",
        {"dim": 3, "hidden_1": [4], "hidden_2": [2], "heads": 2, "gated": False, "batch_norm": True},
    ),
    (
        "finalmlp",
        {"dim": 3, "hidden_1": [4], "hidden_2": [2], "heads": 2, "gate_hidden": [2], "context_1": ["item"]},
    ),
]
"""All models, and those whose options choose other mathematics."""


def variant_name(variant: tuple[str, dict[str, object]]) -> str:
    """Model and options that are words or switches, as a test's name."""
    name, options = variant
    said = [
        f"{key}={value}"
        for key, value in options.items()
        if not isinstance(value, int | float | list) or value is True
    ]
    return " ".join([name, *said, *(["context"] if "context_1" in options else [])])


def relative_error(function: Callable[[], float], value: Array, gradient: Array) -> float:
    """Largest difference between ``gradient`` and finite differences, relative to the largest entry.

    ``function`` reads ``value``, which is changed in place entry by entry and put back.
    """
    numeric = np.zeros_like(value)
    for place in np.ndindex(value.shape):
        kept = value[place]
        value[place] = kept + STEP
        above = function()
        value[place] = kept - STEP
        below = function()
        value[place] = kept
        numeric[place] = (above - below) / (2 * STEP)
    scale = max(np.abs(numeric).max(initial=0), np.abs(gradient).max(initial=0), 1e-12)
    return float(np.abs(numeric - gradient).max(initial=0) / scale)


def layer_errors(layer: Callable[..., Var], inputs: list[Array]) -> list[float]:
    """Relative error of the gradient of each input."""
    inputs = [x.copy() for x in inputs]
    direction: Array | None = None

    def run() -> tuple[Var, list[Var]]:
        nonlocal direction
        tape = Tape(training=True, step_seed=7)
        variables = [Var(x) for x in inputs]
        output = layer(tape, *variables)
        if direction is None:
            direction = np.random.default_rng(1).normal(size=output.value.shape)
        end = tape.record(
            np.asarray((direction * output.value).sum()),
            lambda gradient: output.accumulate(gradient * direction),
        )
        tape.backward(end)
        return end, variables

    _, variables = run()
    return [
        relative_error(lambda: float(run()[0].value), x, variable.gradient_or_zeros())
        for x, variable in zip(inputs, variables, strict=True)
    ]


def model_errors(name: str, options: Mapping[str, object]) -> dict[str, float]:
    """Relative error of the gradient of the rows and of each dense parameter."""
    model = build(name, SCHEMA, options)
    rows = random(BATCH.keys.size, model.table().dim)
    dense = {key: random(*shape) for key, shape in model.dense_shapes().items()}
    return step_errors(model, BATCH, rows, dense)


def step_errors(model: Model, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> dict[str, float]:
    """The same of a model's step on a batch, with these parameters."""
    result = model.loss_and_gradients(batch, rows, dense, step_seed=3)

    def loss() -> float:
        return model.loss_and_gradients(batch, rows, dense, step_seed=3).loss

    errors = {"rows": relative_error(loss, rows, result.rows_gradient)}
    for key, value in dense.items():
        errors[key] = relative_error(loss, value, result.dense_gradients[key])
    return errors
