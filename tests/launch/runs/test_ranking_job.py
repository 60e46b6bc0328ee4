"""Models that rank items, from the job file: trained, ranked after each epoch, evaluated again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.job.job import read_job
from launch.job.preflight import check_data
from launch.supervisor.run_records import Rankings
from launch.worker import train_job
from pslib import EarlyStopping, Schema, Trainer, connect
from pslib.errors import ConfigurationError, DataError
from pslib.metrics.ranking import RankResult
from rec_models import SESSION_MODELS, GRU4Rec

JOB = """\
data:
  train: train.parquet
  valid: test.parquet
  test: test.parquet
  schema: {ragged: [items]}
model: {name: gru4rec, dim: 8, negatives: 16}
training: {batch_rows: 20, epochs: 2, staleness: 0, stopping: {metric: ndcg@5, factor: 1, patience: 2}}
ranking: {at: [1, 12], history: before, target: next}
out: run
"""
TWELVE = [[(start + i) % 12 for i in range(5)] for start in range(12)]
"""Sessions that go round a circle."""
NAMES = {"Recall": "recall", "MRR": "mrr", "NDCG": "ndcg"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job file and its data."""
    lists = pa.list_(pa.int32())
    pq.write_table(pa.table({"items": pa.array(TWELVE * 10, lists)}), tmp_path / "train.parquet")
    before = pa.array([items[:-1] for items in TWELVE], lists)
    columns = {"before": before, "next": [items[-1] for items in TWELVE]}
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_a_session_model_is_trained_from_a_job_file_and_ranks_as_its_checkpoint_does(folder, capsys):
    assert main(["train", str(folder / "job.yaml")]) == 0
    said = capsys.readouterr()
    told = [line.split(":")[1] for line in said.err.splitlines() if "Recall@12 1.0000" in line]
    assert told == [" valid after epoch 1", " valid after epoch 2", " test after epoch 2"]
    assert ", staleness 0.0" in said.err
    assert "AUC -" in said.err
    assert "AUC 0" not in said.err
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["auc"] is None
    assert summary["recall"]["12"] == 1.0  # there are twelve items
    for k in ("1", "12"):
        figures = ", ".join(f"{name} {summary[key][k]:.4f}" for name, key in NAMES.items())
        assert any(line.startswith(f"at {k} ") and figures in line for line in said.out.splitlines())
    effective, checkpoint = folder / "run" / "job.yaml", folder / "run" / "checkpoint"
    assert read_job(effective).model_dump() == read_job(folder / "job.yaml").model_dump() | {
        "optimizers": read_job(effective).model_dump()["optimizers"],
        "out": str(folder / "run"),
    }
    assert main(["eval", str(folder / "run")]) == 0
    said = capsys.readouterr()
    assert f"Recall {summary['recall']['1']:.6f}, MRR {summary['mrr']['1']:.6f}" in said.out
    assert main(["eval", str(effective), "--checkpoint", str(checkpoint), "--predictions", "x"]) == 64
    assert "--predictions: gru4rec predicts no clicks; leave it out" in capsys.readouterr().err


def test_a_look_at_data_reads_each_file_as_the_job_does(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.copy("test.parquet", "later.parquet")  # named by no setting: its columns tell
    for name in ("train", "test", "later"):
        assert main(["data", "check", f"{name}.parquet", "--config", "job.yaml"]) == 0, capsys.readouterr()
    pq.write_table(pq.read_table("test.parquet").drop_columns(["next"]), "test.parquet")
    assert main(["data", "check", "test.parquet", "--config", "job.yaml"]) == 64
    assert "test.parquet: no column 'next'" in capsys.readouterr().out


@pytest.mark.parametrize("name", SESSION_MODELS)
def test_every_session_model_may_be_named_in_a_job_file(name, folder):
    assert type(read_job(folder / "job.yaml", [f"model.name={name}"]).build_model()) is SESSION_MODELS[name]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "data.schema={label: y, ragged: [items]}",
            "data.schema.label: gru4rec learns which item comes next and reads no label; remove it",
        ),
        (
            "data.schema={ragged: [items], sparse: [user]}",
            "model.schema: expected one ragged field, the items of a session, got 0 dense, 1 sparse",
        ),
        (
            "training.stopping={}",
            "training.stopping.metric: expected recall@K, mrr@K or ndcg@K for some number K, got 'logloss'",
        ),
        ("training.stopping={metric: recall@0}", "ndcg@K for some number K, got 'recall@0'"),
        ("ranking.at=[20, 0]", "ranking.at: expected numbers of places from 1 on, got [20, 0]"),
        ("ranking.at=[]", "ranking.at: expected numbers of places from 1 on, got []"),
        ("ranking.k=20", "ranking.k: unknown key"),
        ("ranking.target=goal", "test.parquet: no column 'goal'; the file has before, next"),
        ("data.items=test.parquet", "test.parquet: no column 'items'"),
        ("data.schema={ragged: [item]}", "train.parquet: no column 'item'; did you mean 'items'?"),
        ("optimizers.rows={w: {name: SGD}}", "optimizers.rows.w: unknown key, known here: v"),
        ("model.rank_loss=bpr-max", "model.logq: bpr-max is not corrected for what is drawn; set logq to"),
    ],
)
def test_what_does_not_fit_a_session_model_is_one_line(setting, words, folder, capsys):
    assert main(["train", str(folder / "job.yaml"), "--set", setting]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_keys_of_another_type_than_those_of_the_training_are_refused(folder):
    path = folder / "test.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "next", table["next"].cast(pa.string())), folder / "texts.parquet")
    train, texts = folder / "train.parquet", folder / "texts.parquet"
    told = "texts.parquet: column 'next' is string, but column 'items', whose keys it shares, is integer in "
    how = {"history": "before", "target": "next"}
    with connect() as cluster:
        model = GRU4Rec(Schema(label=None, ragged=["items"]), dim=4, negatives=4)
        trainer = Trainer(model, cluster, batch_rows=20)
        with pytest.raises(DataError, match=told):
            trainer.rank(texts, train, **how)
        with pytest.raises(DataError, match=told):
            trainer.fit_and_rank(train, texts, **how)
        lists = pa.array([["1", "2"]] * 3)
        pq.write_table(pa.table({"items": lists, "before": lists}), texts)
        fresh = Trainer(model, cluster, batch_rows=20, share=True)
        with pytest.raises(DataError, match=r"texts.parquet: column '(items|before)' is string, but "):
            fresh.fit_and_rank(train, texts, items=texts, **how)
        for data, items in ((path, texts), (texts, train)):
            with pytest.raises(DataError, match=r"texts.parquet: column '(items|before)' is string, but "):
                trainer.recommend(data, items, folder / "best", history="before")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"valid": "tset.parquet"}, r"tset\.parquet: no such file or folder"),
        ({"target": "nxt"}, r"test\.parquet: no column 'nxt'; did you mean 'next'\?"),
        ({"history": "bfore"}, r"test\.parquet: no column 'bfore'; did you mean 'before'\?"),
        ({"items": "itmes.parquet"}, r"itmes\.parquet: no such file or folder"),
        ({"items": "test.parquet"}, r"test\.parquet: no column 'items'; the file has before, next"),
        ({"at": (0, 20)}, r"at: expected numbers of places from 1 on, got \[0, 20\]"),
    ],
)
def test_what_no_ranking_could_be_made_of_is_refused_before_an_epoch_is_trained_for_it(
    folder, monkeypatch, changes, told
):
    monkeypatch.chdir(folder)
    named = {"valid": "test.parquet", "history": "before", "target": "next"} | changes
    with connect() as cluster:
        model = GRU4Rec(Schema(label=None, ragged=["items"]), dim=4, negatives=4)
        trainer = Trainer(model, cluster, batch_rows=20, progress=False)
        with pytest.raises((ConfigurationError, DataError), match=told):
            trainer.fit_and_rank("train.parquet", **named)
        assert not cluster.begun, "no call was made"


def test_what_only_ranking_has_is_refused_for_a_model_of_clicks(folder, capsys):
    changes = ["model={name: lr}", "data.schema={sparse: [user]}", "data.items=train.parquet"]
    settings = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(folder / "job.yaml"), *settings]) == 64
    assert [line.removeprefix("pslib: ") for line in capsys.readouterr().err.splitlines()] == [
        "ranking: lr predicts clicks and ranks no items; remove it",
        "data.items: lr predicts clicks and ranks no items; remove it",
        "model.schema: expected 1 label, got none; name the column of 0 and 1",
    ]


def test_what_was_seen_is_left_out_only_where_a_history_says_what_that_is(folder, capsys):
    pair = ["data.schema={sparse: [user, item]}", "model={name: ncf, item: [item]}"]
    changes = [*pair, "ranking={exclude_seen: true}", "training.stopping=null"]
    settings = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(folder / "job.yaml"), *settings]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "ranking.exclude_seen: expected the column of items before; give ranking.history" in line


def test_sessions_have_a_history_of_their_own(folder):
    assert read_job(folder / "job.yaml", ["ranking.exclude_seen=true"]).ranking.exclude_seen


def test_every_epoch_that_is_ranked_knows_how_many_come(folder, monkeypatch):
    told, fit = [], Trainer._fit
    monkeypatch.setattr(Trainer, "_fit", lambda self, *how: (told.append(how[3]), fit(self, *how)))
    monkeypatch.setattr(Trainer, "rank", lambda *_, **__: RankResult(4, {20: 0.5}, {20: 0.0}, {20: 0.0}))
    with connect() as cluster:
        model = GRU4Rec(Schema(label=None, ragged=["items"]), dim=4, negatives=8)
        trainer = Trainer(model, cluster, batch_rows=40, progress=False)
        named = {"history": "before", "target": "next"}
        for how in ({}, {"stopping": EarlyStopping(metric="recall@20", restore=False)}):
            trainer.fit_and_rank(folder / "train.parquet", folder / "test.parquet", 3, **named, **how)
    assert told == [2, 1, 0] * 2


def test_word2vec_is_trained_from_a_job_file_that_has_nothing_to_rank_and_gives_vectors(tmp_path):
    """Its queries are words as its items are, so that only data that is ranked needs a column to look for."""
    texts = [["a", "b", "c"], ["d", "e", "f"]] * 40
    pq.write_table(pa.table({"words": texts}), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"word": ["a", "d"]}), tmp_path / "words.parquet")
    job, checkpoint, vectors = (tmp_path / name for name in ("job.yaml", "run/checkpoint", "vectors.parquet"))
    job.write_text(
        "data: {train: texts.parquet, schema: {ragged: [words]}}\n"
        "model: {name: word2vec, dim: 4, pool: 16}\nout: run\n"
    )
    assert main(["train", str(job)]) == 0
    data = ["--data", str(tmp_path / "words.parquet")]
    assert main(["vectors", str(checkpoint), "item", "--out", str(vectors), *data]) == 0
    assert pq.read_table(vectors).column("word").to_pylist() in (["a", "d"], ["d", "a"])
    with pytest.raises(ConfigurationError, match=r"target: expected a column beside .*ranking\.target"):
        check_data(read_job(job, ["data.test=words.parquet"]))


def test_a_ranking_model_has_no_predictions_to_verify(folder, capsys):
    assert main(["verify", str(folder / "job.yaml")]) == 64
    assert "verify compares predictions of clicks, and gru4rec ranks items" in capsys.readouterr().err


def test_each_ranking_is_told_once_also_after_a_run_that_went_back():
    rankings = Rankings()
    figures = {"recall": [0.5], "mrr": [0.25], "ndcg": [0.3]}
    one = {"kind": "rank", "epoch": 1, "at": [20], "examples": 4, **figures}
    line = "ranking after epoch 1: Recall@20 0.5000, MRR@20 0.2500, NDCG@20 0.3000 on 4 examples"
    assert rankings.news({"results": [{"kind": "fit"}, one]}) == [line]
    assert rankings.news({"results": [{"kind": "fit"}, one]}) == []
    assert rankings.news({"results": []}) == []
    assert rankings.news({"results": [one]}) == [line]


def test_of_a_stream_a_ranking_says_after_how_many_files_it_was(folder):
    with connect() as cluster:
        model = GRU4Rec(Schema(label=None, ragged=["items"]), dim=4, negatives=8)
        trainer = Trainer(model, cluster, progress=False)
        trainer._by_files, trainer._files = True, ["a", "b"]  # as `fit_stream` leaves it
        test, items = folder / "test.parquet", folder / "train.parquet"
        trainer.rank(test, items, history="before", target="next")
        (line,) = Rankings().news(cluster.status())
    assert line.startswith("ranking after 2 files: Recall@20 ")


def test_a_training_ends_with_the_parameters_of_the_epoch_that_ranked_best(folder, tmp_path, monkeypatch):
    figures, asked = iter([0.5, 0.7, 0.6, 0.65, 0.9]), []

    def rank(self, data, items, how, name):
        asked.append((how.at, items, name))
        return RankResult(4, {20: next(figures)}, {20: 0.0}, {20: 0.0})

    monkeypatch.setattr(Trainer, "_rank", rank)
    model = GRU4Rec(Schema(label=None, ragged=["items"]), dim=4, negatives=8)
    stopping = EarlyStopping(metric="recall@20", patience=1, factor=0.5)
    with connect() as cluster:
        trainer = Trainer(model, cluster, batch_rows=40, staleness=0, progress=False)
        train, best = folder / "train.parquet", tmp_path / "best"
        those = shutil.copy(train, folder / "those.parquet")
        named = {"stopping": stopping, "best": best, "at": (5,), "history": "before", "target": "next"}
        found = trainer.fit_and_rank(train, folder / "test.parquet", 9, **named, items=those)
        assert [one.recall[20] for one in found] == [0.5, 0.7, 0.6, 0.65]
        assert asked == [((5, 20), those, "valid")] * 4
        assert trainer._position.epochs == 2
        with pytest.raises(ConfigurationError, match="metric: expected one of auc, logloss, got"):
            trainer.fit(train, valid=folder, stopping=stopping, best=best)
        with pytest.raises(ConfigurationError, match="metric: expected recall@K, mrr@K or ndcg@K for some"):
            trainer.fit_and_rank(train, folder, stopping=EarlyStopping(restore=False))
        with pytest.raises(ConfigurationError, match="epochs: expected at least 1, got 0"):
            trainer.fit_and_rank(train, folder, 0)
        with pytest.raises(ConfigurationError, match="metric: expected one of auc, logloss, recall@K, mrr@K"):
            EarlyStopping(metric="recall")


def test_items_of_a_job_file_are_those_that_are_ranked_else_those_of_the_training(folder):
    asked = []

    class Asked:
        def rank(self, data, items, **how):
            asked.append((data, items, how["at"]))

        def fit_and_rank(self, data, valid, epochs, *, items, **how):
            asked.append((data, items, how["at"]))

    (folder / "items").mkdir()
    for settings in (["data.items=items"], []):
        job = read_job(folder / "job.yaml", settings)
        train_job._tested(job, Asked(), job.data.test)
        train_job._fit(job, Asked())
        train, at = job.data.train, (1, 12)
        ranked = [str(folder / "items")] if settings else None
        assert asked[-2:] == [(job.data.test, ranked or train, at), (train, ranked, at)]
