"""Data and checkpoints in an S3 server, through pyarrow and sockets."""

from __future__ import annotations

import json
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
from pslib.checkpoint import manifest
from pslib.checkpoint.manifest import commit, open_folder, read_manifest
from pslib.data.dataset import ParquetData
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import CheckpointError, ConfigurationError, DataError
from pslib.storage import below, parent_and_name, shown, with_inner
from pslib.trainer.evaluation.predictions import PartFiles
from rec_models.deepfm import DeepFM
from tests.support.checkpoints import GOLDEN, content_of
from tests.support.clusters import Trainers, cluster_of
from tests.support.processes.s3_server import BUCKET, BreakingProxy, S3Server, s3_server

CONFIG = GeneratorConfig(
    train_rows=300, test_rows=60, seed=3, vocabularies=(7, 60), dense_fields=1, row_group_rows=100
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def data(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """The same files on this machine and in the bucket, below ``data/``."""
    made = generate(tmp_path_factory.mktemp("local"), CONFIG)
    server.filesystem.create_dir(f"{BUCKET}/data/train")
    for path in (Path(made.train_path), Path(made.test_path)):
        with server.filesystem.open_output_stream(f"{BUCKET}/data/train/{path.name}") as stream:
            stream.write(path.read_bytes())
    return made


@contextmanager
def one_trainer(servers: int, dim: int = 3) -> Iterator[pslib.Trainer]:
    with cluster_of(servers) as running:
        yield trainer_on(running, dim)


def trainer_on(running: Trainers, dim: int = 3) -> pslib.Trainer:
    model = DeepFM(generated_schema(CONFIG), dim=dim, hidden=(3,))
    return pslib.Trainer(model, running.join(), batch_rows=64, staleness=0, seed=2, progress=False)


def copied(server: S3Server, path: str, to: Path) -> Path:
    """The files of a folder of the bucket."""
    to.mkdir(parents=True)
    for name in server.names(path):
        with server.filesystem.open_input_stream(f"{BUCKET}/{path}/{name}") as stream:
            (to / name).write_bytes(stream.read())
    return to


def test_parquet_in_a_bucket_is_the_data_that_it_is_on_a_disk(server: S3Server, data: Generated) -> None:
    schema = generated_schema(CONFIG)
    here = ParquetData([data.test_path, data.train_path], schema)
    folder = ParquetData(server.uri("data/train"), schema)
    files = ParquetData(
        [server.uri(f"data/train/{Path(p).name}") for p in (data.test_path, data.train_path)], schema
    )
    assert folder.fingerprint == files.fingerprint == here.fingerprint
    assert [group.rows for group in folder.row_groups] == [group.rows for group in here.row_groups]
    with pytest.raises(DataError, match=r"s3://\*\*\*@bucket/data/none\?.*: no such file or folder"):
        ParquetData(server.uri("data/none"), schema)


def test_a_training_that_resumes_from_a_bucket_gets_the_bits_of_one_that_never_stopped(
    server: S3Server, data: Generated, tmp_path: Path
) -> None:
    train = f"data/train/{Path(data.train_path).name}"
    with one_trainer(2) as trainer:
        trainer.fit(server.uri(train))
        assert trainer.save(server.uri("run/one")) == server.uri("run/one")
        trainer.fit(data.train_path)
        trainer.save(tmp_path / "through")
    with cluster_of(3, shard_threads=2, partition_bits=6) as running:
        trainer = trainer_on(running)
        trainer.load(server.uri("run/one"))
        trainer.fit(server.uri(train))
        trainer.save(tmp_path / "resumed")
    assert content_of(tmp_path / "resumed") == content_of(tmp_path / "through")


def test_the_last_n_are_kept_in_a_bucket(server: S3Server, data: Generated, tmp_path: Path) -> None:
    with one_trainer(2) as trainer:
        for _ in range(3):
            trainer.fit(data.test_path)
            last = trainer.save(server.uri("kept"), keep_last=2)
        assert last == server.uri("kept/checkpoint-000003")
        trainer.load(server.uri("kept"))
        trainer.save(tmp_path / "again")
    assert server.names("kept/checkpoint-000001") == []
    assert len(server.names("kept/checkpoint-000002")) == len(server.names("kept/checkpoint-000003")) == 5
    assert content_of(tmp_path / "again") == content_of(
        copied(server, "kept/checkpoint-000003", tmp_path / "3")
    )


def test_of_an_earlier_call_with_more_data_no_part_stays_in_a_bucket(server: S3Server) -> None:
    files = PartFiles("predictions", server.uri("parts"), [])
    for lease in range(3):
        files.write_table(lease, pa.table({"prediction": [0.5]}))
    PartFiles("predictions", server.uri("parts"), []).begin(1)
    assert server.names("parts") == ["part-000000.parquet"]


def test_data_in_a_bucket_is_not_replaced(server: S3Server) -> None:
    place = server.uri("mine/part-000000.parquet")
    pq.write_table(pa.table({"a": [1]}), "bucket/mine/part-000000.parquet", filesystem=server.filesystem)
    with pytest.raises(ConfigurationError, match="holds data that is read"):
        PartFiles("predictions", server.uri("mine/"), [place])
    with pytest.raises(
        ConfigurationError, match=r"s3://\*\*\*@bucket/mine.* no earlier call of this"
    ) as told:
        PartFiles("predictions", server.uri("mine"), [])
    assert "secret" not in str(told.value)
    assert server.names("mine") == ["part-000000.parquet"]


def test_the_commands_work_on_a_bucket(
    server: S3Server, data: Generated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with one_trainer(2) as trainer:
        trainer.fit(data.test_path)
        trainer.save(server.uri("tools/a"))
        trainer.save(tmp_path / "b")
    assert main(["checkpoint", "ls", server.uri("tools"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert found["state"] == "complete"
    assert found["path"].startswith("s3://***@bucket/tools/a?endpoint_override=")
    assert main(["checkpoint", "verify", server.uri("tools/a")]) == 0
    assert main(["checkpoint", "diff", server.uri("tools/a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal"
    out = server.uri("tools/out")
    assert main(["export", server.uri("tools/a"), "--to", "parquet", "--out", out]) == 0
    assert server.names("tools/out") == ["dense.parquet", "embedding-000.parquet", "embedding-001.parquet"]
    assert "secret" not in capsys.readouterr().out


def test_what_is_said_of_data_in_a_bucket_shows_no_keys(
    server: S3Server, data: Generated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = server.uri("data/train")
    for command in (["data", "check", place], ["describe", place, "--label", "label"]):
        assert main(command) == 0
        told = capsys.readouterr().out
        assert f"s3://***@bucket/data/train/{data.test_path.name}?" in told
        assert "secret" not in told


def test_a_save_that_fails_midway_leaves_no_manifest(server: S3Server, data: Generated) -> None:
    """The connection to the store breaks after 20,000 bytes, of about 40,000; the training goes on."""
    proxy = BreakingProxy(server.port, 20_000)
    with one_trainer(2, dim=16) as trainer:
        trainer.fit(data.train_path)
        with pytest.raises(CheckpointError, match=r"s3://\*\*\*@bucket/broken.*can't write") as caught:
            trainer.save(server.uri("broken", proxy.port))
        assert proxy.broken
        assert "secret" not in str(caught.value)
        assert "manifest.json" not in server.names("broken")
        with pytest.raises(CheckpointError, match=r"no manifest\.json there"):
            trainer.load(server.uri("broken"))
        trainer.save(server.uri("broken"))
    assert "manifest.json" in server.names("broken")
    proxy.close()


def test_a_saver_that_stood_still_leaves_the_checkpoint_of_its_heir_in_a_bucket(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, known = server.uri("stale"), read_manifest(str(GOLDEN))
    filesystem, root = open_folder(place)
    savers = []
    for token in ("0000aaaa", "0000bbbb"):
        files = [replace(one, name=one.name.replace("00000001", token)) for one in known.files]
        savers.append(replace(known, files=files, saved_utc=token))
        for old, new in zip(known.files, files, strict=True):
            with filesystem.open_output_stream(f"{root}/{new.name}") as stream:
                stream.write((GOLDEN / old.name).read_bytes())
    stale, successor = savers
    look = manifest._check_there

    def stands_still(*details: Any) -> None:
        monkeypatch.undo()
        commit(place, successor)
        look(*details)

    monkeypatch.setattr(manifest, "_check_there", stands_still)
    with pytest.raises(CheckpointError, match=r"expected .*0000aaaa.* another save") as caught:
        commit(place, stale)
    assert "secret" not in str(caught.value)
    assert read_manifest(place).saved_utc == "0000bbbb"
    assert content_of(copied(server, "stale", tmp_path / "here")) == content_of(GOLDEN)


# --- names


def test_names_are_added_before_the_query_of_a_uri() -> None:
    uri = "s3://key:secret@bucket/a/b?endpoint_override=host:1&scheme=http"
    assert below(uri, "c") == "s3://key:secret@bucket/a/b/c?endpoint_override=host:1&scheme=http"
    assert below("/a/b/", "c") == "/a/b/c"
    assert below("/a?b", "c") == "/a?b/c"
    assert parent_and_name(uri) == ("s3://key:secret@bucket/a?endpoint_override=host:1&scheme=http", "b")
    assert parent_and_name("/a/b") == ("/a", "b")
    assert with_inner(uri, "bucket/a/b", "bucket/a/b/c/d").startswith("s3://key:secret@bucket/a/b/c/d?")
    assert shown(uri) == "s3://***@bucket/a/b?endpoint_override=host:1&scheme=http"
    assert shown("/home/me@host/x") == "/home/me@host/x"


def test_a_uri_that_can_not_be_read_is_told_without_its_keys() -> None:
    place = "s3://key:secret@bucket/my scores"
    told = r"s3://\*\*\*@bucket/my scores.*can't be (made|opened).*Cannot parse URI: 's3://\*\*\*@bucket/my "
    for call in (lambda: PartFiles("predictions", place, []), lambda: FileWatch(place, StreamSettings())):
        with pytest.raises((ConfigurationError, DataError), match=told) as caught:
            call()
        assert "secret" not in str(caught.value)
