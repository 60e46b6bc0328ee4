"""A model of a checkpoint answers as the cluster that trained it: every model, every kind of input."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.data.arrow_data import ArrowData, table_of
from pslib.errors import CheckpointError, ConfigurationError, DataError
from pslib.schema import RaggedField, Schema, SparseField
from rec_models import LR, DeepFM, TwoTower
from rec_models.by_name import SESSION_MODELS
from tests.support.models.zoo import CLICK_MODELS, CLICKS, RANKERS, Trained, model_named

ROOT = Path(pslib.__file__).parents[1]


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_predictions_are_those_of_an_evaluation(name: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named(name))
    result = trained.run(lambda trainer: trainer.evaluate(trained.test, predictions=tmp_path / "scores"))
    expected = pq.read_table(tmp_path / "scores")["prediction"].to_numpy()
    model = pslib.load(trained.checkpoint)
    predicted = model.predict(trained.test)
    assert predicted.dtype == np.float32
    first = predicted if predicted.ndim == 1 else predicted[:, 0]
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-6)
    assert model.evaluate(trained.test).auc == pytest.approx(result.auc, abs=1e-6)
    table = pq.read_table(trained.test)
    for given in (
        table.select(sorted(table.column_names, reverse=True)).append_column("more", [[0] * 90]),
        table.to_pandas(integer_object_nulls=True),
        table.drop_columns(["click", "buy"]).to_pylist(),
        table.to_pydict(),
    ):
        np.testing.assert_allclose(model.predict(given), predicted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RANKERS)
def test_ranks_recommendations_and_vectors_are_those_of_the_trainer(name: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named(name))
    target = "target" if name == "word2vec" else None  # where a query is an item itself
    by_product = name in SESSION_MODELS or trained.model.by_product
    items = trained.folder / "items.parquet" if name in SESSION_MODELS else trained.train
    pq.write_table(pa.table({"item": [f"m{i}" for i in range(40)]}), trained.folder / "items.parquet")

    def ask(trainer: pslib.Trainer) -> Any:
        trainer.recommend(trained.test, trained.train, tmp_path / "best", k=3)
        if by_product:
            trainer.export_vectors(items, tmp_path / "vectors", side="item")
        return trainer.rank(trained.test, trained.train, at=(1, 5), target=target)

    result = trained.run(ask)
    model, table = pslib.load(trained.checkpoint, items=trained.train), pq.read_table(trained.test)
    for given in (trained.test, table, table.to_pandas(integer_object_nulls=True)):
        assert model.rank(given, at=(1, 5), target=target) == result
        assert model.recommend(given, 3)["items"] == pq.read_table(tmp_path / "best")["items"]
    if by_product:
        exported = pq.read_table(tmp_path / "vectors")
        known, some = set(model.items.values.to_pylist()), []
        some = [i for i, one in enumerate(exported.column(0).to_pylist()) if one in known][:20]
        ids = exported.column(0).take(pa.array(some)).to_pylist()
        expected = np.stack(exported["vector"].to_numpy(zero_copy_only=False))[some]
        np.testing.assert_allclose(model.vectors("item", ids), expected, rtol=0, atol=1e-6)
        near = model.nearest("item", ids[0], 2)
        listed = model.nearest("item", ids[0], 2, among=pa.table({model._sides.item.name: ids}))
        assert listed == model.nearest("item", ids[0], 2, among=ids)
        assert len(set(near["value"].to_pylist()) - {ids[0]}) == 2


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model = DeepFM(CLICKS, dim=4, hidden=(8,), v_optimizer=pslib.AdamW(0.01, weight_decay=0.5))
    trained = Trained(tmp_path_factory.mktemp("clicks"), model)
    trained.run(lambda trainer: trainer.evaluate(trained.test, predictions=trained.folder / "scores"))
    return trained


def test_decay_that_a_row_has_missed_is_in_its_predictions(clicks: Trained) -> None:
    expected = pq.read_table(clicks.folder / "scores")["prediction"].to_numpy()
    np.testing.assert_allclose(
        pslib.load(clicks.checkpoint).predict(clicks.test), expected, rtol=0, atol=1e-6
    )


def test_one_record_is_one_prediction(clicks: Trained) -> None:
    model, table = pslib.load(clicks.checkpoint), pq.read_table(clicks.test)
    one = model.predict(table.slice(5, 1).to_pylist()[0])
    np.testing.assert_allclose(one, model.predict(table)[5:6], rtol=0, atol=1e-6)
    missing = model.predict(
        {"user": None, "movie": "unseen", "age": float("nan"), "liked": [], "genres": None}
    )
    assert 0 < missing.item() < 1


def test_integers_that_pandas_made_floats_are_the_integers_they_were(clicks: Trained, tmp_path: Path) -> None:
    """One missing value makes a column of ids float64; a checkpoint knows that they were integers."""
    model, table = pslib.load(clicks.checkpoint), pq.read_table(clicks.test)
    expected, frame = model.predict(table), table.drop_columns(["genres", "liked"]).to_pandas()
    assert frame["user"].dtype == np.float64
    floats = table.set_column(table.column_names.index("user"), "user", pa.array(frame["user"]))
    np.testing.assert_array_equal(model.predict(floats), expected)
    pq.write_table(floats, tmp_path / "floats.parquet")
    np.testing.assert_array_equal(model.predict(tmp_path / "floats.parquet"), expected)
    half = floats.set_column(table.column_names.index("user"), "user", pa.array(frame["user"] + 0.5))
    with pytest.raises(DataError, match=r"column 'user': expected whole numbers below \d+, .* got \d+\.5"):
        model.predict(half)


def test_streams_datasets_and_record_batches_are_data(clicks: Trained) -> None:
    model, table = pslib.load(clicks.checkpoint), pq.read_table(clicks.test)
    expected = model.predict(table)
    views = table.set_column(4, "movie", table["movie"].cast(pa.string_view()))
    for given in (
        table.to_reader(),
        table.to_batches()[0],
        iter(table.to_batches()),
        pyarrow.dataset.dataset(clicks.test),
        [clicks.test],
        views,
    ):
        np.testing.assert_array_equal(model.predict(given), expected)
    assert model.predict(table.slice(0, 0)).shape == (0,)


def test_vectors_of_a_field_are_the_parts_of_its_rows(clicks: Trained) -> None:
    model = pslib.load(clicks.checkpoint)
    by_list, by_field = model.vectors("liked", ["m1", "m2"]), model.vectors("movie", ["m1", "m2"])
    assert by_field.shape == (2, 4)
    np.testing.assert_array_equal(by_list, by_field)  # they share a vocabulary
    series = pandas.Series(["m1", "m2"])
    np.testing.assert_array_equal(model.vectors("movie", series), by_field)
    np.testing.assert_array_equal(model.vectors("movie", series.unique()), by_field)
    names = [f"m{i}" for i in range(30)]
    near = model.nearest("movie", "m1", 5, among=names)
    vectors = model.vectors("movie", names)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = [i for i in np.argsort(-(unit @ unit[1]), kind="stable") if i != 1][:5]
    assert near["value"].to_pylist() == [names[i] for i in order]
    np.testing.assert_allclose(near["cosine"], (unit @ unit[1])[order], atol=1e-6)


def test_threads_get_the_same_predictions(clicks: Trained) -> None:
    model, table = pslib.load(clicks.checkpoint), pq.read_table(clicks.test)
    expected, wrong = model.predict(table), []

    def ask() -> None:
        for _ in range(20):
            if not np.array_equal(model.predict(table), expected):
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_of_ones_own_class_is_given(clicks: Trained, tmp_path: Path) -> None:
    class Mine(LR):
        pass

    trained = Trained(tmp_path, Mine(CLICKS))
    trained.run(lambda _: None)
    with pytest.raises(CheckpointError, match=r"is of a Mine, which is no model of rec_models; give it"):
        pslib.load(trained.checkpoint)
    assert pslib.load(trained.checkpoint, Mine(CLICKS)).predict(trained.test).shape == (90,)
    with pytest.raises(CheckpointError, match="a checkpoint of DeepFM"):
        pslib.load(clicks.checkpoint, LR(CLICKS))


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (
            lambda m, t: m.predict({"movie": ["m1"]}),
            r"data: no columns 'age', 'user', 'liked' and 1 other; the file has movie",
        ),
        (lambda m, t: m.predict(7), r"data: expected a text, a path, .* a table or a list of tables, got 7"),
        (lambda m, t: m.predict({"age": [[1, 2], 3]}), r"column 'age': Arrow can't hold it"),
        (
            lambda m, t: m.predict(t.set_column(3, "user", t["movie"])),
            r"column 'user' is string, but .* integer",
        ),
        (lambda m, t: m.evaluate(t.drop_columns("click")), r"no column 'click'; did you mean"),
        (lambda m, t: m.evaluate(t, label="buy"), r"label: expected one of click, got 'buy'"),
        (lambda m, t: m.recommend(t), r"DeepFM predicts clicks and ranks no items"),
        (
            lambda m, t: m.vectors("town", ["x"]),
            r"field: expected one of user, movie, liked, genres, got 'town'",
        ),
        (lambda m, t: m.nearest("movie", "m1", 0), r"k: expected at least 1, got 0"),
        (
            lambda m, t: m.nearest("movie", "M1x", among=["m1", "m2"]),
            r"value: movie 'M1x' was not trained; did you mean 'm1'\?",
        ),
        (lambda m, t: m.nearest("movie", "m1", topk=5), r"unknown keyword 'topk'"),
        (lambda m, t: m.predict(t, batch_size=5), r"unknown keyword 'batch_size'"),
    ],
)
def test_wrong_questions_get_one_line(clicks: Trained, ask: Any, told: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=told):
        ask(pslib.load(clicks.checkpoint), pq.read_table(clicks.test))


def test_items_are_asked_for_where_they_are_needed(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("gru4rec"))
    trained.run(lambda _: None)
    model = pslib.load(trained.checkpoint)
    with pytest.raises(ConfigurationError, match=r"items: expected the items that are ranked"):
        model.recommend(["m1", "m2"])
    with pytest.raises(ConfigurationError, match=r"GRU4Rec predicts no clicks"):
        model.predict(trained.test)
    model = pslib.load(trained.checkpoint, items=trained.train)
    with pytest.raises(ConfigurationError, match=r"at: expected numbers of places from 1 on, got \[0\]"):
        model.rank(trained.test, at=(0,))
    best = model.recommend(["m1", "m2"], 4)
    assert [len(items) for items in best["items"].to_pylist()] == [4]


def test_options_of_every_kind_come_back_from_the_checkpoint(tmp_path: Path) -> None:
    given = DeepFM(
        Schema(label="click", sparse=[SparseField("movie", buckets=None)]),
        dim=3,
        hidden=(5, 4),
        w_optimizer=pslib.FTRL(0.05),
        v_initializer=pslib.Uniform(0.2),
        seed=7,
    )
    trained = Trained(tmp_path, given)
    trained.run(lambda _: None)
    model = pslib.load(trained.checkpoint)
    assert (model.model.options(), model.schema) == (given.options(), given.schema)
    assert repr(model) == f"<DeepFM of {trained.checkpoint}: 13 steps, 30 rows>"


def test_a_frame_trains_to_the_bits_of_its_parquet_file(clicks: Trained) -> None:
    frame = pq.read_table(clicks.train).to_pandas(integer_object_nulls=True)
    frame.to_parquet(clicks.folder / "frame.parquet")
    scores = []
    for given in (frame, clicks.folder / "frame.parquet", iter(pa.table(frame).to_batches(100))):
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(clicks.model, cluster, batch_rows=32, staleness=0, progress=False)
            trainer.fit(given, epochs=2)
            scores.append(trainer.evaluate(frame))
            trainer.save(clicks.folder / f"trained-{len(scores)}")
    assert scores[0] == scores[1] == scores[2]
    predicted = [pslib.load(clicks.folder / f"trained-{number}").predict(frame) for number in (1, 2, 3)]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    np.testing.assert_array_equal(predicted[0], predicted[2])


def test_a_fit_of_a_frame_is_resumed_with_the_same_frame_alone(clicks: Trained) -> None:
    frame = pq.read_table(clicks.train).to_pandas(integer_object_nulls=True)
    changed = frame.assign(age=frame.age + 1)
    for given, same in ((frame.copy(), True), (changed, False), (frame.head(399), False)):
        first, second = (ArrowData(table_of(one), CLICKS).fingerprint for one in (frame, given))
        assert (first == second) is same


def test_a_notebook_shows_what_an_object_is(clicks: Trained) -> None:
    model = pslib.load(clicks.checkpoint)
    assert "<tr><td>steps</td><td>13</td></tr>" in model._repr_html_()
    assert "<td>auc</td><td>0." in model.evaluate(clicks.test)._repr_html_()
    assert "<tr><td>sparse</td><td>user, movie</td></tr>" in clicks.model._repr_html_()
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(clicks.model, cluster, batch_rows=32, progress=False)
        trainer.fit(clicks.train)
        cluster_text = "<Cluster of 1 server, in this process>"
        assert repr(trainer) == f"<Trainer of DeepFM on {cluster_text}: 1 epoch, 13 steps>"


def test_the_script_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    users, items = [f"u{i % 20}" for i in range(60)], [i % 30 for i in range(60)]
    rows = pa.table({"user": users, "item": items, "price": np.ones(60), "click": [0, 1, 1] * 20})
    pq.write_table(rows, "test.parquet")
    (tmp_path / "clicks").mkdir()
    for name in ("clicks/later.parquet", "users.parquet", "movies.parquet"):
        pq.write_table(rows, name)
    schema = Schema(label="click", sparse=["user", "item"], dense=["price"])
    matching = Schema(label=None, sparse=["user", "item"])
    models = {
        "clicks": DeepFM(schema, dim=4),
        "movies": TwoTower(matching, item=("item",), dim=4, hidden=(), out=4),
    }
    for name, model in models.items():
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(model, cluster, batch_rows=32, progress=False)
            trainer.fit("test.parquet")
            trainer.save(f"runs/{name}/checkpoint", keep_last=1)
    page = (ROOT / "docs/guide/train.md").read_text("utf-8").split("## Predictions")[1]
    (script,) = re.findall(r"```python\n(.*?)```", page.split("\n## ")[0], re.DOTALL)
    exec(script, names := {})
    assert names["movies"].recommend("users.parquet", 20)["items"].null_count == 0


@pytest.mark.parametrize("separator", ["|", None], ids=["texts with a separator", "lists"])
def test_vectors_of_a_ragged_field_are_those_of_its_elements(tmp_path: Path, separator: str | None) -> None:
    lists = [["War", "Drama"], ["Drama"], None, [], ["War"]]
    texts = [None if one is None else "|".join(one) for one in lists]
    rows = pa.table({"click": [0, 1, 0, 1, 1], "genres": texts if separator else lists})
    pq.write_table(rows, tmp_path / "rows.parquet")
    trained = Trained(
        tmp_path, DeepFM(Schema(label="click", ragged=[RaggedField("genres", separator=separator)]))
    )
    trained.train = tmp_path / "rows.parquet"
    trained.run(lambda _: None)
    model = pslib.load(trained.checkpoint, items=trained.train)
    table = model.vectors_by_name("genres")
    assert sorted(table["genres"].to_pylist()) == ["Drama", "War"]
    war, drama = model.vectors("genres", ["War", "Drama"])
    assert np.abs(war).sum() > 0
    assert not np.array_equal(war, drama)
    np.testing.assert_array_equal(model.vectors("genres", rows), [war, drama, drama, war])
    by_name = dict(zip(table["genres"].to_pylist(), table["vector"].to_pylist(), strict=True))
    np.testing.assert_array_equal(by_name["War"], war)
    assert model.nearest("genres", "War")["value"].to_pylist() == ["Drama"]
    assert model.vectors("genres", []).shape == (0, war.size)
