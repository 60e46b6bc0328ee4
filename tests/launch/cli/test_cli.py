"""The command line: one line for every mistake, documented exit codes, nothing changed by bad input."""

import errno
import fcntl
import json
import os
import re
import socket
from math import nan
from pathlib import Path

import pyarrow as pa
import pytest

from launch.cli import main as command_line
from launch.cli.errors import COMMANDS
from launch.cli.main import main, version_command
from launch.job.job import read_job
from launch.job.preflight import check_data, check_save, prepare_out
from launch.runs.train import _check
from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import ConfigurationError, DataError, WaitTimeoutError
from pslib.metrics.metrics import EvalResult
from tests.support.job_folder import JOB, ROWS, refused, save, table

# --- the command line itself ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "no such command: trian (did you mean train?); see pslib --help"),
        (["xyz"], "no such command: xyz (choose from train, launch,"),
        (["score", "job.yaml"], "(did you mean predict?); see pslib --help"),
        (["checkpoint", "verfy"], "(did you mean verify?); see pslib checkpoint --help"),
        (["launch", "--on", "locl", "x.py"], "(did you mean local?); see pslib launch --help"),
        (
            ["train", "job.yaml", "--out", ""],
            "--out: expected a path, got ''; write '.' for the current folder; see pslib train --help",
        ),
        (["demo", "--out="], "--out: expected a path, got ''; write '.' for the current folder"),
        (["train"], "missing argument CONFIG; see pslib train --help"),
        (
            ["train", "job.yaml", "--trainers", "two"],
            "--trainers: 'two' is not a valid integer; see pslib train",
        ),
        (
            ["train", "job.yaml", "--trainer", "2"],
            "no such option: --trainer (did you mean --trainers?); see pslib train",
        ),
        (["launch", "--server=2", "s.py"], "no such option: --server (did you mean --servers?)"),
        (["train", "job.yaml", "--epochs", "2"], "--epochs (did you mean --set training.epochs=...?); see"),
        (["train", "job.yaml", "--batch-size=9"], "(did you mean --set training.batch_rows=...?); see"),
        (
            ["train", "job.yaml", "--lr", "0.1"],
            "did you mean --set 'optimizers.rows={name: Adagrad, learning_rate: ...}', and optimizers.dense",
        ),
        (
            ["train", "job.yaml", "--weight-decay=1"],
            "--set 'optimizers.rows={name: Adagrad, weight_decay: ...}'",
        ),
        (["train", "job.yaml", "--by", "time"], "--by (did you mean --set data.test_by=...?); see"),
        (["nearest", "saved", "item", "50", "--among=a"], "--among (did you mean --data?); see"),
        (["launch", "--epochs", "2", "s.py"], "no such option: --epochs; see pslib launch --help"),
        (
            ["train", "job.yaml", "a", "--wxyz"],
            "no such option: --wxyz; see pslib train --help",
        ),
        (
            ["vectors", "movies.yaml", "--checkpoint", "saved", "--out", "vectors", "--side", "item"],
            "no such option: --checkpoint; the form is now: pslib vectors CHECKPOINT FIELD --data PATH ",
        ),
        (["train", "job.yaml", "a"], "got unexpected extra argument (a); see pslib train --help"),
        (
            ["train", "job.yaml", "--overwrite", "--resume"],
            "--overwrite is not allowed with --resume: leave one of them out",
        ),
        (["plan", "--rows", "5", "--parameters", "5"], "expected one of --rows and --parameters; see pslib"),
        (["checkpoint", "ls", "--jsn", "a"], "(did you mean --json?); see pslib checkpoint ls --help"),
        (["train", "job.yaml", "--port", "65536"], "--port: 65536 is not in the range 0<=x<=65535; see"),
        (["eval"], "missing argument RUN; see pslib eval --help"),
        (["eval", "run", "--data", "a"], "no such option: --data; the form is now: pslib eval RUN DATA, wh"),
        (
            ["convert", "xml", "a", "b"],
            "no such command: xml (choose from criteo, csv, jsonl, libffm, libsvm, sessions)",
        ),
        (
            ["launch", "--on", "moon", "x.py"],
            "--on: 'moon' is not one of 'local', 'ray', 'slurm', 'ssh'; see pslib launch --help",
        ),
        (["launch", "/no/such/script.py"], "/no/such/script.py: no such script"),
        (["launch", "none.yaml"], "none.yaml: no such script"),
        (["launch", "--on", "ssh", "job.yaml"], "job.yaml: expected a Python script; pslib train runs"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_64(arguments, words, capsys):
    (line,) = refused(capsys, *arguments)
    assert words in line


@pytest.mark.parametrize("word", COMMANDS)
def test_a_word_of_another_tool_is_told_the_command_that_there_is(word, capsys):
    (line,) = refused(capsys, word)
    assert f"(did you mean {COMMANDS[word]}?)" in line


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_is_printed(asked, capsys):
    assert main([asked]) == 0
    assert capsys.readouterr().out.startswith("pslib 0.")


def test_our_own_fault_is_one_line_with_a_log_file_and_exit_code_70(capsys, monkeypatch, tmp_path):
    def broken(as_json: bool) -> int:
        raise ZeroDivisionError("an accident")

    monkeypatch.setattr(version_command, "callback", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (line,) = refused(capsys, "version", code=70)
    assert line.startswith("our own fault: ZeroDivisionError: an accident; details in ")
    assert "Traceback" in Path(line.rpartition(" ")[2]).read_text()
    monkeypatch.setenv("PSLIB_DEBUG", "1")
    assert main(["version"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_no_fault_of_ours(capsys, monkeypatch):
    def full(as_json: bool) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forbidden(as_json: bool) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/job.yaml")

    monkeypatch.setattr(version_command, "callback", full)
    assert refused(capsys, "version") == ["can't write: No space left on device"]
    monkeypatch.setattr(version_command, "callback", forbidden)
    assert refused(capsys, "version") == ["runs/job.yaml: Permission denied"]


def test_ctrl_c_is_exit_code_130_and_an_error_of_ours_its_own(capsys, monkeypatch):
    def interrupted(as_json: bool) -> int:
        raise KeyboardInterrupt

    def late(as_json: bool) -> int:
        raise WaitTimeoutError("waited 60 s for server 1")

    monkeypatch.setattr(version_command, "callback", interrupted)
    assert main(["version"]) == 130
    with monkeypatch.context() as early:  # or while it reads its arguments
        early.setattr(command_line.cli, "make_context", lambda *_: interrupted(False))
        assert main(["version"]) == 130
    monkeypatch.setattr(version_command, "callback", late)
    assert refused(capsys, "version", code=69) == ["waited 60 s for server 1"]


# --- bad input is told before anything starts, and changes nothing ---


@pytest.mark.parametrize("name", ["job.yaml", "job.yml"])
def test_a_job_file_in_place_of_a_script_is_told_what_runs_it(name, tmp_path, capsys):
    (tmp_path / name).write_text(JOB)
    said = f"{tmp_path / name}: expected a Python script; pslib train runs a job file"
    assert refused(capsys, "launch", tmp_path / name) == [said]


def test_all_mistakes_of_a_job_are_one_line_each(folder, capsys):
    lines = refused(capsys, "train", folder / "job.yaml", "--servers", 0, "--set", "model.dimm=3")
    assert lines == [
        "cluster.servers: expected >= 1, got 0",
        "model.dimm: unknown key, did you mean 'dim'?",
    ]


def test_a_missing_job_file_is_one_line(tmp_path, capsys):
    (line,) = refused(capsys, "train", tmp_path / "none.yaml")
    assert line == f"{tmp_path}/none.yaml: no such file; expected a job file (YAML)"


BAD_DATA = {
    "missing file": ("data.train=none.parquet", "none.parquet: no such file or folder"),
    "a test of another type": (
        "data.test=numbered.parquet",
        "numbered.parquet: column 'user' is integer, but string in",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD_DATA))
def test_bad_data_is_one_line_and_leaves_no_folder(case, folder, capsys):
    """Faults inside data files are covered in tests/data/test_messy_data.py."""
    save(folder, "numbered.parquet", user=pa.array(range(ROWS)))
    override, words = BAD_DATA[case]
    (line,) = refused(capsys, "train", folder / "job.yaml", "--set", override)
    assert words in line
    assert not (folder / "run").exists()


@pytest.mark.parametrize("kind", [pa.bool_(), pa.uint8(), pa.int64(), pa.float32(), pa.float64()])
def test_labels_of_every_type_are_checked(kind, folder, capsys):
    labels = table().column("click").cast(pa.int64()).to_pylist()
    labels = [bool(label) for label in labels] if kind == pa.bool_() else labels
    save(folder, "train.parquet", click=pa.array(labels, kind))
    check_data(read_job(folder / "job.yaml"))
    save(folder, "train.parquet", click=pa.array([*labels[:7], None, *labels[8:]], kind))
    with pytest.raises(
        DataError, match=r"row 7 \(from 0\) in row group 0, column 'click': a label is 0 or 1, got null"
    ):
        check_data(read_job(folder / "job.yaml"))


def test_problems_of_all_files_are_told_at_once(folder, capsys):
    lines = refused(
        capsys, "train", folder / "job.yaml", "--set", "data.valid=v.parquet", "--set", "data.test=t.parquet"
    )
    assert len(lines) == 2


def test_a_run_that_goes_on_keeps_its_folder(tmp_path):
    """A second one in it would remove the records and logs of the first."""
    (tmp_path / "metrics.jsonl").write_text("of the first")
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    for how, words in (
        ({"overwrite": True}, "a run goes on in .*: end it, or give another --out"),
        ({"overwrite": False, "resume": True}, "--resume: the run in .* goes on: wait for it, or end it"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            prepare_out(tmp_path, **how)
    assert (tmp_path / "metrics.jsonl").read_text() == "of the first"
    os.close(first)
    for _again in range(2):  # one process may have several runs in a folder, one after the other
        prepare_out(tmp_path, overwrite=True)
    second = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


def test_a_run_that_replaces_another_leaves_no_checkpoint_of_it_to_resume_from(tmp_path):
    ours = ("checkpoint", "checkpoint-unfinished", "best")
    for name in (*ours, "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in ("metrics-0.jsonl", "metrics-mine.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match="holds an earlier run"):
        prepare_out(tmp_path, overwrite=False)
    prepare_out(tmp_path, overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "metrics-mine.jsonl", "mine"]


def test_the_demonstration_removes_nothing_that_is_not_its_own(tmp_path, capsys):
    mine = tmp_path / "checkpoint" / "mine.pt"
    mine.parent.mkdir()
    mine.touch()
    for _again in range(2):
        (line,) = refused(capsys, "demo", "--out", tmp_path)
        assert line == (
            f"--out: {tmp_path} holds checkpoint, which no demonstration has made: give another --out"
        )
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    assert mine.exists()


def test_the_job_file_of_a_resumed_run_may_be_resumed_again(folder):
    """The job file names where the resumed run began: in its own folder, where no other run may begin."""
    job = read_job(folder / "job.yaml", [f"load.path={folder / 'run' / 'checkpoint-unfinished'}"])
    _check(job, None, resume=True)
    with pytest.raises(ConfigurationError, match=r"lies in .*run, where this run puts its own files"):
        _check(job, None, resume=False)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/checkpoint"])
def test_a_checkpoint_that_could_not_be_written_is_refused_before_the_training(place, folder, capsys):
    (folder / "file").write_text("in the way")
    (line,) = refused(capsys, "train", folder / "job.yaml", "--set", f"checkpoint.path={place}")
    assert re.fullmatch(r"checkpoint.path: /\S+ can't be written to: .+; give another, or leave it out", line)
    assert not (folder / "run").exists()


def test_the_trial_of_a_checkpoints_place_leaves_nothing(tmp_path):
    (tmp_path / "there").mkdir()
    job = {"data": {"train": "x", "schema": {"label": "click", "sparse": ["user"]}}, "model": {"name": "lr"}}
    for place in ("there", "there/a/b"):
        (tmp_path / "job.yaml").write_text(json.dumps(job | {"checkpoint": {"path": place}}))
        check_save(read_job(tmp_path / "job.yaml"))
        assert list((tmp_path / "there").iterdir()) == []


def test_an_output_that_cannot_be_made_is_one_line(folder, capsys):
    (folder / "file").write_text("in the way")
    (line,) = refused(capsys, "train", folder / "job.yaml", "--out", folder / "file")
    assert line == f"out: {folder}/file can't be made: it is a file; give another --out"
    (line,) = refused(capsys, "train", folder / "job.yaml", "--out", folder / "file" / "deeper")
    assert line == f"out: {folder}/file/deeper can't be made: Not a directory; give another --out"


def test_an_output_that_cannot_be_written_is_one_line(folder, capsys, monkeypatch):
    (folder / "run").mkdir()

    def refuse(dir: Path) -> None:  # root may write anywhere, but not on a disk that is read-only
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("pslib.storage.tempfile.TemporaryFile", refuse)
    (line,) = refused(capsys, "train", folder / "job.yaml")
    assert line == f"out: {folder}/run can't be written to: Read-only file system; give another --out"


def test_a_checkpoint_that_is_not_there_is_one_line(folder, capsys):
    (line,) = refused(capsys, "eval", folder / "job.yaml", "--checkpoint", folder / "none")
    assert f"{folder}/none" in line


def test_evaluating_on_nothing_is_one_line(folder, capsys):
    arguments = ("eval", folder / "job.yaml", "--checkpoint", folder, "--set", "data.test=")
    assert refused(capsys, *arguments) == [
        "nothing to evaluate on: give DATA, or data.test or data.test_share in the job file"
    ]


def test_a_model_of_clicks_ranks_no_items(folder, capsys):
    arguments = ("recommend", folder / "job.yaml", "--checkpoint", folder, "--out", folder / "best")
    assert refused(capsys, *arguments) == [
        "DeepFM predicts clicks and ranks no items: pslib eval evaluates it"
    ]
    assert not (folder / "best").exists()


def test_a_port_in_use_is_one_line(folder, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (line,) = refused(capsys, "train", folder / "job.yaml", "--quiet", "--port", taken.getsockname()[1])
    assert "Address already in use; choose another" in line
    assert not (folder / "run").exists()


@pytest.mark.parametrize(("positives", "label"), [(0, 0), (7, 1)])
def test_figures_of_examples_of_one_class_say_why_there_is_no_auc(
    folder, capsys, monkeypatch, positives, label
):
    result = EvalResult(7, positives, nan, 0.25, nan if label == 0 else 0.5)
    monkeypatch.setattr("launch.worker.train_job.evaluate_checkpoint", lambda *_: result)
    assert main(["eval", str(folder / "job.yaml"), "--checkpoint", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"AUC         - (every label is {label}: no pair to put in order)\n" in said
    assert f"calibration {'-' if label == 0 else '0.5000'}\n" in said
    assert main(["eval", str(folder / "job.yaml"), "--checkpoint", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["examples"], told["positives"], told["auc"]) == (7, positives, None)


def test_a_checkpoint_is_looked_at_in_a_cluster_of_its_own_whatever_the_environment_names(
    folder, capsys, monkeypatch
):
    """The command joined the cluster of a notebook in the same shell, and loaded the checkpoint there."""
    job, saved = str(folder / "job.yaml"), str(folder / "run" / "checkpoint")
    assert main(["train", job]) == 0
    capsys.readouterr()
    monkeypatch.setenv(COORDINATOR_VARIABLE, "tcp://127.0.0.1:1")
    monkeypatch.setenv(CLUSTER_ID_VARIABLE, "another")
    assert main(["eval", job, "--checkpoint", saved]) == 0
    assert "AUC" in capsys.readouterr().out
    assert os.environ[CLUSTER_ID_VARIABLE] == "another"
