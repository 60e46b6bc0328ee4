"""Graphs of ONNX compute what the layers and models compute, and none is left out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pslib.batch import Batch
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from rec_models import build, layers
from rec_models.by_name import EVERY
from rec_models.engine.packed_sequences import packed
from rec_models.engine.tape import Tape, Var, layer
from rec_models.export.trace import graphs_of
from rec_models.export.tracer import EMITTERS, Tracer
from rec_models.lr import LR
from rec_models.matching import MatchingModel
from rec_models.model import DenseVars, Model
from tests.support.models.gradient_check import (
    SCHEMA,
    VARIANTS,
    make_batch,
    parameters,
    variant_name,
)
from tests.support.models.session_models import VARIANTS as SESSIONS
from tests.support.models.session_models import session_batch
from tests.support.models.zoo import MATCHING_MODELS, TASK_MODELS, model_named

MADE_OF_LAYERS = {"cnn", "grnn", "mlp", "tower", "tower_output"}
OF_TRAINING = {"bpr_max", "dropout", "log_loss", "rank_hinge", "sampled_softmax"}


def inputs_of(session: Any, batch: Batch, rows: Any, schema: Schema) -> dict[str, Any]:
    """Return the inputs of a graph for a batch."""
    found = {}
    for name in (one.name for one in session.get_inputs()):
        kind, _, field = name.partition(".")
        found[name] = rows[batch.sparse] if kind == "sparse" else batch.dense
        if not field:
            continue
        lists = batch.ragged[field]
        listed = np.arange(max(1, int(lists.lengths.max(initial=0)))) < lists.lengths[:, None]
        elements = np.zeros((*listed.shape, rows.shape[1]), np.float32)
        elements[listed] = rows[lists.values]
        keys = np.zeros(listed.shape, np.int64)
        keys[listed] = batch.keys[lists.values].view(np.int64)
        is_mean = any(one.pooling == "mean" for one in schema.ragged if one.name == field)
        divisor = np.maximum(1, lists.lengths)[:, None].astype(np.float32) if is_mean else np.float32(1)
        found[name] = {
            "lengths": lists.lengths,
            "keys": keys,
            "elements": elements,
            "pooled": elements.sum(axis=1) / divisor,
        }[kind]
    return found


def assert_same(model: Model, batch: Batch, graph: str, expected: Callable[..., Any]) -> None:
    """Assert that a graph gives what the model gives for a batch, at random parameters."""
    rows, dense = parameters(model, batch, np.float32)
    made = graphs_of(model, dense)[graph]
    session = onnxruntime.InferenceSession(made.SerializeToString())
    output = "probability" if graph == "model" else "vector"
    found = session.run([output], inputs_of(session, batch, rows, model.schema))[0]
    np.testing.assert_allclose(found, expected(batch, rows, dense), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=map(variant_name, VARIANTS))
def test_a_models_graph_gives_its_predictions(name: str, options: dict[str, object]) -> None:
    model = build(name, SCHEMA, options)
    assert_same(model, make_batch(rows=7), "model", model.predict)


@pytest.mark.parametrize("name", TASK_MODELS)
def test_a_model_of_several_tasks_gives_a_probability_each(name: str) -> None:
    model = model_named(name)
    assert_same(model, make_batch(rows=7, schema=model.schema), "model", model.predict)


@pytest.mark.parametrize("name", SESSIONS)
def test_the_state_of_a_session_is_a_graphs_whatever_its_length(name: str) -> None:
    kind, options = SESSIONS[name]
    model = build(kind, Schema(label=None, ragged=["items"]), options)
    batch = session_batch([3, 0, 5, 2, 4, 1])
    assert_same(model, batch, "query", lambda *given: model.encode(*given, "items"))


@pytest.mark.parametrize("name", ["gru4rec", "narm", "stamp", "sasrec"])
def test_the_states_after_every_item_are_a_graphs_too(name: str) -> None:
    model: Any = build(name, Schema(label=None, ragged=["items"]), SESSIONS[name][1])
    batch = session_batch([3, 0, 5, 2, 4, 1])
    rows, dense = parameters(model, batch, np.float32)
    steps = packed(batch.ragged["items"])

    def states(tape: Tape, given: Any, of_rows: Var, variables: DenseVars) -> Var:
        items = layers.gather(tape, layers.split(tape, of_rows, (1, model.dim))[1], packed(given).values)
        return model.states(tape, items, packed(given), variables)

    tracer = Tracer(model.schema, model.table().dim, dense)
    symbol = tracer.traced(lambda tape, given, *more: states(tape, given.ragged["items"], *more), dense)
    made = tracer.model({"states": symbol}, "states")
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (found,) = session.run(None, inputs_of(session, batch, rows, model.schema))
    variables = {key: Var(value) for key, value in dense.items()}
    expected = states(Tape(training=False), batch.ragged["items"], Var(rows), variables).value
    at = np.concatenate([steps.order[:size] for size in steps.sizes])
    np.testing.assert_allclose(found[at, steps.times], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MATCHING_MODELS)
def test_vectors_of_queries_and_items_are_graphs(name: str) -> None:
    model = model_named(name)
    assert_same(model, make_batch(rows=7, schema=model.query_schema), "query", model.encode)
    assert_same(model, make_batch(rows=7, schema=model.item_schema), "item", model.encode_items)
    if name != "word2vec":
        assert_same(model, make_batch(rows=7, schema=model.schema), "model", model.predict)


SIDES = Schema(label=None, dense=["price", "age"], sparse=["user", "item", "ad"], ragged=["words", "tags"])
"""Fields of both sides, dense ones and lists among them."""
MATCHING: list[tuple[str, dict[str, object]]] = [
    ("two_tower", {"similarity": "dot", "hidden": [5], "out": 3}),
    ("two_tower", {"similarity": "cosine", "hidden": [], "out": 3}),
    ("simnet", {"encoder": "bow", "out": 3}),
    ("simnet", {"encoder": "cnn", "units": 4, "window": 4, "out": 3}),
    ("simnet", {"encoder": "gru", "units": 4, "out": 3}),
]


@pytest.mark.parametrize(("name", "options"), MATCHING)
def test_options_that_choose_other_mathematics_of_a_side_are_in_its_graph(
    name: str, options: dict[str, object]
) -> None:
    model = build(name, SIDES, {"dim": 4, "item": ["item", "price", "tags"]} | options)
    assert isinstance(model, MatchingModel)
    assert_same(model, make_batch(rows=7, schema=model.query_schema), "query", model.encode)
    assert_same(model, make_batch(rows=7, schema=model.item_schema), "item", model.encode_items)
    assert_same(model, make_batch(rows=7, schema=SIDES), "model", model.predict)


@pytest.mark.parametrize("name", ["lr", "dnn", "dcnv2", "deepfm", "autoint", "wide_deep"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
def test_a_model_of_fields_of_one_kind_has_a_graph(name: str, kind: str) -> None:
    schema = Schema(label="click", **{kind: getattr(SCHEMA, kind)})
    model = build(name, schema, {} if name == "lr" else {"hidden": [4], "dim": 4})
    assert_same(model, make_batch(rows=5, schema=schema), "model", model.predict)


def test_a_graph_takes_a_batch_without_examples() -> None:
    model = build("deepfm", SCHEMA, {"dim": 3, "hidden": [4]})
    assert_same(model, make_batch(rows=0), "model", model.predict)


def test_each_model_of_the_zoo_is_checked_here() -> None:
    of_sessions = {kind for kind, _ in SESSIONS.values()}
    assert {name for name, _ in VARIANTS} | set(TASK_MODELS) | set(MATCHING_MODELS) | of_sessions == set(
        EVERY
    )


def test_each_layer_says_what_it_is_in_onnx() -> None:
    public = {name: getattr(layers, name) for name in layers.__all__}
    of_tapes = {name: one for name, one in public.items() if "tape" in inspect.signature(one).parameters}
    marked = {name for name, one in of_tapes.items() if hasattr(one, "__wrapped__")}
    assert marked == set(EMITTERS)
    assert set(of_tapes) == marked | MADE_OF_LAYERS | OF_TRAINING


def test_a_layer_that_is_not_known_is_named() -> None:
    @layer
    def cubed(tape: Tape, x: Var) -> Var:
        return tape.record(x.value**3, x.accumulate)

    @dataclass(frozen=True, eq=False, repr=False)
    class Cubic(LR):
        """Logistic regression of a cube."""

        def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
            """``y = (w_0 + <w, x>)^3``."""
            return cubed(tape, super().forward(tape, batch, rows, dense))

    model = Cubic(Schema(label="click", sparse=["user"]))
    with pytest.raises(ConfigurationError, match="the layer cubed is not known: add it to"):
        graphs_of(model, model.initial_dense(0))


def test_what_is_computed_beside_layers_is_refused_in_a_line() -> None:
    @dataclass(frozen=True, eq=False, repr=False)
    class Beside(LR):
        """Logistic regression of a cube, by an array."""

        def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
            """``y = (w_0 + <w, x>)^3``."""
            return Var(super().forward(tape, batch, rows, dense).value ** 3)

    model = Beside(Schema(label="click", sparse=["user"]))
    with pytest.raises(ConfigurationError, match="Beside computes something beside layers") as raised:
        graphs_of(model, model.initial_dense(0))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "numbers",
    [
        lambda tape, batch: Var(batch.dense.astype(np.int64)),
        lambda tape, batch: Var(batch.dense[1:, [0]]),
        lambda tape, batch: Var(batch.dense[:, np.array([True, False])]),
        lambda tape, batch: layers.gather(tape, Var(np.eye(2)), batch.sparse[:, [0, 1]]),
        lambda tape, batch: layers.gather(tape, Var(np.eye(2)), batch.sparse[1:, 0]),
        lambda tape, batch: Var(np.zeros(3)),
        lambda tape, batch: layers.concat(tape, Var(np.zeros(3))),
        lambda tape, batch: next(iter(())),
    ],
)
def test_what_would_be_another_computation_in_the_graph_is_refused_in_a_line(
    numbers: Callable[[Tape, Any], Var],
) -> None:
    @dataclass(frozen=True, eq=False, repr=False)
    class Own(LR):
        """Sum of some numbers."""

        def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
            """``y = x``."""
            return numbers(tape, batch)

    model = Own(Schema(label="click", dense=["age", "price"], sparse=["user"]))
    with pytest.raises(ConfigurationError, match="Own computes something beside layers") as raised:
        graphs_of(model, model.initial_dense(0))
    assert "\n" not in str(raised.value)


def test_a_graph_has_the_parameters_under_their_names_and_dimensions_of_any_size() -> None:
    model = build("deepfm", SCHEMA, {"dim": 3, "hidden": [4]})
    graph = graphs_of(model, model.initial_dense(0))["model"].graph
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for name, value in model.initial_dense(0).items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)
    shapes = {
        one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in (*graph.input, *graph.output)
    }
    assert shapes["sparse"] == ["B", 3, 4]
    assert shapes["pooled.words"] == ["B", 4]
    assert shapes["dense"] == ["B", 2]
    assert shapes["probability"] == shapes["logit"] == ["B"]


def test_a_graph_of_a_class_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a model of rec_models, got a dict"):
        graphs_of({}, {})


def test_without_onnx_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    model = build("lr", SCHEMA, {})
    with pytest.raises(ConfigurationError, match=r"pip install 'sparse-pslib\[onnx\]'"):
        graphs_of(model, model.initial_dense(0))
