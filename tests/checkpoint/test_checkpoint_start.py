"""With what a training begins: warm starts, some tables only, and what a job file says of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pslib
from launch.cli.main import main
from launch.job.job import Job, read_job
from launch.job.preflight import check_load
from pslib import checkpoint
from pslib.client.client import Client
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import CheckpointError, ConfigurationError
from pslib.table.optimizers import SGD, Adagrad, Adam, Momentum
from pslib.table.policies import ByAge, Compact, Score
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from rec_models.deepfm import DeepFM
from tests.support.checkpoints import content_of, save_tables, table_in
from tests.support.clients import client_of, client_with
from tests.support.clusters import Trainers, cluster_of

CONFIG = GeneratorConfig(
    train_rows=300, test_rows=60, seed=3, vocabularies=(7, 60), dense_fields=1, row_group_rows=250
)


ROWS = {"w_optimizer": Adam(), "v_optimizer": Adagrad()}


def generated_data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("start"), CONFIG)


data = pytest.fixture(generated_data, scope="module")


@contextmanager
def one_trainer(servers: int = 1, hidden: int = 3, **optimizers: object) -> Iterator[pslib.Trainer]:
    with cluster_of(servers) as running:
        yield trainer_on(running, hidden, **optimizers)


def trainer_on(running: Trainers, hidden: int = 3, **optimizers: object) -> pslib.Trainer:
    rows = ROWS | {name: one for name, one in optimizers.items() if name != "dense_optimizer"}
    model = DeepFM(generated_schema(CONFIG), dim=2, hidden=(hidden,), **rows)
    dense = optimizers.get("dense_optimizer", Adam(0.005))
    return pslib.Trainer(
        model, running.join(), batch_rows=64, staleness=0, dense_optimizer=dense, progress=False
    )


# --- warm starts


@pytest.fixture(scope="module")
def saved(data: Generated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_by_a_trainer(tmp_path_factory.mktemp("saved") / "one", data)


def saved_by_a_trainer(folder: Path, data: Generated) -> Path:
    with one_trainer(2) as trainer:
        trainer.fit(data.train_path)
        trainer.save(folder)
    return folder


def weights_of(folder: Path) -> tuple[dict[int, bytes], bytes]:
    """The 3 weights of each row, and those of the dense parameters."""
    content = content_of(folder)
    return {key: row[:12] for key, row in content.rows.items()}, content.dense


def test_a_warm_start_takes_weights_and_begins_state_and_steps_anew(
    data: Generated, saved: Path, tmp_path: Path
) -> None:
    with one_trainer(3) as trainer:
        trainer.load(saved, state=False)
        trainer.save(tmp_path / "warm")
        trainer.fit(data.test_path)
    assert weights_of(tmp_path / "warm") == weights_of(saved)
    content = content_of(tmp_path / "warm")
    for row in content.rows.values():
        assert not np.frombuffer(row[12:], np.float32).any()
    assert not np.frombuffer(content.dense_state, np.float32).any()
    about = json.loads((tmp_path / "warm" / "manifest.json").read_text())["about"]
    assert (about["epochs"], about["steps"]) == (0, 0)


def test_a_warm_start_may_go_on_with_other_optimizers(data: Generated, saved: Path, tmp_path: Path) -> None:
    others = {"w_optimizer": Momentum(), "v_optimizer": SGD(), "dense_optimizer": Adagrad()}
    with one_trainer(2, **others) as trainer:
        with pytest.raises(CheckpointError, match=r"w has .* Adam; .* load\(state=False\) takes the weights"):
            trainer.load(saved)
        trainer.load(saved, state=False)
        trainer.save(tmp_path / "warm")
        trainer.fit(data.train_path)
    assert weights_of(tmp_path / "warm") == weights_of(saved)


def test_rows_alone_go_into_a_model_with_other_dense_parameters(
    data: Generated, saved: Path, tmp_path: Path
) -> None:
    with one_trainer(2, hidden=4) as trainer:
        trainer.fit(data.test_path)
        trainer.save(tmp_path / "before")
        with pytest.raises(CheckpointError, match=r"another model; load\(tables=\[...\]\) takes rows only"):
            trainer.load(saved)
        trainer.load(saved, tables=["embedding"])
        trainer.save(tmp_path / "after")
    before, after = content_of(tmp_path / "before"), content_of(tmp_path / "after")
    assert after.rows == content_of(saved).rows  # with their state
    assert (after.dense, after.dense_state) == (before.dense, before.dense_state)
    abouts = [
        json.loads((path / "manifest.json").read_text())["about"] for path in sorted(tmp_path.iterdir())
    ]
    assert abouts[0]["steps"] == abouts[1]["steps"] > 0


@pytest.mark.parametrize(
    ("tables", "error", "text"),
    [
        (["item"], CheckpointError, r"tables: expected some of this model's, \['embedding'\], got 'item'"),
        ([], ConfigurationError, r"tables: expected a list of names, or None for all, got \[\]"),
        (
            "embedding",
            ConfigurationError,
            r"tables: expected a list of texts or None, got 'embedding': write \['embedding'\]",
        ),
    ],
)
def test_wrong_tables_are_told_in_one_line(
    saved: Path, tables: object, error: type[Exception], text: str
) -> None:
    with cluster_of() as running, pytest.raises(error, match=text) as caught:
        trainer_on(running).load(saved, tables=tables)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


PARTS = (PartSpec("w", 1, SGD()), PartSpec("v", 2, Adagrad()))
KEYS = np.arange(50, dtype=np.uint64)


def push(client: Client, table: str, seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((KEYS.size, 3)).astype(np.float32)
    counts = {table: np.ones(KEYS.size, np.float32)}
    client.push({table: (KEYS, gradients)}, step=9, shows=counts, clicks=counts).wait()


def test_one_of_two_tables_is_loaded_and_the_other_stays(tmp_path: Path) -> None:
    specs = [TableSpec(name, PARTS) for name in ("a", "b")]
    with client_of(1) as (client, _running):
        client.setup(specs, DenseSpec(0, Adam()))
        for table in ("a", "b"):
            push(client, table, 0)
        first = client.pull({"a": KEYS, "b": KEYS}).wait().rows
        place = save_tables(client, tmp_path, *specs)
        for table in ("a", "b"):
            push(client, table, 1)
        second = client.pull({"a": KEYS, "b": KEYS}).wait().rows
        assert client.load(str(place), tables=["b"]) == KEYS.size
        now = client.pull({"a": KEYS, "b": KEYS}).wait().rows
    assert (now["a"] == second["a"]).all()
    assert (now["b"] == first["b"]).all()
    assert (first["b"] != second["b"]).any()


def test_rows_without_state_count_as_seen_when_the_new_training_begins(tmp_path: Path) -> None:
    """Steps of the old training mean nothing in the new one; shows and clicks are the rows' own."""
    spec = TableSpec("a", PARTS, eviction=(ByAge(3),), score=Score(decay=1.0), compact=Compact("v", shows=1))
    with client_with(spec) as client:
        push(client, "a", 0)
        place = save_tables(client, tmp_path / "old", spec)
        client.load(str(place), state=False, step=0)
        save_tables(client, tmp_path / "new", spec)
        client.maintain("a", step=3).wait()
        assert client.stats()["rows"] == KEYS.size
        client.maintain("a", step=4).wait()
        assert client.stats()["rows"] == 0
    row = table_in(next((tmp_path / "new").glob("a.*"))).to_pylist()[0]
    assert (row["last_seen"], row["shows"], row["clicks"], row["v_state"]) == (0, 1, 1, [0, 0])


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_weights_come_without_state_in_every_storage(tmp_path: Path, storage: str) -> None:
    spec = TableSpec("a", PARTS, storage=storage)
    with client_with(spec) as client:
        push(client, "a", 0)
        place = save_tables(client, tmp_path, spec)
    plain = replace(spec, parts=(PARTS[0], replace(PARTS[1], optimizer=Momentum())))
    with client_with(plain, servers=2) as client:
        client.load(str(place), state=False)
        rows = client.pull({"a": KEYS}).wait().rows["a"]
    for row in table_in(next(tmp_path.glob("a.*"))).to_pylist():
        assert rows[row["key"]].tolist() == [*row["w"], *row["v"]]


# --- in a job file

JOB = """\
data:
  train: data/train.parquet
  test: data/test.parquet
  schema: {label: click, dense: [d0], sparse: [f0, f1]}
model: {name: deepfm, dim: 2, hidden: [3]}
training: {batch_rows: 64, staleness: 0}
"""
FITS = "optimizers={rows: {w: {name: Adam}, v: {name: Adagrad}}}"
"""Settings of `trainer_on`."""
COLUMNS = f"data.schema={json.dumps(generated_schema(CONFIG).to_dict())}"
"""Schema of its data."""


def job_of(folder: Path, *settings: str) -> Job:
    (folder / "job.yaml").write_text(JOB)
    return read_job(folder / "job.yaml", settings)


def test_a_job_file_says_where_to_save_how_many_to_keep_and_what_to_begin_with(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        "checkpoint={path: kept, keep_last: 3}",
        "load={path: s3://bucket/run, state: false, tables: [embedding]}",
    )
    assert (job.checkpoint.path, job.checkpoint.keep_last) == (str(tmp_path / "kept"), 3)
    assert job.load is not None
    assert (job.load.path, job.load.state, job.load.tables) == ("s3://bucket/run", False, ("embedding",))
    (tmp_path / "again.yaml").write_text(job.to_yaml())
    again = read_job(tmp_path / "again.yaml")
    assert (again.checkpoint, again.load) == (job.checkpoint, job.load)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.keep_last: expected >= 0, got -1"):
        job_of(tmp_path, "checkpoint.keep_last=-1")
    with pytest.raises(ConfigurationError, match=r"load\.path: is missing"):
        job_of(tmp_path, "load={state: false}")


def test_a_missing_checkpoint_is_told_before_anything_starts(saved: Path, tmp_path: Path) -> None:
    check_load(job_of(tmp_path, f"load.path={saved}", FITS, COLUMNS))
    with pytest.raises(CheckpointError, match=r"load.path: no such folder: .*nowhere; expected"):
        check_load(job_of(tmp_path, "load.path=nowhere"))
    (tmp_path / "checkpoint").symlink_to(saved)
    with pytest.raises(CheckpointError, match=r"no manifest.json there; did you mean .*/checkpoint\?"):
        check_load(job_of(tmp_path, f"load.path={tmp_path}"))
    with pytest.raises(ConfigurationError, match=r"lies in .*run, where this run puts its own files"):
        check_load(job_of(tmp_path, "load.path=run/checkpoint", "out=run"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ([], r"part w has dim 1 and Adam; expected w, dim 1 and Adagrad; load\(state=False\)"),
        ([FITS, "model.dim=4"], "part v has dim 2 and Adagrad; expected v, dim 4 and Adagrad$"),
        (
            [FITS, "model.hidden=[5]"],
            "one, a checkpoint of DeepFM: 23 dense parameters, expected 37: another model; ",
        ),
        ([FITS, "optimizers.dense={name: SGD}"], "dense optimizer: expected SGD, the checkpoint has Adam"),
        (["model={name: lr}"], "one, a checkpoint of DeepFM: table embedding part w has dim 1 and Adam;"),
        ([FITS], "it reads columns I1, C1, C2, got d0, f0, f1; give "),
        ([FITS, COLUMNS, "model.name=wide_deep"], "it is DeepFM, got WideDeep; give .*load.other_model"),
        (["model={name: lr}", "load.state=false"], r"has parts \['w', 'v'\]; expected \['w'\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_told_before_anything_starts(
    saved: Path, data: Generated, tmp_path: Path, settings: list[str], text: str
) -> None:
    with pytest.raises(CheckpointError, match=text) as refusal:
        check_load(job_of(tmp_path, f"load.path={saved}", *settings))
    assert len(str(refusal.value).splitlines()) == 1


def test_what_is_loaded_of_a_checkpoint_is_all_that_has_to_fit(saved: Path, tmp_path: Path) -> None:
    check_load(job_of(tmp_path, f"load.path={saved}", "load.state=false"))
    check_load(job_of(tmp_path, f"load.path={saved}", FITS, "load.tables=[embedding]", "model.hidden=[5]"))
    other = [FITS, "model.name=wide_deep"]
    for meant in ("other_model=true", "state=false", "tables=[embedding]"):
        check_load(job_of(tmp_path, f"load.path={saved}", *other, f"load.{meant}"))


def test_a_run_that_can_not_begin_with_its_checkpoint_starts_no_process(
    saved: Path, data: Generated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"data.train={data.train_path}", f"data.test={data.test_path}", COLUMNS]
    settings += [f"load.path={saved}", FITS, "model.dim=4", "out=run"]
    (tmp_path / "job.yaml").write_text(JOB)
    assert main(["train", str(tmp_path / "job.yaml"), *(x for one in settings for x in ("--set", one))]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "table embedding part v has dim 2 and Adagrad; expected v, dim 4" in line
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_whose_files_lie_on_several_machines_is_none_and_leaves_the_older_one(
    saved: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(saved, folder)
    known = checkpoint.read_manifest(str(folder))
    elsewhere = replace(known.files[0], name=known.files[0].name.replace(".", ".0"))
    files = [elsewhere, *known.files[1:]]
    assert checkpoint.other_tables(str(folder), files, "another")  # a save asks that first
    with pytest.raises(
        CheckpointError, match=r"1 of its \d+ files are not there as .* that folder"
    ) as caught:
        checkpoint.commit(str(folder), replace(known, files=files, saved_utc="later"))
    assert "\n" not in str(caught.value)
    assert checkpoint.read_manifest(str(folder)) == known
    assert all((folder / entry.name).exists() for entry in known.files)

    shutil.copy(folder / known.files[0].name, folder / elsewhere.name)  # brought here from the other machine
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"bring them here, then rename manifest\.incomplete\.json"):
        checkpoint.newest(str(folder))
    (folder / "manifest.incomplete.json").rename(folder / "manifest.json")
    assert content_of(folder) == content_of(saved)


def test_what_is_left_of_a_checkpoint_in_pieces_goes_with_the_next_save(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(saved, folder)
    (folder / "manifest.incomplete.json").write_text("{}")
    checkpoint.commit(str(folder), checkpoint.read_manifest(str(folder)))
    assert not (folder / "manifest.incomplete.json").exists()
