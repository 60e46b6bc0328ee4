"""The number 5 and the text "5" have two keys: data whose ids changed from one to the other is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from pslib.checkpoint import commit, read_manifest
from pslib.data.column_types import kinds_of, plain_kinds
from pslib.data.dataset import ParquetData
from pslib.errors import DataError
from pslib.schema import SparseField
from rec_models.deepfm import DeepFM
from tests.support.job_folder import refused

JOB = """\
data:
  train: train.parquet
  test: test.parquet
  schema: {label: click, sparse: [user id, shop]}
model: {name: deepfm, dim: 2, hidden: [4]}
training: {batch_rows: 64}
out: run
"""
USERS = [number % 20 for number in range(200)]
WAY_OUT = (
    "equal values would get different keys; write both with one type (pslib convert csv makes integers with "
    "--integers 'user id')"
)


def write(path: Path, users: list[Any], shops: list[Any] | None = None) -> Path:
    shop = [f"s{number % 7}" for number in range(200)] if shops is None else shops
    columns = {"click": [number % 2 for number in range(200)], "user id": users, "shop": pa.array(shop)}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job, its data, and what came from a CSV file: the same ids, as texts."""
    for name in ("train", "test"):
        write(tmp_path / f"{name}.parquet", USERS)
    write(tmp_path / "texts.parquet", [str(number) for number in USERS])
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@contextmanager
def new_trainer(*columns: Any) -> Iterator[pslib.Trainer]:
    """A trainer alone in a cluster of its own."""
    schema = pslib.Schema(label="click", sparse=columns or ["user id", "shop"])
    with pslib.connect() as cluster:
        yield pslib.Trainer(DeepFM(schema, dim=2, hidden=(4,)), cluster, batch_rows=64, progress=False)


def trained(folder: Path, keep_last: int = 0) -> Path:
    """The checkpoint of a training on the job's data, where ``pslib train`` puts it."""
    with new_trainer() as trainer:
        trainer.fit(folder / "train.parquet")
        return Path(trainer.save(folder / "run" / "checkpoint", keep_last=keep_last))


def forgotten(place: Path) -> Path:
    """The checkpoint as a pslib wrote it that kept no kinds of keys."""
    manifest = read_manifest(str(place))
    about = {name: value for name, value in manifest.about.items() if name != "key_kinds"}
    commit(str(place), replace(manifest, about=about))
    return place


def test_an_evaluation_refuses_ids_of_another_type_than_the_checkpoint_was_trained_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = trained(folder)
    (folder / "train.parquet").unlink()
    command = ["eval", folder / "job.yaml", "--checkpoint", place]
    assert main([str(word) for word in (*command, folder / "test.parquet")]) == 0
    capsys.readouterr()
    assert refused(capsys, *command, folder / "texts.parquet") == [
        f"{folder}/texts.parquet: column 'user id' is string, but integer in the data that {place} was "
        f"trained on: {WAY_OUT}"
    ]
    predictions = ("--predictions", folder / "predictions")
    (line,) = refused(capsys, *command, folder / "texts.parquet", *predictions)
    assert "column 'user id' is string, but integer in the data that " in line


def test_an_evaluation_of_an_older_checkpoint_compares_with_the_training_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", folder / "job.yaml", "--checkpoint", forgotten(trained(folder))]
    texts = (folder / "texts.parquet",)
    (line,) = refused(capsys, *command, *texts)
    assert f"texts.parquet: column 'user id' is string, but integer in {folder}/train.parquet: " in line
    for free in ("load={path: elsewhere, other_model: true}", "data.train=gone.parquet"):
        assert main([str(word) for word in (*command, *texts, "--set", free)]) == 0


def test_what_the_checkpoint_says_counts_more_than_what_lies_there_now(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = trained(folder)
    (folder / "texts.parquet").rename(folder / "train.parquet")
    assert main(["eval", str(folder / "job.yaml"), "--checkpoint", str(place)]) == 0


def checked(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """Problems that ``pslib data check`` tells."""
    code = main(["data", "check", *map(str, words)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert code == (64 if lines else 0)
    return lines


def test_a_check_compares_with_the_training_data_of_the_job(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, config = folder / "texts.parquet", ("--config", folder / "job.yaml")
    assert checked(capsys, folder / "test.parquet", *config) == []
    assert checked(capsys, texts) == []
    assert checked(capsys, texts, *config) == [
        f"problem: {texts}: column 'user id' is string, but integer in {folder}/train.parquet: {WAY_OUT}"
    ]


def test_lists_are_compared_as_columns_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lists in (("train", [[1], [2]]), ("words", [["1"], ["2"]])):
        pq.write_table(pa.table({"click": [0, 1], "seen": lists}), folder / f"{name}.parquet")
    schema = ("--set", "data.schema={label: click, ragged: [seen]}")
    (line,) = checked(capsys, folder / "words.parquet", "--config", folder / "job.yaml", *schema)
    assert "column 'seen' is string, but integer in " in line


def test_a_check_without_the_training_data_compares_with_a_checkpoint_that_the_job_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (folder / "texts.parquet", "--config", folder / "job.yaml")
    (folder / "train.parquet").rename(folder / "there.parquet")
    assert checked(capsys, *words) == []
    (folder / "there.parquet").rename(folder / "train.parquet")
    place = trained(folder, keep_last=1)
    (folder / "train.parquet").unlink()
    told = f"column 'user id' is string, but integer in the data that {place} was trained on"
    (line,) = checked(capsys, *words)
    assert told in line
    load = (*words, "--set", "out=elsewhere", "--set", f"load.path={place.parent}")
    (line,) = checked(capsys, *load)
    assert told in line
    assert checked(capsys, *load, "--set", "load.other_model=true") == []


def test_a_training_that_begins_with_a_checkpoint_refuses_other_types_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = trained(folder)
    command = ["train", folder / "job.yaml", "--set", f"load.path={place}", "--out", folder / "next"]
    data = ("--set", f"data.train={folder}/texts.parquet", "--set", "data.test=null")
    (line,) = refused(capsys, *command, *data)
    assert "texts.parquet: column 'user id' is string, but integer in the data that " in line
    assert not (folder / "next").exists()


def test_a_script_is_held_to_the_types_of_its_checkpoint(folder: Path) -> None:
    place, texts = trained(folder), folder / "texts.parquet"
    told = f"column 'user id' is string, but integer in the data that {place} was trained on"
    with new_trainer() as trainer:
        trainer.load(place)
        for call in (trainer.evaluate, trainer.fit):
            with pytest.raises(DataError, match=told):
                call(texts)
        copy = trainer.save(folder / "copy")
    assert read_manifest(copy).about["key_kinds"] == {
        "user id": ["integer", "user id"],
        "shop": ["string", "shop"],
    }


def test_rows_of_one_checkpoint_after_those_of_another_are_held_to_their_own(folder: Path) -> None:
    place, texts = trained(folder), folder / "texts.parquet"
    with new_trainer() as trainer:
        trainer.fit(texts)
        trainer.load(place, tables=["embedding"])
        with pytest.raises(DataError, match="is string, but integer in the data that"):
            trainer.evaluate(texts)
        trainer.evaluate(folder / "test.parquet")


def test_a_column_that_had_no_values_in_a_checkpoint_may_be_of_any_type_after_it(folder: Path) -> None:
    """The types of the rows before the load do not matter: those rows are gone."""
    with new_trainer() as trainer:
        trainer.fit(write(folder / "empty.parquet", USERS, [None] * 200))
        place = trainer.save(folder / "empty")
        trainer.fit(folder / "train.parquet")
        trainer.load(place)
        trainer.fit(write(folder / "numbers.parquet", USERS, USERS))


def test_a_stream_under_way_is_held_to_the_checkpoint_that_is_loaded_meanwhile(folder: Path) -> None:
    place, arriving = trained(folder), folder / "arriving"
    arriving.mkdir()
    for name in ("a", "b"):
        write(arriving / f"{name}.parquet", [f"u{number}" for number in USERS])
    with new_trainer() as trainer:
        stream = trainer.fit_stream(arriving, pslib.StreamSettings(poll_s=0.1))
        next(stream)
        trainer.load(place)
        with pytest.raises(DataError, match="is string, but integer in the data that"):
            next(stream)


def test_rows_of_a_table_beside_the_models_change_nothing(folder: Path) -> None:
    """They are another client's, whatever the trainer of that checkpoint read."""
    beside = pslib.TableSpec("beside", (pslib.PartSpec("v", 1),))
    with new_trainer() as trainer:
        trainer.cluster.client.setup([beside])
        trainer.fit(folder / "texts.parquet")
        place = trainer.save(folder / "texts")
    with new_trainer() as trainer:
        trainer.cluster.client.setup([beside])
        trainer.fit(folder / "train.parquet")
        trainer.load(place, tables=["beside"])
        trainer.evaluate(folder / "test.parquet")
        after = trainer.save(folder / "after")
    assert read_manifest(after).about["key_kinds"]["user id"] == ["integer", "user id"]


def test_a_run_that_goes_on_with_another_models_rows_may_have_other_types(folder: Path) -> None:
    place = trained(folder)
    with new_trainer() as trainer:
        trainer.load(place, other_model=True)
        trainer.fit(folder / "texts.parquet")
        after = trainer.save(folder / "after")
    assert read_manifest(after).about["key_kinds"]["user id"] == ["string", "user id"]


@pytest.mark.parametrize("other_model", [False, True])
def test_what_was_trained_before_a_load_says_nothing_of_the_rows_after_it(
    folder: Path, other_model: bool
) -> None:
    """Their types are unknown, or do not matter: any type that comes next is taken."""
    with new_trainer() as trainer:
        trainer.fit(folder / "texts.parquet")
        place = Path(trainer.save(folder / "texts"))
    if not other_model:
        forgotten(place)
    with new_trainer() as trainer:
        trainer.fit(folder / "train.parquet")
        trainer.load(place, other_model=other_model)
        assert trainer.evaluate(folder / "texts.parquet").examples == 200
        trainer.fit(folder / "texts.parquet")


def test_a_checkpoint_says_only_what_was_trained(folder: Path) -> None:
    """An evaluation teaches nothing, and a column without values has no type."""
    with new_trainer() as trainer:
        trainer.evaluate(folder / "texts.parquet")
        assert "key_kinds" not in read_manifest(trainer.save(folder / "first")).about
    empty = write(folder / "empty.parquet", USERS, [None] * 200)
    with new_trainer() as trainer:
        trainer.fit(empty)
        place = trainer.save(folder / "second")
    assert read_manifest(place).about["key_kinds"] == {"user id": ["integer", "user id"]}


def test_rows_that_nobody_knows_the_types_of_stay_so(folder: Path) -> None:
    """The load replaces the rows of the fit, whose types say nothing about the loaded rows."""
    place = forgotten(trained(folder))
    with new_trainer() as trainer:
        trainer.fit(folder / "train.parquet")
        trainer.load(place)
        assert "key_kinds" not in read_manifest(trainer.save(folder / "again")).about


def test_each_column_of_a_cross_is_held_to_its_own_type(folder: Path) -> None:
    cross = SparseField("pair", of=("user id", "shop"))
    with new_trainer(cross) as trainer:
        trainer.fit(folder / "train.parquet")
        place = trainer.save(folder / "crossed")
    with new_trainer(cross) as trainer:
        trainer.load(place)
        trainer.evaluate(folder / "test.parquet")
        with pytest.raises(DataError, match="column 'user id' is string, but integer in the data that"):
            trainer.evaluate(folder / "texts.parquet")


@pytest.mark.parametrize("about", [{}, {"key_kinds": None}, {"key_kinds": ["user"]}])
def test_a_checkpoint_that_does_not_say_the_types_of_its_keys_is_taken(about: dict[str, Any]) -> None:
    assert kinds_of(about, "place") == {}


def test_what_a_checkpoint_keeps_of_types_comes_back_without_the_names_of_files() -> None:
    kept = plain_kinds({"user": ("integer", "buyer", "/secret/train.parquet")})
    told = ("integer", "buyer", "the data that runs/one was trained on")
    assert kinds_of({"key_kinds": kept}, "runs/one") == {"user": told}
    _kind, _column, where = kinds_of({"key_kinds": kept}, "s3://me:hidden@bucket/one")["user"]
    assert "bucket/one" in where
    assert "hidden" not in where


def test_only_texts_of_a_plain_column_are_told_how_integers_come_from_csv(folder: Path) -> None:
    lists = {"click": [0, 1], "seen": [[1], [2]]}
    pq.write_table(pa.table(lists), folder / "lists.parquet")
    pq.write_table(pa.table({**lists, "seen": [["1"], ["2"]]}), folder / "words.parquet")
    users, seen = (
        pslib.Schema(label="click", sparse=["user id"]),
        pslib.Schema(label="click", ragged=["seen"]),
    )
    for schema, first, second in ((users, "texts", "train"), (seen, "lists", "words")):
        with pytest.raises(DataError, match=r"write both with one type$"):
            ParquetData([folder / f"{first}.parquet", folder / f"{second}.parquet"], schema)
