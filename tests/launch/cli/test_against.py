"""`pslib eval --against`: the predictions of a server beside those of a checkpoint, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.main import main
from tests.support.job_folder import refused
from tests.support.model_server import Client, served
from tests.support.models.zoo import Trained


@pytest.fixture(scope="module")
def client(trained: Trained) -> Iterator[Client]:
    with served({"m": trained.checkpoint}) as found:
        yield found


@pytest.fixture
def command(client: Client, trained: Trained, tmp_path: Path) -> list[str]:
    """Arguments that compare the model with the server."""
    job = {
        "data": {"train": str(trained.train), "schema": {"label": "click", "sparse": ["user"]}},
        "model": {"name": "deepfm"},
        "out": str(tmp_path / "run"),
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    url = f"http://127.0.0.1:{client.port}"
    words = ["eval", str(tmp_path / "job.yaml"), str(trained.test), "--checkpoint", trained.checkpoint]
    return [*words, "--against", url]


def test_a_server_with_the_checkpoint_agrees_with_it(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "100.00 % the same within 1e-5" in said
    assert "AUC " in said
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 90
    assert not told["other_version"]
    assert abs(told["offline"]["auc"] - told["served"]["auc"]) < 1e-6


def test_other_predictions_of_the_same_version_end_with_1(
    command: list[str], client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = client.repository.version("m").batcher
    real = batcher._predict

    def wrong(table: Any) -> Any:
        found = real(table)
        return found._replace(values=np.clip(found.values + np.float32(0.1), 0, 1))

    monkeypatch.setattr(batcher, "_predict", wrong)
    assert main(command) == 1
    assert "has the version of the checkpoint, and other predictions" in capsys.readouterr().out


def test_another_version_is_named_and_no_failure(
    command: list[str], client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.repository.version("m"), "number", "77")
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "has 77 (90 rows)" in said
    assert "another version than the checkpoint's" in said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--against-model", "other"], "model 'other': expected one of m"),
        (["--predictions", "scores"], "--predictions: expected it without --against"),
        (["--label", "price"], "label: expected one of"),
    ],
)
def test_a_wrong_option_is_one_line(
    command: list[str], more: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(capsys, *command, *more)
    assert told in line


def test_a_model_of_a_server_needs_the_server(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, *command[:-2], "--against-model", "m")
    assert line == "--against-model: expected --against with it"
