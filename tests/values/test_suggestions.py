"""Misspelt folders: the existing one that is meant, in messages of every command that takes a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.cli.main import main
from pslib.suggestions import nearest_path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs" / "train" / "checkpoint").mkdir(parents=True)
    (tmp_path / "runs" / "train" / "metrics.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("given", ["run/trian", "rnus/train", "runs/trains/", "./run/train"])
def test_every_part_of_a_path_may_be_misspelt(runs: Path, given: str) -> None:
    assert nearest_path(given) == "runs/train"


def test_an_absolute_path_stays_absolute(runs: Path) -> None:
    assert nearest_path(str(runs / "trian")) == str(runs / "train")


def test_a_job_file_is_meant_too(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("clicks.yaml").touch()
    assert main(["train", "clikcs.yml"]) != 0
    assert "clikcs.yml: no such file; did you mean clicks.yaml?" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["other/train", "runs/xyz", "runs/train/metrics.jsonl", "a\0b"])
def test_no_folder_is_named_where_none_is_near(runs: Path, given: str) -> None:
    assert nearest_path(given) == ""


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "run/trian"],
        ["checkpoint", "ls", "run/trian"],
        ["report", "run/trian"],
        ["doctor", "run/trian"],
        ["logs", "run/trian"],
        ["stop", "run/trian"],
        ["top", "run/trian"],
        ["train", "--resume", "run/trian"],
    ],
)
def test_each_command_on_a_run_names_the_folder_that_is_meant(
    runs: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) != 0
    assert "did you mean runs/train?" in capsys.readouterr().err
