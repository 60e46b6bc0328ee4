"""Checkpoints of a training that went on: any command may read one, no run resumes from it by accident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from launch.job.job import read_job
from launch.worker.train_job import make_trainer
from pslib.checkpoint import commit, read_manifest
from pslib.errors import ConfigurationError
from pslib.trainer.checkpoints.save_load import Position
from rec_models import GRU4Rec
from tests.support.clusters import cluster_of
from tests.support.counting import write_examples
from tests.support.counting_trainers import (
    QUICK,
    ROWS,
    StopError,
    counted_examples,
    counting,
    counts_in,
    saved_in,
    stop_after,
)
from tests.support.job_folder import JOB, save

EPOCHS = 3
SESSIONS = """\
data:
  train: train.parquet
  test: test.parquet
  items: items.parquet
  schema: {ragged: [items]}
model: {name: gru4rec, dim: 4, negatives: 4}
ranking: {at: [1], history: before, target: next}
out: run
"""
examples = pytest.fixture(counted_examples, scope="module")


@pytest.fixture(scope="module")
def cut(examples: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a fit of three epochs that was stopped."""
    folder = tmp_path_factory.mktemp("cut") / "saved"
    every = pslib.CheckpointSettings(folder, every_batches=10, keep_last=1)
    with cluster_of(1, timing=QUICK) as running, pytest.raises(StopError):
        counting(running.join(), stop_after(50, folder), checkpoint=every).fit(examples, epochs=EPOCHS)
    return folder


@pytest.fixture
def trainer(cut: Path) -> Iterator[pslib.Trainer]:
    """One that has loaded it, as a script does that goes on."""
    with cluster_of(1, timing=QUICK) as running:
        found = counting(running.join())
        found.load(cut)
        yield found


def unfinished(place: Path, *before: str) -> Path:
    """A checkpoint as one of a fit under way says it is, after these calls."""
    jobs = [{"what": what, "fingerprint": 1, "outcome": {}} for what in ("begin", *before, "fit")]
    began = asdict(Position())
    table = {"jobs": jobs, "job": len(jobs) - 1, "leases": {}, "ranks": [], "since_s": 0.0, "began": began}
    manifest = read_manifest(str(place))
    commit(str(place), replace(manifest, format_version=0, cut={"token": "0" * 8, "table": table}))
    return place


def test_it_says_what_its_keys_are_made_of(cut: Path) -> None:
    assert saved_in(cut)["about"]["key_kinds"] == {"id": ["integer", "id"], "same": ["integer", "same"]}


def test_a_script_may_begin_with_a_look_at_it(trainer: pslib.Trainer, cut: Path, examples: str) -> None:
    known = counts_in(trainer)[1]
    assert 0 < known < EPOCHS * ROWS
    result = trainer.evaluate(examples)
    assert (trainer.evaluate(examples), counts_in(trainer)[1]) == (result, known)
    with cluster_of(1, timing=QUICK) as running:
        anew = counting(running.join())
        anew.load(cut, resume=False)
        assert anew.evaluate(examples) == result


def test_predictions_of_data_without_a_label_are_a_look_too(
    trainer: pslib.Trainer, examples: str, tmp_path: Path
) -> None:
    pq.write_table(pq.read_table(examples).drop(["label"]), tmp_path / "new.parquet")
    assert trainer.evaluate(tmp_path / "new.parquet", predictions=tmp_path / "out").examples == ROWS


def test_a_script_that_has_looked_at_it_does_not_train_on(trainer: pslib.Trainer, examples: str) -> None:
    """Its applied examples are unknown: some would count twice, or not at all."""
    trainer.evaluate(examples)
    known = counts_in(trainer)[1]
    with pytest.raises(ConfigurationError, match=r"fit: the script began with a look at its checkpoint"):
        trainer.fit(examples, epochs=EPOCHS)
    assert counts_in(trainer)[1] == known


def test_nor_does_it_save_what_it_has_looked_at(
    trainer: pslib.Trainer, examples: str, tmp_path: Path
) -> None:
    """The copy would say nothing of the examples that count already."""
    trainer.evaluate(examples)
    with pytest.raises(ConfigurationError, match=r"save: the script began .* or load with resume=False$"):
        trainer.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_it_trains_again_when_it_has_loaded_all_rows_anew(
    trainer: pslib.Trainer, cut: Path, examples: str
) -> None:
    trainer.evaluate(examples)
    trainer.load(cut, tables=["counts"])  # that is not all of it
    with pytest.raises(ConfigurationError, match="fit: the script began with a look"):
        trainer.fit(examples)
    trainer.load(cut, resume=False)
    known = counts_in(trainer)[1]
    trainer.fit(examples)
    assert counts_in(trainer)[1] == known + ROWS


def test_a_script_that_goes_on_looks_only_where_the_checkpoints_did(
    trainer: pslib.Trainer, examples: str
) -> None:
    trainer.fit(examples, epochs=EPOCHS)
    assert counts_in(trainer)[1] == EPOCHS * ROWS
    trainer.evaluate(examples)  # that is new to it
    trainer.fit(examples)
    assert counts_in(trainer)[1] == (EPOCHS + 1) * ROWS


def test_a_checkpoint_of_a_script_that_looked_first_is_gone_on_with(examples: str, tmp_path: Path) -> None:
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=10, keep_last=1)
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join(), stop_after(50, tmp_path / "saved"), checkpoint=every)
        first = trainer.evaluate(examples)
        with pytest.raises(StopError):
            trainer.fit(examples, epochs=EPOCHS)
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join())
        trainer.load(tmp_path / "saved")
        assert trainer.evaluate(examples) == first
        trainer.fit(examples, epochs=EPOCHS)
        assert counts_in(trainer)[1] == EPOCHS * ROWS
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join())
        trainer.load(tmp_path / "saved")
        others = write_examples(tmp_path / "others.parquet", 40)
        with pytest.raises(ConfigurationError, match=r"other data or settings; .* \(to look at it, too\)$"):
            trainer.evaluate(others)


def sessions(folder: Path) -> Path:
    """A job of sessions with a checkpoint; its path."""
    circle = pa.array([[1, 2, 3], [2, 3, 1]] * 8)
    pq.write_table(pa.table({"items": circle}), folder / "train.parquet")
    pq.write_table(pa.table({"before": circle, "next": [1, 2] * 8}), folder / "test.parquet")
    pq.write_table(pa.table({"items": circle, "item": [1, 2] * 8}), folder / "items.parquet")
    (folder / "job.yaml").write_text(SESSIONS)
    job = read_job(folder / "job.yaml")
    with pslib.connect() as cluster:
        trained = make_trainer(job, cluster)
        trained.fit(job.data.train, epochs=2)
        trained.save(folder / "saved")
    return folder / "job.yaml"


def test_commands_take_a_checkpoint_of_an_unfinished_fit_as_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(sessions(tmp_path))
    place, said = tmp_path / "saved", []
    for before in (None, (), ("rank",)):
        if before is not None:
            unfinished(place, *before)
        with_checkpoint = [job, "--checkpoint", str(place)]
        assert main(["eval", *with_checkpoint]) == 0
        assert main(["recommend", *with_checkpoint, "--out", str(tmp_path / "best")]) == 0
        asked = ["vectors", str(place), "item", "--data", str(tmp_path / "train.parquet"), "--overwrite"]
        assert main([*asked, "--out", str(tmp_path / "vectors.parquet")]) == 0
        files = [*sorted((tmp_path / "best").iterdir()), tmp_path / "vectors.parquet"]
        said.append((capsys.readouterr().out, [pq.read_table(file) for file in files]))
    assert said[0] == said[1] == said[2]


def test_so_does_a_click_models_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "train.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    job = read_job(tmp_path / "job.yaml")
    with pslib.connect() as cluster:
        trained = make_trainer(job, cluster)
        trained.fit(job.data.train)
        trained.save(tmp_path / "saved")
    command, said = ["eval", str(tmp_path / "job.yaml"), "--checkpoint", str(tmp_path / "saved")], []
    for before in ((), ("evaluate",), ()):
        assert main(command) == 0
        said.append(capsys.readouterr().out)
        unfinished(tmp_path / "saved", *before)
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("look", ["rank", "recommend", "export_vectors"])
def test_ranking_and_its_like_are_looks_too(look: str, tmp_path: Path) -> None:
    """They stand where the fit under way began, and not where its script did."""
    sessions(tmp_path)
    place = unfinished(tmp_path / "saved", "fit")
    test, items = tmp_path / "test.parquet", tmp_path / "items.parquet"
    with pslib.connect() as cluster:
        model = GRU4Rec(pslib.Schema(label=None, ragged=["items"]), dim=4, negatives=4)
        trainer = pslib.Trainer(model, cluster, progress=False)
        trainer.load(place)
        assert trainer._epochs == 0
        if look == "rank":
            assert trainer.rank(test, items, history="before", target="next").examples == 16
        elif look == "recommend":
            trainer.recommend(test, items, tmp_path / "out", history="before")
        else:
            trainer.export_vectors(items, tmp_path / "out")
        assert trainer._epochs == 2
        with pytest.raises(ConfigurationError, match="fit: the script began with a look"):
            trainer.fit(tmp_path / "train.parquet")
