"""A URI where a folder of this machine is needed: a line, and no folder with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import pslib
from launch.job.job import read_job
from launch.job.preflight import prepare_out
from pslib.errors import ConfigurationError
from pslib.update_log.files import DiskFiles
from rec_models import LR
from tests.support.job_folder import JOB, refused, save

FAR = ("s3://bucket/run", "gs://bucket/run", "hdfs://host:9000/run", "file:///tmp/run", "S3://bucket/run")
WORDS = "{}: expected a local folder, got {}; checkpoint.path may be a URI"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a job file and its data."""
    save(tmp_path, "train.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "script.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUCKET", "s3://bucket")
    return tmp_path


SPELLINGS = [
    (["train", "job.yaml", "--out", "URI"], "out"),
    (["train", "job.yaml", "--set", "out=URI"], "out"),
    (["train", "job.yaml", "--set", "cluster={durability: log, log: 'URI'}"], "cluster.log"),
    (["launch", "--out", "URI", "script.py"], "out"),
    (["launch", "--out", "run", "--durability", "log", "--log", "URI", "script.py"], "--log"),
    (["demo", "--out", "URI"], "out"),
    (["verify", "job.yaml", "--out", "URI"], "out"),
    (["server", "--coordinator", "tcp://127.0.0.1:1", "--cluster-id", "a", "--log", "URI"], "--log"),
]


@pytest.mark.parametrize("uri", FAR)
@pytest.mark.parametrize(
    ("arguments", "name"), SPELLINGS, ids=[f"{one[0]}-{name}-{len(one)}" for one, name in SPELLINGS]
)
def test_commands_refuse_a_uri_before_they_make_anything(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], name: str, uri: str
) -> None:
    before = set(folder.iterdir())
    lines = refused(capsys, *(one.replace("URI", uri) for one in arguments))
    assert lines == [WORDS.format(name, uri)]
    assert set(folder.iterdir()) == before


def test_a_job_file_refuses_uris_in_all_its_local_folders_at_once(folder: Path) -> None:
    job = JOB.replace("out: run", "out: ${BUCKET}/run\ncluster: {durability: log, log: $BUCKET/log}")
    (folder / "job.yaml").write_text(job)
    with pytest.raises(ConfigurationError) as error:
        read_job(folder / "job.yaml")
    names = {"out": "s3://bucket/run", "cluster.log": "s3://bucket/log"}
    assert sorted(error.value.problems) == sorted(WORDS.format(*one) for one in names.items())


def test_a_variable_in_the_folder_of_logs_must_be_set(folder: Path) -> None:
    overrides = ["cluster={durability: log, log: '${NO_SUCH_VARIABLE}/x'}"]
    with pytest.raises(ConfigurationError) as error:
        read_job(folder / "job.yaml", overrides)
    assert error.value.problems == ("cluster.log: the environment variable NO_SUCH_VARIABLE is not set",)
    overrides = ["cluster={durability: log, log: logs}"]
    assert read_job(folder / "job.yaml", overrides).cluster.log == str(folder / "logs")


def test_a_key_in_the_uri_is_not_shown(folder: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        prepare_out("s3://KEY:SECRET@bucket/run", overwrite=False)
    assert str(error.value) == WORDS.format("out", "s3://***@bucket/run")


@pytest.mark.parametrize("uri", FAR)
def test_a_script_s_folders_are_local_too(folder: Path, uri: str) -> None:
    before = set(folder.iterdir())
    with pytest.raises(ConfigurationError) as error:
        pslib.connect(durability="log", log=uri)
    assert str(error.value) == WORDS.format("log", uri)
    schema = pslib.Schema(label="click", sparse=["user"])
    with pslib.connect() as cluster:
        with pytest.raises(ConfigurationError) as error:
            pslib.Trainer(LR(schema), cluster, out=uri, progress=False)
        assert str(error.value) == WORDS.format("out", uri)
        pslib.Trainer(LR(schema), cluster, progress=False)  # nothing of the refused one is left
    assert set(folder.iterdir()) == before


def test_uris_of_checkpoints_may_be_written_in_capitals(folder: Path) -> None:
    job = read_job(folder / "job.yaml", ["checkpoint.path=S3://bucket/saved"])
    assert job.checkpoint.path == "S3://bucket/saved"


LONG = "a" * 255 + "b"
UNUSABLE = [
    ("x\0y", "expected a path, got one with a zero byte: 'x\\x00y'"),
    (f"x/{LONG}/y", f"expected names of up to 255 bytes, got one of 256: {'a' * 20}...; shorten it"),
    ("\u00fc" * 128, f"expected names of up to 255 bytes, got one of 256: {chr(252) * 20}...; shorten it"),
]


@pytest.mark.parametrize("name", ["out", "checkpoint.path", "cluster.log", "load.path"])
@pytest.mark.parametrize(("path", "words"), UNUSABLE)
def test_a_name_that_no_file_system_takes_is_told(folder: Path, name: str, path: str, words: str) -> None:
    changes = {"cluster.durability": "log"} if name == "cluster.log" else {}
    with pytest.raises(ConfigurationError) as error:
        read_job(folder / "job.yaml", changes=changes | {name: path})
    assert error.value.problems == (f"{name}: {words}",)


def test_a_variable_counts_with_what_it_stands_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_LONG_ONE", LONG)
    with pytest.raises(ConfigurationError, match="out: expected names of up to 255 bytes, got one of 256"):
        read_job(folder / "job.yaml", changes={"out": "$A_LONG_ONE"})
    monkeypatch.setenv("A_LONG_ONE", "short")
    longest = "a" * 255
    assert read_job(folder / "job.yaml", changes={"out": f"$A_LONG_ONE/{longest}"}).out.endswith(longest)


def test_of_data_a_zero_byte_is_told_and_a_pattern_may_be_long(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.train: expected a path, got one with a zero byte"):
        read_job(folder / "job.yaml", changes={"data.train": ["train.parquet", "x\0y"]})
    assert read_job(folder / "job.yaml", changes={"data.train": "[a-z]" * 60}).data.train[0].endswith("[a-z]")


@pytest.mark.parametrize("out", ["x\0y", LONG, "a/" * 3000])
def test_a_folder_that_can_not_be_named_is_not_our_own_fault(folder: Path, out: str) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)out: .* can't be made: .*; give another --out"):
        prepare_out(out, overwrite=False)


def test_folders_of_runs_and_of_update_logs_are_for_their_owner_alone(tmp_path: Path) -> None:
    DiskFiles(tmp_path / "log")
    made = prepare_out(str(tmp_path / "run"), overwrite=False)
    for one in (tmp_path / "log", made, made / "logs"):
        assert one.stat().st_mode & 0o777 == 0o700, one
