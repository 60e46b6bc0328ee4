"""`pslib export`: one door for all formats, and a line for what can't be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.cli.export import export_command
from launch.cli.main import main
from rec_models import DeepFM
from rec_models.export.formats import FORMATS
from tests.support.job_folder import refused
from tests.support.models.zoo import CLICKS, Trained


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trained = Trained(tmp_path_factory.mktemp("clicks"), DeepFM(CLICKS, dim=4, hidden=(8,)))
    trained.run()
    return trained


def test_each_format_is_written_and_its_files_are_said(
    clicks: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for to, more in {
        "onnx": [],
        "numpy": [],
        "parquet": ["--state", "--columns"],
        "faiss": ["--field", "movie", "--data", str(clicks.train)],
    }.items():
        out = tmp_path / (f"{to}.npz" if to == "numpy" else to)
        assert main(["export", clicks.checkpoint, "--to", to, "--out", str(out), *more, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["to"] == to
        assert said["files"]
        assert all(Path(one).exists() for one in said["files"])
        assert main(["export", clicks.checkpoint, "--to", to, "--out", str(out), *more]) == 64
        assert "exists already" in capsys.readouterr().err
        assert main(["export", clicks.checkpoint, "--to", to, "--out", str(out), *more, "--overwrite"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == said["files"]


def test_the_command_knows_each_format() -> None:
    (to,) = (one for one in export_command.params if one.name == "to")
    assert list(to.type.choices) == list(FORMATS)  # type: ignore[attr-defined]


def test_what_does_not_fit_is_said_in_a_line(
    clicks: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "x")]
    for words, told in (
        (
            [clicks.checkpoint, "--to", "tensorrt"],
            "--to: 'tensorrt' is not one of 'onnx', 'numpy', 'parquet'",
        ),
        ([clicks.checkpoint, "--to", "onnx", "--state"], "--state is of --to parquet alone"),
        ([clicks.checkpoint, "--to", "numpy", "--field", "movie"], "--field is of --to faiss alone"),
        ([clicks.checkpoint, "--to", "faiss"], "--data: expected where the items or values are, got none"),
        (
            [str(tmp_path), "--to", "onnx"],
            f"{tmp_path}: no manifest.json there; a checkpoint is a folder with one",
        ),
    ):
        (line,) = refused(capsys, "export", *words, *out)
        assert told in line
    assert not (tmp_path / "x").exists()
