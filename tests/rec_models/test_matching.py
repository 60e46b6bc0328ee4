"""Models of queries and items: gradients, twins in PyTorch, and items ranked all the way."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import pslib
from launch.cli.main import main
from pslib.batch import Batch, Ragged
from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import NegativeSampler
from pslib.errors import ConfigurationError, DataError
from pslib.metrics.top_k import top_k
from pslib.schema import RaggedField, Schema
from rec_models import LR, MATCHING_MODELS, build
from rec_models.engine.tape import Tape
from tests.support.models.gradient_check import (
    RELATIVE_ERROR_MAX,
    assert_step_is_pytorchs,
    make_batch,
    parameters,
    step_errors,
    without_dropout,
)
from tests.support.models.matching_twins import TWINS

SCHEMA = Schema(
    label=None,
    dense=["age", "price"],
    sparse=["user", "movie", "city", "year"],
    ragged=[RaggedField("liked", vocabulary="movie"), RaggedField("genres", pooling="sum")],
)
LABELLED = Schema(label="click", dense=SCHEMA.dense, sparse=SCHEMA.sparse, ragged=SCHEMA.ragged)
PAIR = Schema(label=None, sparse=["user", "movie"])
TEXT = Schema(label=None, sparse=["movie"], ragged=["liked"])
READ = Schema(label="click", sparse=["movie"], ragged=[RaggedField("liked", vocabulary="movie")])
WORDS = Schema(label=None, ragged=["liked"])
PAIR_LABELLED = Schema(label="click", sparse=["movie", "user"])
ITEM = ["movie", "price", "genres", "year"]
CASES: list[tuple[str, Schema, dict[str, object]]] = [
    ("two_tower", SCHEMA, {"item": ITEM, "dim": 3, "hidden": [5, 4], "out": 3, "dropout": 0.3}),
    ("two_tower", LABELLED, {"item": ITEM, "dim": 3, "hidden": [], "out": 3, "similarity": "dot"}),
    ("two_tower", SCHEMA, {"item": ["movie"], "dim": 3, "hidden": [4], "out": 3, "logq": False}),
    (
        "ncf",
        PAIR,
        {"item": ["movie"], "dim": 3, "dim_mlp": 2, "hidden": [4, 2], "dropout": 0.3, "negatives": 2},
    ),
    ("ncf", PAIR_LABELLED, {"item": ["movie"], "dim": 3, "hidden": [], "negatives": 2}),
    ("ssr", READ, {"item": ["movie"], "dim": 3, "units": 2, "out": 3, "margin": 0.5, "negatives": 12}),
    ("simnet", SCHEMA, {"item": ITEM, "dim": 3, "units": 2, "out": 3, "margin": 1.0}),
    ("simnet", LABELLED, {"item": ITEM, "dim": 3, "units": 2, "out": 3, "encoder": "cnn", "margin": 1.0}),
    ("simnet", SCHEMA, {"item": ["movie"], "dim": 3, "out": 3, "encoder": "bow", "margin": 1.0, "trials": 1}),
    ("tagspace", TEXT, {"item": ["movie"], "dim": 3, "units": 4, "window": 2, "negatives": 12}),
    ("word2vec", WORDS, {"dim": 3, "window": 2, "negatives": 2, "subsample": 0.3}),
]
"""A line a model, and a line for options that choose other mathematics."""
NAMES = [f"{name} {place}" for place, (name, _, _) in enumerate(CASES)]

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is a second reference and no dependency (1 GB): losses and gradients are held against "
    "finite differences everywhere, by test_a_matching_models_gradients_agree_with_finite_differences",
)


def matching_batch(schema: Schema = SCHEMA, rows: int = 6) -> Batch:
    """With two negatives an example, one of them the example's own item."""
    batch, rng = make_batch(rows=rows, schema=schema), np.random.default_rng(3)
    log_q = np.log(rng.random(batch.keys.size)).astype(np.float32)
    negatives = rng.integers(0, batch.keys.size, 2 * rows).astype(np.int32)
    if schema.sparse:
        item = [field.name for field in schema.sparse].index("movie")
        negatives[:1] = batch.sparse[:1, item]
    return replace(batch, log_q=log_q, negatives=negatives)


# --- gradients


def test_every_matching_model_is_in_the_gradient_check():
    assert {name for name, _, _ in CASES} == set(MATCHING_MODELS) == set(TWINS)


@pytest.mark.parametrize(("name", "schema", "options"), CASES, ids=NAMES)
def test_a_matching_models_gradients_agree_with_finite_differences(name, schema, options):
    model, batch = build(name, schema, options), matching_batch(schema)
    rows, dense = parameters(model, batch)
    result, errors = model.loss_and_gradients(batch, rows, dense, 3), step_errors(model, batch, rows, dense)
    assert result.loss > 0
    if options.get("similarity") == "dot":  # a softmax does not see it
        assert np.abs(result.dense_gradients["item.out.b"]).max() < 1e-12
        del errors["item.out.b"]
    assert max(errors.values()) <= RELATIVE_ERROR_MAX, errors


@pytest.mark.parametrize(("name", "schema", "options"), CASES, ids=NAMES)
def test_an_empty_batch_and_one_without_a_match_teach_nothing(name, schema, options):
    model = build(name, schema, options)
    empty = matching_batch(schema, rows=0)
    without = replace(matching_batch(schema, rows=1), labels=np.zeros(1, np.float32))
    for batch in (empty, without) if schema.label and name == "two_tower" else (empty,):
        result = model.loss_and_gradients(batch, *parameters(model, batch), 0)
        assert result.loss == 0
        assert not result.rows_gradient.any()


@pytest.mark.parametrize(("name", "schema", "options"), CASES[:-1], ids=NAMES[:-1])
def test_a_pairs_score_is_that_of_its_sides_read_apart(name, schema, options):
    """Ranking reads queries and items from rows of their own; training reads them together."""
    model, batch = build(name, schema, options), matching_batch(schema)
    rows, dense = parameters(model, batch)

    def side(own: Schema) -> Batch:
        fields = [field.name for field in schema.sparse]
        numbers = [field.name for field in schema.dense]
        return replace(
            batch,
            dense=batch.dense[:, [numbers.index(field.name) for field in own.dense]],
            sparse=np.ascontiguousarray(batch.sparse[:, [fields.index(field.name) for field in own.sparse]]),
            ragged={field.name: batch.ragged[field.name] for field in own.ragged},
        )

    queries = model.encode(side(model.query_schema), rows, dense)
    items = model.encode_items(side(model.item_schema), rows, dense)
    probabilities = model.predict(batch, rows, dense)
    expected = 1 / (1 + np.exp(-np.diag(model.scores(queries, items, dense))))
    np.testing.assert_allclose(probabilities, expected, rtol=1e-10)


def test_what_a_matching_model_can_not_read_is_told():
    with pytest.raises(ConfigurationError, match="first the sparse one that names it, got \\(\\)"):
        build("two_tower", SCHEMA, {})
    with pytest.raises(ConfigurationError, match="item: 'film' is no field of the schema"):
        build("two_tower", SCHEMA, {"item": ["movie", "film"]})
    with pytest.raises(ConfigurationError, match="expected fields of a query beside those of the item"):
        build("two_tower", Schema(label=None, sparse=["movie"]), {"item": ["movie"]})
    with pytest.raises(ConfigurationError, match="expected a schema of two sparse fields, user and item"):
        build("ncf", SCHEMA, {"item": ["movie"]})
    with pytest.raises(ConfigurationError, match="temperature: expected a number above 0"):
        build("two_tower", SCHEMA, {"item": ["movie"], "temperature": 0})


# --- PyTorch


@needs_torch
@pytest.mark.parametrize(("name", "schema", "options"), CASES, ids=NAMES)
def test_a_matching_models_loss_and_gradients_are_its_twins(name, schema, options):
    import torch

    model, batch = build(name, schema, without_dropout(options)), matching_batch(schema)

    def loss_of(theirs, weights):
        return TWINS[name](torch, model, batch, schema, theirs, weights, 0)

    rows, dense = parameters(model, batch)
    assert_step_is_pytorchs(loss_of, model, batch, rows, dense, rtol=1e-5, atol=1e-7)  # log_q is float32 here


# --- all the way

CLICKS = Schema(label=None, sparse=["user", "item"], ragged=["kinds"])
USERS, ITEMS = 24, 12


def planted(folder, seed: int = 1):
    """User u takes items of its kind, u modulo 3: the items of one kind are as good as each other."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, USERS, 1500)
    items = users % 3 + 3 * rng.integers(0, ITEMS // 3, users.size)
    kinds = pa.array([[f"kind {item % 3}"] for item in items.tolist()])
    clicks = pa.table({"user": users, "item": items, "kinds": kinds})
    pq.write_table(clicks, folder / "train.parquet", row_group_size=400)
    catalogue = pa.table(
        {"item": np.arange(ITEMS), "kinds": pa.array([[f"kind {i % 3}"] for i in range(ITEMS)])}
    )
    pq.write_table(catalogue, folder / "items.parquet", row_group_size=5)
    examples = pa.table(
        {
            "user": np.arange(USERS),
            "item": np.arange(USERS) % 3 + 3,
            "before": pa.array([[u % 3, u % 3 + 6, 99] for u in range(USERS)]),
        }
    )
    pq.write_table(examples, folder / "test.parquet", row_group_size=10)
    return folder / "train.parquet", folder / "items.parquet", folder / "test.parquet"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matching")
    train, items, test = planted(folder)
    model = build("two_tower", CLICKS, {"item": ["item", "kinds"], "dim": 8, "hidden": [16], "out": 8})
    with pslib.connect(servers=2) as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=64,
            staleness=0,
            dense_optimizer=pslib.Adam(0.01),
            progress=False,
        )
        trainer.fit(train, epochs=4)
        yield trainer, folder, items, test


def test_a_two_tower_ranks_the_items_of_the_users_kind_first(trained):
    trainer, folder, items, test = trained
    found = trainer.rank(test, items, at=(4, ITEMS))
    assert found.examples == USERS
    assert found.recall[4] >= 0.9  # four items are of a user's kind
    assert found.recall[ITEMS] == 1
    same = trainer.rank(test, folder / "train.parquet", at=(4, ITEMS))  # each item many times
    assert same == found
    seen = trainer.rank(test, items, at=(2,), history="before", exclude_seen=True)
    assert seen.recall[2] >= 0.9  # two of the four are out


def test_the_best_items_are_those_that_all_scores_say(trained):
    trainer, folder, items, test = trained
    trainer.recommend(test, items, folder / "best", k=5, history="before", exclude_seen=True)
    trainer.export_vectors(items, folder / "items", side="item")
    trainer.export_vectors(test, folder / "users", side="query")
    best, of_items = pq.read_table(folder / "best"), pq.read_table(folder / "items")
    queries = np.array(pq.read_table(folder / "users")["vector"].to_pylist(), np.float32)
    vectors = np.array(of_items["vector"].to_pylist(), np.float32)
    assert of_items.schema.field("vector").type == pa.list_(pa.float32(), 8)
    assert of_items["item"].to_pylist() == list(range(ITEMS))
    field = trainer.model.item_schema.sparse[0]
    assert of_items["key"].to_pylist() == keys_of(pa.array(range(ITEMS)), field.salt).tolist()
    scores = queries @ vectors.T
    for user in range(USERS):
        scores[user, [user % 3, user % 3 + 6]] = -np.inf
        expected = np.argsort(-scores[user], kind="stable")[:5]
        found = best["items"][user].as_py()
        np.testing.assert_allclose(best["scores"][user].as_py(), scores[user, expected], rtol=1e-5)
        np.testing.assert_allclose(scores[user, found], scores[user, expected], rtol=1e-5)


@pytest.mark.parametrize("name", ["key", "vector"])
def test_vectors_of_items_keep_what_names_them_whatever_that_is_called(tmp_path, name):
    pq.write_table(pa.table({name: ["a", "b", "c"]}), tmp_path / "items.parquet")
    schema = Schema(label=None, sparse=["user", name])
    model = build("two_tower", schema, {"item": [name], "dim": 2, "hidden": [], "out": 2})
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, progress=False)
        trainer.export_vectors(tmp_path / "items.parquet", tmp_path / "vectors")
    found = pq.read_table(tmp_path / "vectors")
    assert found[name].to_pylist() == ["a", "b", "c"]
    others = {"key": ["key_", "vector"], "vector": ["key", "vector_"]}[name]
    assert found.column_names == [name, *others]
    assert found[others[0]].type == pa.uint64()


def test_what_can_not_be_ranked_is_told(trained, tmp_path):
    trainer, _, items, test = trained
    with pytest.raises(DataError, match="no column 'goal'"):
        trainer.rank(test, items, target="goal")
    with pytest.raises(ConfigurationError, match="k: expected at least 1, got 0"):
        trainer.recommend(test, items, tmp_path, k=0)
    for at in ((), (20, 0)):
        with pytest.raises(ConfigurationError, match="at: expected numbers of places from 1 on, got"):
            trainer.rank(test, items, at=at)
    with pytest.raises(ConfigurationError, match="side: expected item or query, got 'user'"):
        trainer.export_vectors(items, tmp_path, side="user")
    clicks = pslib.Trainer.__new__(pslib.Trainer)
    clicks.model, clicks.cluster = LR(Schema(label="y", sparse=["u"])), trainer.cluster
    with pytest.raises(ConfigurationError, match="LR predicts clicks and ranks no items: evaluate it"):
        clicks.export_vectors(items, tmp_path)


def test_a_model_without_a_label_is_not_judged_by_one(trained):
    """The evaluation gave nan and "0 examples" for an AUC."""
    trainer, folder, _, test = trained
    no_clicks = "^TwoTower predicts no clicks, as its schema has no label, for"
    with pytest.raises(ConfigurationError, match=f"{no_clicks} evaluate .* call rank.data, items."):
        trainer.evaluate(test)
    with pytest.raises(ConfigurationError, match=f"{no_clicks} fit with valid .* fit_and_rank.data, valid."):
        trainer.fit(folder / "train.parquet", valid=test)


def test_numbers_of_numpys_are_numbers_of_items_and_of_places(trained):
    trainer, folder, items, test = trained
    trainer.recommend(test, items, folder / "three", k=np.int64(3))
    assert pq.read_table(folder / "three")["items"].combine_chunks().value_lengths().unique().to_pylist() == [
        3
    ]
    found = trainer.rank(test, items, at=[np.int32(4), np.int64(ITEMS)])
    assert found == trainer.rank(test, items, at=(4, ITEMS))


@pytest.mark.parametrize(("side", "what"), [("encode", "examples"), ("encode_items", "items")])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_has_diverged_is_told_and_has_no_figures(
    trained, tmp_path, monkeypatch, side, what, value
):
    """A rank of it would count as a miss: all figures were 0."""
    trainer, _, items, test = trained
    encode = getattr(type(trainer.model), side)

    def diverging(*arguments):
        vectors = encode(*arguments).copy()
        vectors[0, -1] = value
        return vectors

    monkeypatch.setattr(type(trainer.model), side, diverging)
    for call in (
        lambda: trainer.rank(test, items),
        lambda: trainer.recommend(test, items, tmp_path / "best"),
    ):
        with pytest.raises(ConfigurationError, match=f"no finite numbers for . of [0-9]+ {what}: it has"):
            call()
    named = ("item", items) if side == "encode_items" else ("query", test)
    with pytest.raises(ConfigurationError, match="rows: it has diverged"):
        trainer.export_vectors(named[1], tmp_path / "vectors", side=named[0])


def test_nothing_is_written_beside_the_data_that_is_read(trained, tmp_path):
    trainer, _, items, test = trained
    for name, source in (("items", items), ("users", test)):
        (tmp_path / name).mkdir()
        for number in (0, 7):
            part = tmp_path / name / f"part-{number:06d}.parquet"
            pq.write_table(pq.read_table(source).slice(number, 7), part)
    items, test = tmp_path / "items", tmp_path / "users"
    before = {file: file.read_bytes() for folder in (items, test) for file in folder.iterdir()}
    for out in (items, test):
        with pytest.raises(ConfigurationError, match=f"recommend: {out} holds data that is read: give"):
            trainer.recommend(test, items, out, history="before")
    with pytest.raises(ConfigurationError, match=f"export_vectors: {items} holds data that is read: give"):
        trainer.export_vectors(items, items)
    with pytest.raises(ConfigurationError, match=r"users holds part-000000\.parquet, which no earlier call"):
        trainer.export_vectors(items, test)
    assert {file: file.read_bytes() for folder in (items, test) for file in folder.iterdir()} == before
    trainer.export_vectors(items.glob("*.parquet"), tmp_path / "vectors")  # which comes once
    assert pq.read_table(tmp_path / "vectors").num_rows == pq.read_table(items).num_rows


class ExactIndex:
    """Stands in for faiss: whatever it does not find is the index's fault, not that of the code around it."""

    def __init__(self, vectors):
        self.vectors = vectors

    def search(self, queries, k):
        return top_k(queries, self.vectors, k)


def lists_of(folder):
    table = pq.read_table(folder)
    return table["items"].to_pylist(), table["scores"].to_pylist()


def test_a_graph_of_vectors_is_asked_for_as_many_as_may_have_been_seen(trained, tmp_path, monkeypatch):
    trainer, _, items, test = trained
    monkeypatch.setattr("pslib.trainer.retrieval.retrieval.NearestIndex", ExactIndex)
    for seen in (False, True):
        how = {"k": 11, "history": "before", "exclude_seen": seen}
        trainer.recommend(test, items, tmp_path / f"exact {seen}", **how)
        trainer.recommend(test, items, tmp_path / f"graph {seen}", **how, approximate=True)
        found, scores = lists_of(tmp_path / f"graph {seen}")
        assert found == lists_of(tmp_path / f"exact {seen}")[0]
        assert {len(one) for one in found} == {len(one) for one in scores} == {10 if seen else 11}


def test_leaving_out_what_was_seen_needs_a_column_that_says_so(trained, tmp_path):
    trainer, _, items, test = trained
    for call in (trainer.rank, lambda *given, **how: trainer.recommend(*given, tmp_path / "best", **how)):
        with pytest.raises(ConfigurationError, match="exclude_seen: expected the column of items befo"):
            call(test, items, exclude_seen=True)


def test_without_faiss_an_approximate_search_says_what_to_install(trained, tmp_path, monkeypatch):
    trainer, _, items, test = trained
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigurationError, match=r"needs faiss, .*pip install faiss-cpu"):
        trainer.recommend(test, items, tmp_path, approximate=True)


def test_the_commands_write_what_the_trainer_writes(trained, tmp_path, capsys, monkeypatch):
    trainer, folder, every, test = trained
    trainer.save(tmp_path / "saved")
    items = tmp_path / "some.parquet"  # of fewer items than the examples have
    pq.write_table(pq.read_table(every).slice(0, 7), items)
    job = {
        "data": {
            "train": str(folder / "train.parquet"),
            "test": str(test),
            "items": str(items),
            "schema": {"sparse": ["user", "item"], "ragged": ["kinds"]},
        },
        "model": {"name": "two_tower", "item": ["item", "kinds"], "dim": 8, "hidden": [16], "out": 8},
        "ranking": {"history": "before", "exclude_seen": True},
        "optimizers": {"dense": {"name": "Adam", "learning_rate": 0.01}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    said = [str(tmp_path / "job.yaml"), "--checkpoint", str(tmp_path / "saved"), "--out"]
    assert main(["recommend", *said, str(tmp_path / "best"), "-k", "5"]) == 0
    written = [str(tmp_path / name) for name in ("vectors.parquet", "users.parquet")]
    for side, data, out in zip(("item", "query"), (items, test), written, strict=True):
        ask = ["vectors", str(tmp_path / "saved"), side, "--data", str(data), "--out", out]
        assert main(ask) == 0
        assert main(ask) == 64  # it exists
        assert main([*ask, "--overwrite"]) == 0
    monkeypatch.setitem(sys.modules, "faiss", None)
    for more in (["--approximate"], [str(tmp_path / "unfit.parquet")]):
        pq.write_table(pa.table({"user": [1]}), tmp_path / "unfit.parquet")
        assert main(["recommend", *said, str(tmp_path / "a" / "b"), *more]) == 64
        assert not (tmp_path / "a").exists(), "nothing has come out"
    trainer.recommend(test, items, tmp_path / "mine", k=5, history="before", exclude_seen=True)
    trainer.export_vectors(items, tmp_path / "my vectors")
    assert lists_of(tmp_path / "best")[0] == lists_of(tmp_path / "mine")[0]
    of_trainer = pq.read_table(tmp_path / "my vectors")
    by_item = pa.table(of_trainer.select(["item", "vector"])).sort_by("item")
    assert pq.read_table(written[0]).sort_by("item").equals(by_item)
    assert by_item.num_rows == 7
    assert pq.read_table(written[1]).num_rows == USERS


def test_the_chance_of_an_item_to_stand_in_a_batch_is_its_share_of_the_examples(tmp_path):
    pq.write_table(pa.table({"user": [1, 2, 3, 4], "item": ["a", "b", "a", "a"]}), tmp_path / "a.parquet")
    schema = Schema(label=None, sparse=["user", "item"])
    model = build("two_tower", schema, {"item": ["item"]})
    sampler = NegativeSampler(ParquetData([str(tmp_path / "a.parquet")], schema), model.sampling(), 0)
    keys = keys_of(pa.array(["a", "b"]), schema.sparse[1].salt)
    np.testing.assert_allclose(np.exp(sampler.log_q(keys)), [0.75, 0.25], rtol=1e-6)
    assert sampler.draw(0, 0, 0).size == 0
    assert build("two_tower", schema, {"item": ["item"], "logq": False}).sampling() is None


def test_word2vec_finds_the_words_that_stand_together(tmp_path):
    """Words come in threes, a text is of two of them: those of a three are nearest to each other."""
    rng = np.random.default_rng(2)
    texts = [[f"w{3 * three + i}" for three in rng.permutation(6)[:2] for i in range(3)] for _ in range(400)]
    pq.write_table(pa.table({"words": texts}), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"word": [f"w{i}" for i in range(18)]}), tmp_path / "words.parquet")
    model = build("word2vec", Schema(label=None, ragged=["words"]), {"dim": 12, "window": 2, "subsample": 0})
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=20, staleness=0, progress=False)
        trainer.fit(tmp_path / "texts.parquet", epochs=3)
        trainer.recommend(tmp_path / "words.parquet", tmp_path / "words.parquet", tmp_path / "near", k=3)
        words = tmp_path / "words.parquet"
        with pytest.raises(
            ConfigurationError, match=r"^target: expected a column beside .* got 'word'; name"
        ):
            trainer.rank(words, words)
        with pytest.raises(ConfigurationError, match="Word2Vec predicts no clicks"):
            trainer.evaluate(tmp_path / "texts.parquet")
    near = pq.read_table(tmp_path / "near")["items"].to_pylist()
    expected = [{f"w{3 * (i // 3) + j}" for j in range(3)} for i in range(18)]
    assert sum(set(one) == other for one, other in zip(near, expected, strict=True)) >= 16


def test_word2vec_leaves_frequent_words_out_as_often_as_the_paper_says():
    model = build("word2vec", WORDS, {"dim": 2, "window": 1, "subsample": 0.01})
    texts = Ragged(np.tile(np.array([0, 1], np.int32), 20_000), np.array([0, 40_000]))
    batch = replace(matching_batch(WORDS, rows=1), ragged={"liked": texts}, log_q=np.log([0.25, 0.01]))
    centers, *_ = model.sampled(Tape(training=True, step_seed=1), batch)
    frequent = (centers == 0).sum() / (centers == 1).sum()
    assert frequent == pytest.approx(0.2, abs=0.02)  # sqrt(0.01 / 0.25) of the one, all of the other


# --- which words word2vec takes for each other's neighbours, by the definition ------------------------------


WINDOW = 3


def word_pairs(lengths: list[int], subsample: float, seed: int) -> list[tuple[int, int]]:
    """Return the sampled pairs of texts whose words are 0, 1, 2, ..., each once."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    texts = Ragged(np.arange(offsets[-1], dtype=np.int32), offsets)
    log_q = np.full(offsets[-1], np.log(0.5), np.float32)
    count, negatives = len(lengths), np.zeros(2, np.int32)
    nothing = (
        np.zeros((count, 0), np.float32),
        np.arange(offsets[-1], dtype=np.uint64),
        np.zeros((count, 0), "i4"),
    )
    batch = Batch(np.zeros(count, np.float32), *nothing, {"liked": texts}, negatives, log_q)
    model = build("word2vec", WORDS, {"dim": 2, "window": WINDOW, "subsample": subsample, "negatives": 1})
    centers, around, *_ = model.sampled(Tape(training=True, step_seed=seed), batch)
    return list(zip(centers.tolist(), around.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_word_looks_as_far_to_each_side_as_it_has_drawn_and_its_text_goes(seed: int) -> None:
    lengths = [9, 1, 0, 2, 12]
    found = word_pairs(lengths, 0, seed)
    assert len(set(found)) == len(found)
    reaches, first = set(), 0
    for length in lengths:
        for word in range(first, first + length):
            around = {other for center, other in found if center == word}
            reach = max((abs(other - word) for other in around), default=0)
            assert length == 1 or 1 <= reach <= WINDOW
            inside = range(max(first, word - reach), min(first + length, word + reach + 1))
            assert around == set(inside) - {word}
            reaches.add(reach)
        first += length
    assert {1, 2, 3} <= reaches


@pytest.mark.parametrize("seed", range(5))
def test_words_that_are_left_out_bring_others_nearer_but_not_those_of_another_text(seed: int) -> None:
    found = word_pairs([8] * 12, 0.125, seed)  # half of them are left out
    assert found
    assert all(center // 8 == other // 8 for center, other in found)
    left = sorted({word for pair in found for word in pair})
    assert 20 <= len(left) <= 70
    assert all(abs(left.index(center) - left.index(other)) <= WINDOW for center, other in found)
    assert any(abs(center - other) > WINDOW for center, other in found)
